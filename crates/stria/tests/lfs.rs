//! The verbs of `lfs` and `lctl` on a running cluster: what they show, choose and refuse. Needs root and `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::path::Path;

use support::{Cluster, can_mount, good, refused, text};

/// Runs a verb on files below a directory; relative paths begin with `@`.
fn on(at: &Path, line: &str) -> String {
    let words: Vec<String> = line.split(' ').map(|w| w.replace('@', &format!("{}/", text(at)))).collect();
    good(&words.iter().map(String::as_str).collect::<Vec<_>>())
}
fn off(at: &Path, line: &str) -> (i32, String) {
    let words: Vec<String> = line.split(' ').map(|w| w.replace('@', &format!("{}/", text(at)))).collect();
    refused(&words.iter().map(String::as_str).collect::<Vec<_>>())
}
/// What `find` prints of the paths below `at`, sorted.
fn found(at: &Path, tests: &str) -> Vec<String> {
    let shown = on(at, &format!("find @ {tests}"));
    let mut paths: Vec<String> = shown.lines().map(|l| l.replace(&format!("{}/", text(at)), "")).collect();
    paths.sort();
    paths
}

#[test]
fn layouts_are_shown_by_every_option_and_taken_from_files_and_templates() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(3);
    let at = c.mount("m", &[]);
    fs::create_dir(at.join("d")).unwrap();
    on(&at, "setstripe -c 2 -i 1 -S 128K @d/two");
    on(&at, "setstripe -o 0 -o 2 @d/listed");
    on(&at, "setstripe -c 1 -i 2 @d/one");
    fs::write(at.join("d/one"), b"x").unwrap();
    let values = ["-c", "-S", "-i", "-L", "-g", "-m", "-I", "-N", "--component-count"];
    let shown = values.map(|o| on(&at, &format!("getstripe {o} @d/two")).trim_end().to_string());
    assert_eq!(shown, ["2", "131072", "1", "raid0", "0", "0", "0", "1", "0"]);
    let fid = on(&at, "path2fid @d/two");
    assert_eq!(on(&at, "getstripe -F @d/two"), fid);
    assert_eq!(on(&at, "getstripe -F -d @d"), on(&at, "path2fid @d"));
    assert_eq!(on(&at, "getstripe -i @d/listed"), "0\n");
    // Only what has an object on an OST, by index and by name.
    for ost in ["1", "stria-OST0001_UUID"] {
        let shown = on(&at, &format!("getstripe -r -q -O {ost} @"));
        assert!(shown.matches("obdidx").count() == 1 && shown.contains("\n\t     1\t"), "{shown}");
    }
    assert_eq!(on(&at, "getstripe -d -R -S @d"), "0\n");
    // A template, and a copy: the same size and count; the template says where, too.
    let yaml = on(&at, "getstripe -y @d/two");
    assert!(yaml.starts_with("lmm_stripe_count:  2\nlmm_stripe_size:   131072\nlmm_pattern:       raid0\n"), "{yaml}");
    assert!(yaml.contains("lmm_objects:\n- 0: { l_ost_idx: 1, l_fid: [0x"), "{yaml}");
    let template = c.path("template");
    fs::write(&template, &yaml).unwrap();
    on(&at, &format!("setstripe --yaml={template} @from-yaml"));
    on(&at, "setstripe --copy @d/two @copied");
    on(&at, "setstripe --copy=@d/two @d");
    fs::write(at.join("d/inherited"), b"x").unwrap();
    for name in ["from-yaml", "copied", "d/inherited"] {
        assert_eq!(on(&at, &format!("getstripe -c @{name}")), "2\n", "{name}");
        assert_eq!(on(&at, &format!("getstripe -S @{name}")), "131072\n", "{name}");
    }
    assert_eq!(on(&at, "getstripe -i @from-yaml"), "1\n");
    for (line, errno, why) in [
        ("setstripe -E 1M -L mdt -E eof @new", libc::EOPNOTSUPP, "-E: composite"),
        ("setstripe -N2 @new", libc::EOPNOTSUPP, "mirrors"),
        ("setstripe --comp-add @new", libc::EOPNOTSUPP, "--comp-add: composite"),
        ("setstripe -S 0 @new", libc::EINVAL, "stripe size 0"),
        ("setstripe --copy @none @new", libc::ENOENT, "--copy"),
        ("setstripe --yaml @d/one @new", libc::EINVAL, "no layout"),
        ("getstripe -I7 @d/two", libc::ENOENT, "no component 7"),
        ("getstripe -O 1000000 @d", libc::EINVAL, "is not an OST"),
    ] {
        let (code, said) = off(&at, line);
        assert!(code == errno && said.contains(why), "{line}: {code} {said}");
    }
    assert!(!at.join("new").exists());
    c.stop();
}

