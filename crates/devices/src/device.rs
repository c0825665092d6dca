//! A device as a server sees it: elevator in front of disk, with the counters the experiments report.
//!
//! Knows places on the medium, not objects: the allocator in front of it decides where an object's bytes lie.
use crate::{Access, BlockRequest, DeviceProfile, DiskModel, Elevator, ElevatorConfig, Pieces};
use alloc::vec::Vec;
use types::Rng;

/// Size classes of disk requests: up to 64 KiB, 128 KiB, .. 4 MiB, larger. Class of 1 MiB: (512 KiB, 1 MiB].
pub const SIZE_CLASSES: usize = 8;

/// The class of a disk request of `bytes` bytes, `0..SIZE_CLASSES`.
#[must_use]
pub fn size_class(bytes: u64) -> usize {
    let units = bytes.div_ceil(64 << 10).max(1);
    (units.next_power_of_two().trailing_zeros() as usize).min(SIZE_CLASSES - 1)
}

/// The name of a size class in metrics: its upper end.
#[must_use]
pub fn size_class_name(class: usize) -> &'static str {
    ["64k", "128k", "256k", "512k", "1m", "2m", "4m", "more"][class]
}

/// What the disk did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Requests that did not continue the one before.
    pub seeks: u64,
    /// Requests by size class.
    pub requests: [u64; SIZE_CLASSES],
    /// Bytes moved.
    pub bytes: u64,
    /// Nanoseconds in which the disk worked (summed over slots).
    pub busy_ns: u64,
    /// Pieces merged into a waiting request.
    pub merged: u64,
}

impl DeviceStats {
    /// Adds another store's counters.
    pub fn add(&mut self, other: &DeviceStats) {
        self.seeks += other.seeks;
        self.bytes += other.bytes;
        self.busy_ns += other.busy_ns;
        self.merged += other.merged;
        for (a, b) in self.requests.iter_mut().zip(other.requests) {
            *a += b;
        }
    }
    /// Requests of all classes.
    #[must_use]
    pub fn requests_total(&self) -> u64 {
        self.requests.iter().sum()
    }
}

/// Elevator and disk of one OST.
pub struct Device {
    elevator: Elevator,
    disk: DiskModel,
    pieces: Pieces,
    in_service: Vec<Option<BlockRequest>>,
    free_slots: Vec<u32>,
    rng: Rng,
    stats: DeviceStats,
}

impl Device {
    /// An idle store.
    #[must_use]
    pub fn new(profile: DeviceProfile, elevator: ElevatorConfig, rng: Rng) -> Device {
        Device {
            elevator: Elevator::new(elevator),
            disk: DiskModel::new(profile),
            pieces: Pieces::default(),
            in_service: Vec::new(),
            free_slots: Vec::new(),
            rng,
            stats: DeviceStats::default(),
        }
    }
    /// `len` bytes at `lba` for `owner`. Answers when to call [`Device::on_timer`], if ever.
    #[inline]
    pub fn submit(&mut self, now: u64, owner: u32, access: Access) -> Option<u64> {
        self.elevator.add(now, owner, access.lba, access.len, access.write, &mut self.pieces)
    }
    /// The time that `submit` asked for has come.
    pub fn on_timer(&mut self, now: u64) {
        self.elevator.on_timer(now);
    }
    /// Starts the next disk request, if the disk takes one: its slot and when it completes. Call until `None`.
    #[inline]
    pub fn start_next(&mut self, now: u64) -> Option<(u32, u64)> {
        if !self.disk.accepts() {
            return None;
        }
        let request = self.elevator.next(now)?;
        let access = Access { lba: request.lba, len: request.len, write: request.write };
        let started = self.disk.start(now, access, &mut self.rng);
        self.stats.seeks += u64::from(started.seek);
        self.stats.bytes += request.len;
        self.stats.busy_ns += started.done_at - now;
        self.stats.requests[size_class(request.len)] += 1;
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.in_service.push(None);
            (self.in_service.len() - 1) as u32
        });
        self.in_service[slot as usize] = Some(request);
        Some((slot, started.done_at))
    }
    /// The disk request in `slot` is complete: `owner` is called for each of its pieces.
    ///
    /// # Panics
    /// When nothing is in service there.
    #[inline]
    pub fn finish(&mut self, slot: u32, owner: impl FnMut(u32)) {
        let request = self.in_service[slot as usize].take().expect("a completion names a slot in service");
        self.free_slots.push(slot);
        self.disk.finish();
        self.pieces.release(&request, owner);
    }
    /// Counters since the last [`Device::reset_stats`].
    #[must_use]
    pub fn stats(&self) -> DeviceStats {
        DeviceStats { merged: self.elevator.merged(), ..self.stats }
    }
    /// Starts counting anew (a measured phase begins).
    pub fn reset_stats(&mut self) {
        self.stats = DeviceStats::default();
    }
    /// When what a write-back cache has accepted so far is on the medium; 0 without one.
    #[must_use]
    pub fn destaged_at(&self) -> u64 {
        self.disk.destaged_at()
    }
    /// The device's parameters.
    #[must_use]
    pub fn profile(&self) -> &DeviceProfile {
        self.disk.profile()
    }
    /// Disk requests waiting in the elevator.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.elevator.queued()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn classes_are_closed_at_their_upper_end() {
        assert_eq!(size_class_name(size_class(1 << 20)), "1m");
        assert_eq!(size_class_name(size_class((1 << 20) + 1)), "2m");
        assert_eq!(size_class_name(size_class(4 << 20)), "4m");
        assert_eq!(size_class_name(size_class(1)), "64k");
        assert_eq!(size_class_name(size_class(64 << 20)), "more");
    }

    #[test]
    fn every_piece_comes_back_exactly_once() {
        let profile = DeviceProfile::named("paper001").unwrap();
        let mut s = Device::new(profile, ElevatorConfig::default(), Rng::new(3));
        let mut rng = Rng::new(4);
        let (mut now, mut seen) = (0, vec![0; 500]);
        for owner in 0..500u32 {
            let access = Access { lba: rng.below(64) << 20, len: 1 << 20, write: true };
            let timer = s.submit(now, owner, access);
            now = timer.unwrap_or(now);
            s.on_timer(now);
            while let Some((slot, done)) = s.start_next(now) {
                now = done;
                s.finish(slot, |o| seen[o as usize] += 1);
            }
        }
        s.on_timer(now + 3_000_000);
        while let Some((slot, _)) = s.start_next(now) {
            s.finish(slot, |o| seen[o as usize] += 1);
        }
        assert!(seen.iter().all(|n| *n == 1));
        assert_eq!(s.stats().bytes, 500 << 20);
    }
}
