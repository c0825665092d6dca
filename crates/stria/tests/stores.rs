//! Stores that are missing, foreign, swapped, given up and replaced, by the program: nothing is made anew in silence, the
//! files of a lost store answer an error, everything else goes on. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use support::up::Up;
use support::{Cluster, Daemon, can_mount, good, refused, status_that, stria, text};

fn error_of<T: std::fmt::Debug>(done: std::io::Result<T>) -> i32 {
    done.unwrap_err().raw_os_error().unwrap()
}

fn answers_eio(at: &Path) {
    assert_eq!(error_of(fs::read(at)), libc::EIO, "reading {}", at.display());
    let changed = fs::OpenOptions::new().append(true).open(at).and_then(|mut f| {
        std::io::Write::write_all(&mut f, b"x")?;
        f.sync_all()
    });
    assert_eq!(error_of(changed), libc::EIO, "changing {}", at.display());
}

#[test]
fn an_ost_that_is_not_in_its_place_is_said_and_answers_eio_and_the_rest_works() {
    if !can_mount() {
        return;
    }
    for mode in [&["--processes"][..], &[]] {
        let mut up = Up::new();
        up.start(&[&["--osts", "2"], mode].concat());
        up.file_on("here", 0, b"zero");
        up.file_on("there", 1, b"one");
        up.stop();
        let disk = up.dir.path().join("disk");
        for empty in [false, true] {
            fs::rename(up.store("ost1"), &disk).unwrap();
            if empty {
                fs::create_dir(up.store("ost1")).unwrap();
            }
            let said = up.start(mode);
            assert!(said.contains("OST 1: its store is not in") && said.contains("ost replace 1"), "{said}");
            status_that(&up.at(""), |s| s.contains("OST 1: its store is not in") && s.contains("deactivated"));
            assert_eq!(fs::read(up.at("here")).unwrap(), b"zero");
            answers_eio(&up.at("there"));
            for i in 0..4 {
                let name = format!("new{i}");
                fs::write(up.at(&name), b"new").unwrap();
                assert_eq!(up.ost_of(&name), "0", "new files avoid it");
                fs::remove_file(up.at(&name)).unwrap();
            }
            up.stop();
            let (code, said) = up.fsck();
            assert!(code == 4 && said.contains("OST 1: its store is not in"), "{code} {said}");
            let _ = fs::remove_dir(up.store("ost1"));
            assert!(!up.store("ost1").exists(), "nothing was made in its place");
            fs::rename(&disk, up.store("ost1")).unwrap();
        }
        up.start(mode);
        assert_eq!(fs::read(up.at("there")).unwrap(), b"one");
        up.stop();
        let (code, said) = up.fsck();
        assert!(code == 0, "{said}");
    }
}

#[test]
fn stores_in_each_others_places_and_of_other_clusters_get_no_client() {
    if !can_mount() {
        return;
    }
    let (mut a, mut b) = (Up::new(), Up::new());
    for up in [&mut a, &mut b] {
        up.start(&["--osts", "3"]);
        (0..3).for_each(|i| up.file_on(&format!("f{i}"), i, &[i as u8; 5000]));
        up.stop();
    }
    let swap = |one: &Path, two: &Path| {
        let aside = one.with_extension("aside");
        fs::rename(one, &aside).unwrap();
        fs::rename(two, one).unwrap();
        fs::rename(&aside, two).unwrap();
    };
    // Two directories of one cluster.
    swap(&a.store("ost0"), &a.store("ost1"));
    let said = a.start(&[]);
    assert!(said.contains("is OST 1 of this cluster (were two directories swapped?)"), "{said}");
    (0..2).for_each(|i| answers_eio(&a.at(&format!("f{i}"))));
    assert_eq!(fs::read(a.at("f2")).unwrap(), [2; 5000]);
    a.stop();
    let (_, said) = refused(&["oss", "--dir", &a.cluster(), "--ost", "0", "--mds", "127.0.0.1:1"]);
    assert!(said.contains("were two directories swapped?"), "{said}");
    let (code, said) = a.fsck();
    assert!(code == 4 && said.contains("were two directories swapped?") && said.ends_with("2 fault(s)\n"), "{said}");
    swap(&a.store("ost0"), &a.store("ost1"));
    // One of another cluster, and its metadata.
    swap(&a.store("ost0"), &b.store("ost0"));
    let said = a.start(&["--processes"]);
    assert!(said.contains("belongs to cluster"), "{said}");
    answers_eio(&a.at("f0"));
    assert_eq!(fs::read(a.at("f1")).unwrap(), [1; 5000]);
    a.stop();
    swap(&a.store("ost0"), &b.store("ost0"));
    swap(&a.store("mdt0"), &b.store("mdt0"));
    for mode in [&["--processes"][..], &[]] {
        let (_, said) = a.start_refused(mode);
        assert!(said.contains("belongs to cluster") && said.contains("put the right store there"), "{said}");
    }
    swap(&a.store("mdt0"), &b.store("mdt0"));
    // Without metadata there is nothing.
    fs::rename(a.store("mdt0"), a.dir.path().join("mdt")).unwrap();
    let (code, said) = a.start_refused(&[]);
    assert!(code == libc::ENOENT && said.contains("the metadata store of 'stria' is not in"), "{code} {said}");
    fs::rename(a.dir.path().join("mdt"), a.store("mdt0")).unwrap();
    for up in [&mut a, &mut b] {
        up.start(&[]);
        (0..3).for_each(|i| assert_eq!(fs::read(up.at(&format!("f{i}"))).unwrap(), [i as u8; 5000]));
        up.stop();
    }
}

