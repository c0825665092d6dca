//! Watching a cluster of real processes: `status` and `top` while servers and daemons stand still or are dead. Needs root and
//! `/dev/fuse`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Cluster, can_mount, good, refused, text};

/// Looks again until something is so; what was seen then.
fn until<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match look() {
            Ok(seen) => return seen,
            Err(seen) => assert!(Instant::now() < end, "never: {what}: {seen}"),
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

fn send(pid: u32, signal: i32) {
    // SAFETY: a signal to a child of this test that was not collected yet.
    unsafe { libc::kill(pid as i32, signal) };
}

/// Lets a process go on when the test ends, however.
struct Stopped(u32);
impl Stopped {
    fn stop(pid: u32) -> Stopped {
        send(pid, libc::SIGSTOP);
        let stat = format!("/proc/{pid}/stat");
        until("the process is stopped", || {
            let text = fs::read_to_string(&stat).unwrap();
            if text.contains(") T ") { Ok(()) } else { Err(text) }
        });
        Stopped(pid)
    }
}
impl Drop for Stopped {
    fn drop(&mut self) {
        send(self.0, libc::SIGCONT);
    }
}

/// `status`, until it says something.
fn status_says(arguments: &[&str], wanted: &str) -> String {
    until(wanted, || {
        let shown = good(&[&["status"], arguments].concat());
        if shown.contains(wanted) { Ok(shown) } else { Err(shown) }
    })
}

#[test]
fn status_says_who_stands_still_or_is_dead_while_that_lasts_and_which_command_helps() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let dir = c.path("c");
    let (one, two) = (c.mount("one", &[]), c.mount("two", &[]));
    fs::write(one.join("f"), b"x").unwrap();
    // A server that is stopped: it has its connections, and says nothing.
    let ost = c.oss[1].as_ref().unwrap().child.id();
    {
        let _stopped = Stopped::stop(ost);
        let shown = status_says(&[text(&one)], "wrong: stria-OST0001 at ");
        let expected = format!("does not answer: process {ost} is stopped: 'kill -CONT {ost}' lets it go on");
        assert!(shown.lines().any(|l| l.contains("wrong: stria-OST0001 at ") && l.contains(&expected)), "{shown}");
        let helps = format!("'kill -CONT {ost}' lets it go on");
        until("the trouble in JSON", || {
            let json: Value = serde_json::from_str(&good(&["status", "--json", text(&one)])).unwrap();
            let is_told = json["trouble"].as_array().unwrap().iter().any(|t| t["do"] == helps);
            if is_told { Ok(()) } else { Err(json.to_string()) }
        });
        status_says(&["--dir", &dir], &helps);
        // Its parameters are missing, and that is said; nobody else's are.
        let out = support::stria(&["get_param", "--at", text(&one), "obdfilter.*.num_exports"]);
        let (said, told) = (String::from_utf8_lossy(&out.stderr), String::from_utf8_lossy(&out.stdout));
        assert!(said.contains("stria-OST0001 does not answer: its parameters are left out"), "{said}");
        assert!(told.contains("OST0000") && !told.contains("OST0001"), "{told}");
    }
    // The metadata server.
    let mds = c.mds.as_ref().unwrap().child.id();
    {
        let _stopped = Stopped::stop(mds);
        let shown = status_says(&[text(&one)], "wrong: stria-MDT0000 at ");
        assert!(shown.contains(&format!("'kill -CONT {mds}' lets it go on")), "{shown}");
    }
    // A dead one.
    c.oss[0].take();
    status_says(&[text(&one)], &format!("'stria oss --dir {dir} --ost 0' starts it"));
    until("the directory's servers say so", || {
        let of_dir = good(&["status", "--dir", &dir]);
        let is_told = of_dir.lines().any(|l| l.contains("ost0 ") && l.contains("is gone") && l.contains("starts it"));
        if is_told { Ok(()) } else { Err(of_dir) }
    });
    c.start_oss(0);
    // A daemon: the other mount is shown all the same, and the path is not asked of the stopped one.
    let daemon = c.mounts[1].1.child.id();
    {
        let _stopped = Stopped::stop(daemon);
        let expected = format!(
            "{}: its daemon does not answer: process {daemon} is stopped: 'kill -CONT {daemon}'",
            two.display()
        );
        until("both mounts are shown", || {
            let shown = good(&["status"]);
            let is_told = shown.contains(&expected) && shown.contains(&format!("{}: 'stria'", one.display()));
            if is_told { Ok(()) } else { Err(shown) }
        });
        assert!(good(&["status", text(&two.join("below"))]).contains(&expected));
        let (code, said) = refused(&["top", "--once", text(&two)]);
        assert!(code == libc::ETIMEDOUT && said.contains(&format!("'kill -CONT {daemon}'")), "{code} {said}");
    }
    c.stop();
}

