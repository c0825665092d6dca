//! The Debian package: built from this program, unpacked, and run from there as mount(8) and a service manager would.
//! Needs `dpkg-deb`; root and `/dev/fuse` where it mounts.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, Weak};

use support::{can_mount, text};

/// Whether a tool is there; under CI it must be.
fn have(tool: &str) -> bool {
    let there = Command::new(tool).arg("--version").output().is_ok_and(|o| o.status.success());
    assert!(there || std::env::var("CI").as_deref() != Ok("true"), "{tool} is missing");
    if !there {
        println!("not run: {tool} is missing");
    }
    there
}

fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

fn ran(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", said(&out));
    String::from_utf8(out.stdout).unwrap()
}

/// Packages the program under test below `dir`, by a shell with this umask.
fn package(dir: &Path, umask: &str) -> PathBuf {
    let line =
        format!("umask {umask} && exec \"$0\" run -q -p xtask -- package --uncompressed --binary \"$1\" --out \"$2\"");
    let mut command = Command::new("sh");
    command.args(["-c", &line, env!("CARGO"), env!("CARGO_BIN_EXE_stria"), text(dir)]);
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).env("SOURCE_DATE_EPOCH", "1700000000");
    let told = ran(&mut command);
    PathBuf::from(told.lines().last().unwrap())
}

/// The unpacked package, shared by the tests that run at the same time, and removed with the last of them.
struct Unpacked {
    dir: tempfile::TempDir,
    deb: PathBuf,
}

impl Unpacked {
    fn get() -> Arc<Unpacked> {
        static SHARED: Mutex<Weak<Unpacked>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(made) = shared.upgrade() {
            return made;
        }
        let dir = tempfile::tempdir().unwrap();
        let deb = package(&dir.path().join("out"), "022");
        ran(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(dir.path().join("tree")));
        let made = Arc::new(Unpacked { dir, deb });
        *shared = Arc::downgrade(&made);
        made
    }
    fn join(&self, path: &str) -> PathBuf {
        self.dir.path().join("tree").join(path)
    }
}

#[test]
fn the_same_program_makes_the_same_bytes_whoever_packages_it() {
    if !have("dpkg-deb") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let one = package(&dir.path().join("one"), "022");
    let other = package(&dir.path().join("other"), "077");
    assert!(one.file_name() == other.file_name() && one != other);
    assert!(fs::read(&one).unwrap() == fs::read(&other).unwrap(), "two packages of one program differ");
    let list = ran(Command::new("dpkg-deb").arg("-c").arg(&one).env("TZ", "UTC"));
    for line in list.lines() {
        assert!(line.contains(" root/root ") && line.contains(" 2023-11-14 22:13 "), "{line}");
    }
    for (path, mode) in [("./usr/bin/stria", "-rwxr-xr-x"), ("./usr/share/doc/stria/copyright", "-rw-r--r--")] {
        assert!(list.lines().any(|l| l.ends_with(path) && l.starts_with(mode)), "{path}: {list}");
    }
    let fields = ran(Command::new("dpkg-deb").arg("-f").arg(&one));
    assert!(fields.contains("Package: stria\n") && fields.contains("Depends: libc6 (>= 2."), "{fields}");
}

#[test]
fn what_is_installed_works_from_where_it_is() {
    if !have("dpkg-deb") {
        return;
    }
    let tree = Unpacked::get();
    let version = ran(Command::new(tree.join("usr/bin/stria")).arg("--version"));
    assert_eq!(version.trim(), concat!("stria ", env!("CARGO_PKG_VERSION")));
    assert!(ran(Command::new(tree.join("usr/lib/stria/bin/lfs")).arg("version")).starts_with("lfs "));
    assert!(ran(Command::new(tree.join("usr/lib/stria/bin/lctl")).arg("help")).contains("ping"));
    assert!(!tree.join("usr/bin/lfs").exists(), "Lustre's own tools are not shadowed");
    let page = ran(Command::new("gzip").arg("-dc").arg(tree.join("usr/share/man/man1/stria-mount.1.gz")));
    assert!(page.contains("Address of the metadata server"), "{page}");
    for (file, holds) in [
        ("usr/share/bash-completion/completions/stria", "abort-recovery"),
        ("usr/share/zsh/vendor-completions/_stria", "#compdef stria"),
        ("usr/share/fish/vendor_completions.d/stria.fish", "complete -c stria"),
        ("usr/lib/sysusers.d/stria.conf", "u stria"),
        ("usr/share/doc/stria/SBOM", "httparse "),
    ] {
        assert!(fs::read_to_string(tree.join(file)).unwrap().contains(holds), "{file}");
    }
    let bash = Command::new("bash").arg("-n").arg(tree.join("usr/share/bash-completion/completions/stria")).output();
    assert!(bash.unwrap().status.success());
}

