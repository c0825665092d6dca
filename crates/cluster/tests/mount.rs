//! Whole clusters behind real mounts: the POSIX suite over both transports, random operations against a model on one
//! and on two mounts, and what two mounts of one cluster must agree on.
mod roles;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use posix::run::spawn;
use posix::sys::{self, R};
use roles::{RoleProcess, World, can_mount, transports};

/// What the other tests start in processes of its own; without being told a role there is nothing to serve.
#[test]
fn a_role_serves_in_a_process_of_its_own() {
    roles::serve_if_told();
}

/// What writers of a set-id file, who are not its owner, leave of its mode in an overlay whose upper layer is in the directory $1.
const OVERLAID: &str = r#"
set -e
cd "$1"
mkdir lower upper work over
mount -t overlay none -o lowerdir=lower,upperdir=upper,workdir=work over || exit 77
by() { setpriv --reuid=1001 --regid=1001 --clear-groups "$@"; }
begin() { printf 'some bytes' > over/f; chown 1000:1000 over/f; chmod 6777 over/f; by true; }
begin; by dd if=/dev/zero of=over/f bs=4 count=1 conv=notrunc status=none; stat -c 'written %a' over/f upper/f
begin; by truncate -s 3 over/f; stat -c 'cut %a' over/f upper/f
begin; by sh -c ': > over/f'; stat -c 'emptied %a' over/f upper/f
begin; by fallocate -l 100 over/f; stat -c 'reserved %a' over/f upper/f
begin; chown 1000 over/f; stat -c 'given %a' over/f upper/f
begin; chmod 2767 over/f; chown -h root:root over/f; stat -c 'group %a' over/f upper/f
begin; chmod 777 over/f; by dd if=/dev/zero of=over/f bs=4 count=1 conv=notrunc status=none; stat -c 'plain %a' over/f upper/f
"#;

#[test]
fn set_id_bits_go_with_a_write_through_an_overlay_as_they_do_on_a_local_file_system() {
    if !can_mount() {
        return;
    }
    let (_up, at, world) = up(transports()[0], 1);
    let local = PathBuf::from(world.path("local"));
    std::fs::create_dir(&local).expect("a directory");
    let overlaid = |dir: &Path| {
        let words = ["-m", "sh", "-c", OVERLAID, "sh", dir.to_str().expect("a plain path")];
        let output = std::process::Command::new("timeout").args(["120", "unshare"]).args(words).output();
        let output = output.expect("unshare(1) runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), output.stderr)
    };
    // As a local file system has it, where overlays may be made of it: of a directory in an overlay they may not.
    let tmpfs = std::process::Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&local).status();
    assert!(tmpfs.expect("mount(8) runs").success());
    let expected = overlaid(&local);
    let unmounted = std::process::Command::new("umount").arg(&local).status();
    assert!(unmounted.expect("umount(8) runs").success());
    if expected.0 == Some(77) {
        return println!("not run: overlays cannot be mounted here");
    }
    let dir = at[0].join("overlaid");
    std::fs::create_dir(&dir).expect("a directory");
    let found = overlaid(&dir);
    assert_eq!(found.1, expected.1, "{}", String::from_utf8_lossy(&found.2));
    assert_eq!((found.0, expected.0), (Some(0), Some(0)));
    assert!(found.1.contains("written 777"), "{}", found.1);
}

/// A cluster of four targets in one process, with `n` mounts.
fn up(transport: &str, n: usize) -> (RoleProcess, Vec<PathBuf>, World) {
    let mut world = World::new();
    let points: Vec<PathBuf> = (0..n).map(|i| world.point(&format!("mnt{i}"))).collect();
    let stores = world.path("stores");
    let mut words = vec!["up", &stores, "4", transport];
    words.extend(points.iter().map(|p| p.to_str().expect("a plain path")));
    let up = RoleProcess::start(&words);
    (up, points, world)
}

/// Runs `f` in a process of its own, for at most `limit`: a mount that answers no more must not hang the tests.
fn within(limit: Duration, what: &str, f: impl FnOnce() -> R) {
    let child = spawn(f).expect("a process");
    assert!(child.ended_within(limit), "{what}: no end within {limit:?}");
    if let Err(e) = child.join() {
        panic!("{what}: {e}");
    }
}

const LIMIT: Duration = Duration::from_secs(600);

#[test]
fn the_posix_suite_passes_over_every_transport() {
    if !can_mount() {
        return;
    }
    let mut failed = Vec::new();
    for transport in transports() {
        let (_up, at, _world) = up(transport, 1);
        let summary = posix::run::run_all(&at[0], "", LIMIT, &mut |line| println!("{transport} {line}"));
        failed.extend(summary.failed.into_iter().map(|(name, why)| (transport, name, why)));
        assert!(summary.passed > 300, "{} cases passed over {transport}", summary.passed);
    }
    assert_eq!(failed, []);
}

