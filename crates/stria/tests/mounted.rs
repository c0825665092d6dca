//! Clusters brought up by the program and used through their mounts, as a user would. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{can_mount, good, refused};

/// A cluster in a temporary directory, unmounted at the end whatever happened.
struct Up {
    dir: tempfile::TempDir,
    mounts: Vec<PathBuf>,
}

impl Up {
    fn new(more: &[&str]) -> Up {
        let mut up = Up { dir: tempfile::tempdir().unwrap(), mounts: Vec::new() };
        up.start(more);
        up
    }
    fn start(&mut self, more: &[&str]) {
        let at = self.dir.path().join("mnt");
        fs::create_dir_all(&at).unwrap();
        let cluster = self.cluster();
        let mut line = vec!["up", "--background", "--dir", &cluster, "--mount", at.to_str().unwrap()];
        line.extend(more);
        good(&line);
        self.mounts.push(at);
    }
    fn cluster(&self) -> String {
        self.dir.path().join("c").to_str().unwrap().into()
    }
    fn at(&self, name: &str) -> String {
        self.dir.path().join("mnt").join(name).to_str().unwrap().into()
    }
    fn stop(&mut self) {
        while let Some(at) = self.mounts.pop() {
            good(&["umount", at.to_str().unwrap()]);
        }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        for at in self.mounts.iter().rev() {
            // A test that failed may have left anything.
            drop(Command::new("umount").arg("-l").arg(at).output());
        }
    }
}

#[test]
fn a_cluster_in_one_process_keeps_files_over_a_restart() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new(&["--osts", "3"]);
    let data: Vec<u8> = (0..3_000_000u32).flat_map(|i| i.to_le_bytes()).collect();
    fs::write(up.at("file"), &data).unwrap();
    fs::create_dir(up.at("d")).unwrap();
    let (_, said) = refused(&["up", "--dir", &up.cluster(), "--mount", up.dir.path().to_str().unwrap()]);
    assert!(said.contains("would hide the cluster's own directory"), "{said}");
    let elsewhere = up.dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let (_, said) = refused(&["up", "--dir", &up.cluster(), "--mount", elsewhere.to_str().unwrap()]);
    assert!(said.contains("in use"), "{said}");
    let (code, said) = refused(&["up", "--dir", &up.cluster(), "--mount", &up.at("")]);
    assert!(code == libc::EBUSY && said.contains("busy"), "{code} {said}");
    up.stop();
    let checked = good(&["fsck", "--data", "--dir", &up.cluster()]);
    assert!(checked.ends_with("0 fault(s)\n"), "{checked}");
    up.start(&["--set", "recovery.window_s=2"]);
    assert!(fs::read(up.at("file")).unwrap() == data && Path::new(&up.at("d")).is_dir());
    up.stop();
}

#[test]
fn mounts_hide_nothing_of_their_cluster_and_lie_neither_in_it_nor_in_each_other() {
    if !can_mount() {
        return;
    }
    let up = Up { dir: tempfile::tempdir().unwrap(), mounts: Vec::new() };
    let (dir, disk, outer) = (up.cluster(), up.dir.path().join("disk"), up.dir.path().join("outer"));
    good(&["mkfs", "--dir", &dir, "--osts", "2"]);
    // A store on another disk.
    fs::create_dir(&disk).unwrap();
    fs::create_dir_all(outer.join("inner")).unwrap();
    fs::rename(Path::new(&dir).join("ost1"), disk.join("ost1")).unwrap();
    std::os::unix::fs::symlink(disk.join("ost1"), Path::new(&dir).join("ost1")).unwrap();
    let (ost0, run) = (format!("{dir}/ost0"), format!("{dir}/run"));
    fs::create_dir(format!("{run}/m")).unwrap();
    let tried = |mounts: &[&str]| {
        let mut line = vec!["up", "--dir", &dir];
        mounts.iter().for_each(|at| line.extend(["--mount", at]));
        let (code, said) = refused(&line);
        assert_eq!(code, libc::EINVAL, "{mounts:?}: {said}");
        if let [at] = mounts {
            // A mount by itself as well, of servers that run: those of another process.
            let (code, alone) = refused(&["mount", "--dir", &dir, at]);
            assert_eq!((code, &alone), (libc::EINVAL, &said), "{at}");
        }
        said
    };
    for at in [up.dir.path().to_str().unwrap(), &dir, &ost0, &run, disk.to_str().unwrap()] {
        let said = tried(&[at]);
        assert!(said.contains(&format!("mount point {at} would hide the cluster's own directory")), "{said}");
    }
    let said = tried(&[&format!("{run}/m")]);
    assert!(said.contains(&format!("lies in the cluster's own directory {run}")), "{said}");
    let (outer, inner) = (outer.to_str().unwrap(), outer.join("inner"));
    for mounts in [[outer, inner.to_str().unwrap()], [inner.to_str().unwrap(), outer]] {
        let said = tried(&mounts);
        assert!(said.contains(&format!("{} lies in mount point {outer}", inner.display())), "{said}");
    }
}

