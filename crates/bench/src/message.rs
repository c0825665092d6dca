//! What control point and agents say to each other: one JSON object per line, over the agent's standard input and output.
use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::Failed;
use crate::plan::{Phase, Workload};
use crate::series::Series;

/// Both ends have to speak the same.
pub const FORMAT: u32 = 1;
/// Longest line in bytes: a series of all intervals, and some.
const LINE_BYTES_MAX: u64 = 8 << 20;

/// What the control point asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// What time is it?
    Clock,
    /// Take a job and make its files.
    Prepare(Job),
    /// Begin when your clock shows `at_ns`.
    Go {
        /// What to do.
        phase: Phase,
        /// When, ns of the agent's clock.
        at_ns: u64,
    },
    /// End what is under way.
    Stop,
    /// Remove what you made.
    Clean,
    /// Remove what another agent made, which cannot do it any more.
    CleanFor {
        /// Whose files.
        agent: u32,
    },
    /// Be the far end of a network survey: listen at this address.
    Listen {
        /// Address without port.
        address: String,
    },
}

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tell {
    /// It is there.
    Hello {
        /// [`FORMAT`].
        format: u32,
        /// Its host.
        host: String,
        /// Its process.
        pid: u32,
    },
    /// What its clock shows.
    Clock {
        /// ns.
        now_ns: u64,
    },
    /// It has the job.
    Prepared {
        /// Whether it made all files that are its part; else some were there before.
        made_all: bool,
    },
    /// It is at work.
    Alive {
        /// Bytes moved in this phase so far.
        bytes: u64,
    },
    /// The phase is over.
    Done {
        /// What each rank did.
        ranks: Vec<RankDone>,
        /// Bytes per interval, counted from the start.
        series: Series,
    },
    /// What it made is gone.
    Cleaned,
    /// It listens.
    Listening {
        /// Port.
        port: u16,
        /// What connections have to begin with, in hexadecimal digits.
        token: String,
    },
    /// It could not.
    Failed(Failed),
}

/// What an agent works on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The workload of all agents.
    pub workload: Workload,
    /// Which agent this one is.
    pub agent: u32,
    /// The test file, or what the names of the test files begin with.
    pub base: PathBuf,
    /// Whether there is something to write, so that files have to be made.
    pub write: bool,
    /// Whether files that are there already may be written to.
    pub existing: bool,
    /// Whether files stay at the end.
    pub keep: bool,
    /// Whether what is read is compared.
    pub check: bool,
    /// Length of the intervals of series, ns.
    pub interval_ns: u64,
}

/// What a rank did in a phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankDone {
    /// Which one.
    pub rank: u32,
    /// When it began, ns of the agent's clock.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// The transfer that took longest, ns.
    pub slowest_ns: u64,
    /// Transfers whose content was wrong.
    pub wrong: u64,
    /// What was wrong first.
    pub first_wrong: Option<String>,
    /// Why it ended early.
    pub failed: Option<Failed>,
}

/// Sends one message.
///
/// # Errors
/// The other end is gone.
pub fn send(out: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).map_err(io::Error::other)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

/// Takes the next message; `None` at the end.
///
/// # Errors
/// What came is no message.
pub fn receive<T: DeserializeOwned>(input: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    let n = Read::take(&mut *input, LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if n == 0 {
        return Ok(None);
    }
    let bad = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    if line.last() != Some(&b'\n') {
        return Err(bad("a line without an end".into()));
    }
    let shown = || String::from_utf8_lossy(&line[..line.len().min(80)]).trim_end().to_string();
    serde_json::from_slice(&line).map(Some).map_err(|e| bad(format!("'{}' is no message: {e}", shown())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let mut wire = Vec::new();
        let asks = [Ask::Clock, Ask::Go { phase: Phase::Read, at_ns: u64::MAX }, Ask::CleanFor { agent: 3 }];
        asks.iter().for_each(|a| send(&mut wire, a).unwrap());
        let mut input = wire.as_slice();
        for a in asks {
            assert_eq!(receive::<Ask>(&mut input).unwrap(), Some(a));
        }
        assert_eq!(receive::<Ask>(&mut input).unwrap(), None);
    }

    #[test]
    fn what_is_no_message_is_shown() {
        let said = |text: &str| receive::<Tell>(&mut text.as_bytes()).unwrap_err().to_string();
        assert!(said("Last login: today\n").contains("'Last login: today' is no message"));
        assert!(said("{\"hello\":").contains("without an end"));
        assert!(said("{\"alive\":{\"bytes\":-1}}\n").contains("no message"));
        let endless = vec![b'x'; LINE_BYTES_MAX as usize + 1];
        assert!(receive::<Tell>(&mut endless.as_slice()).unwrap_err().to_string().contains("without an end"));
    }
}
