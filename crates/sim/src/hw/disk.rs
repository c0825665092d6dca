//! Disk models: how long one block request takes, and whether the head had to move for it.
//!
//! Decides service times only; the order of requests is the elevator's. Parameters of `paper001` are those of the
//! calibrated hardware model of paper 001 and must not be bent to fit a result.
use super::raid::WriteBackCache;
use types::Rng;

/// Nanoseconds in a millisecond, as a float.
const MS: f64 = 1e6;
const US: f64 = 1e3;

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

/// Parameters of a medium. Times in nanoseconds, rates in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskProfile {
    /// Name in `disk.profile`.
    pub name: &'static str,
    /// Commands the device works on at once.
    pub slots: u32,
    /// Streaming read rate.
    pub read_rate: f64,
    /// Streaming write rate.
    pub write_rate: f64,
    /// Fixed cost of a request that continues the one before it, and its spread (uniform, +-).
    pub contiguous_ns: (f64, f64),
    /// Fixed cost of any other read, without distance and rotation.
    pub jump_read_ns: f64,
    /// Fixed cost of any other write, without distance and rotation.
    pub jump_write_ns: f64,
    /// Seek over the whole medium beyond the fixed cost; grows with the square root of the distance. 0: no heads.
    pub full_stroke_ns: f64,
    /// Time of a revolution; a jump waits for a uniform part of it. 0: nothing turns.
    pub revolution_ns: f64,
    /// Bytes of the medium.
    pub capacity: u64,
    /// Write-back cache in bytes; 0: none.
    pub cache_bytes: u64,
    /// Rate at which the write-back cache takes bytes.
    pub cache_rate: f64,
    /// Full-stripe width of a parity array; a write that covers a part of one pays `partial_stripe_ns`. 0: no array.
    pub stripe_bytes: u64,
    /// Cost of each partially written stripe: old data and parity are read before they are written.
    pub partial_stripe_ns: f64,
}

/// Calibrated on paper 001: 500 MB/s (1 MiB in 2.097 ms), 2.0 ms for every non-contiguous request instead of the
/// 20 +- 6 us of a contiguous one, whatever the distance. (The paper prints 450 MB/s and 10 ms, which give +130 %
/// at 12 GB/s instead of its own figures.)
const PAPER001: DiskProfile = DiskProfile {
    name: "paper001",
    slots: 1,
    read_rate: 500e6,
    write_rate: 500e6,
    contiguous_ns: (20.0 * US, 6.0 * US),
    jump_read_ns: 2.0 * MS,
    jump_write_ns: 2.0 * MS,
    full_stroke_ns: 0.0,
    revolution_ns: 0.0,
    capacity: 1 << 50,
    cache_bytes: 0,
    cache_rate: 0.0,
    stripe_bytes: 0,
    partial_stripe_ns: 0.0,
};

/// A 7200 rpm SATA disk: 150 MB/s in the middle of the platter, 0.8 ms track to track, 16 ms over the whole stroke
/// (square-root law), 8.33 ms a revolution.
const HDD7200: DiskProfile = DiskProfile {
    name: "hdd7200",
    read_rate: 150e6,
    write_rate: 150e6,
    jump_read_ns: 0.8 * MS,
    jump_write_ns: 0.8 * MS,
    full_stroke_ns: 15.2 * MS,
    revolution_ns: 8.333 * MS,
    capacity: 8 << 40,
    ..PAPER001
};

/// Ten such disks as RAID 8+2 with 128 KiB chunks (1 MiB full stripe) behind a controller whose 512 MiB of cache
/// give writes three quarters: streams at 8 x 110 MB/s (parity and controller take a quarter), absorbs at 1.6 GB/s. A command costs 0.4 ms
/// (parity, copy to the partner controller); an isolated partial stripe a revolution, of which sorting hides half.
const RAID8P2: DiskProfile = DiskProfile {
    name: "raid8+2",
    read_rate: 880e6,
    write_rate: 880e6,
    contiguous_ns: (400.0 * US, 20.0 * US),
    jump_read_ns: 0.8 * MS,
    jump_write_ns: 0.8 * MS,
    full_stroke_ns: 15.2 * MS,
    revolution_ns: 8.333 * MS,
    capacity: 64 << 40,
    cache_bytes: 384 << 20,
    cache_rate: 1.6e9,
    stripe_bytes: 1 << 20,
    partial_stripe_ns: 4.2 * MS,
    ..PAPER001
};