#[test]
fn a_cluster_has_the_osts_and_the_store_settings_that_it_was_made_with() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    up.start(&["--osts", "3", "--set", "store.kind=emulated", "--set", "store.profile=nvme"]);
    up.stop();
    let (code, said) = up.start_refused(&["--osts", "2"]);
    assert!(code == libc::EINVAL && said.contains("--osts 2:") && said.contains("has 3 OSTs"), "{code} {said}");
    let (code, said) = up.start_refused(&["--osts", "5"]);
    assert!(code == libc::EINVAL && said.contains("--osts 5' adds what is missing"), "{code} {said}");
    let (code, said) = up.start_refused(&["--set", "store.kind=file"]);
    assert!(code == libc::EINVAL && said.contains("made with store.kind = emulated"), "{code} {said}");
    let description = Path::new(&up.cluster()).join("cluster.toml");
    let right = fs::read_to_string(&description).unwrap();
    for kind in ["null", "memory"] {
        fs::write(&description, right.replace("\"emulated\"", &format!("\"{kind}\""))).unwrap();
        let (code, said) = up.start_refused(&[]);
        assert!(code == libc::EINVAL && said.contains(&format!("store.kind = {kind}, but ")), "{code} {said}");
        assert!(said.contains("ost0 has what is kept on a disk"), "{said}");
    }
    fs::write(&description, right).unwrap();
    let (code, said) = up.start_refused(&["--without-ost", "3"]);
    assert!(code == libc::ENOENT && said.contains("has 3 OSTs (0 to 2)"), "{code} {said}");
    let said = up.start(&["--osts", "3", "--without-ost", "1"]);
    assert!(said.contains("OST 1 is left out"), "{said}");
    let kinds = good(&["get_param", "-n", "--at", text(&up.at("")), "obdfilter.*.fstype"]);
    assert_eq!(kinds, "emulated\nemulated\n", "the first start's setting holds");
    up.stop();
    good(&["mkfs", "--dir", &up.cluster(), "--osts", "4"]);
    up.start(&[]);
    up.file_on("f", 3, b"three");
    up.stop();
    // Somebody else's directory is not written to.
    let other = up.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    std::os::unix::fs::chown(&other, Some(65534), None).unwrap();
    for verb in ["up", "mkfs"] {
        let mount = up.at("");
        let mut line = vec![verb, "--dir", text(&other)];
        line.extend(["--mount", text(&mount)].iter().filter(|_| verb == "up"));
        let (code, said) = refused(&line);
        assert!(code == libc::EPERM && said.contains("belongs to user 65534"), "{code} {said}");
    }
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
    // A service's directory stays the service's: its units could not use another owner's.
    let theirs = up.dir.path().join("theirs");
    good(&["mkfs", "--dir", text(&theirs), "--osts", "1"]);
    std::os::unix::fs::chown(&theirs, Some(65534), None).unwrap();
    let (code, said) = refused(&["credential", "issue", "lab", "--dir", text(&theirs)]);
    assert!(code == libc::EPERM && said.contains("'sudo -u ") && !said.contains("chown"), "{code} {said}");
    assert!(said.contains(" stria credential issue ...')"), "{said}");
}