#[test]
fn space_is_shown_by_target_kind_and_column_with_state_letters() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    let rows = |line: &str| on(&at, line).lines().map(str::to_string).collect::<Vec<_>>();
    let osts = rows("df -o @");
    assert!(osts[1].starts_with("stria-OST0000_UUID ") && osts[2].starts_with("stria-OST0001_UUID "), "{osts:?}");
    assert!(osts[3].is_empty() && osts[4].starts_with("filesystem_summary:"), "{osts:?}");
    assert_eq!(rows("df -o1 @").iter().filter(|r| r.contains("_UUID")).count(), 1);
    let mdts = rows("df -m -i @");
    assert!(mdts[1].starts_with("stria-MDT0000_UUID ") && !mdts.iter().any(|r| r.contains("OST")), "{mdts:?}");
    let summary = rows("df -s -N @");
    assert!(summary.len() == 1 && summary[0].starts_with("filesystem_summary:"), "{summary:?}");
    let columns = rows("df -o0 --output=target,state,iused @");
    assert!(columns[0].split_whitespace().eq(["Mounted", "on", "State", "IUsed"]), "{columns:?}");
    let (code, said) = off(&at, "df -p flash @");
    assert!(code == libc::EINVAL && said.contains("pool 'flash' does not exist"), "{said}");
    // No new objects on one OST: its letter, and where new files go.
    on(&at, &format!("set_param --at {} obdfilter.*OST0000.no_precreate=1", text(&at)));
    let letters = || rows("df -o0 @")[1].clone();
    assert!(letters().ends_with("[OST:0] N"), "{}", letters());
    // Deactivated by the administrator: only shown when asked for.
    on(&at, &format!("set_param --at {} osp.*OST0001*.active=0", text(&at)));
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while on(&at, "df -o @").contains("OST0001") {
        assert!(std::time::Instant::now() < end, "the client never hears of it");
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    let all = on(&at, "df -v -o1 @");
    assert!(all.contains("stria-OST0001_UUID") && all.contains(": inactive"), "{all}");
    assert!(on(&at, "osts @").contains("1: stria-OST0001_UUID INACTIVE\n"));
    on(&at, &format!("set_param --at {} osp.*OST0001*.active=1", text(&at)));
    // A target that is away is named; with -l nobody waits for the metadata server, either.
    c.oss[1].take();
    c.mds.take();
    let lazy = on(&at, "df -l @");
    assert!(lazy.contains("stria-MDT0000_UUID  : inactive device"), "{lazy}");
    c.start_mds();
    c.start_oss(1);
    c.stop();
}