#[test]
fn systemd_takes_the_units() {
    if !have("dpkg-deb") || !have("systemd-analyze") {
        return;
    }
    let (tree, dir) = (Unpacked::get(), tempfile::tempdir().unwrap());
    for unit in ["stria-mds", "stria-oss"] {
        let installed = tree.join(&format!("usr/lib/systemd/system/{unit}@.service"));
        let program = tree.join("usr/bin/stria");
        let here = fs::read_to_string(installed).unwrap().replace("/usr/bin/stria", text(&program));
        assert!(here.contains("Type=notify\n") && here.contains("NoNewPrivileges=yes\n"), "{here}");
        let at = dir.path().join(format!("{unit}@scratch.service"));
        fs::write(&at, here).unwrap();
        let out = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&at).output().unwrap();
        let said = said(&out);
        assert!(out.status.success() && !said.contains(unit), "{said}");
    }
}

/// A process that is ended with its owner.
struct Running(Child);
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What arrives at a socket: it is read all the time, since a full queue makes who writes there give up.
fn heard(socket: UnixDatagram) -> Receiver<String> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(n) = socket.recv(&mut piece) {
            if tell.send(String::from_utf8_lossy(&piece[..n]).into_owned()).is_err() {
                return;
            }
        }
    });
    told
}

fn next(told: &Receiver<String>) -> String {
    // As long as a machine that is very busy may need; a test that hangs says where.
    told.recv_timeout(std::time::Duration::from_secs(120)).expect("nothing was said")
}

#[test]
fn a_service_manager_hears_that_a_server_is_ready_alive_and_stopping() {
    if !have("dpkg-deb") {
        return;
    }
    let (tree, dir) = (Unpacked::get(), tempfile::tempdir().unwrap());
    let (program, cluster) = (tree.join("usr/bin/stria"), dir.path().join("c"));
    ran(Command::new(&program).args(["mkfs", "--osts", "1", "--dir"]).arg(&cluster));
    let path = dir.path().join("notify");
    let name = format!("stria-notify-{}", std::process::id());
    let without_file = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let with_file = UnixDatagram::bind(&path).unwrap();
    let sockets = [(text(&path).to_string(), heard(with_file)), (format!("@{name}"), heard(without_file))];
    let roles: [&[&str]; 2] = [&["mds"], &["oss", "--ost", "0"]];
    let mut running = Vec::new();
    for ((name, socket), role) in sockets.iter().zip(roles) {
        let mut command = Command::new(&program);
        command.args(role).arg("--dir").arg(&cluster).env("NOTIFY_SOCKET", name).env("WATCHDOG_USEC", "300000");
        let child = Running(command.stdout(Stdio::null()).spawn().unwrap());
        let first = next(socket);
        assert!(first.starts_with("READY=1\nSTATUS=") && first.contains(" server "), "{first}");
        assert!(first.ends_with(&format!("\nMAINPID={}", child.0.id())), "{first}");
        for _ in 0..3 {
            assert_eq!(next(socket), "WATCHDOG=1");
        }
        running.push(child);
    }
    for ((_, socket), child) in sockets.iter().zip(&mut running) {
        // SAFETY: plain system call on a child that was not collected yet.
        unsafe { libc::kill(child.0.id() as i32, libc::SIGTERM) };
        let last = std::iter::repeat_with(|| next(socket)).find(|said| said != "WATCHDOG=1");
        assert_eq!(last.as_deref(), Some("STOPPING=1"));
        assert!(child.0.wait().unwrap().success());
    }
}