#[test]
fn a_lost_ost_is_replaced_and_its_objects_are_known_as_lost() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    up.start(&["--osts", "2"]);
    up.file_on("kept", 0, b"kept");
    up.file_on("lost", 1, &[7; 100_000]);
    up.stop();
    let (code, said) = refused(&["mkfs", "--dir", &up.cluster(), "--replace", "1"]);
    assert!(code == libc::ENOTEMPTY && said.contains("the store of this OST is there"), "{code} {said}");
    let old = up.dir.path().join("old");
    fs::rename(up.store("ost1"), &old).unwrap();
    let (code, said) = refused(&["mkfs", "--dir", &up.cluster(), "--replace", "2"]);
    assert!(code == libc::ENOENT && said.contains("has 2 OSTs"), "{code} {said}");
    let said = good(&["mkfs", "--dir", &up.cluster(), "--replace", "1"]);
    assert!(said.contains("a new store for OST 1") && said.contains("fsck"), "{said}");
    let (code, said) = up.fsck();
    assert!(code == 4 && said.contains("is lost with the store that its OST had before"), "{code} {said}");
    for mode in [&["--processes"][..], &[]] {
        up.start(mode);
        assert_eq!(fs::read(up.at("kept")).unwrap(), b"kept");
        answers_eio(&up.at("lost"));
        let name = format!("new{}", mode.len());
        up.file_on(&name, 1, b"on the new store");
        assert_eq!(fs::read(up.at(&name)).unwrap(), b"on the new store");
        up.stop();
    }
    up.start(&[]);
    fs::remove_file(up.at("lost")).unwrap();
    up.stop();
    // The old disk comes back: it is not this cluster's any more.
    let new = up.dir.path().join("new");
    fs::rename(up.store("ost1"), &new).unwrap();
    fs::rename(&old, up.store("ost1")).unwrap();
    let said = up.start(&[]);
    assert!(said.contains("an old disk?"), "{said}");
    answers_eio(&up.at("new0"));
    up.stop();
    fs::rename(up.store("ost1"), &old).unwrap();
    fs::rename(&new, up.store("ost1")).unwrap();
    up.start(&[]);
    assert_eq!(fs::read(up.at("new1")).unwrap(), b"on the new store");
    up.stop();
    let (code, said) = up.fsck();
    assert!(code == 0, "{said}");
}

/// Goes on as long as the file system does: a program beside which a store is replaced.
fn beside<T>(up: &Up, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        let program = s.spawn(|| {
            let mut turns = 0_u64;
            while !over.load(Ordering::Relaxed) || turns == 0 {
                let bytes = turns.to_le_bytes().repeat(2000);
                fs::write(up.at("beside"), &bytes).unwrap();
                assert_eq!(fs::read(up.at("beside")).unwrap(), bytes);
                turns += 1;
            }
        });
        let done = work();
        over.store(true, Ordering::Relaxed);
        program.join().unwrap();
        done
    })
}

