//! The tool's side: asks a mount and waits for its answer.
use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{LINE_BYTES_MAX, place};
use crate::failure::Failure;

/// How long a daemon may take: parameters of servers that restart take their time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks the mount of a FUSE connection. Waits up to a minute: parameters of servers that restart take their time.
///
/// # Errors
/// Nobody answers, or the mount's refusal.
pub fn ask(connection: u32, request: &Value) -> Result<Value, Failure> {
    let mount = fuse::mount::mounts().into_iter().rev().find(|m| m.minor == connection && m.kind == "fuse.stria");
    match mount {
        Some(mount) => ask_of(connection, mount.user, request),
        None => Err(Failure::with_errno(format!("mount {connection} is not there any more"), libc::ENOTCONN)),
    }
}

/// [`ask`] for a mount that `user` made, also when it is in this mount namespace no more.
///
/// # Errors
/// As [`ask`].
pub fn ask_of(connection: u32, user: u32, request: &Value) -> Result<Value, Failure> {
    let stream = place::connect(connection, user).map_err(|e| gone(connection, "does not answer", &e))?;
    converse(connection, stream, request, PATIENCE)
}

fn gone(connection: u32, what: &str, e: &std::io::Error) -> Failure {
    let why = format!("the daemon of mount {connection} {what}: {e}; is it running ('stria status')?");
    Failure::with_errno(why, e.raw_os_error().unwrap_or(libc::EIO))
}

/// Why a question got no answer: the daemon is gone, or waits for a server.
fn unheard(connection: u32, patience: Duration, e: &std::io::Error) -> Failure {
    if !matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) {
        return gone(connection, "broke off", e);
    }
    let why = format!(
        "the daemon of mount {connection} has no answer within {patience:?}: a server that it asks is away, or busy ('stria status' says which)"
    );
    Failure::with_errno(why, libc::ETIMEDOUT)
}

fn converse(connection: u32, mut stream: UnixStream, request: &Value, patience: Duration) -> Result<Value, Failure> {
    let exchange = |stream: &mut UnixStream| -> std::io::Result<Vec<u8>> {
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(format!("{request}\n").as_bytes())?;
        let mut line = Vec::new();
        BufReader::new(stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        Ok(line)
    };
    let line = exchange(&mut stream).map_err(|e| unheard(connection, patience, &e))?;
    let answer: Value = serde_json::from_slice(&line)
        .map_err(|e| Failure::from(format!("the daemon of mount {connection} answered nonsense: {e}")))?;
    match answer["error"].as_str() {
        Some(text) => Err(Failure::with_errno(text, answer["errno"].as_i64().map_or(libc::EIO, |n| n as i32))),
        None => Ok(answer),
    }
}

/// Why a question that had a moment was not answered.
#[derive(Debug)]
pub struct Unanswered {
    /// A sentence.
    pub failure: Failure,
    /// The process that took the question; `None`: nobody did, or it is of another namespace.
    pub daemon: Option<i32>,
    /// Whether the answer may still come.
    pub late: bool,
}

/// A question under way that has a moment: a daemon that stands still keeps nobody waiting.
pub struct Asked {
    connection: u32,
    told: Receiver<Told>,
    /// The process that took the question.
    daemon: Cell<Option<i32>>,
}

enum Told {
    Connected(Option<i32>),
    Done(Result<Value, Failure>),
}

/// Asks the mount of a FUSE connection, made by `user`, on a thread of its own.
#[must_use]
pub fn begin(connection: u32, user: u32, request: Value) -> Asked {
    let (tell, told) = channel();
    // Who asked may be gone: nobody hears it then.
    std::thread::spawn(move || match place::connect(connection, user) {
        Err(e) => drop(tell.send(Told::Done(Err(gone(connection, "does not answer", &e))))),
        Ok(stream) => {
            let pid = super::peer(&stream).map(|p| p.pid).filter(|pid| *pid > 0);
            let _ = tell.send(Told::Connected(pid));
            let _ = tell.send(Told::Done(converse(connection, stream, &request, PATIENCE)));
        }
    });
    Asked { connection, told, daemon: Cell::new(None) }
}

impl Asked {
    /// Waits until somebody took the question, or until then.
    pub fn connected(&self, until: Instant) {
        if let Ok(Told::Connected(pid)) = self.told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.daemon.set(pid);
        }
    }
    /// The answer, if it comes until then; one that is late may be waited for again.
    ///
    /// # Errors
    /// There is none, or the mount refused.
    pub fn answer(&self, until: Instant) -> Result<Value, Unanswered> {
        loop {
            let daemon = self.daemon.get();
            match self.told.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Told::Connected(pid)) => self.daemon.set(pid),
                Ok(Told::Done(Ok(answer))) => return Ok(answer),
                Ok(Told::Done(Err(failure))) => return Err(Unanswered { failure, daemon, late: false }),
                Err(e) => {
                    let why = format!("the daemon of mount {} does not answer within a second", self.connection);
                    let late = e == RecvTimeoutError::Timeout;
                    return Err(Unanswered { failure: Failure::with_errno(why, libc::ETIMEDOUT), daemon, late });
                }
            }
        }
    }
}

/// The process that serves the mount of a FUSE connection. The kernel tells, whether that process answers or hangs.
#[must_use]
pub fn daemon_of(connection: u32) -> Option<i32> {
    let mount = fuse::mount::mounts().into_iter().rev().find(|m| m.minor == connection && m.kind == "fuse.stria")?;
    let stream = place::connect(connection, mount.user).ok()?;
    // 0: a process of another namespace.
    super::peer(&stream).map(|p| p.pid).filter(|pid| *pid > 0)
}

/// Indices of the OSTs of the file system mounted as `connection`, ascending.
///
/// # Errors
/// As [`ask`].
pub fn ask_osts(connection: u32) -> Result<Vec<u16>, Failure> {
    let answer = ask(connection, &json!({"do": "osts"}))?;
    let list = answer["osts"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(list.iter().filter_map(|o| u16::try_from(o.as_u64()?).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_waits_for_a_server_is_not_taken_for_one_that_is_gone() {
        let question = json!({"do": "nothing"});
        let (stays, other_end) = UnixStream::pair().unwrap();
        let late = converse(7, stays, &question, Duration::from_millis(1)).unwrap_err();
        assert_eq!(i32::from(late.code()), libc::ETIMEDOUT);
        assert!(late.to_string().contains("a server that it asks is away"), "{late}");
        drop(other_end);
        let (ends, gone) = UnixStream::pair().unwrap();
        drop(gone);
        let ended = converse(7, ends, &question, Duration::from_secs(60)).unwrap_err();
        assert!(ended.to_string().contains("is it running"), "{ended}");
    }
}