#[test]
fn layouts_are_set_shown_and_found_with_the_words_of_lfs() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new(&["--osts", "4"]);
    let (wide, two) = (up.at("wide"), up.at("two"));
    fs::create_dir(&wide).unwrap();
    good(&["setstripe", "-c", "-1", "-S", "1M", &wide]);
    assert_eq!(
        good(&["getstripe", "-d", &wide]),
        format!("{wide}\nstripe_count:  -1 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1\n")
    );
    fs::write(up.at("wide/f"), vec![1; 5 << 20]).unwrap();
    assert_eq!(good(&["getstripe", "-c", &up.at("wide/f")]), "4\n");
    good(&["setstripe", "-c", "2", "-i", "1", "-S", "64", &two]);
    let shown = good(&["getstripe", &two]);
    assert!(shown.starts_with(&format!("{two}\nlmm_stripe_count:  2\nlmm_stripe_size:   65536\nlmm_pattern:       raid0\nlmm_layout_gen:    0\nlmm_stripe_offset: 1\n\tobdidx")), "{shown}");
    assert_eq!(fs::metadata(&two).unwrap().len(), 0);
    assert_eq!(good(&["find", &up.at(""), "-type", "f", "-stripe-count", "+2"]).trim_end(), up.at("wide/f"));
    assert_eq!(good(&["find", &up.at(""), "-type", "f", "-ost", "2", "-stripe-size", "64k"]).trim_end(), two);

    assert_eq!(refused(&["setstripe", "-c", "1", &two]).0, libc::EEXIST);
    let (code, said) = refused(&["setstripe", "-i", "9", &up.at("new")]);
    assert!(code == libc::EINVAL && said.contains("no OST with index 9: this file system has 0-3"), "{said}");
    good(&["setstripe", "-d", &wide]);
    assert_eq!(good(&["getstripe", "-c", "-d", &wide]), "1\n");
    assert_eq!(fs::read_dir(up.at("")).unwrap().count(), 2, "no scratch directory is left");

    let df = good(&["df", &up.at("")]);
    assert!(
        df.starts_with("UUID  ")
            && df.contains("stria-MDT0000_UUID")
            && df.contains("[OST:3]")
            && df.contains("filesystem_summary:"),
        "{df}"
    );
    up.stop();
}