#[test]
fn random_operations_on_one_mount_give_what_the_model_gives() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let (_up, at, _world) = up(transport, 1);
        for seed in 1..=3 {
            within(LIMIT, transport, || posix::random::run(seed, 1500, &[&at[0]]));
        }
    }
}

#[test]
fn random_operations_on_two_mounts_give_what_the_model_gives() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let (_up, at, _world) = up(transport, 2);
        for seed in 11..=13 {
            within(LIMIT, transport, || posix::random::run(seed, 1500, &[&at[0], &at[1]]));
        }
    }
}

#[test]
fn two_mounts_agree_on_everything_at_once() {
    if !can_mount() {
        return;
    }
    let (_up, at, _world) = up(transports()[0], 2);
    let mut failed = Vec::new();
    for case in posix::pair::all() {
        if let Err(e) = posix::pair::run_within(case, &at[0], &at[1], LIMIT) {
            failed.push((case.name, e));
        }
    }
    assert_eq!(failed, []);
}

#[test]
fn a_mount_whose_daemon_was_killed_can_be_unmounted() {
    if !can_mount() {
        return;
    }
    for transport in transports() {
        let (up, at, _world) = up(transport, 1);
        within(LIMIT, "writing", || Ok(sys::put(&at[0].join("a"), b"content")?));
        up.kill();
        within(LIMIT, "a call on the dead mount ends", || {
            let _ = sys::stat(&at[0]);
            Ok(())
        });
        within(LIMIT, "unmounting", || {
            // The supervisor of the killed daemon may have been faster.
            roles::unmount(&at[0]);
            let below = std::fs::metadata(&at[0]).map_err(|e| format!("the mount point: {e}"))?;
            posix::check::eq(
                "a plain directory again",
                below.dev(),
                std::fs::metadata(at[0].parent().unwrap()).unwrap().dev(),
            )
        });
    }
}

#[test]
fn an_unmounted_cluster_keeps_its_files_and_ends_by_itself() {
    if !can_mount() {
        return;
    }
    let mut world = World::new();
    let at = world.point("mnt");
    let stores = world.path("stores");
    let words = ["up", &stores, "2", transports()[0], at.to_str().unwrap()];
    let data = posix::check::pattern(5, 5_000_000);
    for round in 0..2 {
        let mut up = RoleProcess::start(&words);
        within(LIMIT, "writing and reading", || {
            if round == 0 {
                sys::mkdir(&at.join("dir"), 0o755)?;
                sys::put(&at.join("dir/a"), &data)?;
            }
            posix::check::same("content", &sys::get(&at.join("dir/a"))?, &data)
        });
        assert!(roles::unmount(&at));
        assert_eq!(up.ends_within(LIMIT), Some(0), "round {round}");
    }
}

/// A cluster of processes over TCP: a metadata server, two storage servers, a mount.
struct Processes {
    mds: Option<RoleProcess>,
    oss: Vec<Option<RoleProcess>>,
    _mount: RoleProcess,
    at: PathBuf,
    world: World,
}

impl Processes {
    fn start() -> Processes {
        let mut world = World::new();
        let mds = RoleProcess::start(&["mds", &world.path("mdt"), "tcp:127.0.0.1:0"]);
        let oss: Vec<_> = (0..2)
            .map(|i| Some(RoleProcess::start(&["oss", &world.path("oss"), "tcp:127.0.0.1:0", &mds.at, &i.to_string()])))
            .collect();
        let at = world.point("mnt");
        let mount = RoleProcess::start(&["mount", &mds.at, "2", transports()[0], at.to_str().expect("a plain path")]);
        Processes { mds: Some(mds), oss, _mount: mount, at, world }
    }
    fn restart_mds(&mut self) {
        let nid = self.mds.as_ref().expect("it runs").at.clone();
        self.mds.take().expect("it runs").kill();
        self.mds = Some(RoleProcess::start(&["mds", &self.world.path("mdt"), &nid]));
    }
    fn restart_oss(&mut self, i: usize) {
        let nid = self.oss[i].as_ref().expect("it runs").at.clone();
        self.oss[i].take().expect("it runs").kill();
        let mds = self.mds.as_ref().expect("it runs").at.clone();
        self.oss[i] = Some(RoleProcess::start(&["oss", &self.world.path("oss"), &nid, &mds, &i.to_string()]));
    }
}

/// Steps of each load.
const STEPS: u64 = 240;

/// How far a load is, told through a file that is not on the mount.
#[derive(Clone)]
struct Steps(PathBuf);

