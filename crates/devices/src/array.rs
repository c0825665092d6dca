//! Disk arrays: which disks of a RAID 5, 6 or 10 read and write what for one access, and how long that takes.
//!
//! Decides places (left-symmetric rotation of parity, as Linux md has it) and the cheaper way to new parity of a partly written
//! stripe: old data and old parity are read (read-modify-write), or the data that are not written (reconstruction). Writes of a
//! stripe begin when its reads have ended. A mirrored read goes to the side that has it sooner.
//! Leaves out: a failed disk, a rebuild, a journal, a controller's cache (profile `raid` has one).
use crate::disk::{Access, DiskModel};
use crate::profile::DeviceProfile;
use alloc::vec::Vec;
use types::Rng;

/// How an array keeps its data when a disk is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// One parity chunk in each stripe.
    Raid5,
    /// Two.
    Raid6,
    /// Stripes over pairs of mirrored disks.
    Raid10,
}

/// An array of equal disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// Its kind.
    pub level: Level,
    /// Disks, parity included: 3 (RAID 5) or 4 to [`DISKS_MAX`]; even for RAID 10.
    pub disks: u32,
    /// Bytes that lie on one disk in a row.
    pub chunk_bytes: u64,
}

/// Most disks of an array.
pub const DISKS_MAX: u32 = 64;

/// What one disk does for an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which disk; of a mirrored pair its first.
    pub disk: u32,
    /// First byte there.
    pub lba: u64,
    /// Bytes.
    pub len: u64,
}

/// What the disks do for an access: all reads of a stripe, then its writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Reads.
    pub reads: Vec<Part>,
    /// Writes.
    pub writes: Vec<Part>,
}

impl Array {
    /// Disks of each stripe that hold parity; mirrors are none.
    #[must_use]
    pub fn parities(&self) -> u32 {
        match self.level {
            Level::Raid5 => 1,
            Level::Raid6 => 2,
            Level::Raid10 => 0,
        }
    }
    /// Disks whose rates add up when it streams writes: those that hold different data.
    #[must_use]
    pub fn data_disks(&self) -> u32 {
        match self.level {
            Level::Raid10 => self.disks / 2,
            _ => self.disks - self.parities(),
        }
    }
    /// Bytes of data in a stripe.
    #[must_use]
    pub fn stripe_bytes(&self) -> u64 {
        u64::from(self.data_disks()) * self.chunk_bytes
    }
    /// Whether so many disks make one.
    ///
    /// # Errors
    /// What would be right, in words.
    pub fn check(&self) -> Result<(), &'static str> {
        match self.level {
            Level::Raid5 if self.disks < 3 => Err("a RAID 5 has 3 disks and more"),
            Level::Raid6 if self.disks < 4 => Err("a RAID 6 has 4 disks and more"),
            Level::Raid10 if self.disks < 4 || !self.disks.is_multiple_of(2) => {
                Err("a RAID 10 has an even number of disks, 4 and more")
            }
            _ => Ok(()),
        }
    }
    /// The disk of data chunk `column` of a stripe; parity comes first, from the last disk of stripe 0 on backwards.
    fn disk_of(&self, stripe: u64, column: u32) -> u32 {
        match self.level {
            Level::Raid10 => column * 2,
            _ => (self.parity_disk(stripe) + self.parities() + column) % self.disks,
        }
    }
    fn parity_disk(&self, stripe: u64) -> u32 {
        self.disks - 1 - (stripe % u64::from(self.disks)) as u32
    }
    /// The pieces of an access by stripe: data chunks that it touches with first and last byte within the chunk.
    fn stripes(&self, access: Access, mut each: impl FnMut(u64, &[(u32, u64, u64)])) {
        let (mut at, end) = (access.lba, access.lba + access.len);
        let mut chunks = Vec::new();
        while at < end {
            let stripe = at / self.stripe_bytes();
            let stripe_end = end.min((stripe + 1) * self.stripe_bytes());
            chunks.clear();
            while at < stripe_end {
                let within = at % self.stripe_bytes();
                let (column, from) = (within / self.chunk_bytes, within % self.chunk_bytes);
                let to = self.chunk_bytes.min(from + (stripe_end - at));
                chunks.push((column as u32, from, to));
                at += to - from;
            }
            each(stripe, &chunks);
        }
    }
    /// What the disks read and write for an access; of mirrors the first disk of each pair.
    #[must_use]
    pub fn work(&self, access: Access) -> Work {
        let mut work = Work::default();
        self.stripes(access, |stripe, chunks| {
            let part = |disk, from, to| Part { disk, lba: stripe * self.chunk_bytes + from, len: to - from };
            let data = chunks.iter().map(|&(column, from, to)| part(self.disk_of(stripe, column), from, to));
            if !access.write {
                work.reads.extend(data);
                return;
            }
            work.writes.extend(data);
            if self.parities() == 0 {
                return;
            }
            let from = chunks.iter().map(|c| c.1).min().unwrap_or(0);
            let to = chunks.iter().map(|c| c.2).max().unwrap_or(0);
            let parity = (0..self.parities()).map(|i| part((self.parity_disk(stripe) + i) % self.disks, from, to));
            work.writes.extend(parity.clone());
            let whole = |column: u32| chunks.iter().any(|&(c, f, t)| c == column && f <= from && t >= to);
            let others = (0..self.data_disks()).filter(|&column| !whole(column));
            let (others_count, modify_count) = (others.clone().count(), chunks.len() + self.parities() as usize);
            if others_count < modify_count {
                work.reads.extend(others.map(|column| part(self.disk_of(stripe, column), from, to)));
            } else {
                work.reads
                    .extend(chunks.iter().map(|&(column, from, to)| part(self.disk_of(stripe, column), from, to)));
                work.reads.extend(parity);
            }
        });
        work
    }
}

