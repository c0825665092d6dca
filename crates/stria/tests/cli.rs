//! The program's refusals as users meet them: what stderr says, and the exit code.
#![allow(clippy::unwrap_used)]
mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use support::{Daemon, can_mount, good, refused as refusal, stria, text};

#[test]
fn mount_points_that_cannot_be_are_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, file) = (dir.path().join("c"), dir.path().join("file"));
    std::fs::write(&file, b"x").unwrap();
    let up = |at: &Path| refusal(&["up", "--dir", text(&cluster), "--mount", text(at)]);
    let (code, said) = up(&dir.path().join("none"));
    assert!(code == libc::ENOENT && said.contains("does not exist") && said.contains("mkdir -p"), "{code} {said}");
    let (code, said) = up(&file);
    assert!(code == libc::ENOTDIR && said.contains("is not a directory"), "{code} {said}");
    let twice = dir.path().join("m");
    std::fs::create_dir(&twice).unwrap();
    let (code, said) = refusal(&["up", "--dir", text(&cluster), "--mount", text(&twice), "--mount", text(&twice)]);
    assert!(code == libc::EINVAL && said.contains("is given twice") && said.contains(text(&twice)), "{code} {said}");
    assert!(!cluster.exists(), "nothing was made");
}

#[test]
fn a_reader_that_goes_away_ends_a_command_without_a_word_and_a_full_disk_with_an_error() {
    let run_of = |words: [&str; 2], out: Stdio| {
        let done = Command::new(env!("CARGO_BIN_EXE_stria")).args(words).stdout(out).output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let run = |out| run_of(["config", "explain"], out);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(run(writer.into()), (Some(128 + libc::SIGPIPE), String::new()));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (code, said) = run_of(["sim", "list"], full.try_clone().unwrap().into());
    assert!(code == Some(2) && said.contains("writing the output: No space left"), "{code:?} {said}");
    let (code, said) = run(full.into());
    assert!(
        code == Some(libc::ENOSPC) && said.contains("No space left") && !said.contains("panicked"),
        "{code:?} {said}"
    );
}

#[test]
fn configuration_that_is_wrong_is_refused_with_line_value_and_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("s.toml");
    let check = |content: &str| {
        std::fs::write(&file, content).unwrap();
        refusal(&["config", "check", text(&file)])
    };
    let (code, said) = check("[client]\nmax_dirty = 64\n");
    assert_eq!(code, libc::EINVAL);
    assert!(
        said.contains("s.toml: line 2: unknown key 'client.max_dirty': did you mean 'client.max_dirty_mb'?"),
        "{said}"
    );
    let (_, said) = check("nrs.policy = \"speedy\"\n");
    assert!(said.contains("nrs.policy = speedy") && said.contains("fifo"), "{said}");
    let (_, said) = refusal(&["mkfs", "--dir", text(&dir.path().join("c")), "--set", "net.listen=everywhere"]);
    assert!(said.contains("net.listen: 'everywhere' is not an address"), "{said}");
    for (content, why) in [
        ("[nrs]\npolicy = {}\n", "nrs.policy takes one value, like \"by_medium\", and no table"),
        ("cluster.fsname = \"waytoolongname\"\n", "cluster.fsname: 'waytoolongname' is not a file system name"),
        ("cluster.fsname = \"\"\n", "cluster.fsname: '' is not a file system name"),
        ("mdt.store = \"abc\"\n", "mdt.store: 'abc' names no metadata store"),
    ] {
        let (code, said) = check(content);
        assert!(code == libc::EINVAL && said.contains(why), "{said}");
    }
    std::fs::write(&file, "client.cache_bytes = \"1G\"\n").unwrap();
    let fine = stria(&["config", "explain", "client.cache_bytes", "--config", text(&file)]);
    assert!(String::from_utf8_lossy(&fine.stdout).starts_with("client.cache_bytes = \"1G\" (default \"256M\")"));
}