impl Steps {
    fn done(&self) -> R {
        let fd = sys::open(&self.0, libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND, 0o644)?;
        Ok(sys::write_all(&fd, b".")?)
    }
    fn wait_for(&self, n: u64) {
        let end = std::time::Instant::now() + LIMIT;
        while std::fs::metadata(&self.0).map_or(0, |m| m.len()) < n {
            assert!(std::time::Instant::now() < end, "the load does not reach step {n}");
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
}

/// Creates, writes, renames, reads and removes files; any failure or wrong byte is one.
fn files_load(dir: &Path, steps: &Steps) -> R {
    let data = |i: u64| posix::check::pattern(i, 1000 + (i as usize * 7919) % 150_000);
    sys::mkdir(dir, 0o755)?;
    for i in 0..STEPS {
        let (new, kept) = (dir.join("new"), dir.join(format!("f{i}")));
        sys::put(&new, &data(i))?;
        sys::rename(&new, &kept)?;
        posix::check::same("content", &sys::get(&kept)?, &data(i))?;
        if i % 3 == 2 {
            sys::unlink(&dir.join(format!("f{}", i - 1)))?;
        }
        steps.done()?;
    }
    Ok(())
}

/// What both loads left, seen through any mount.
fn loads_are_whole(at: &Path) -> R {
    for i in (0..STEPS).filter(|i| i % 3 != 1) {
        let want = posix::check::pattern(i, 1000 + (i as usize * 7919) % 150_000);
        let got = sys::get(&at.join(format!("dir/f{i}")))?;
        posix::check::same(&format!("file {i} at the end"), &got, &want)?;
    }
    let file = std::fs::File::open(at.join("file")).map_err(|e| e.to_string())?;
    for i in 0..STEPS {
        let mut back = vec![0; 60_000];
        file.read_exact_at(&mut back, i * 60_000).map_err(|e| format!("read {i}: {e}"))?;
        posix::check::same(&format!("record {i} at the end"), &back, &posix::check::pattern(i, 60_000))?;
    }
    Ok(())
}

/// Writes and syncs records of one striped file and reads all of them back.
fn records_load(at: &Path, steps: &Steps) -> R {
    let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(at);
    let file = file.map_err(|e| e.to_string())?;
    for i in 0..STEPS {
        file.write_all_at(&posix::check::pattern(i, 60_000), i * 60_000).map_err(|e| format!("write {i}: {e}"))?;
        if i % 16 == 15 {
            file.sync_data().map_err(|e| format!("fsync after {i}: {e}"))?;
        }
        steps.done()?;
    }
    for i in 0..STEPS {
        let mut back = vec![0; 60_000];
        file.read_exact_at(&mut back, i * 60_000).map_err(|e| format!("read {i}: {e}"))?;
        posix::check::same(&format!("record {i}"), &back, &posix::check::pattern(i, 60_000))?;
    }
    Ok(())
}

/// Runs both loads, and `disturb` at a third and at two thirds of each.
fn under_load(disturb: impl Fn(&mut Processes, usize)) {
    let mut cluster = Processes::start();
    let steps: Vec<Steps> = (0..2).map(|i| Steps(cluster.world.path(&format!("steps{i}")).into())).collect();
    let (dir, file) = (cluster.at.join("dir"), cluster.at.join("file"));
    let (files_steps, records_steps) = (steps[0].clone(), steps[1].clone());
    let files = spawn(move || files_load(&dir, &files_steps)).expect("a process");
    let records = spawn(move || records_load(&file, &records_steps)).expect("a process");
    for (round, of) in [&steps[0], &steps[1]].into_iter().enumerate() {
        of.wait_for(STEPS / 3 * (round as u64 + 1));
        disturb(&mut cluster, round);
    }
    for (what, child) in [("files", files), ("records", records)] {
        assert!(child.ended_within(LIMIT), "{what}: the load does not go on");
        if let Err(e) = child.join() {
            panic!("{what}: {e}");
        }
    }
    // A client that saw nothing of it: what it reads is what the servers have, or get from the first one now.
    let second = cluster.world.point("second");
    let mds = cluster.mds.as_ref().expect("it runs").at.clone();
    let words = ["mount", &mds, "2", transports()[0], second.to_str().expect("a plain path")];
    let _second = RoleProcess::start(&words);
    for at in [&second, &cluster.at] {
        within(LIMIT, "reading everything again", || loads_are_whole(at));
    }
}

#[test]
fn programs_only_notice_a_pause_when_the_metadata_server_is_killed_and_restarted() {
    if can_mount() {
        under_load(|cluster, _| cluster.restart_mds());
    }
}

#[test]
fn programs_only_notice_a_pause_when_storage_servers_are_killed_and_restarted() {
    if can_mount() {
        under_load(|cluster, round| cluster.restart_oss(round));
    }
}