/// Writes and reads until it is told to stop.
fn work(at: &Path, over: &AtomicBool) {
    let mut file =
        fs::File::options().create(true).truncate(true).read(true).write(true).open(at.join("busy")).unwrap();
    while !over.load(Ordering::Relaxed) {
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(&[7; 64 << 10]).unwrap();
        file.sync_all().unwrap();
        fs::write(at.join("short"), b"x").unwrap();
        fs::remove_file(at.join("short")).unwrap();
    }
}

/// What `top` shows; why it shows nothing, where a busy daemon was late.
fn top_json(at: &Path) -> Result<Value, String> {
    let out = support::stria(&["top", "--json", "--once", "--interval", "0.5", text(at)]);
    match out.status.success() {
        true => Ok(serde_json::from_slice(&out.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
    }
}

#[test]
fn top_shows_who_does_what_and_a_server_that_stands_still_keeps_nobody_waiting() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2);
    let at = c.mount("m", &[]);
    good(&["setstripe", "-c", "1", "-i", "0", text(&at)]);
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| work(&at, &over));
        let server = |v: &Value, target: &str| {
            let all = v["servers"].as_array().unwrap();
            all.iter().find(|s| s["target"].as_str().unwrap().ends_with(target)).unwrap().clone()
        };
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let client = good(&["status", "--json", text(&at)]);
            let client: Value = serde_json::from_str(&client).unwrap();
            let bytes = |v: &Value| v["write_bytes_per_s"].as_f64().unwrap_or(0.0);
            let v = until("work is seen at the OST and the metadata server, and whose it is", || {
                let v = top_json(&at)?;
                let ost = server(&v, "OST0000");
                let writes = ost["kinds"]["write"]["p99_us"].as_u64().unwrap_or(0);
                let lookups = server(&v, "MDT0000")["requests"]["per_s"].as_f64().unwrap_or(0.0);
                let mine = v["clients"].as_array().unwrap().iter().find(|u| u["name"] == client["client"]);
                let has_jobs = !v["jobs"].as_array().unwrap().is_empty();
                let whose = bytes(&ost) > 0.0 && mine.is_some_and(|m| bytes(m) > 0.0) && has_jobs;
                if writes > 0 && lookups > 0.0 && whose { Ok(v) } else { Err(v.to_string()) }
            });
            let ost = server(&v, "OST0000");
            assert!(ost["queue"]["policy"].is_string(), "{ost}");
            assert!(ost["space"]["total_bytes"].as_u64().unwrap() > 0, "{ost}");
            let ost1 = c.oss[1].as_ref().unwrap().child.id();
            let _stopped = Stopped::stop(ost1);
            until("the stopped server is silent, the others are shown", || {
                let out = support::stria(&["top", "--once", "--interval", "0.5", text(&at)]);
                let shown = String::from_utf8_lossy(&out.stdout).into_owned();
                let line = |name: &str| shown.lines().find(|l| l.starts_with(name)).unwrap_or_default().to_string();
                let silent = line("OST0001").contains("does not answer: 'stria status'");
                if silent && line("OST0000").contains("serves") { Ok(()) } else { Err(shown) }
            });
        }));
        over.store(true, Ordering::Relaxed);
        seen.unwrap();
    });
    let (code, said) = refused(&["top", text(&at)]);
    assert!(code == libc::EINVAL && said.contains("--once"), "no terminal: {said}");
    assert!(refused(&["top", "--interval", "0", text(&at)]).1.contains("0.1 to 3600"));
    c.stop();
}