#[test]
fn a_lost_ost_is_replaced_while_programs_go_on() {
    if !can_mount() {
        return;
    }
    for mode in [&["--processes"][..], &[]] {
        let mut up = Up::new();
        up.start(&[&["--osts", "3"], mode].concat());
        up.file_on("beside", 0, b"kept");
        up.file_on("lost", 1, &[7; 100_000]);
        let dir = up.cluster();
        let (code, said) = refused(&["ost", "replace", "1", "--dir", &dir]);
        assert!(code == libc::ENOTEMPTY && said.contains("the store of this OST is there"), "{code} {said}");
        let (code, said) = refused(&["ost", "replace", "3", "--dir", &dir]);
        assert!(code == libc::ENOENT && said.contains("has 3 OSTs"), "{code} {said}");
        let old = up.dir.path().join("old");
        fs::rename(up.store("ost2"), &old).unwrap();
        let (code, said) = refused(&["ost", "replace", "2", "--dir", &dir]);
        assert!(code == libc::EBUSY && said.contains("has not failed"), "a store in use: {code} {said}");
        assert!(!up.store("ost2").exists(), "nothing was made");
        fs::rename(&old, up.store("ost2")).unwrap();
        up.stop();
        fs::rename(up.store("ost1"), &old).unwrap();
        up.start(mode);
        status_that(&up.at(""), |s| s.contains("ost replace 1"));
        let said = beside(&up, || good(&["ost", "replace", "OST0001", "--dir", &dir]));
        assert!(said.contains("OST 1 of 'stria' takes files") && said.contains("ost files 1 --lost"), "{said}");
        let listed = good(&["ost", "files", "1", text(&up.at(""))]);
        assert!(listed.contains("lost\n"), "{listed}");
        up.file_on("new", 1, b"on the new store");
        let at = up.at("");
        let all = good(&["ost", "files", "1", text(&at)]);
        let lost = good(&["ost", "files", "1", "--lost", text(&at)]);
        assert!(all.contains("lost\n") && all.contains("new\n"), "{all}");
        assert!(lost.contains("lost\n") && !lost.contains("new\n") && lost.contains("1 file(s)"), "{lost}");
        assert_eq!(fs::read(up.at("new")).unwrap(), b"on the new store");
        answers_eio(&up.at("lost"));
        let shown = good(&["status", text(&up.at(""))]);
        assert!(!shown.contains("degraded") && !shown.contains("ost replace"), "{shown}");
        up.stop();
        let (code, said) = up.fsck();
        assert!(code == 4 && said.contains("is lost with the store that its OST had before"), "{code} {said}");
        up.start(mode);
        assert_eq!(fs::read(up.at("new")).unwrap(), b"on the new store");
        fs::remove_file(up.at("lost")).unwrap();
        up.stop();
        let (code, said) = up.fsck();
        assert!(code == 0, "{said}");
    }
}

#[test]
fn a_replacement_that_was_interrupted_is_given_again_and_a_stopped_cluster_gets_one_too() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    up.start(&["--osts", "2"]);
    up.file_on("lost", 1, &[7; 100_000]);
    up.stop();
    let (old, dir) = (up.dir.path().join("old"), up.cluster());
    fs::rename(up.store("ost1"), &old).unwrap();
    let before = fs::read(up.store("cluster.toml")).unwrap();
    let said = good(&["ost", "replace", "1", "--dir", &dir]);
    assert!(said.contains("from the next start on"), "{said}");
    // Killed before the new store was written down, and then given again.
    fs::write(up.store("cluster.toml"), &before).unwrap();
    good(&["ost", "replace", "1", "--dir", &dir]);
    assert_ne!(fs::read(up.store("cluster.toml")).unwrap(), before);
    // The same, and the cluster runs meanwhile.
    fs::write(up.store("cluster.toml"), &before).unwrap();
    let said = up.start(&[]);
    assert!(said.contains("an old disk?"), "{said}");
    good(&["ost", "replace", "1", "--dir", &dir]);
    up.file_on("new", 1, b"new");
    answers_eio(&up.at("lost"));
    up.stop();
    up.start(&[]);
    assert_eq!(fs::read(up.at("new")).unwrap(), b"new");
    // Killed before the new store was made: the map names one that nobody has.
    up.stop();
    fs::rename(up.store("ost1"), up.dir.path().join("second")).unwrap();
    up.start(&[]);
    let file = up.store("ost1");
    fs::write(&file, b"in the way").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let (code, said) = refused(&["ost", "replace", "1", "--dir", &dir]);
    assert!(code != 0 && said.contains("OST 1"), "{code} {said}");
    fs::remove_file(&file).unwrap();
    good(&["ost", "replace", "1", "--dir", &dir]);
    up.file_on("newer", 1, b"newer");
    answers_eio(&up.at("new"));
    up.stop();
}

/// A disk that is mounted in a place; gone when dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf) -> Disk {
        Disk::of(at, "512M")
    }
    fn of(at: PathBuf, size: &str) -> Disk {
        fs::create_dir_all(&at).unwrap();
        let options = format!("size={size},mode=755");
        let made = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(&at).status();
        assert!(made.unwrap().success());
        Disk(at)
    }
    fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        assert!(Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).output());
    }
}

/// A place as a command leaves it that dies while it makes a store there: after the database, or amid the data file's first block.
fn begun(place: &Path, data_bytes: Option<u64>) {
    for entry in fs::read_dir(place).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(place.join("meta.redb"), [7; 10_000]).unwrap();
    if let Some(bytes) = data_bytes {
        fs::File::create(place.join("data")).unwrap().set_len(bytes).unwrap();
    }
}