/// A SATA SSD: the bus carries 530 MB/s, 32 commands at once, 90 us to read a page, 60 us to accept one.
const SATA_SSD: DiskProfile = DiskProfile {
    name: "ssd_sata",
    slots: 32,
    read_rate: 530e6,
    write_rate: 490e6,
    contiguous_ns: (60.0 * US, 5.0 * US),
    jump_read_ns: 90.0 * US,
    jump_write_ns: 60.0 * US,
    capacity: 4 << 40,
    ..PAPER001
};

/// An NVMe SSD on four PCIe 3 lanes: 3.2 GB/s read, 2.4 GB/s written, 128 commands at once, 85 us and 22 us.
const NVME: DiskProfile = DiskProfile {
    name: "nvme",
    slots: 128,
    read_rate: 3.2e9,
    write_rate: 2.4e9,
    contiguous_ns: (20.0 * US, 3.0 * US),
    jump_read_ns: 85.0 * US,
    jump_write_ns: 22.0 * US,
    capacity: 8 << 40,
    ..PAPER001
};

/// The IDE-era disk of paper 000's testbed: 9 ms to any other place, 60 MB/s.
const DISK9MS: DiskProfile = DiskProfile {
    name: "disk9ms",
    read_rate: 60e6,
    write_rate: 60e6,
    contiguous_ns: (20.0 * US, 0.0),
    jump_read_ns: 9.0 * MS,
    jump_write_ns: 9.0 * MS,
    ..PAPER001
};

const PROFILES: [DiskProfile; 6] = [PAPER001, HDD7200, RAID8P2, SATA_SSD, NVME, DISK9MS];

/// The names `disk.profile` takes.
#[must_use]
pub fn profile_names() -> Vec<&'static str> {
    PROFILES.iter().map(|p| p.name).collect()
}

impl DiskProfile {
    /// The profile called `name`.
    ///
    /// # Errors
    /// A sentence listing the names.
    pub fn named(name: &str) -> Result<DiskProfile, String> {
        PROFILES
            .iter()
            .find(|p| p.name == name)
            .copied()
            .ok_or_else(|| format!("'{name}' is not a disk profile; there are: {}", profile_names().join(", ")))
    }
}

/// One disk: where its head is and until when its bus is taken.
#[derive(Clone, Debug)]
pub struct DiskModel {
    profile: DiskProfile,
    /// One past the byte accessed last.
    head: u64,
    in_service: u32,
    bus_free_at: u64,
    cache: WriteBackCache,
    read_ns_per_byte: f64,
    write_ns_per_byte: f64,
}

impl DiskModel {
    /// An idle disk whose head is parked far from every allocation.
    #[must_use]
    pub fn new(profile: DiskProfile) -> DiskModel {
        DiskModel {
            profile,
            head: u64::MAX,
            in_service: 0,
            bus_free_at: 0,
            cache: WriteBackCache::new(profile.cache_bytes, profile.cache_rate),
            read_ns_per_byte: 1e9 / profile.read_rate,
            write_ns_per_byte: 1e9 / profile.write_rate,
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
    pub fn profile(&self) -> &DiskProfile {
        &self.profile
    }
    /// Starts an access.
    ///
    /// # Panics
    /// When [`DiskModel::accepts`] is false.
    pub fn start(&mut self, now: u64, access: Access, rng: &mut Rng) -> Started {
        assert!(self.accepts(), "the disk was given more commands than it has slots");
        self.in_service += 1;
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
        let mut ns = if access.write { p.jump_write_ns } else { p.jump_read_ns };
        if p.full_stroke_ns > 0.0 {
            let distance = access.lba.abs_diff(self.head.min(p.capacity)) as f64 / p.capacity as f64;
            ns += p.full_stroke_ns * distance.min(1.0).sqrt();
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lba: u64) -> Access {
        Access { lba, len: 1 << 20, write: true }
    }

    #[test]
    fn paper001_takes_two_milliseconds_more_for_a_jump_of_any_length() {
        let mut disk = DiskModel::new(DiskProfile::named("paper001").unwrap());
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
                let mut disk = DiskModel::new(DiskProfile::named("hdd7200").unwrap());
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
        let mut disk = DiskModel::new(DiskProfile::named("nvme").unwrap());
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