#[test]
fn a_system_installs_it_has_its_user_and_keeps_the_stores_when_it_goes() {
    if !have("dpkg-deb") || !can_mount() {
        return;
    }
    // This machine's files under a layer that takes the changes, with nothing of it running.
    const SYSTEM: &str = "set -e
        mount -t tmpfs none \"$1\"
        mkdir \"$1/upper\" \"$1/work\" \"$1/root\"
        mount -t overlay -o \"lowerdir=/,upperdir=$1/upper,workdir=$1/work\" none \"$1/root\" || exit 77
        mount --rbind /dev \"$1/root/dev\"
        mount -t proc none \"$1/root/proc\"
        mount -t tmpfs none \"$1/root/run\"
        mount -t tmpfs none \"$1/root/tmp\"
        cp \"$2\" \"$1/root/tmp/stria.deb\"
        chroot \"$1/root\" sh -c \"$3\"";
    const LINE: &str = "set -e
        export DEBIAN_FRONTEND=noninteractive
        dpkg --force-depends -i /tmp/stria.deb
        stat -c '%U %a' /var/lib/stria
        setpriv --reuid stria --regid stria --clear-groups stria mkfs --dir /var/lib/stria/scratch --osts 1
        dpkg -r stria
        test ! -e /usr/bin/stria -a ! -e /usr/sbin/mount.stria
        dpkg --force-depends -i /tmp/stria.deb
        dpkg -P stria
        stat -c '%U %a kept' /var/lib/stria/scratch";
    let (tree, dir) = (Unpacked::get(), tempfile::tempdir().unwrap());
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "sh", "-c", SYSTEM, "sh"]);
    let out = command.args([text(dir.path()), text(&tree.deb), LINE]).output().unwrap();
    let said = said(&out);
    if out.status.code() == Some(77) {
        return println!("not run: overlays cannot be mounted here: {said}");
    }
    assert!(out.status.success(), "{said}");
    assert!(said.contains("\nstria 700\n") && said.contains("\nstria 700 kept\n"), "{said}");
}

/// Boots machines with a real service manager, each of which runs its script. `None`: not here.
fn booted(machines: &[(&str, &str)]) -> Option<String> {
    if !have("dpkg-deb") || !have("systemd-nspawn") || !can_mount() {
        return None;
    }
    let (tree, dir) = (Unpacked::get(), tempfile::tempdir().unwrap());
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--propagation",
        "private",
        "--net",
        "bash",
        "-c",
        include_str!("systemd/boot.sh"),
        "boot",
    ]);
    command.args([text(dir.path()), text(&tree.deb)]);
    let out = command.args(machines.iter().flat_map(|(name, script)| [*name, *script])).output().unwrap();
    let said = said(&out);
    if out.status.code() == Some(77) {
        println!("not run: overlays cannot be mounted here: {said}");
        return None;
    }
    assert!(out.status.success() && said.matches("\nfinished\n").count() == machines.len(), "{said}");
    Some(said)
}

#[test]
fn the_guide_works_on_one_machine_under_a_real_service_manager() {
    booted(&[("solo", include_str!("systemd/first-hour.sh"))]);
}

#[test]
fn the_guide_works_on_three_machines_and_a_reboot_of_one_loses_nothing() {
    booted(&[
        ("mds", include_str!("systemd/mds.sh")),
        ("oss1", include_str!("systemd/oss1.sh")),
        ("oss2", include_str!("systemd/oss2.sh")),
    ]);
}