#[test]
fn a_store_that_was_begun_on_a_mounted_disk_is_made_by_the_next_try_and_no_store_is_taken_for_one() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new();
    up.start(&["--osts", "2"]);
    up.file_on("lost", 1, &[7; 100_000]);
    up.stop();
    let dir = up.cluster();
    fs::rename(up.store("ost1"), up.dir.path().join("old")).unwrap();
    let (one, two) = (Disk::mount(up.store("ost1")), Disk::mount(up.store("ost2")));
    for bytes in [None, Some(0), Some(4096)] {
        begun(&one.0, bytes);
        good(&["ost", "replace", "1", "--dir", &dir]);
    }
    // While the cluster runs, and without the disk.
    begun(&one.0, None);
    let said = up.start(&[]);
    assert!(said.contains("OST 1: its store is not in") && said.contains("interrupted"), "{said}");
    good(&["ost", "replace", "1", "--dir", &dir]);
    begun(&two.0, Some(4096));
    let said = good(&["ost", "add", "--dir", &dir]);
    assert!(said.contains("OST 2 of 'stria' takes files"), "{said}");
    up.file_on("one", 1, b"one");
    up.file_on("two", 2, b"two");
    answers_eio(&up.at("lost"));
    up.stop();
    // A store that was served stays one, whatever its data file has lost.
    let data = one.0.join("data");
    let head = fs::read(&data).unwrap()[..4096].to_vec();
    std::os::unix::fs::FileExt::write_all_at(&fs::File::options().write(true).open(&data).unwrap(), &[0; 4096], 0)
        .unwrap();
    let (code, said) = refused(&["ost", "replace", "1", "--dir", &dir]);
    assert!(code == libc::ENOTEMPTY && said.contains("is not empty"), "{code} {said}");
    let aside = up.dir.path().join("data");
    fs::copy(&data, &aside).unwrap();
    fs::remove_file(&data).unwrap();
    let (code, said) = refused(&["ost", "replace", "1", "--dir", &dir]);
    assert!(code == libc::ENOTEMPTY && said.contains("is not empty"), "{code} {said}");
    fs::copy(&aside, &data).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&fs::File::options().write(true).open(&data).unwrap(), &head, 0).unwrap();
    up.start(&[]);
    assert_eq!(fs::read(up.at("one")).unwrap(), b"one");
    up.stop();
}

/// The directory of a cluster whose making ended for want of space, and a disk of `size` that is mounted for its metadata store then.
fn half_made(at: &Path, size: &str) -> (Disk, Disk) {
    let cluster = Disk::of(at.to_path_buf(), "64k");
    let (code, said) = refused(&["mkfs", "--dir", text(at), "--osts", "1"]);
    assert!(code != 0 && said.contains("mdt.redb") && said.contains("No space"), "{code} {said}");
    cluster.resize("512M");
    let disk = Disk::of(at.join("mdt0"), size);
    fs::set_permissions(&disk.0, fs::Permissions::from_mode(0o700)).unwrap();
    (cluster, disk)
}

