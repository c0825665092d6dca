//! A controller's write-back cache: writes are answered when their bytes are in it, the array works them off behind.
//!
//! Decides when a write is answered and how often the heads move for it: the cache collects each sequential stream and
//! destages it in one go, so streams share it and positioning costs more the more of them there are.
use alloc::collections::VecDeque;

/// Streams that a controller keeps apart.
const STREAMS_MAX: usize = 512;

/// Bytes accepted and not yet on the medium, oldest first.
#[derive(Clone, Debug)]
pub struct WriteBackCache {
    capacity: u64,
    ns_per_byte: f64,
    held: u64,
    /// (when it is on the medium, bytes), ascending.
    destaging: VecDeque<(u64, u64)>,
    array_free_at: u64,
    /// Where each sequential stream ended, least recently continued first.
    streams: VecDeque<u64>,
}

impl WriteBackCache {
    /// A cache of `capacity` bytes that takes bytes at `rate` per second; capacity 0 is no cache.
    #[must_use]
    pub fn new(capacity: u64, rate: f64) -> WriteBackCache {
        let ns_per_byte = if rate > 0.0 { 1e9 / rate } else { 0.0 };
        WriteBackCache {
            capacity,
            ns_per_byte,
            held: 0,
            destaging: VecDeque::new(),
            array_free_at: 0,
            streams: VecDeque::new(),
        }
    }
    /// Whether there is one.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.capacity > 0
    }
    /// When everything accepted so far is on the medium.
    #[must_use]
    pub fn destaged_at(&self) -> u64 {
        self.array_free_at
    }
    /// The share of a whole positioning that a write of `len` bytes at `lba` costs, and whether it continues a stream.
    pub fn positioning(&mut self, lba: u64, len: u64) -> (f64, bool) {
        let known = self.streams.iter().position(|end| *end == lba);
        match known {
            Some(i) => {
                self.streams.remove(i);
            }
            None if self.streams.len() >= STREAMS_MAX => {
                self.streams.pop_front();
            }
            None => {}
        }
        self.streams.push_back(lba + len);
        if known.is_none() {
            return (1.0, false);
        }
        let others = self.streams.len() - 1;
        let per_destage = self.capacity as f64 / self.streams.len() as f64;
        (if others == 0 { 0.0 } else { (len as f64 / per_destage).min(1.0) }, true)
    }
    /// A write of `len` bytes that costs the array `array_ns`: when the controller answers it.
    pub fn write(&mut self, now: u64, len: u64, array_ns: f64) -> u64 {
        let mut start = now;
        while let Some(&(at, bytes)) = self.destaging.front() {
            let room = self.held + len <= self.capacity;
            if at > now && room {
                break;
            }
            start = start.max(at);
            self.held -= bytes;
            self.destaging.pop_front();
        }
        self.held += len;
        let accepted = start + (len as f64 * self.ns_per_byte) as u64;
        self.array_free_at = self.array_free_at.max(accepted) + array_ns as u64;
        self.destaging.push_back((self.array_free_at, len));
        accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positioning_is_shared_by_what_a_stream_has_in_the_cache() {
        let mut cache = WriteBackCache::new(64 << 20, 1e9);
        assert_eq!(cache.positioning(0, 1 << 20), (1.0, false));
        assert_eq!(cache.positioning(1 << 20, 1 << 20), (0.0, true));
        assert_eq!(cache.positioning(1 << 40, 1 << 20), (1.0, false));
        assert_eq!(cache.positioning(2 << 20, 1 << 20), (1.0 / 32.0, true));
    }

    #[test]
    fn a_burst_runs_at_cache_speed_and_a_long_run_at_array_speed() {
        let mut cache = WriteBackCache::new(64 << 20, 1e9);
        let mut now = 0;
        let mut burst_end = 0;
        for i in 0..1000 {
            now = cache.write(now, 1 << 20, 10_000_000.0);
            if i == 50 {
                burst_end = now;
            }
        }
        assert!(burst_end < 60_000_000, "51 MiB fit the cache: {burst_end}");
        assert!((9_000_000_000..10_100_000_000).contains(&now), "1000 x 10 ms, less what is still cached: {now}");
    }
}
