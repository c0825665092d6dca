//! Reading a store against its checksums while it serves: how fast it was asked to be, how far it is, and what it found, as
//! parameters tell it. What is read is its server's business.
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

/// Damaged places that are named; the rest is counted.
const NAMED_MAX: usize = 100;
/// Highest rate, in MiB per second.
const RATE_MAX: u64 = 100_000;

/// MiB per second; 0: stop.
///
/// # Errors
/// A sentence with what is possible.
pub fn rate_of(text: &str) -> Result<u64, String> {
    match text {
        "stop" => Ok(0),
        _ => text.parse().ok().filter(|r| *r <= RATE_MAX).ok_or_else(|| {
            format!("'{text}' is no rate: write 1 to {RATE_MAX} (MiB per second), or 0 or stop to end it")
        }),
    }
}

/// What one look at some of a store's own pages came to.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Looked {
    /// Bytes that were read.
    pub bytes: u64,
    /// What is wrong, half a sentence each.
    pub faults: Vec<String>,
    /// All pages were compared; the next look begins anew.
    pub is_over: bool,
}

impl Looked {
    /// Of a store that has no pages of its own on a medium.
    #[must_use]
    pub fn nothing() -> Looked {
        Looked { is_over: true, ..Looked::default() }
    }
}

/// How far it is.
#[derive(Debug, Default)]
pub struct Progress {
    status: Status,
    /// Grows with every order: a reading whose number is not this one ends.
    order: u64,
    rate_mib: u64,
    bytes: u64,
    faults: u64,
    named: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Status {
    #[default]
    Idle,
    Running,
    Stopped,
    Complete,
    Failed,
}

impl Progress {
    /// A reading begins at so many MiB/s, and any other ends; its number.
    pub fn begin(&mut self, rate_mib: u64) -> u64 {
        *self = Progress { status: Status::Running, order: self.order + 1, rate_mib, ..Progress::default() };
        self.order
    }
    /// The reading under way is to end.
    pub fn stop(&mut self) {
        if self.status == Status::Running {
            self.status = Status::Stopped;
            self.order += 1;
        }
    }
    /// Whether this reading is to go on.
    #[must_use]
    pub fn goes_on(&self, order: u64) -> bool {
        self.order == order
    }
    /// This reading ended by itself; whether anybody still cares.
    pub fn on_end(&mut self, order: u64, is_complete: bool) -> bool {
        let counts = self.goes_on(order);
        if counts {
            self.status = if is_complete { Status::Complete } else { Status::Failed };
        }
        counts
    }
    /// So many bytes more were read.
    pub fn on_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
    }
    /// Something is damaged.
    pub fn on_fault(&mut self, what: String) {
        self.faults += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(what);
        }
    }
    /// Bytes read, faults found.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        (self.bytes, self.faults)
    }
    /// The value of the parameter; `counted` is a line about what was read.
    #[must_use]
    pub fn text(&self, counted: &str) -> String {
        let status = match self.status {
            Status::Idle => "idle",
            Status::Running => "running",
            Status::Stopped => "stopped",
            Status::Complete => "complete",
            Status::Failed => "failed",
        };
        let mut s = format!(
            "status: {status}\nrate_mib_per_s: {}\n{counted}\nbytes: {}\nfaults: {}\n",
            self.rate_mib, self.bytes, self.faults
        );
        for named in &self.named {
            let _ = writeln!(s, "fault: {named}");
        }
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_reading_ends_when_another_is_ordered_and_only_the_last_one_counts() {
        let mut p = Progress::default();
        p.stop();
        assert!(p.text("x: 0").starts_with("status: idle\n"));
        let first = p.begin(5);
        p.on_bytes(10);
        p.on_fault("a".to_string());
        let second = p.begin(7);
        assert!(!p.goes_on(first) && p.goes_on(second) && !p.on_end(first, true));
        assert_eq!(p.text("x: 0"), "status: running\nrate_mib_per_s: 7\nx: 0\nbytes: 0\nfaults: 0\n");
        p.stop();
        assert!(!p.goes_on(second) && !p.on_end(second, false));
        assert!(p.text("x: 0").starts_with("status: stopped\n"));
        let third = p.begin(1);
        (0..200).for_each(|i| p.on_fault(i.to_string()));
        assert!(p.on_end(third, true));
        let text = p.text("x: 1");
        assert!(text.contains("status: complete") && text.contains("faults: 200") && text.contains("fault: 99\n"));
        assert!(!text.contains("fault: 100\n"), "only so many are named");
        assert_eq!((rate_of("stop"), rate_of("100000")), (Ok(0), Ok(100_000)));
        assert!(rate_of("100001").is_err() && rate_of("fast").is_err());
    }
}