#[test]
fn what_can_mean_nothing_is_refused_before_anything_is_asked_or_made() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, mount) = (dir.path().join("c"), dir.path().join("m"));
    std::fs::create_dir(&mount).unwrap();
    let up = ["up", "--dir", text(&cluster), "--mount", text(&mount)];
    let one_port = [&up[..], &["--processes", "--set", "net.listen=127.0.0.1:21005"]].concat();
    for (line, why) in [
        (&one_port[..], "net.listen = 127.0.0.1:21005: with --processes every server needs a port of its own"),
        (&["why", ""], "a value is required"),
        (&["web", "--name", "a b"], "write a host's name"),
        (&["web", "--name", ""], "write a host's name"),
        (&["trace", "slow", "--top", "0", "x"], "0 is not in 1.."),
    ] {
        let (code, said) = refusal(line);
        // The command line's own refusals end with 2.
        assert!((code == libc::EINVAL || code == 2) && said.contains(why), "{line:?}: {code} {said}");
    }
    assert!(!cluster.exists(), "nothing was made");
}

#[test]
fn stores_of_others_newer_ones_and_none_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["a", "b"] {
        let made = stria(&["mkfs", "--dir", text(&at(name)), "--osts", "1"]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let again = stria(&["mkfs", "--dir", text(&at("a")), "--osts", "2"]);
    assert!(again.status.success() && at("a").join("ost1").is_dir(), "a target is added, the others stay");
    let (code, said) = refusal(&["mkfs", "--dir", text(&at("a")), "--set", "cluster.fsname=other"]);
    assert!(code == libc::EINVAL && said.contains("holds file system 'stria', not 'other'"), "{said}");

    std::fs::remove_dir_all(at("a").join("ost0")).unwrap();
    std::fs::rename(at("b").join("ost0"), at("a").join("ost0")).unwrap();
    let (_, said) = refusal(&["oss", "--dir", text(&at("a")), "--ost", "0", "--mds", "127.0.0.1:1"]);
    assert!(said.contains("belongs to cluster"), "{said}");

    let file = at("b").join("cluster.toml");
    let newer = std::fs::read_to_string(&file).unwrap().replace("format = 2", "format = 9");
    std::fs::write(&file, newer).unwrap();
    let (_, said) = refusal(&["fsck", "--dir", text(&at("b"))]);
    assert!(said.contains("format 9 is newer than this program's 2: use a newer program"), "{said}");
    let (code, said) = refusal(&["mds", "--dir", text(&at("c"))]);
    assert!(code == libc::ENOENT && said.contains("stria mkfs"), "{said}");
}

#[test]
fn a_new_cluster_is_clean_and_a_lost_store_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("c");
    assert!(stria(&["mkfs", "--dir", text(&at), "--osts", "2"]).status.success());
    let clean = stria(&["fsck", "--dir", text(&at), "--data"]);
    let said = String::from_utf8_lossy(&clean.stdout).into_owned();
    assert!(clean.status.success() && said.contains("MDT: 1 inodes") && said.ends_with("0 fault(s)\n"), "{said}");
    std::fs::remove_dir_all(at.join("ost1")).unwrap();
    std::fs::create_dir(at.join("ost1")).unwrap();
    let found = stria(&["fsck", "--dir", text(&at)]);
    let said = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(found.status.code() == Some(4) && said.contains("OST 1: its store is not in"), "{said}");
}

#[test]
fn two_daemons_on_one_port_are_refused_by_address() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("c");
    assert!(stria(&["mkfs", "--dir", text(&at), "--osts", "1"]).status.success());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (_, said) = refusal(&["mds", "--dir", text(&at), "--listen", &address]);
    assert!(said.contains(&address) && said.to_lowercase().contains("in use"), "{said}");
}

#[test]
fn borrowed_names_take_their_verbs() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("lfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_stria"), &link).unwrap();
    let run = |arguments: &[&str]| Command::new(&link).args(arguments).output().unwrap();
    let out = run(&["getstripe", text(dir.path())]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(libc::ENOTTY) && said.contains("not on a Stria mount"), "{said}");
    let out = run(&["setstripe", "-S", "63K", text(&dir.path().join("f"))]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(libc::EINVAL) && said.contains("stripe size 64512 is too small"), "{said}");
    let out = run(&["frobnicate", "x"]);
    assert!(
        String::from_utf8_lossy(&out.stderr)
            .contains("'frobnicate' is not there; there are: setstripe, migrate, getstripe, df, find")
    );
    let found = run(&["find", text(dir.path()), "-name", "lfs"]);
    assert_eq!(String::from_utf8_lossy(&found.stdout), format!("{}\n", link.display()));
}