/// The disks of an array, each with its head and what it has still to do.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    array: Array,
    disks: Vec<DiskModel>,
    free_at: Vec<u64>,
}

impl Members {
    /// Idle disks of `profile`, which is an array of them.
    pub(crate) fn new(profile: &DeviceProfile, array: Array) -> Members {
        let member = DeviceProfile { array: None, slots: 1, passes_gaps: true, ..*profile };
        let count = array.disks as usize;
        Members { array, disks: (0..count).map(|_| DiskModel::new(member)).collect(), free_at: alloc::vec![0; count] }
    }

    /// Starts an access: when it completes, and whether a head had to move. Every disk does what it is given in that order.
    pub(crate) fn start(&mut self, now: u64, access: Access, rng: &mut Rng) -> (u64, bool) {
        let work = self.array.work(access);
        let (mut read_at, mut seek) = (now, false);
        for part in &work.reads {
            let disk = self.side(now, *part);
            let (at, moved) = self.one(now, disk, *part, false, rng);
            (read_at, seek) = (read_at.max(at), seek || moved);
        }
        let mut done_at = read_at;
        let copies = if self.array.level == Level::Raid10 { 2 } else { 1 };
        for part in &work.writes {
            for copy in 0..copies {
                let (at, moved) = self.one(read_at, part.disk + copy, *part, true, rng);
                (done_at, seek) = (done_at.max(at), seek || moved);
            }
        }
        (done_at, seek)
    }

    fn one(&mut self, from: u64, disk: u32, part: Part, write: bool, rng: &mut Rng) -> (u64, bool) {
        let i = disk as usize;
        let begin = from.max(self.free_at[i]);
        let started = self.disks[i].start(begin, Access { lba: part.lba, len: part.len, write }, rng);
        self.disks[i].finish();
        self.free_at[i] = started.done_at;
        (started.done_at, started.seek)
    }