#[test]
fn a_metadata_store_that_was_begun_on_a_mounted_disk_is_made_by_the_next_try_and_nothing_else_is_taken_for_one() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let put = |disk: &Disk, name: &str, bytes: &[u8]| {
        fs::write(disk.0.join(name), bytes).unwrap();
        fs::set_permissions(disk.0.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    };
    // The disk is full, and has room later.
    let (_cluster, disk) = half_made(&at("full"), "64k");
    fs::create_dir(disk.0.join("lost+found")).unwrap();
    let (code, said) = refused(&["mkfs", "--dir", text(&at("full")), "--osts", "1"]);
    assert!(code != 0 && said.contains("mdt0/mdt.redb") && said.contains("No space"), "{code} {said}");
    assert!(disk.0.join("mdt.redb").exists(), "something was begun");
    disk.resize("512M");
    fs::set_permissions(&disk.0, fs::Permissions::from_mode(0o700)).unwrap();
    good(&["mkfs", "--dir", text(&at("full")), "--osts", "1"]);
    let made = fs::read(disk.0.join("mdt.redb")).unwrap();
    // It died before it opened the database, and before that was one.
    let mut head = vec![0; 1 << 20];
    head[9..64].copy_from_slice(&made[9..64]);
    for (name, left) in [("empty", Some(&head[..0])), ("head", Some(&head[..])), ("locked", None)] {
        let (_cluster, disk) = half_made(&at(name), "512M");
        put(&disk, "lock", b"");
        left.into_iter().for_each(|bytes| put(&disk, "mdt.redb", bytes));
        good(&["mkfs", "--dir", text(&at(name)), "--osts", "1"]);
        good(&["fsck", "--dir", text(&at(name))]);
    }
    // Another cluster's store, one without its head, what is no store at all, and what has more beside it.
    let mut headless = made.clone();
    headless[..4096].fill(0);
    for (name, there) in [("other", &made[..]), ("headless", &headless), ("foreign", &b"mine"[..]), ("beside", b"")] {
        let (_cluster, disk) = half_made(&at(name), "512M");
        put(&disk, "mdt.redb", there);
        if name == "beside" {
            put(&disk, "other", b"mine");
        }
        let (code, said) = refused(&["mkfs", "--dir", text(&at(name)), "--osts", "1"]);
        assert!(code != 0 && said.contains("mdt0"), "{code} {said}");
        // Whoever looks into a database writes that it was open, or makes an empty file one.
        let stays = match name {
            "other" => said.contains("is not empty"),
            "beside" => fs::read(disk.0.join("other")).unwrap() == b"mine",
            _ => fs::read(disk.0.join("mdt.redb")).unwrap() == there,
        };
        assert!(stays, "{name}: it stays as it was: {said}");
    }
}

#[test]
fn a_server_of_a_machine_serves_the_stores_that_open_and_the_others_once_they_do() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(3);
    let a = c.mount("a", &[]);
    let dir = c.path("c");
    for ost in ["0", "1", "2"] {
        good(&["setstripe", "-c", "1", "-i", ost, text(&a.join(ost))]);
        fs::write(a.join(ost), ost).unwrap();
    }
    good(&["sync", text(&a)]);
    c.oss.iter_mut().for_each(|oss| oss.as_mut().unwrap().kill());
    let (one, away) = (format!("{dir}/ost1"), c.dir.path().join("away"));
    fs::rename(&one, &away).unwrap();
    fs::create_dir(&one).unwrap();
    let head = format!("{dir}/ost2/meta.redb");
    let mut whole = fs::read(&head).unwrap();
    fs::write(&head, vec![0; whole.len()]).unwrap();
    let log = c.dir.path().join("some.log");
    for line in [["oss", "--dir", &dir, "--ost", "all"], ["oss", "--dir", &dir, "--ost", "0-2"]] {
        let mut some = Daemon::start(&line, &log);
        some.says("OST 2");
        // From the server, not from what this mount keeps.
        let cold = c.mount(if line[4] == "all" { "b" } else { "d" }, &[]);
        assert_eq!(fs::read(cold.join("0")).unwrap(), b"0");
        fs::remove_dir(&one).unwrap();
        fs::rename(&away, &one).unwrap();
        fs::write(&head, &whole).unwrap();
        for ost in ["1", "2"] {
            assert_eq!(fs::read(cold.join(ost)).unwrap(), ost.as_bytes());
            fs::write(cold.join(ost), ost).unwrap();
        }
        good(&["sync", text(&cold)]);
        assert!(some.is_running());
        some.kill();
        fs::rename(&one, &away).unwrap();
        fs::create_dir(&one).unwrap();
        // As the server has left it: what it was before would be an older copy.
        whole = fs::read(&head).unwrap();
        fs::write(&head, vec![0; whole.len()]).unwrap();
    }
    let alone = refused(&["oss", "--dir", &dir, "--ost", "1,2"]);
    assert!(
        alone.0 == libc::ENOENT && alone.1.contains("no OST can be served: OST 1: its store is not in"),
        "{alone:?}"
    );
    c.mounts.iter_mut().for_each(|(_, mount)| mount.kill());
}

