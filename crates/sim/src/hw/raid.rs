//! A controller's write-back cache: writes are answered when their bytes are in it, the array works them off behind.
//!
//! Decides when a write is answered. Does not reorder: sorting inside the cache is part of the profile's costs.
use std::collections::VecDeque;

/// Bytes accepted and not yet on the medium, oldest first.
#[derive(Clone, Debug)]
pub struct WriteBackCache {
    capacity: u64,
    ns_per_byte: f64,
    held: u64,
    /// (when it is on the medium, bytes), ascending.
    destaging: VecDeque<(u64, u64)>,
    array_free_at: u64,
}

impl WriteBackCache {
    /// A cache of `capacity` bytes that takes bytes at `rate` per second; capacity 0 is no cache.
    #[must_use]
    pub fn new(capacity: u64, rate: f64) -> WriteBackCache {
        let ns_per_byte = if rate > 0.0 { 1e9 / rate } else { 0.0 };
        WriteBackCache { capacity, ns_per_byte, held: 0, destaging: VecDeque::new(), array_free_at: 0 }
    }
    /// Whether there is one.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.capacity > 0
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