/// A cluster directory with one OST.
fn made(dir: &Path) -> std::path::PathBuf {
    let at = dir.join("c");
    good(&["mkfs", "--dir", text(&at), "--osts", "1"]);
    at
}

#[test]
fn stripe_sizes_counts_and_lists_that_cannot_be_are_refused_with_the_value_and_what_would_be_right() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    for (arguments, value, remedy) in [
        (["-S", "0"], "stripe size 0", "64K"),
        (["-S", "63K"], "64512", "64K"),
        (["-S", "4G"], "4294967296", "below 4G"),
        (["-S", "100000"], "100000", "multiple of 64K: use 65536 or 131072"),
        (["-S", "1x"], "1x", ""),
        (["-c", "2001"], "2001", "2000"),
        (["-c", "many"], "many", ""),
        (["-i", "-7"], "-7", ""),
        (["-o", "0-"], "0-", ""),
        (["-o", "5-2"], "5-2", ""),
        (["-p", "a pool with sixteen"], "19 characters", "15"),
        (["-p", "flash/x"], "'/'", "use letters"),
    ] {
        let (code, said) = refusal(&["setstripe", arguments[0], arguments[1], text(&file)]);
        assert_eq!(code, libc::EINVAL, "{arguments:?}: {said}");
        assert!(said.contains(value) && said.contains(remedy), "{arguments:?}: {said}");
    }
    for (setting, remedy) in [
        ("layout.default_stripe_size=0", "64K"),
        ("layout.default_stripe_size=63K", "64K"),
        ("layout.default_stripe_size=4G", "4G"),
        ("layout.default_stripe_size=100000", "use 65536 or 131072"),
        ("layout.default_stripe_count=2001", "2000"),
    ] {
        let value = setting.split_once('=').unwrap().1;
        let (code, said) = refusal(&["config", "show", "--set", setting]);
        assert!(code == libc::EINVAL && said.contains("layout"), "{setting}: {said}");
        assert!(said.contains(value) && said.contains(remedy), "{setting}: {said}");
    }
}

#[test]
fn what_cannot_be_mounted_on_is_refused_by_every_verb_that_mounts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    for (at, code, said) in
        [(dir.path().join("none"), libc::ENOENT, "does not exist"), (file, libc::ENOTDIR, "is not a directory")]
    {
        let (got, words) = refusal(&["mount", "--mds", "127.0.0.1:1", text(&at)]);
        assert!(words.contains(text(&at)), "{words}");
        assert!(got == code && words.to_lowercase().contains(&said.to_lowercase()), "{got} {words}");
    }
}