/// A program on a terminal of its own.
struct OnTerminal {
    ours: fs::File,
    theirs: OwnedFd,
    child: Child,
    shown: Vec<u8>,
}

impl OnTerminal {
    fn start(arguments: &[&str], (columns, rows): (u16, u16)) -> OnTerminal {
        let (mut ours, mut theirs) = (0, 0);
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: two integers and a size on the stack; the descriptors are nobody else's.
        let (ours, theirs) = unsafe {
            let made =
                libc::openpty(&raw mut ours, &raw mut theirs, std::ptr::null_mut(), std::ptr::null(), &raw const size);
            assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
            (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs))
        };
        let side = || Stdio::from(theirs.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_stria"));
        let child = command.args(arguments).stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        OnTerminal { ours: ours.into(), theirs, child, shown: Vec::new() }
    }
    /// Modes of the terminal, as far as raw mode changes them.
    fn modes(&self) -> [u32; 3] {
        // SAFETY: an all-zero structure that is filled in.
        unsafe {
            let mut modes: libc::termios = std::mem::zeroed();
            assert_eq!(libc::tcgetattr(self.theirs.as_raw_fd(), &raw mut modes), 0);
            [modes.c_iflag, modes.c_oflag, modes.c_lflag]
        }
    }
    fn resize(&self, columns: u16, rows: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: a size on the stack. The terminal is nobody's controlling one: the signal is sent by hand.
        assert_eq!(unsafe { libc::ioctl(self.ours.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }, 0);
        send(self.child.id(), libc::SIGWINCH);
    }
    fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }
    /// What was shown from now until a text came; what was shown before is forgotten.
    fn shows(&mut self, wanted: &str) -> String {
        loop {
            let shown = String::from_utf8_lossy(&self.shown).into_owned();
            if shown.contains(wanted) {
                self.shown.clear();
                return shown;
            }
            let mut piece = [0; 4096];
            let mut polled = libc::pollfd { fd: self.ours.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one structure on the stack.
            assert_eq!(unsafe { libc::poll(&raw mut polled, 1, 60_000) }, 1, "never: {wanted:?} in {shown:?}");
            let n = self.ours.read(&mut piece).unwrap_or_else(|e| panic!("{e}: {shown}"));
            self.shown.extend_from_slice(&piece[..n]);
        }
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn top_on_a_terminal_takes_keys_survives_another_size_and_gives_the_terminal_back() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1);
    let at = c.mount("m", &[]);
    for end in ["q", "\x03", "SIGTERM", "SIGINT"] {
        let mut t = OnTerminal::start(&["top", text(&at)], (80, 24));
        let screen = t.shows("OST0000");
        assert!(screen.contains("\x1b[?1049h") && screen.contains("stria top: stria at "), "{screen:?}");
        let raw = t.modes();
        t.press("h");
        t.shows("this help");
        t.press("h");
        t.shows("OST0000");
        t.resize(30, 6);
        // A line of 30 columns is cut there, and the next one begins elsewhere.
        let narrow = t.shows("SERVER     STATE      REQ/S  R\x1b");
        assert!(!narrow.is_empty());
        match end {
            "SIGTERM" => send(t.child.id(), libc::SIGTERM),
            "SIGINT" => send(t.child.id(), libc::SIGINT),
            keys => t.press(keys),
        }
        t.shows("\x1b[?1049l");
        let code = t.child.wait().unwrap().code();
        assert_eq!(
            code,
            Some(match end {
                "SIGTERM" => 143,
                "SIGINT" => 130,
                _ => 0,
            }),
            "{end:?}"
        );
        let again = t.modes();
        // ECHO and ICANON are back.
        let both = libc::ECHO | libc::ICANON;
        assert!(raw[2] & both == 0 && again[2] & both == both, "{end:?}: {raw:?} {again:?}");
    }
    c.stop();
}