    /// The disk that a part is read from: of a mirrored pair the one that has it sooner.
    fn side(&self, now: u64, part: Part) -> u32 {
        if self.array.level != Level::Raid10 {
            return part.disk;
        }
        let ready = |disk: u32| {
            let i = disk as usize;
            now.max(self.free_at[i]) as f64
                + self.disks[i].expected_ns(Access { lba: part.lba, len: part.len, write: false })
        };
        if ready(part.disk + 1) < ready(part.disk) { part.disk + 1 } else { part.disk }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const CHUNK: u64 = 64 << 10;

    fn array(level: Level, disks: u32) -> Array {
        Array { level, disks, chunk_bytes: CHUNK }
    }
    fn at(lba: u64, len: u64, write: bool) -> Access {
        Access { lba, len, write }
    }
    /// Reads and writes of the disks for an access; a mirrored write is two.
    fn counts(a: Array, access: Access) -> (usize, usize) {
        let work = a.work(access);
        (work.reads.len(), work.writes.len() * if a.level == Level::Raid10 { 2 } else { 1 })
    }

    #[test]
    fn a_small_write_is_two_and_two_on_raid_5_three_and_three_on_raid_6_and_two_writes_on_raid_10() {
        for lba in [0, 4096, 7 * CHUNK + 8192, 1 << 40] {
            assert_eq!(counts(array(Level::Raid5, 5), at(lba, 4096, true)), (2, 2));
            assert_eq!(counts(array(Level::Raid6, 10), at(lba, 4096, true)), (3, 3));
            assert_eq!(counts(array(Level::Raid10, 8), at(lba, 4096, true)), (0, 2));
            assert_eq!(counts(array(Level::Raid5, 5), at(lba, 4096, false)), (1, 0));
        }
    }

    #[test]
    fn whole_stripes_are_written_without_reads_and_nearly_whole_ones_read_what_is_missing() {
        let (five, six) = (array(Level::Raid5, 5), array(Level::Raid6, 10));
        assert_eq!(counts(five, at(0, 4 * CHUNK, true)), (0, 5));
        assert_eq!(counts(five, at(8 * CHUNK, 12 * CHUNK, true)), (0, 15));
        assert_eq!(counts(six, at(0, 8 * CHUNK, true)), (0, 10));
        assert_eq!(
            counts(five, at(0, 3 * CHUNK, true)),
            (1, 4),
            "one chunk is missing: it is read, parity is made anew"
        );
        assert_eq!(counts(five, at(0, 2 * CHUNK, true)), (2, 3));
        // A whole stripe between two small ends: two reads and two writes for each end.
        assert_eq!(counts(five, at(3 * CHUNK + 61440, 4096 + 4 * CHUNK + 4096, true)), (4, 9));
        assert_eq!(
            counts(array(Level::Raid5, 3), at(0, 4096, true)),
            (1, 2),
            "the one other chunk is read instead of two"
        );
    }

    #[test]
    fn every_byte_has_a_disk_of_its_own_and_parity_goes_round() {
        for a in [array(Level::Raid5, 5), array(Level::Raid6, 6), array(Level::Raid10, 6)] {
            let stripes = u64::from(a.disks) * 2;
            let mut used = vec![vec![0; stripes as usize]; a.disks as usize];
            for chunk in 0..stripes * u64::from(a.data_disks()) {
                let work = a.work(at(chunk * CHUNK, CHUNK, false));
                assert_eq!(work.reads.len(), 1);
                used[work.reads[0].disk as usize][(work.reads[0].lba / CHUNK) as usize] += 1;
            }
            for stripe in 0..stripes {
                let work = a.work(at(stripe * a.stripe_bytes(), a.stripe_bytes(), true));
                for part in &work.writes[a.data_disks() as usize..] {
                    used[part.disk as usize][stripe as usize] += 1;
                }
                let places: u32 = used.iter().map(|d| d[stripe as usize]).sum();
                assert_eq!(places, a.data_disks() + a.parities());
            }
            assert!(used.iter().flatten().all(|n| *n <= 1), "two things lie at one place: {a:?}");
            if a.parities() > 0 {
                let loads: Vec<u32> = used.iter().map(|d| d.iter().sum()).collect();
                assert!(loads.iter().all(|n| u64::from(*n) == stripes), "{loads:?}");
            }
        }
    }

    /// Disks of 8 ms and 100 MB/s.
    fn members(name: &str, keys: &str) -> Members {
        let profile =
            DeviceProfile::parse(name, &alloc::format!("seek_ms=8 mb_per_s=100 request_us=0 {keys}")).unwrap();
        Members::new(&profile, profile.array.unwrap())
    }

    #[test]
    fn a_small_write_waits_for_its_reads_and_a_whole_stripe_takes_as_long_as_a_chunk() {
        let mut rng = Rng::new(1);
        let (mut five, byte) = (members("raid5", "disks=5 chunk_kb=64"), 10);
        // 8 ms and 4 KiB, twice: heads have passed what is written.
        assert_eq!(five.start(0, at(1 << 30, 4096, true), &mut rng).0, 2 * (8_000_000 + 4096 * byte));
        let mut fresh = members("raid5", "disks=5 chunk_kb=64");
        assert_eq!(fresh.start(0, at(0, 4 * CHUNK, true), &mut rng), (8_000_000 + CHUNK * byte, true));
        // The next stripe continues on all disks.
        let (end, seek) = fresh.start(20_000_000, at(4 * CHUNK, 4 * CHUNK, true), &mut rng);
        assert_eq!((end, seek), (20_000_000 + CHUNK * byte, false));
    }

    #[test]
    fn mirrored_reads_go_to_either_side() {
        let mut rng = Rng::new(1);
        let mut ten = members("raid10", "disks=4 chunk_kb=64");
        // Two reads of one chunk's pair at a time: both sides work, and the third waits.
        let ends: Vec<u64> = (0..3).map(|i| ten.start(0, at(i << 30, 4096, false), &mut rng).0).collect();
        assert_eq!(ends, [8_040_960, 8_040_960, 16_081_920]);
        // On parity the same three wait for one another.
        let mut five = members("raid5", "disks=5 chunk_kb=64");
        let stride = 5 * 4 * CHUNK;
        let ends: Vec<u64> = (0..3).map(|i| five.start(0, at(i * stride * 100, 4096, false), &mut rng).0).collect();
        assert_eq!(ends, [8_040_960, 16_081_920, 24_122_880]);
    }
}