#[test]
fn files_are_found_by_times_rights_xattrs_and_places() {
    if !can_mount() {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    fs::create_dir(at.join("d")).unwrap();
    on(&at, "setstripe -c 2 -i 0 @d/wide");
    for (name, mode) in [("a", 0o640), ("b", 0o604)] {
        fs::write(at.join(name), name).unwrap();
        fs::set_permissions(at.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let a = fs::File::options().write(true).open(at.join("a")).unwrap();
    a.set_times(fs::FileTimes::new().set_modified(old)).unwrap();
    drop(a);
    let mut setfattr = std::process::Command::new("setfattr");
    let set = setfattr.args(["-n", "user.kind", "-v", "raw", text(&at.join("b"))]).status();
    let has_xattrs = set.is_ok_and(|s| s.success());
    assert_eq!(found(&at, "-type f -perm 604"), ["b"]);
    assert_eq!(found(&at, "-type f ! -perm /o+r -name ?"), ["a"]);
    assert_eq!(found(&at, "-mtime +365"), ["a"]);
    assert_eq!(found(&at, "-type f -newermt 2001-12-31"), ["b", "d/wide"]);
    assert_eq!(found(&at, "-type f ! -newermB @b -name ?"), ["a"]);
    assert!(found(&at, "-btime +1").is_empty());
    assert_eq!(found(&at, "-name ? -type f -newerbt 2001-12-31"), ["a", "b"]);
    if has_xattrs {
        assert_eq!(found(&at, "-xattr user.kind"), ["b"]);
        assert_eq!(found(&at, "-xattr user.kind=raw"), ["b"]);
        assert!(found(&at, "-xattr user.kind=cooked").is_empty());
        assert_eq!(found(&at, "-type f ! -xattr user.kind"), ["a", "d/wide"]);
    } else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "setfattr is needed (package attr)");
    }
    assert_eq!(found(&at, "-mdt 0 -type f").len(), 3);
    assert!(found(&at, "-mdt 1").is_empty());
    assert_eq!(found(&at, "-mdt stria-MDT0000_UUID -type d -threads 8"), ["", "d"]);
    assert_eq!(found(&at, "-lazy -type f -size -2c -maxdepth 1 -threads 3"), ["a", "b"]);
    assert_eq!(found(&at, "-type f -printf %f:%s:%m:%Lc:%Lo\\n -name wide"), ["wide:0:644:2:0,1"]);
    let fid = on(&at, "path2fid @b");
    assert_eq!(on(&at, "find @b -printf %LF\\n"), fid);
    let listed = on(&at, "find @b -ls");
    assert!(listed.contains(" -rw----r-- ") && listed.trim_end().ends_with("/b"), "{listed}");
    let (code, said) = off(&at, "find @ -mirror-count +1");
    assert!(code == libc::EOPNOTSUPP && said.contains("-mirror-count: mirrors"), "{said}");
    c.stop();
}

#[test]
fn targets_mounts_and_ids_are_told_and_files_go_by_their_ids() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    assert_eq!(on(&at, "osts @"), "OBDS:\n0: stria-OST0000_UUID ACTIVE\n1: stria-OST0001_UUID ACTIVE\n");
    assert_eq!(on(&at, "mdts @"), "MDTS:\n0: stria-MDT0000_UUID ACTIVE\n");
    let checked = on(&at, "check all @");
    assert_eq!(checked.matches(": active.\n").count(), 3, "{checked}");
    assert!(checked.starts_with("stria-MDT0000-mdc-"), "{checked}");
    assert_eq!(on(&at, "check osts @").lines().count(), 2);
    assert_eq!(on(&at, "getname -n @"), "stria\n");
    let instance = on(&at, "getname -i @");
    assert_eq!(on(&at, "getname @"), format!("stria-{} {}\n", instance.trim_end(), text(&at)));
    // A server by its address, also when it is gone.
    let address = c.oss[1].as_ref().unwrap().word.clone();
    assert_eq!(on(&at, &format!("ping --at @ {address}")), format!("12345-{address}\n"));
    let (code, said) = off(&at, "ping --at @ 192.0.2.1:9");
    assert!(code == libc::EHOSTUNREACH && said.contains("'192.0.2.1:9'; there are: tcp:127.0.0.1:"), "{said}");
    // Names by ids: all links of a file, one of them, their parents; and the file by its id.
    fs::create_dir(at.join("d")).unwrap();
    fs::write(at.join("d/f"), b"x").unwrap();
    fs::hard_link(at.join("d/f"), at.join("second")).unwrap();
    fs::write(at.join("other"), b"x").unwrap();
    let fid = on(&at, "path2fid @d/f").trim_end().to_string();
    let parents = on(&at, "path2fid --parents @second");
    let dir = on(&at, "path2fid @d").trim_end().to_string();
    assert!(parents.contains(&format!("{dir}/f")) && parents.contains("[0x200000007:0x1:0x0]/second"), "{parents}");
    assert_eq!(on(&at, &format!("fid2path --link 0 @ {fid}")).lines().count(), 1);
    let (code, said) = off(&at, &format!("fid2path --link 2 @ {fid}"));
    assert!(code == libc::ENOENT && said.contains("2 link(s)"), "{said}");
    let (code, said) = off(&at, &format!("rmfid @ {dir} {fid} [0x200000401:0xffff:0x0]"));
    assert!(code == libc::ENOENT && said.contains("is a directory: rmdir"), "{code} {said}");
    assert!(at.join("d").is_dir() && at.join("other").exists());
    assert!(!at.join("d/f").exists() && !at.join("second").exists(), "every name went");
    // What does not answer is told by check, and by its exit code.
    c.oss[1].take();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while support::stria(&["check", "osts", text(&at)]).status.success() {
        assert!(std::time::Instant::now() < end, "the client never notices");
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    let (code, said) = off(&at, "check osts @");
    assert!(code == libc::ENOTCONN && said.contains("stria-OST0001-osc-") && !said.contains("OST0000"), "{said}");
    c.start_oss(1);
    c.stop();
}

#[test]
fn parameters_are_listed_read_and_set_in_every_form_of_lctl() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    let run = |line: &str| on(&at, &format!("{line} --at {}", text(&at)));
    let both = run("get_param {mdc,osc}.*.import");
    assert!(both.starts_with("mdc.stria-MDT0000") && both.matches("target: ").count() == 3, "{both}");
    let all = run("list_param -R osc");
    assert!(all.starts_with("osc\nosc.stria-OST0000-osc-") && all.contains(".rpc_stats\n"), "{all}");
    // The client's side of each OST, and the metadata server's.
    assert_eq!(run("list_param -R -D osc").lines().count(), 5);
    assert!(run("list_param -F osc.*.*").contains(".max_dirty_mb=\n"));
    assert!(!run("list_param -t osc.*.*").contains("stats"));
    assert!(run("list_param -R").contains("\nobdfilter.stria-OST0001.brw_stats\n"));
    assert_eq!(run("get_param -N osc.*.max_dirty_mb").lines().count(), 2);
    assert!(run("get_param -F -N osc.*.max_dirty_mb").ends_with("max_dirty_mb=\n"));
    let headed = run("get_param -H osc.*.import");
    assert!(headed.lines().all(|l| l.starts_with("osc.stria-OST000")), "{headed}");
    let yaml = run("get_param -y osc.*OST0000*.max_rpcs_in_flight osc.*OST0000*.import");
    assert!(yaml.contains(".max_rpcs_in_flight: 8\n") && yaml.contains(".import:\n  import:\n"), "{yaml}");
    // From a file, side by side, and without names.
    let file = c.path("settings");
    fs::write(&file, "# two\nosc.*OST0000*.max_dirty_mb=32\nosc.*OST0001*.max_dirty_mb=48\n").unwrap();
    assert_eq!(run(&format!("set_param -F {file}")).lines().count(), 2);
    assert_eq!(run("get_param -n osc.*.max_dirty_mb"), "32\n48\n");
    run("set_param -t2 osc.*OST0000*.max_dirty_mb=33 osc.*OST0001*.max_dirty_mb=49");
    assert_eq!(run("get_param -n osc.*.max_dirty_mb"), "33\n49\n");
    assert_eq!(run("set_param -n osc.*.max_dirty_mb=50"), "50\n50\n");
    let (code, said) = off(&at, "set_param -t0 a.b=1");
    assert!(code == libc::EINVAL && said.contains("1 to 256"), "{said}");
    let devices = good(&["get_param", "-N", "--at", text(&at), "osc.*.import"]);
    assert_eq!(devices.lines().count(), 2);
    c.stop();
}

