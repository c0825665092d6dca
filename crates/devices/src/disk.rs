//! Disk models: how long one block request takes, and whether the head had to move for it.
//!
//! Decides service times only; the order of requests is the elevator's. Parameters of `paper001` are those of the
//! calibrated hardware model of paper 001 and must not be bent to fit a result.
use crate::array::Members;
use crate::profile::DeviceProfile;
use crate::raid::WriteBackCache;
use types::Rng;

/// One access as the disk sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// First byte on the medium.
    pub lba: u64,
    /// Bytes.
    pub len: u64,
    /// Writes.
    pub write: bool,
}

/// What starting an access answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// When it completes, virtual nanoseconds.
    pub done_at: u64,
    /// It did not continue where the medium was left: a seek.
    pub seek: bool,
}

/// One disk: where its head is and until when its bus is taken.
#[derive(Clone, Debug)]
pub struct DiskModel {
    profile: DeviceProfile,
    /// One past the byte accessed last.
    head: u64,
    in_service: u32,
    bus_free_at: u64,
    cache: WriteBackCache,
    read_ns_per_byte: f64,
    write_ns_per_byte: f64,
    /// The disks of an array.
    members: Option<Members>,
}

impl DiskModel {
    /// An idle disk whose head is parked far from every allocation.
    #[must_use]
    pub fn new(profile: DeviceProfile) -> DiskModel {
        DiskModel {
            profile,
            head: u64::MAX,
            in_service: 0,
            bus_free_at: 0,
            cache: WriteBackCache::new(profile.cache_bytes, profile.cache_rate),
            read_ns_per_byte: 1e9 / profile.read_rate,
            write_ns_per_byte: 1e9 / profile.write_rate,
            members: profile.array.map(|array| Members::new(&profile, array)),
        }
    }
    /// Whether it takes another command now.
    #[must_use]
    pub fn accepts(&self) -> bool {
        self.in_service < self.profile.slots
    }
    /// Commands it works on.
    #[must_use]
    pub fn in_service(&self) -> u32 {
        self.in_service
    }
    /// The medium's parameters.
    #[must_use]
    pub fn profile(&self) -> &DeviceProfile {
        &self.profile
    }
    /// Starts an access.
    ///
    /// # Panics
    /// When [`DiskModel::accepts`] is false.
    pub fn start(&mut self, now: u64, access: Access, rng: &mut Rng) -> Started {
        assert!(self.accepts(), "the disk was given more commands than it has slots");
        self.in_service += 1;
        if let Some(members) = &mut self.members {
            let (done_at, seek) = members.start(now, access, rng);
            return Started { done_at, seek };
        }
        let seek = access.lba != self.head;
        let fixed = self.fixed_ns(access, seek, rng);
        self.head = access.lba + access.len;
        let per_byte = if access.write { self.write_ns_per_byte } else { self.read_ns_per_byte };
        let transfer = access.len as f64 * per_byte;
        let done_at = if access.write && self.cache.is_present() {
            let (share, continues) = self.cache.positioning(access.lba, access.len);
            let partial = if continues { 0.0 } else { self.partial_stripes_ns(access) };
            let command = self.profile.contiguous_ns.0;
            self.cache.write(now, access.len, command + share * fixed + transfer + partial)
        } else if self.profile.slots == 1 {
            now + (fixed + transfer) as u64
        } else {
            // Latencies overlap, bytes share the bus.
            let start = (now + fixed as u64).max(self.bus_free_at);
            self.bus_free_at = start + transfer as u64;
            self.bus_free_at
        };
        Started { done_at, seek }
    }
    /// What an access takes that begins now, without what the rotation adds.
    pub(crate) fn expected_ns(&self, access: Access) -> f64 {
        let p = &self.profile;
        let (jump, per_byte) = match access.write {
            true => (p.jump_write_ns, self.write_ns_per_byte),
            false => (p.jump_read_ns, self.read_ns_per_byte),
        };
        let fixed = if access.lba == self.head { p.contiguous_ns.0 } else { self.way_ns(access, jump, per_byte) };
        fixed + access.len as f64 * per_byte
    }

    /// The way of the head: a jump, or over what lies between where that is shorter, and the stroke.
    fn way_ns(&self, access: Access, jump_ns: f64, per_byte: f64) -> f64 {
        let p = &self.profile;
        let mut ns = jump_ns;
        if p.passes_gaps && access.lba > self.head {
            ns = ns.min(p.contiguous_ns.0 + (access.lba - self.head) as f64 * per_byte);
        }
        if p.full_stroke_ns > 0.0 {
            ns += p.full_stroke_ns * root_of_share(access.lba.abs_diff(self.head.min(p.capacity)), p.capacity);
        }
        ns
    }

    /// When what a write-back cache has accepted so far is on the medium; 0 without one.
    #[must_use]
    pub fn destaged_at(&self) -> u64 {
        self.cache.destaged_at()
    }
    /// A command is complete.
    pub fn finish(&mut self) {
        self.in_service -= 1;
    }