#[test]
fn servers_do_not_start_without_a_key_or_with_one_that_others_can_read() {
    let dir = tempfile::tempdir().unwrap();
    let at = made(dir.path());
    let (keys, away) = (at.join("keys"), dir.path().join("away"));
    std::fs::rename(&keys, &away).unwrap();
    for arguments in [
        vec!["mds", "--dir", text(&at), "--listen", "127.0.0.1:0"],
        vec!["oss", "--dir", text(&at), "--ost", "0", "--mds", "127.0.0.1:1", "--listen", "[::]:0"],
    ] {
        let (code, said) = refusal(&arguments);
        assert!(code == libc::ENOKEY && said.contains("has no key of its cluster: 'stria mkfs"), "{code} {said}");
    }
    std::fs::rename(&away, &keys).unwrap();
    let exposed = dir.path().join("exposed");
    std::fs::copy(keys.join("admin.key"), &exposed).unwrap();
    std::fs::set_permissions(&exposed, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let setting = format!("cluster.key_file={}", exposed.display());
    let (code, said) = refusal(&["mds", "--dir", text(&at), "--set", &setting]);
    assert!(code == libc::EACCES && said.contains("open to other users (mode 0644): close it with 'chmod"), "{said}");
    let (code, said) = refusal(&["mds", "--dir", text(&at), "--listen", "localhost"]);
    assert!(code == libc::EINVAL && said.contains("'localhost' is not an address") && said.contains("7988"), "{said}");
    let short = dir.path().join("key");
    support::write_secret(&short, "too short");
    let setting = format!("cluster.key_file={}", short.display());
    let (code, said) = refusal(&["mds", "--dir", text(&at), "--set", &setting]);
    assert!(code == libc::EINVAL && said.contains("9 bytes: at least 16"), "{said}");
    let setting = format!("cluster.key_file={}", dir.path().join("missing").display());
    let (code, said) = refusal(&["mds", "--dir", text(&at), "--set", &setting]);
    assert!(code == libc::ENOENT && said.contains("cluster.key_file"), "{said}");
}

#[test]
fn stores_in_use_and_stores_of_newer_programs_are_refused_by_the_servers() {
    let dir = tempfile::tempdir().unwrap();
    let (at, log) = (made(dir.path()), dir.path().join("log"));
    let mds = Daemon::start(&["mds", "--dir", text(&at), "--listen", "127.0.0.1:0"], &log);
    let oss = Daemon::start(&["oss", "--dir", text(&at), "--ost", "0", "--listen", "127.0.0.1:0"], &log);
    let (_, said) = refusal(&["mds", "--dir", text(&at), "--listen", "127.0.0.1:0"]);
    assert!(said.contains("mdt0 is in use by another process: stop it first"), "{said}");
    let (_, said) = refusal(&["oss", "--dir", text(&at), "--ost", "0", "--listen", "127.0.0.1:0"]);
    assert!(said.contains("ost0 is in use by another process: stop it first"), "{said}");
    let (_, said) = refusal(&["fsck", "--dir", text(&at)]);
    assert!(said.contains("in use"), "{said}");
    // Nor does a second 'up' make it forget where its servers are.
    let at_run = |name: &str| std::fs::read_to_string(at.join("run").join(name)).unwrap();
    let before = (at_run("mdt0.nid"), at_run("ost0.nid"));
    let free = dir.path().join("m");
    std::fs::create_dir(&free).unwrap();
    if can_mount() {
        let (_, said) = refusal(&["up", "--processes", "--dir", text(&at), "--mount", text(&free)]);
        assert!(said.contains("in use by another process"), "{said}");
    }
    assert_eq!((at_run("mdt0.nid"), at_run("ost0.nid")), before);
    drop((mds, oss));

    // Version 2 of the superblock in the data file, as a newer program would write it.
    let data = at.join("ost0").join("data");
    let mut bytes = std::fs::read(&data).unwrap();
    bytes[8] = 2;
    let end = store_file::format::SUPERBLOCK_BYTES - 4;
    let crc = wire::crc32c(&bytes[..end]);
    bytes[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&data, bytes).unwrap();
    let (_, said) = refusal(&["oss", "--dir", text(&at), "--ost", "0", "--mds", "127.0.0.1:1"]);
    assert!(said.contains("store format 2, this program knows up to 1: use a newer program"), "{said}");
}

#[test]
fn a_killed_role_starts_again_at_once_at_its_address() {
    let dir = tempfile::tempdir().unwrap();
    let (at, log) = (made(dir.path()), dir.path().join("log"));
    let mds_line = ["mds", "--dir", text(&at)];
    let oss_line = ["oss", "--dir", text(&at), "--ost", "0"];
    let mut mds = Daemon::start(&mds_line, &log);
    let mut oss = Daemon::start(&oss_line, &log);
    for _ in 0..5 {
        let (mds_at, oss_at) = (mds.word.clone(), oss.word.clone());
        mds.kill();
        mds = Daemon::start(&mds_line, &log);
        oss.kill();
        oss = Daemon::start(&oss_line, &log);
        assert_eq!((&mds.word, &oss.word), (&mds_at, &oss_at));
    }
}

#[test]
fn a_full_disk_at_the_start_is_an_error_that_names_it_and_leaves_nothing_half_made() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs", text(&small)]).status().unwrap();
    assert!(mounted.success());
    struct Unmount(std::path::PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            drop(Command::new("umount").arg("-l").arg(&self.0).output());
        }
    }
    let _unmount = Unmount(small.clone());
    let at = small.join("c");
    let (code, said) = refusal(&["mkfs", "--dir", text(&at), "--osts", "1"]);
    assert!(said.contains("No space left on device") && said.contains(text(&small)), "{code} {said}");
    // With room it is made, from whatever the first try left.
    let more = Command::new("mount").args(["-o", "remount,size=256m", text(&small)]).status().unwrap();
    assert!(more.success());
    good(&["mkfs", "--dir", text(&at), "--osts", "1"]);
    good(&["fsck", "--dir", text(&at)]);
    // And a store on a disk that fills up later starts, and says so.
    let log = dir.path().join("log");
    let filler = std::fs::File::create(small.join("filler")).unwrap();
    let mut size = 256u64 << 20;
    while size >= 4096 {
        // The largest piece that still fits, until nothing does.
        use std::os::unix::fs::FileExt;
        let end = filler.metadata().unwrap().len();
        if filler.write_all_at(&vec![1; size as usize], end).is_err() {
            filler.set_len(filler.metadata().unwrap().len()).unwrap();
            size /= 2;
        }
    }
    match Daemon::try_start(&["mds", "--dir", text(&at)], &log) {
        Ok(_) => {}
        Err(said) => {
            let said = said.to_lowercase();
            assert!(said.contains("no space left") && said.contains(text(&at).to_lowercase().as_str()), "{said}");
        }
    }
}