/// A user who is not root.
const NOBODY: u32 = 65_534;

#[test]
fn what_fails_keeps_no_other_path_from_its_turn_and_is_told() {
    if !can_mount() {
        return;
    }
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    let mut c = Cluster::new(1);
    let at = c.mount("m", &[]);
    for dir in ["d", "d/shut", "d/later"] {
        fs::create_dir(at.join(dir)).unwrap();
    }
    for file in ["a", "b", "d/early", "d/shut/inner", "d/later/last"] {
        fs::write(at.join(file), b"x").unwrap();
    }
    let run = |line: &str| {
        let words: Vec<String> = line.split(' ').map(|w| w.replace('@', &format!("{}/", text(&at)))).collect();
        let out = support::stria(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
    };
    let projects = || on(&at, "project @a @b").lines().map(|l| l[..5].trim().to_string()).collect::<Vec<_>>();
    let (code, _, said) = run("project -p 7 @a @none @b");
    assert_eq!((code, projects()), (libc::ENOENT, vec!["7".to_string(); 2]), "{said}");
    assert!(said.contains("/none"), "{said}");
    let (code, shown, said) = run("getstripe -c @a @none @b");
    assert_eq!((code, &*shown), (libc::ENOENT, "1\n1\n"), "{said}");
    let (code, _, said) = run("setstripe -c 1 @new @a @newer");
    assert!(code == libc::EEXIST && at.join("new").exists() && at.join("newer").exists(), "{code} {said}");
    let (code, shown, said) = run("find @none @d @gone -name last -printf %f\\n");
    assert_eq!((code, &*shown), (libc::ENOENT, "last\n"), "{said}");
    assert!(said.contains("/none") && said.contains("/gone"), "{said}");

    // A directory that its reader may not enter, amid a walk.
    for path in ["d", "d/early", "d/later", "d/later/last"] {
        chown(at.join(path), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    for (path, mode) in [(at.join("d/shut"), 0o700), (c.dir.path().into(), 0o755)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    // The program may lie where others cannot reach it.
    let program = c.path("stria");
    let copied = std::process::Command::new("cp").args([env!("CARGO_BIN_EXE_stria"), &program]).status().unwrap();
    assert!(copied.success());
    let walk = |line: &str| {
        let words = line.split(' ').map(|w| w.replace('@', &format!("{}/", text(&at))));
        let out = std::process::Command::new(&program).args(words).uid(NOBODY).gid(NOBODY).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (shown, said) = (text(out.stdout), text(out.stderr));
        assert_eq!(out.status.code(), Some(libc::EACCES), "{line}: {said}{shown}");
        assert!(said.contains("d/shut") && said.lines().count() == 1, "{line}: {said}");
        shown
    };
    let names = ["early", "later", "last"];
    let shown = walk("find @d -type f -printf %f\\n");
    assert_eq!(shown, "early\nlast\n");
    let shown = walk("getstripe -r -F @d");
    assert_eq!(shown.lines().count(), 1 + names.len(), "{shown}");
    walk("project -p 9 -r @d");
    let shown = walk("project -r @d");
    assert!(names.iter().all(|n| shown.lines().any(|l| l.starts_with("    9 ") && l.ends_with(n))), "{shown}");
    c.stop();
}

/// A name service that knows one user and one group, whose records take more room than a first try has.
const SERVICE: &str = r#"
#include <errno.h>
#include <grp.h>
#include <nss.h>
#include <pwd.h>
#include <string.h>
#define ID 54321
static enum nss_status put(char *to, size_t room, int *why) {
    if (room < 100000) { *why = ERANGE; return NSS_STATUS_TRYAGAIN; }
    strcpy(to, "neighbour");
    return NSS_STATUS_SUCCESS;
}
static enum nss_status user(struct passwd *p, char *to, size_t room, int *why) {
    p->pw_name = p->pw_passwd = p->pw_gecos = p->pw_dir = p->pw_shell = to;
    p->pw_uid = p->pw_gid = ID;
    return put(to, room, why);
}
static enum nss_status group(struct group *g, char *to, size_t room, int *why) {
    static char *nobody;
    g->gr_name = g->gr_passwd = to;
    g->gr_gid = ID;
    g->gr_mem = &nobody;
    return put(to, room, why);
}
enum nss_status _nss_striat_getpwnam_r(const char *n, struct passwd *p, char *to, size_t room, int *why) {
    return strcmp(n, "neighbour") ? NSS_STATUS_NOTFOUND : user(p, to, room, why);
}
enum nss_status _nss_striat_getpwuid_r(uid_t id, struct passwd *p, char *to, size_t room, int *why) {
    return id != ID ? NSS_STATUS_NOTFOUND : user(p, to, room, why);
}
enum nss_status _nss_striat_getgrnam_r(const char *n, struct group *g, char *to, size_t room, int *why) {
    return strcmp(n, "neighbour") ? NSS_STATUS_NOTFOUND : group(g, to, room, why);
}
enum nss_status _nss_striat_getgrgid_r(gid_t id, struct group *g, char *to, size_t room, int *why) {
    return id != ID ? NSS_STATUS_NOTFOUND : group(g, to, room, why);
}
"#;

#[test]
fn users_and_groups_are_those_of_the_hosts_name_service() {
    const PRIVATELY: &str = "set -e
        mount --bind \"$1\" /etc/nsswitch.conf
        shift
        exec \"$@\"";
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("service.c"), SERVICE).unwrap();
    fs::write(at("nsswitch.conf"), "passwd: files striat\ngroup: files striat\n").unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(at("libnss_striat.so.2")).arg(at("service.c"));
    if !compiler.status().is_ok_and(|s| s.success()) {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "a C compiler is needed");
        println!("not run: needs a C compiler");
        return;
    }
    let files = at("files");
    fs::create_dir(&files).unwrap();
    fs::write(files.join("own"), b"").unwrap();
    fs::write(files.join("theirs"), b"").unwrap();
    std::os::unix::fs::chown(files.join("theirs"), Some(54_321), Some(54_321)).unwrap();
    for (tests, shown) in [
        ("-type f -user neighbour -printf %f:%u:%g", "theirs:neighbour:neighbour"),
        ("-type f -group neighbour -printf %f:%U:%G", "theirs:54321:54321"),
        ("-type f ! -user 54321 -printf %f:%u", "own:root"),
    ] {
        let mut find = std::process::Command::new("unshare");
        find.args(["--mount", "--propagation", "private", "sh", "-c", PRIVATELY, "sh"]).arg(at("nsswitch.conf"));
        find.args([env!("CARGO_BIN_EXE_stria"), "find"]).arg(&files).args(tests.split(' '));
        let out = find.env("LD_LIBRARY_PATH", dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!((String::from_utf8_lossy(&out.stdout).as_ref(), said.as_ref()), (shown, ""), "{tests}");
    }
}