/// Runs a line as root of a mount namespace whose /usr/sbin has the helpers. `None`: the machine has no overlays.
fn with_helpers(tree: &Unpacked, dir: &Path, line: &str) -> Option<Output> {
    const PREPARE: &str = "set -e
        mount -t tmpfs none \"$1\"
        mkdir \"$1/upper\" \"$1/work\"
        mount -t overlay -o \"lowerdir=$2/usr/sbin:/usr/sbin,upperdir=$1/upper,workdir=$1/work\" none /usr/sbin || exit 77
        mount -t overlay -o \"lowerdir=$2/usr/bin:/usr/bin\" none /usr/bin || exit 77
        eval \"$3\"";
    let scratch = dir.join("scratch");
    fs::create_dir_all(&scratch).unwrap();
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        PREPARE,
        "sh",
        text(&scratch),
        text(&tree.join("")),
        line,
    ]);
    let out = command.output().unwrap();
    if out.status.code() == Some(77) {
        println!("not run: overlays cannot be mounted here: {}", said(&out));
        return None;
    }
    Some(out)
}

#[test]
fn mount_and_fstab_know_the_file_system() {
    if !have("dpkg-deb") || !can_mount() {
        return;
    }
    let c = support::Cluster::new(1);
    let (key, at) = (c.path("c/keys/client.key"), c.path("mnt"));
    fs::create_dir(&at).unwrap();
    let nid = fs::read_to_string(c.path("c/run/mdt0.nid")).unwrap();
    let mds = nid.trim().trim_start_matches("tcp:");
    let fstab = c.path("fstab");
    let options = format!("_netdev,nofail,x-systemd.automount,key={key},nosuid,noatime,client.cache_bytes=64M");
    fs::write(&fstab, format!("{mds} {at} stria {options} 0 0\n")).unwrap();
    let line = format!(
        "mount -T {fstab} {at}; findmnt -n -o FSTYPE,OPTIONS {at}; echo written > {at}/f; umount {at}; findmnt {at} || echo gone; \
         mount -t stria -o ro,key={key} {mds} {at}; cat {at}/f; ! touch {at}/g; umount {at}"
    );
    let Some(out) = with_helpers(&Unpacked::get(), c.dir.path(), &line) else { return };
    let said = said(&out);
    assert!(out.status.success(), "{said}");
    let first = said.lines().next().unwrap();
    assert!(first.starts_with("fuse.stria ") && first.contains("nosuid") && first.contains("noatime"), "{said}");
    assert!(said.contains("\ngone\nwritten\n") && said.contains("Read-only file system"), "{said}");
}

#[test]
fn the_helper_fails_with_the_codes_of_mount() {
    if !have("dpkg-deb") {
        return;
    }
    let (tree, dir) = (Unpacked::get(), tempfile::tempdir().unwrap());
    let at = text(dir.path());
    let helper = |name: &str, arguments: &[&str]| {
        let out = Command::new(tree.join("usr/sbin").join(name)).args(arguments).output().unwrap();
        (out.status.code().unwrap(), said(&out))
    };
    for (arguments, code, why) in [
        (&["192.0.2.1:7988"][..], 1, "usage: mount.stria"),
        (&["nonsense", at], 1, "neither an address of a metadata server"),
        (&["192.0.2.1:7988", at, "-o", "frobnicate"], 1, "unknown mount option 'frobnicate'"),
        (&["192.0.2.1:7988", at, "-o", "key=k"], 1, "write key=/PATH"),
        (&["192.0.2.1:7988", at, "-o", "client.cache_bytes=much"], 1, "client.cache_bytes = much"),
        (
            &["192.0.2.1:7988", at, "-f", "-s", "-v", "-o", "frobnicate,ro"],
            0,
            "stria mount --mds 192.0.2.1:7988 -o ro,fsname=192.0.2.1:7988 -- ",
        ),
        (&["/nowhere/at/all", at], 32, "/nowhere/at/all"),
        (&["192.0.2.1:7988", "/nowhere/at/all"], 32, "does not exist"),
    ] {
        let (is, said) = helper("mount.stria", arguments);
        assert!(is == code && said.contains(why), "{arguments:?}: {is} {said}");
    }
    let (code, said) = helper("umount.stria", &[at]);
    assert!(code == 32 && said.starts_with("umount.stria: "), "{code} {said}");
    assert_eq!(helper("umount.fuse.stria", &["-x", at]).0, 1);
}
