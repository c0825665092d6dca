//! What a service manager is told (`Type=notify`, sd_notify(3)): ready, alive, stopping. Without `NOTIFY_SOCKET` nothing is.
//!
//! Written here because the crate for it knows no sockets without a file (`@name`) and waits for a manager that does not
//! read: the shard must not.
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rt::Rt;
use types::Duration;

/// Where the manager listens: a path, or `@` and the name of a socket without a file.
const SOCKET: &str = "NOTIFY_SOCKET";
/// How long the manager waits for a sign of life, in microseconds.
const WATCHDOG: &str = "WATCHDOG_USEC";
/// Whose signs of life it means.
const WATCHDOG_PID: &str = "WATCHDOG_PID";
/// What children must not have: the manager would take them for this process.
pub const ENVIRONMENT: [&str; 3] = [SOCKET, WATCHDOG, WATCHDOG_PID];

/// The service is ready; from now on the shard gives signs of life, as often as the manager wishes.
pub fn ready(rt: &Rt, text: &str) {
    send(&format!("READY=1\nSTATUS={}\nMAINPID={}", text.replace('\n', " "), std::process::id()));
    let Some(every) = interval(std::env::var(WATCHDOG).ok(), std::env::var(WATCHDOG_PID).ok()) else { return };
    let clock = rt.clone();
    // A task of the shard: where that hangs, the signs end.
    rt.spawn(async move {
        loop {
            send("WATCHDOG=1");
            clock.sleep(every).await;
        }
    });
}

/// The service ends because it was told to.
pub fn stopping() {
    send("STOPPING=1");
}

/// A third of the time after which the manager loses patience.
fn interval(usec: Option<String>, pid: Option<String>) -> Option<Duration> {
    let usec: u64 = usec?.parse().ok().filter(|n| *n > 0)?;
    let mine = pid.is_none_or(|p| p.parse() == Ok(std::process::id()));
    mine.then(|| Duration::from_micros((usec / 3).max(1000)))
}

fn send(state: &str) {
    let Some(name) = std::env::var_os(SOCKET) else { return };
    if let Err(e) = send_to(&name, state) {
        // Whoever does not listen misses it.
        tracing::debug!("{}: {e}", Path(&name));
    }
}

fn send_to(name: &OsStr, state: &str) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a path from / on nor @name")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}

struct Path<'a>(&'a OsStr);
impl std::fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_sockets_with_and_without_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("stria-test-{}-{}", std::process::id(), path.display());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let heard = |socket: &UnixDatagram| {
            let mut text = [0; 64];
            let n = socket.recv(&mut text).unwrap();
            String::from_utf8_lossy(&text[..n]).into_owned()
        };
        send_to(path.as_os_str(), "READY=1").unwrap();
        send_to(OsStr::new(&format!("@{name}")), "WATCHDOG=1").unwrap();
        assert_eq!((heard(&by_path).as_str(), heard(&by_name).as_str()), ("READY=1", "WATCHDOG=1"));
        assert!(send_to(OsStr::new("relative"), "x").unwrap_err().to_string().contains("@name"));
        assert!(send_to(dir.path().join("nobody").as_os_str(), "x").is_err());
    }

    #[test]
    fn a_manager_that_does_not_read_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let _unread = UnixDatagram::bind(&path).unwrap();
        let refused = (0..100_000).find_map(|_| send_to(path.as_os_str(), "WATCHDOG=1").err());
        assert_eq!(refused.unwrap().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn signs_of_life_come_three_times_as_often_as_wished_and_only_for_this_process() {
        let text = |n: u64| Some(n.to_string());
        assert_eq!(interval(text(30_000_000), None), Some(Duration::from_secs(10)));
        let own = u64::from(std::process::id());
        assert_eq!(interval(text(3000), text(own)), Some(Duration::from_millis(1)));
        assert_eq!(interval(text(3000), text(own + 1)), None);
        assert_eq!(interval(text(0), None), None);
        assert_eq!(interval(Some("soon".into()), None), None);
        assert_eq!(interval(None, None), None);
    }
}