#[test]
fn parameters_of_clients_and_servers_are_read_and_set_by_pattern() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new(&["--osts", "2"]);
    let at = up.at("");
    let on = |verb: &str, rest: &[&str]| {
        let mut line = vec![verb, "--at", &at];
        line.extend(rest);
        good(&line)
    };
    assert_eq!(on("get_param", &["-n", "osc.*.max_rpcs_in_flight"]), "8\n8\n");
    assert!(on("set_param", &["osc.*OST0001*.max_rpcs_in_flight=16"]).contains("max_rpcs_in_flight=16"));
    assert_eq!(on("get_param", &["-n", "osc.*.max_rpcs_in_flight"]), "8\n16\n");
    // The scheduler follows what the store lies on, whatever that is here, until somebody sets another.
    let lies_on = on("get_param", &["-n", "ost.OSS.ost_io.nrs_by_medium"]);
    let chosen = format!("{}\n", lies_on.split_once(": ").unwrap().0);
    assert_eq!(on("get_param", &["-n", "ost.OSS.ost_io.nrs_policies"]), chosen, "{lies_on}");
    on("set_param", &["ost.OSS.ost_io.nrs_policies=obrr"]);
    assert_eq!(on("get_param", &["-n", "ost.OSS.ost_io.nrs_policies"]), "obrr\n");
    on("set_param", &["ost.OSS.ost_io.nrs_policies=by_medium"]);
    assert_eq!(on("get_param", &["-n", "ost.OSS.ost_io.nrs_policies"]), chosen);
    // One that chooses by itself begins with that.
    on("set_param", &["ost.OSS.ost_io.nrs_policies=auto"]);
    assert_eq!(on("get_param", &["-n", "ost.OSS.ost_io.nrs_policies"]), "auto\n");
    let decisions = on("get_param", &["-n", "ost.OSS.ost_io.nrs_decisions"]);
    assert!(decisions.starts_with(&format!("in use: {},", chosen.trim_end())), "{decisions}");
    assert!(on("get_param", &["mdt.*.md_stats"]).contains("snapshot_time"));
    assert_eq!(on("list_param", &["obdfilter.*"]), "obdfilter.stria-OST0000\nobdfilter.stria-OST0001\n");
    // What the configuration calls live can be set; a fast tier is not here.
    let explained = good(&["config", "explain"]);
    let live = explained.lines().filter_map(|line| line.split_once("takes effect live, `")?.1.strip_suffix('`'));
    let live: Vec<String> = live.map(|path| path.replace("_KEY", "_*")).filter(|p| !p.contains("fast_")).collect();
    assert!(live.len() > 15, "{explained}");
    for path in live {
        assert!(!on("list_param", &["-w", &path]).is_empty(), "{path}");
    }
    fs::write(up.at("f"), vec![1; 3 << 20]).unwrap();
    fs::File::open(up.at("f")).unwrap().sync_all().unwrap();
    let told = on("get_param", &["-n", "llite.*.stats"]);
    assert!(
        told.starts_with("snapshot_time ") && told.contains("write_bytes ") && told.contains(" samples [bytes] "),
        "{told}"
    );
    assert!(on("get_param", &["-n", "llite.*.extents_stats"]).contains("512K - 1024K :"));
    let rpcs = on("get_param", &["-n", "osc.*.rpc_stats"]);
    assert!(rpcs.contains("pages per rpc") && rpcs.contains("1024:"), "3 MiB are 768 pages of one RPC: {rpcs}");
    assert!(on("get_param", &["-n", "obdfilter.*.brw_stats"]).contains("disk I/O size"));
    for name in ["llite.*.stats", "osc.*.stats"] {
        assert!(on("get_param", &["-n", name]).contains("write_bytes"));
        on("set_param", &[&format!("{name}=clear")]);
        assert!(!on("get_param", &["-n", name]).contains("write_bytes"));
    }
    let (_, said) = refused(&["set_param", "--at", &at, "osc.*.rpc_stats=5"]);
    assert!(said.contains("write 0 or clear"), "{said}");
    let (code, said) = refused(&["set_param", "--at", &at, "osc.*.max_rpcs_in_flight=0"]);
    assert!(code == libc::EINVAL && said.contains("1 to 256 RPCs"), "{said}");
    assert_eq!(refused(&["get_param", "--at", &at, "no.such.thing"]).0, libc::ENOENT);
    assert!(good(&["status", &at]).contains("stria-OST0001 at local:oss: full"));
    up.stop();
}

#[test]
fn processes_serve_two_mounts_and_a_killed_server_comes_back() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new(&["--osts", "2", "--processes"]);
    let second = up.dir.path().join("mnt2");
    fs::create_dir(&second).unwrap();
    good(&["mount", "--background", "--dir", &up.cluster(), second.to_str().unwrap()]);
    up.mounts.push(second.clone());
    fs::write(up.at("f"), b"one").unwrap();
    assert_eq!(fs::read(second.join("f")).unwrap(), b"one");
    let pid = fs::read_to_string(Path::new(&up.cluster()).join("run/ost0.pid")).unwrap();
    assert!(Command::new("kill").args(["-KILL", pid.trim()]).status().unwrap().success());
    for i in 0..8 {
        let name = format!("after{i}");
        fs::write(second.join(&name), vec![i; 100_000]).unwrap();
        fs::File::open(second.join(&name)).unwrap().sync_all().unwrap();
        assert_eq!(fs::read(up.at(&name)).unwrap(), vec![i; 100_000]);
    }
    let status = good(&["status", "--dir", &up.cluster()]);
    assert!(status.contains("mdt0") && status.contains("ost1"), "{status}");
    up.stop();
}

/// Reads the next bytes of an open file in small pieces; how many read requests that took, at all OSTs.
fn requests_of_reading(file: &mut fs::File, bytes: usize, requests: impl Fn() -> u64) -> u64 {
    use std::io::Read;
    let before = requests();
    let mut piece = vec![0; 16 << 10];
    for at in (0..bytes).step_by(piece.len()) {
        file.read_exact(&mut piece).unwrap();
        assert!(piece.iter().all(|b| *b == 7), "at {at}");
    }
    requests() - before
}