    #[inline]
    fn fixed_ns(&self, access: Access, seek: bool, rng: &mut Rng) -> f64 {
        let p = &self.profile;
        if !seek {
            let (mean, spread) = p.contiguous_ns;
            return mean + spread * (2.0 * rng.unit() - 1.0);
        }
        let (jump, per_byte) = match access.write {
            true => (p.jump_write_ns, self.write_ns_per_byte),
            false => (p.jump_read_ns, self.read_ns_per_byte),
        };
        let mut ns = self.way_ns(access, jump, per_byte);
        if p.revolution_ns > 0.0 {
            ns += p.revolution_ns * rng.unit();
        }
        ns
    }

    fn partial_stripes_ns(&self, access: Access) -> f64 {
        let stripe = self.profile.stripe_bytes;
        if stripe == 0 {
            return 0.0;
        }
        let end = access.lba + access.len;
        let (head, tail) = (!access.lba.is_multiple_of(stripe), !end.is_multiple_of(stripe));
        let same = access.lba / stripe == end / stripe;
        let partial = if same { u32::from(head || tail) } else { u32::from(head) + u32::from(tail) };
        f64::from(partial) * self.profile.partial_stripe_ns
    }
}

/// The square root of `part / whole`, at most 1, to 32 bits.
fn root_of_share(part: u64, whole: u64) -> f64 {
    let share = (u128::from(part.min(whole)) << 64) / u128::from(whole.max(1));
    share.isqrt() as f64 / (1u64 << 32) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_root_of_a_share_is_that_of_floating_point() {
        let mut rng = Rng::new(9);
        for _ in 0..10_000 {
            let whole = 1 + rng.below(1 << 50);
            let part = rng.below(whole + 1);
            let exact = (part as f64 / whole as f64).sqrt();
            assert!((root_of_share(part, whole) - exact).abs() < 1e-9, "{part} of {whole}");
        }
        assert_eq!((root_of_share(0, 7), root_of_share(9, 7)), (0.0, 1.0));
    }

    #[test]
    fn a_short_gap_ahead_is_passed_and_a_long_one_or_one_behind_costs_a_seek() {
        let disk9ms = DeviceProfile::named("disk9ms").unwrap();
        let mut disk = DiskModel::new(DeviceProfile { passes_gaps: true, ..disk9ms });
        let mut rng = Rng::new(1);
        let mut took = |lba| {
            let s = disk.start(0, Access { lba, len: 60_000, write: false }, &mut rng);
            disk.finish();
            s.done_at
        };
        // 60,000 bytes are a millisecond.
        assert_eq!([took(0), took(60_000), took(180_000)], [10_000_000, 1_020_000, 2_020_000]);
        assert_eq!([took(0), took(660_000)], [10_000_000, 10_000_000], "ten milliseconds of gap");
    }

    fn at(lba: u64) -> Access {
        Access { lba, len: 1 << 20, write: true }
    }

    #[test]
    fn paper001_takes_two_milliseconds_more_for_a_jump_of_any_length() {
        let mut disk = DiskModel::new(DeviceProfile::named("paper001").unwrap());
        let mut rng = Rng::new(1);
        for (lba, seek, low, high) in [
            (0, true, 4_097_000, 4_097_200),
            (1 << 20, false, 2_111_000, 2_123_200),
            (1 << 40, true, 4_097_000, 4_097_200),
        ] {
            let s = disk.start(0, at(lba), &mut rng);
            assert_eq!(s.seek, seek);
            assert!((low..high).contains(&s.done_at), "{s:?}");
            disk.finish();
        }
    }

    #[test]
    fn a_longer_way_takes_longer_on_a_turning_disk() {
        let mut rng = Rng::new(1);
        let mut mean = |distance: u64| {
            let mut sum = 0;
            for _ in 0..200 {
                let mut disk = DiskModel::new(DeviceProfile::named("hdd").unwrap());
                disk.start(0, at(0), &mut rng);
                disk.finish();
                sum += disk.start(0, at(distance), &mut rng).done_at;
            }
            sum / 200
        };
        let (near, far) = (mean(1 << 30), mean(7 << 40));
        assert!(far > near + 10_000_000, "{near} {far}");
    }

    #[test]
    fn commands_of_an_ssd_overlap_their_latency_and_share_the_bus() {
        let mut disk = DiskModel::new(DeviceProfile::named("nvme").unwrap());
        let mut rng = Rng::new(1);
        let small = |i: u64| Access { lba: i << 30, len: 4096, write: false };
        let done: Vec<u64> = (1..33).map(|i| disk.start(0, small(i), &mut rng).done_at).collect();
        assert!(done[31] < 2 * done[0], "32 reads of 4 KiB overlap: {done:?}");
        let big = |i: u64| Access { lba: i << 30, len: 32 << 20, write: false };
        let a = disk.start(1_000_000, big(40), &mut rng).done_at;
        let b = disk.start(1_000_000, big(41), &mut rng).done_at;
        assert!(b - a >= 10_000_000, "32 MiB take 10 ms of the bus each: {a} {b}");
    }
}
