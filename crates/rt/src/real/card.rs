//! A network card that is slower than what is there: messages over TCP leave and arrive as through it.
//!
//! One card for each process, as a node has one; all its connections share it, each direction by itself, first come first
//! served by whole messages. It can only hold back: what the machine does not carry, no profile gives. Off unless it is asked
//! for, and then it costs the look whether it is on. Nothing is held back between roles of one process, which hand bytes over by
//! reference.
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use types::{Duration, Instant};

/// A card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetProfile {
    /// As `net.profile` has it.
    pub name: &'static str,
    /// Bytes that each direction carries in a second, protocols taken off.
    pub bytes_per_s: u64,
    /// From one host to the other, beside the bytes.
    pub latency: Duration,
}

/// All cards. Ethernet carries 94 % of its rate as data; four lanes of QDR InfiniBand carry 32 Gb/s.
pub const NET_PROFILES: [NetProfile; 4] = [
    NetProfile { name: "gbe", bytes_per_s: 118_000_000, latency: Duration::from_micros(50) },
    NetProfile { name: "10gbe", bytes_per_s: 1_180_000_000, latency: Duration::from_micros(20) },
    NetProfile { name: "ib-qdr", bytes_per_s: 4_000_000_000, latency: Duration::from_micros(2) },
    NetProfile { name: "100gbe", bytes_per_s: 11_800_000_000, latency: Duration::from_micros(2) },
];

/// One direction of a card.
#[derive(Debug, Default)]
struct Lane {
    /// Moment up to which it is taken, ns of the process's clock.
    taken_until: AtomicU64,
    bytes: AtomicU64,
}

impl Lane {
    /// Takes it for `ns` from `from` on, or from when it is free; when that ends.
    fn take(&self, from: u64, ns: u64, bytes: u64) -> u64 {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let after = |until: u64| until.max(from).saturating_add(ns);
        // Any order of two that come at the same time is right.
        let before = self.taken_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| Some(after(until)));
        before.map_or(0, after)
    }
}

/// The card of this process.
#[derive(Debug)]
pub(super) struct Card {
    profile: NetProfile,
    out: Lane,
    into: Lane,
}

static CARD: OnceLock<Card> = OnceLock::new();

/// The card, when there is one.
pub(super) fn card() -> Option<&'static Card> {
    CARD.get()
}

impl Card {
    fn new(profile: NetProfile) -> Card {
        Card { profile, out: Lane::default(), into: Lane::default() }
    }
    /// Nanoseconds that bytes take it.
    fn ns(&self, bytes: usize) -> u64 {
        let ns = bytes as u128 * 1_000_000_000 / u128::from(self.profile.bytes_per_s);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
    /// When a message that is handed over now is with the other host.
    pub(super) fn send(&self, now: Instant, bytes: usize) -> Instant {
        Instant(self.out.take(now.0, self.ns(bytes), bytes as u64)) + self.profile.latency
    }
    /// When a message is here whose last byte the machine has brought now: at once, unless others came at the same time.
    pub(super) fn receive(&self, now: Instant, bytes: usize) -> Instant {
        let ns = self.ns(bytes);
        Instant(self.into.take(now.0.saturating_sub(ns), ns, bytes as u64))
    }
}

/// From now on, TCP connections of this process that are made later go through this card. Once per process.
///
/// # Errors
/// A sentence: there is no such card, or another one is there.
pub fn set_net_profile(name: &str) -> Result<(), String> {
    let names = || NET_PROFILES.map(|p| p.name).join(", ");
    let found = NET_PROFILES.iter().find(|p| p.name == name);
    let profile = *found.ok_or_else(|| format!("'{name}' is not a network profile; there are: none, {}", names()))?;
    if CARD.get_or_init(|| Card::new(profile)).profile == profile {
        return Ok(());
    }
    Err(format!("this process has another network profile than '{name}'"))
}

/// Bytes that were sent and received through the card; `None` without one.
#[must_use]
pub fn net_profile_bytes() -> Option<(u64, u64)> {
    let card = card()?;
    Some((card.out.bytes.load(Ordering::Relaxed), card.into.bytes.load(Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A byte takes a microsecond, and is under way for a millisecond.
    fn slow() -> Card {
        Card::new(NetProfile { name: "slow", bytes_per_s: 1_000_000, latency: Duration::from_millis(1) })
    }

    #[test]
    fn what_is_sent_leaves_one_after_the_other_and_arrives_later() {
        let card = slow();
        let at = |us: u64| Instant(us * 1000);
        assert_eq!(card.send(at(0), 100), at(1100));
        // The next one waits for the first, whatever its connection.
        assert_eq!(card.send(at(10), 100), at(1200));
        // A card that was idle has saved nothing up.
        assert_eq!(card.send(at(5000), 50), at(6050));
        assert_eq!(card.out.bytes.load(Ordering::Relaxed), 250);
    }

    #[test]
    fn what_comes_alone_is_not_held_back_again_and_what_comes_together_is() {
        let card = slow();
        let at = |us: u64| Instant(us * 1000);
        assert_eq!(card.receive(at(1000), 400), at(1000));
        assert_eq!(card.receive(at(1000), 400), at(1400));
        assert_eq!(card.receive(at(1100), 400), at(1800));
        assert_eq!(card.receive(at(10_000), 400), at(10_000));
        // Directions do not wait for each other.
        assert_eq!(card.send(at(1100), 1), at(2101));
        assert_eq!(card.receive(at(0), 400), at(10_400), "a moment of before is no reason to go back");
    }

    #[test]
    fn sums_are_those_of_the_rate_whoever_shares_it() {
        let card = slow();
        let last = std::thread::scope(|s| {
            let work = || (0..100).map(|_| card.send(Instant(0), 1000)).max().unwrap();
            let others: Vec<_> = (0..3).map(|_| s.spawn(work)).collect();
            let own = work();
            others.into_iter().map(|t| t.join().unwrap()).fold(own, Instant::max)
        });
        assert_eq!(last, Instant(400 * 1_000_000) + Duration::from_millis(1));
    }

    #[test]
    fn a_profile_that_is_not_there_is_refused_with_those_that_are() {
        let e = set_net_profile("token-ring").unwrap_err();
        assert!(e.contains("'token-ring'") && e.contains("none, gbe, 10gbe, ib-qdr, 100gbe"), "{e}");
        assert_eq!(net_profile_bytes(), None);
    }
}