/// Ends the load when it goes, also with a test that failed: a scope waits for its threads.
struct EndOfLoad<'a>(&'a std::sync::atomic::AtomicBool);
impl Drop for EndOfLoad<'_> {
    fn drop(&mut self) {
        self.0.store(false, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Changes the policies of the caches of mount and servers.
fn change_caches(set: &dyn Fn(&str) -> String, get: &dyn Fn(&str) -> String) {
    for policy in ["arc", "lru"] {
        set(&format!("llite.*.cache_policy={policy}"));
        assert_eq!(get("llite.*.cache_policy"), policy);
        set(&format!("obdfilter.*.cache_policy={policy}"));
        assert_eq!(get("obdfilter.*OST0001.cache_policy"), policy);
    }
}

/// Sets a key of the policies in the caches of mount and servers.
fn change_cache_keys(set: &dyn Fn(&str) -> String, get: &dyn Fn(&str) -> String) {
    for node in ["llite.*", "obdfilter.*OST0001"] {
        for value in ["4194304", "8388608"] {
            set(&format!("{node}.cache_bypass_bytes={value}"));
            assert_eq!(get(&format!("{node}.cache_bypass_bytes")), value);
        }
    }
}

#[test]
fn every_room_is_switched_while_data_flows() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new(&["--osts", "2"]);
    let at = up.at("");
    let set = |what: &str| good(&["set_param", "--at", &at, what]);
    let get = |what: &str| good(&["get_param", "-n", "--at", &at, what]).trim_end().to_string();
    let running = std::sync::atomic::AtomicBool::new(true);
    let order = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|s| {
        let end = EndOfLoad(&running);
        let load = |name: &'static str| {
            let (path, running) = (up.at(name), &running);
            move || {
                let mut rounds = 0u8;
                while running.load(order) || rounds < 3 {
                    rounds = rounds.wrapping_add(1).max(1);
                    let data = vec![rounds; 1_500_000];
                    fs::write(&path, &data).unwrap();
                    fs::File::open(&path).unwrap().sync_all().unwrap();
                    assert!(fs::read(&path).unwrap() == data, "round {rounds} of {path}");
                }
            }
        };
        let loads = [s.spawn(load("a")), s.spawn(load("b"))];
        let recordings = [
            "ost.OSS.ost_io.nrs_record",
            "obdfilter.*.cache_record",
            "llite.*.cache_record",
            "llite.*.readahead_record",
        ];
        for round in 0..2 {
            // The first round is recorded from its beginning, the second in its midst.
            let record = |at: u32| (round == at).then(|| recordings.map(|r| set(&format!("{r}=8M"))));
            record(0);
            for policy in ["crrn", "obrr", "fifo"] {
                set(&format!("ost.OSS.ost_io.nrs_policies={policy}"));
                assert_eq!(get("ost.OSS.ost_io.nrs_policies"), policy);
            }
            change_caches(&set, &get);
            record(1);
            change_cache_keys(&set, &get);
            for policy in ["none", "ondemand", "parallel"] {
                set(&format!("llite.*.readahead_policy={policy}"));
                assert_eq!(get("llite.*.readahead_policy"), policy);
            }
            for mib in ["0", "1", "64"] {
                set(&format!("llite.*.max_read_ahead_mb={mib}"));
                assert_eq!(get("llite.*.max_read_ahead_mb"), mib);
            }
            for r in recordings {
                set(&format!("{r}=check"));
                get(r)
                    .lines()
                    .for_each(|said| assert!(said.contains("calls replayed, the same answers"), "{r}: {said}"));
            }
        }
        drop(end);
        loads.into_iter().for_each(|l| l.join().unwrap());
    });
    let said = refused(&["set_param", "--at", &at, "llite.*.readahead_policy=psychic"]).1;
    assert!(said.contains("psychic") && said.contains("parallel"), "{said}");
    let said = refused(&["set_param", "--at", &at, "llite.*.max_read_ahead_mb=much"]).1;
    assert!(said.contains("much"), "{said}");
    up.stop();
}