#[test]
fn an_object_server_that_the_cluster_will_not_have_ends_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let at = made(dir.path());
    let other = dir.path().join("other");
    good(&["mkfs", "--dir", text(&other), "--osts", "1"]);
    let (code, said) = refusal(&["oss", "--dir", text(&at), "--ost", "0,5", "--mds", "127.0.0.1:1"]);
    assert!(
        code == libc::ENOENT && said.contains("has no OST 5: it has 1 (0)") && said.contains("stria ost add"),
        "{code} {said}"
    );
    let key = dir.path().join("key");
    support::write_secret(&key, "a secret of more than sixteen bytes");
    let with_key = format!("cluster.key_file={}", text(&key));
    let mds = Daemon::start(&["mds", "--dir", text(&at), "--set", &with_key], &dir.path().join("log"));
    let oss = |dir: &Path, more: &[&str]| {
        let line = ["oss", "--dir", text(dir), "--ost", "0", "--mds", &mds.word];
        refusal(&[&line[..], more].concat())
    };
    let (code, said) = oss(&other, &["--set", &with_key]);
    assert!(code == libc::EXDEV && said.contains("stria-OST0000: its store belongs to cluster"), "{code} {said}");
    assert!(said.contains(&mds.word) && said.contains("--mds"), "{said}");
    let (code, said) = oss(&at, &[]);
    assert!(code != 0 && said.contains("does not know our cluster key: check cluster.key_file"), "{code} {said}");
}

#[test]
fn a_mount_without_a_metadata_server_names_the_address_what_was_tried_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("m");
    std::fs::create_dir(&at).unwrap();
    // A port that nobody listens on; one that was just given back may be another test's at once.
    let address = "127.0.0.1:1";
    let (code, said) = refusal(&["mount", "--mds", address, text(&at)]);
    assert!(code == libc::ENOKEY && said.contains("copy its DIR/keys/client.key"), "{code} {said}");
    let key = dir.path().join("key");
    support::write_secret(&key, "a secret of more than sixteen bytes");
    let setting = format!("cluster.key_file={}", text(&key));
    let line = ["mount", "--mds", address, text(&at), "--set", "recovery.window_s=1", "--set", &setting];
    let (code, said) = refusal(&line);
    assert!(code != 0 && said.contains(&format!("cannot join the cluster at tcp:{address}")), "{code} {said}");
    assert!(said.contains("does not answer (Connection refused"), "what it waits for is told meanwhile: {said}");
    assert!(said.contains("tried for 21s: start the metadata server, or give the address"), "{said}");
}

#[test]
fn a_size_that_no_store_can_have_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let c = dir.path().join("c");
    let (code, said) = refusal(&["mkfs", "--dir", text(&c), "--set", "store.capacity_bytes=5"]);
    assert!(code == libc::EINVAL && said.contains("store.capacity_bytes = 5: write 16M or more"), "{code} {said}");
    assert!(!c.exists());
    good(&["mkfs", "--dir", text(&c), "--osts", "1", "--set", "store.capacity_bytes=16M"]);
}

#[test]
fn a_process_that_may_not_have_the_address_space_for_its_page_frames_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let c = dir.path().join("c");
    good(&["mkfs", "--dir", text(&c), "--osts", "1"]);
    let line = "ulimit -v 600000 && exec \"$0\" mds --dir \"$1\"";
    let out = Command::new("sh").args(["-c", line, env!("CARGO_BIN_EXE_stria"), text(&c)]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(libc::ENOMEM), "{said}");
    assert!(
        said.contains("bytes of address space for page frames cannot be had") && said.contains("ulimit -v"),
        "{said}"
    );
}
