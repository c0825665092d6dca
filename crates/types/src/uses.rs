//! Who used a server how much: requests and bytes by client.
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt::Write as _;

use crate::{ClientId, WallTime};

/// Clients that are counted apart at most; whoever asked longest ago gives its place to the next.
const CLIENTS_MAX: usize = 4096;

/// What one client did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Use {
    /// Requests answered.
    pub requests: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// When the last request was answered.
    pub last: WallTime,
}

/// What clients did, since they were first seen or counting began.
#[derive(Clone, Debug, Default)]
pub struct Uses(BTreeMap<ClientId, Use>);

impl Uses {
    fn of(&mut self, client: ClientId) -> &mut Use {
        if self.0.len() >= CLIENTS_MAX && !self.0.contains_key(&client) {
            let oldest = self.0.iter().min_by_key(|(_, u)| u.last).map(|(c, _)| *c);
            if let Some(oldest) = oldest {
                self.0.remove(&oldest);
            }
        }
        self.0.entry(client).or_default()
    }
    /// A request of a client was answered.
    pub fn answered(&mut self, client: ClientId, now: WallTime) {
        let one = self.of(client);
        one.requests += 1;
        one.last = now;
    }
    /// A client read so many bytes.
    pub fn read(&mut self, client: ClientId, bytes: u64) {
        let one = self.of(client);
        one.read_bytes = one.read_bytes.saturating_add(bytes);
    }
    /// A client wrote so many bytes.
    pub fn wrote(&mut self, client: ClientId, bytes: u64) {
        let one = self.of(client);
        one.write_bytes = one.write_bytes.saturating_add(bytes);
    }
    /// Starts counting anew.
    pub fn clear(&mut self) {
        self.0.clear();
    }
    /// The page `client_stats`: `ID requests N read_bytes N write_bytes N last SECONDS` of the `max` clients that asked last,
    /// and how many there are.
    #[must_use]
    pub fn text(&self, max: usize) -> String {
        let mut latest: Vec<_> = self.0.iter().collect();
        latest.sort_by_key(|(client, u)| (Reverse(u.last), **client));
        let mut out = String::new();
        let _ = writeln!(out, "clients: {}", latest.len());
        for (client, u) in latest.into_iter().take(max) {
            let Use { requests, read_bytes, write_bytes, last } = u;
            let _ = write!(out, "{:016x} requests {requests} read_bytes {read_bytes}", client.0);
            let _ = writeln!(out, " write_bytes {write_bytes} last {}", last.secs());
        }
        out
    }
    /// Reads a line of [`Uses::text`] with a client; `None` for any other line.
    #[must_use]
    pub fn parse(line: &str) -> Option<(ClientId, Use)> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [id, "requests", requests, "read_bytes", read, "write_bytes", write, "last", last] = words[..] else {
            return None;
        };
        let seconds: i64 = last.parse().ok()?;
        let parsed = Use {
            requests: requests.parse().ok()?,
            read_bytes: read.parse().ok()?,
            write_bytes: write.parse().ok()?,
            last: WallTime(seconds.checked_mul(1_000_000_000)?),
        };
        Some((ClientId(u64::from_str_radix(id, 16).ok()?), parsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_counted_apart_shown_by_who_asked_last_and_read_back() {
        let mut u = Uses::default();
        u.read(ClientId(1), 4096);
        u.answered(ClientId(1), WallTime(2_000_000_000));
        u.wrote(ClientId(2), 512);
        u.answered(ClientId(2), WallTime(3_000_000_000));
        let text = u.text(9);
        assert_eq!(
            text,
            "clients: 2\n0000000000000002 requests 1 read_bytes 0 write_bytes 512 last 3\n\
             0000000000000001 requests 1 read_bytes 4096 write_bytes 0 last 2\n"
        );
        let read: Vec<_> = text.lines().filter_map(Uses::parse).collect();
        let second = Use { requests: 1, read_bytes: 4096, write_bytes: 0, last: WallTime(2_000_000_000) };
        assert_eq!((read.len(), read[1]), (2, (ClientId(1), second)));
        assert_eq!(u.text(1).lines().count(), 2);
        assert_eq!(Uses::parse("1 requests 1 read_bytes -1 write_bytes 0 last 0"), None);
        u.clear();
        assert_eq!(u.text(9), "clients: 0\n");
    }

    #[test]
    fn whoever_asked_longest_ago_gives_its_place_to_the_next() {
        let mut u = Uses::default();
        for id in 0..=CLIENTS_MAX as u64 {
            u.answered(ClientId(id), WallTime(id as i64));
        }
        assert_eq!(
            (u.0.len(), u.0.contains_key(&ClientId(0)), u.0.contains_key(&ClientId(1))),
            (CLIENTS_MAX, false, true)
        );
    }
}