#[test]
fn readahead_settings_hold_for_files_that_are_open() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new(&["--osts", "1"]);
    let at = up.at("");
    let set = |what: &str| good(&["set_param", "--at", &at, what]);
    fs::write(up.at("f"), vec![7; 12 << 20]).unwrap();
    set("llite.*.readahead_policy=none");
    let requests = || -> u64 {
        let stats = good(&["get_param", "-n", "--at", &at, "osc.*.stats"]);
        stats.lines().filter_map(|l| l.strip_prefix("read_bytes ")?.trim().split(' ').next()?.parse::<u64>().ok()).sum()
    };
    // A mount of its own has nothing cached; the kernel reads nothing ahead by itself.
    up.stop();
    up.start(&["--set", "mount.kernel_cache=never"]);
    set("llite.*.readahead_policy=none");
    let mut file = fs::File::open(up.at("f")).unwrap();
    let pieces = (2 << 20) / (16 << 10);
    assert_eq!(requests_of_reading(&mut file, 2 << 20, requests), pieces);
    set("llite.*.max_read_ahead_per_file_mb=1");
    set("llite.*.readahead_policy=parallel");
    let ahead = requests_of_reading(&mut file, 4 << 20, requests);
    assert!(ahead < pieces, "{ahead} requests for twice as much");
    set("llite.*.max_read_ahead_mb=0");
    // What is on its way still comes; behind it each piece is asked for.
    let without = requests_of_reading(&mut file, 6 << 20, requests);
    assert!(without > 2 * pieces && ahead < pieces, "{without} requests without a budget, {ahead} with one");
    drop(file);
    up.stop();
}

#[test]
fn posix_fadvise_reaches_the_mount_through_the_preloaded_library() {
    if !can_mount() {
        return;
    }
    let mut up = Up::new(&["--osts", "1"]);
    fs::write(up.at("f"), vec![7; 8 << 20]).unwrap();
    let (file, at) = (up.at("f"), up.at(""));
    let used = || good(&["get_param", "-n", "--at", &at, "llite.*.used_mb"]).trim_end().to_string();
    let library = std::env::current_exe().unwrap().with_file_name("libstria_posix.so");
    assert!(library.exists(), "{} is built along with this test", library.display());
    // Advises that nothing of the file is needed, and reads nothing.
    let dont_need = |preload: &Path| {
        let line = [format!("if={file}"), "of=/dev/null".into(), "iflag=nocache".into(), "count=0".into()];
        let out = Command::new("dd").args(line).env("LD_PRELOAD", preload).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    };
    fs::File::open(&file).unwrap().sync_all().unwrap();
    assert_eq!(used(), "8");
    dont_need(Path::new(""));
    assert_eq!(used(), "8", "a kernel keeps it to itself");
    dont_need(&library);
    assert_eq!(used(), "0");
    assert!(fs::read(&file).unwrap() == vec![7; 8 << 20]);
    assert_eq!(used(), "8");
    up.stop();
}

/// Dirty bytes of all OSTs at the mount.
fn dirty_bytes(up: &Up) -> u64 {
    let said = good(&["get_param", "--at", &up.at(""), "-n", "osc.*.cur_dirty_bytes"]);
    said.lines().map(|n| n.trim().parse::<u64>().expect("a number")).sum()
}

#[test]
fn a_write_that_asks_to_be_synced_is() {
    use std::os::fd::AsRawFd;
    if !can_mount() {
        return;
    }
    let mut up = Up::new(&["--osts", "2", "--set", "client.dirty_age_s=3000"]);
    let file = fs::File::create(up.at("f")).unwrap();
    let write = |offset: i64, flags: i32| {
        let mut data = vec![7u8; 100_000];
        let part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
        // SAFETY: the vector describes `data`, which lives until the call has returned.
        let n = unsafe { libc::pwritev2(file.as_raw_fd(), &part, 1, offset, flags) };
        assert_eq!(n, 100_000, "{}", std::io::Error::last_os_error());
    };
    write(0, 0);
    assert!(dirty_bytes(&up) >= 100_000, "an ordinary write stays dirty, or this test sees nothing");
    write(100_000, libc::RWF_DSYNC);
    assert_eq!(dirty_bytes(&up), 0);
    write(0, 0);
    assert!(dirty_bytes(&up) >= 100_000);
    write(0, libc::RWF_SYNC);
    assert_eq!(dirty_bytes(&up), 0);
    write(0, 0);
    assert!(dirty_bytes(&up) >= 100_000);
    good(&["sync", &up.at("")]);
    assert_eq!(dirty_bytes(&up), 0);
    let (_, said) = refused(&["sync", up.dir.path().to_str().unwrap()]);
    assert!(said.contains("not on a Stria mount"), "{said}");
    drop(file);
    up.stop();
}