#[test]
fn a_server_of_a_machine_serves_the_store_that_replaced_a_lost_one() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let (a, b) = (c.mount("a", &[]), c.mount("b", &[]));
    let dir = c.path("c");
    for (name, ost) in [("kept", 0), ("lost", 1)] {
        good(&["setstripe", "-c", "1", "-i", &ost.to_string(), text(&a.join(name))]);
        fs::write(a.join(name), [7; 100_000]).unwrap();
    }
    assert_eq!(fs::read(b.join("lost")).unwrap(), [7; 100_000]);
    let held = fs::OpenOptions::new().write(true).open(b.join("lost")).unwrap();
    c.oss[1].as_mut().unwrap().kill();
    fs::rename(format!("{dir}/ost1"), c.dir.path().join("old")).unwrap();
    let said = good(&["ost", "replace", "1", "--dir", &dir]);
    assert!(said.contains("when its server is started again"), "{said}");
    let log = c.dir.path().join("all.log");
    c.oss[0].as_mut().unwrap().kill();
    let mut all = Daemon::start(&["oss", "--dir", &dir, "--ost", "all"], &log);
    for (at, name) in [(&a, "from a"), (&b, "from b")] {
        let place = at.join(name);
        let line = ["setstripe", "-c", "1", "-i", "1", text(&place)];
        // The metadata server has it in use again a moment after it was started.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !stria(&line).status.success() {
            assert!(std::time::Instant::now() < until, "{}", String::from_utf8_lossy(&stria(&line).stderr));
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        fs::write(at.join(name), b"new").unwrap();
    }
    assert_eq!(fs::read(b.join("from a")).unwrap(), b"new");
    let wrote = std::io::Write::write_all(&mut &held, b"x").and_then(|()| held.sync_all());
    assert_eq!(error_of(wrote), libc::EIO, "an open of before");
    answers_eio(&a.join("lost"));
    assert_eq!(fs::read(a.join("kept")).unwrap(), [7; 100_000]);
    // Without a server to be started again: the one of all stores takes it in.
    all.kill();
    fs::rename(format!("{dir}/ost1"), c.dir.path().join("second")).unwrap();
    let mut all = Daemon::start(&["oss", "--dir", &dir, "--ost", "all"], &log);
    let said = good(&["ost", "replace", "1", "--dir", &dir]);
    assert!(said.contains("OST 1 of 'stria' takes files"), "{said}");
    good(&["setstripe", "-c", "1", "-i", "1", text(&b.join("newest"))]);
    fs::write(b.join("newest"), b"newest").unwrap();
    assert_eq!(fs::read(a.join("newest")).unwrap(), b"newest");
    assert!(all.is_running());
    c.mounts.iter_mut().for_each(|(_, mount)| mount.kill());
    drop(all);
}

#[test]
fn commands_that_make_one_cluster_at_the_same_time_leave_one_and_the_others_say_so() {
    if !can_mount() {
        return;
    }
    for round in 0..8 {
        let mut up = Up::new();
        let (dir, mount) = (up.cluster(), up.at(""));
        let mkfs = ["mkfs", "--dir", &dir, "--osts", "2"];
        let lines = [mkfs.to_vec(), Up::line(&dir, text(&mount), &["--osts", "2"]), mkfs.to_vec()];
        let begin = |line: &Vec<&str>| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_stria"));
            command.args(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let begun = lines.each_ref().map(begin);
        let ended = begun.map(|child| child.wait_with_output().unwrap());
        let is_up = ended[1].status.success();
        if is_up {
            up.adopt();
        }
        for (out, line) in ended.iter().zip(&lines) {
            let said = String::from_utf8_lossy(&out.stderr);
            let told =
                out.status.code() == Some(libc::EBUSY) && said.contains("another command") && said.contains(&dir);
            assert!(out.status.success() || told, "round {round}: {line:?}: {said}");
        }
        assert!(ended.iter().any(|out| out.status.success()), "round {round}: one of them makes it");
        if is_up {
            up.stop();
        }
        let (code, said) = up.fsck();
        assert_eq!(code, 0, "round {round}: {said}");
    }
}

#[test]
fn a_command_for_a_cluster_that_is_not_there_makes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("mistyped");
    for line in [&["ost", "add"][..], &["ost", "replace", "0"], &["ost", "remove", "0"], &["mkfs", "--replace", "0"]] {
        let (code, said) = refused(&[line, &["--dir", text(&dir)]].concat());
        assert!(code == libc::ENOENT && said.contains("is not a cluster's directory"), "{line:?}: {code} {said}");
        assert!(!dir.exists(), "{line:?}");
    }
}
