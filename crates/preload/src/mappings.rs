//! Which part of which file lies where in the program's memory: a table that mmap(2), mremap(2) and munmap(2) keep.
//!
//! It allocates nothing and waits for nobody: these calls are made inside allocators and signal handlers. A mapping that finds
//! no room, or the table taken by somebody who does not come back, is not known; its advice stays with the kernel.
use crate::descriptors::FileId;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Mappings of files that are known at a time.
const MAPPINGS_MAX: usize = 512;
/// Tries to get at the table.
const TRIES_MAX: usize = 10_000;

/// A part of a file in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First address.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// Where in the file it begins.
    pub offset: u64,
    /// The file.
    pub file: FileId,
    /// The descriptor it was mapped by, which may be closed or another file's by now.
    pub fd: i32,
}

impl Mapping {
    /// What of it lies in `start..end`.
    fn part(&self, start: usize, end: usize) -> Option<Mapping> {
        let (from, to) = (self.start.max(start), self.end.min(end));
        (from < to).then(|| Mapping {
            start: from,
            end: to,
            offset: self.offset.wrapping_add((from - self.start) as u64),
            ..*self
        })
    }
}

/// The table.
struct Mappings {
    known: [Option<Mapping>; MAPPINGS_MAX],
}

impl Mappings {
    /// Nothing is mapped.
    const fn new() -> Mappings {
        Mappings { known: [None; MAPPINGS_MAX] }
    }
    /// Mappings that are known.
    fn len(&self) -> usize {
        self.known.iter().flatten().count()
    }
    /// Parts of files in `start..end`, in no order.
    fn within(&self, start: usize, end: usize) -> impl Iterator<Item = Mapping> {
        self.known.iter().flatten().filter_map(move |m| m.part(start, end))
    }
    /// Nothing that was known lies in `start..end` any more.
    fn cut(&mut self, start: usize, end: usize) {
        for i in 0..MAPPINGS_MAX {
            let Some(m) = self.known[i].filter(|m| m.part(start, end).is_some()) else { continue };
            self.known[i] = m.part(0, start);
            if let Some(rest) = m.part(end, usize::MAX) {
                self.add(rest);
            }
        }
    }
    fn add(&mut self, mapping: Mapping) {
        if let Some(free) = self.known.iter_mut().find(|m| m.is_none()) {
            *free = Some(mapping);
        }
    }
    /// What is in memory at `mapping` is this now.
    fn put(&mut self, mapping: Mapping) {
        self.cut(mapping.start, mapping.end);
        self.add(mapping);
    }
    /// `old..old + old_len` is `new..new + new_len` now; `stays`: at the old place, too.
    fn relocate(&mut self, old: usize, old_len: usize, new: usize, new_len: usize, stays: bool) {
        let known = self.within(old, old.saturating_add(old_len.max(1))).find(|m| m.start == old);
        if !stays {
            self.cut(old, old.saturating_add(old_len));
        }
        let end = new.saturating_add(new_len);
        self.cut(new, end);
        if let Some(m) = known {
            self.add(Mapping { start: new, end, ..m });
        }
    }
}

static MAPPINGS: Mutex<Mappings> = Mutex::new(Mappings::new());
/// How many are known, so that programs which map no such file notice nothing.
static KNOWN: AtomicUsize = AtomicUsize::new(0);

fn with<T>(work: impl FnOnce(&mut Mappings) -> T) -> Option<T> {
    for _ in 0..TRIES_MAX {
        if let Ok(mut mappings) = MAPPINGS.try_lock() {
            let done = work(&mut mappings);
            KNOWN.store(mappings.len(), Relaxed);
            return Some(done);
        }
        core::hint::spin_loop();
    }
    None
}

/// Something was mapped; `None`: no file whose mount could be told anything.
pub fn on_mapped(start: usize, len: usize, mapping: Option<Mapping>) {
    match mapping {
        Some(mapping) => drop(with(|m| m.put(mapping))),
        None => on_unmapped(start, len),
    }
}

/// Something was unmapped.
pub fn on_unmapped(start: usize, len: usize) {
    if KNOWN.load(Relaxed) > 0 {
        with(|m| m.cut(start, start.saturating_add(len)));
    }
}

/// Something was moved or changed its length.
pub fn on_remapped(old: usize, old_len: usize, new: usize, new_len: usize, stays: bool) {
    if KNOWN.load(Relaxed) > 0 {
        with(|m| m.relocate(old, old_len, new, new_len, stays));
    }
}

/// The parts of files in `start..start + len`, as many as there is room for; how many.
pub fn mapped(start: usize, len: usize, into: &mut [Option<Mapping>]) -> usize {
    if KNOWN.load(Relaxed) == 0 {
        return 0;
    }
    let found =
        with(|m| into.iter_mut().zip(m.within(start, start.saturating_add(len))).map(|(a, b)| *a = Some(b)).count());
    found.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId { device: (0, 7), inode: 9 };

    fn mapping(start: usize, end: usize, offset: u64) -> Mapping {
        Mapping { start, end, offset, file: FILE, fd: 3 }
    }
    fn parts(m: &Mappings, start: usize, end: usize) -> Vec<(usize, usize, u64)> {
        let mut parts: Vec<_> = m.within(start, end).map(|p| (p.start, p.end, p.offset)).collect();
        parts.sort_unstable();
        parts
    }

    #[test]
    fn a_hole_leaves_both_sides_with_their_offsets() {
        let mut m = Mappings::new();
        m.put(mapping(0x10000, 0x20000, 0x5000));
        m.cut(0x14000, 0x16000);
        assert_eq!(parts(&m, 0, usize::MAX), [(0x10000, 0x14000, 0x5000), (0x16000, 0x20000, 0xB000)]);
        assert_eq!(parts(&m, 0x13000, 0x17000), [(0x13000, 0x14000, 0x8000), (0x16000, 0x17000, 0xB000)]);
        assert_eq!(parts(&m, 0x14000, 0x16000), []);
        m.cut(0, usize::MAX);
        assert_eq!(m.len(), 0);
    }

    #[test]
    fn what_is_mapped_over_something_takes_its_place() {
        let mut m = Mappings::new();
        m.put(mapping(0x10000, 0x20000, 0));
        m.put(Mapping { file: FileId { inode: 10, ..FILE }, ..mapping(0x18000, 0x28000, 0) });
        assert_eq!(parts(&m, 0, usize::MAX), [(0x10000, 0x18000, 0), (0x18000, 0x28000, 0)]);
        assert_eq!(m.within(0x18000, 0x19000).next().unwrap().file.inode, 10);
    }

    #[test]
    fn a_part_that_moves_grows_or_is_doubled_keeps_its_place_in_the_file() {
        let mut m = Mappings::new();
        m.put(mapping(0x10000, 0x20000, 0x1000));
        m.relocate(0x12000, 0x2000, 0x50000, 0x8000, false);
        assert_eq!(
            parts(&m, 0, usize::MAX),
            [(0x10000, 0x12000, 0x1000), (0x14000, 0x20000, 0x5000), (0x50000, 0x58000, 0x3000)]
        );
        m.relocate(0x14000, 0, 0x70000, 0x1000, true);
        assert_eq!(parts(&m, 0x70000, 0x80000), [(0x70000, 0x71000, 0x5000)]);
        assert_eq!(parts(&m, 0x14000, 0x15000), [(0x14000, 0x15000, 0x5000)]);
        m.relocate(0x90000, 0x1000, 0x50000, 0x1000, false);
        assert_eq!(parts(&m, 0x50000, 0x58000), [(0x51000, 0x58000, 0x4000)], "what came there is none of ours");
    }

    #[test]
    fn a_full_table_forgets_what_comes_and_has_room_again_later() {
        let mut m = Mappings::new();
        (0..MAPPINGS_MAX + 5).for_each(|i| m.put(mapping(i << 16, (i << 16) + 4096, 0)));
        assert_eq!(m.len(), MAPPINGS_MAX);
        m.cut(0, 1 << 16);
        m.put(mapping(usize::MAX / 2, usize::MAX / 2 + 4096, 7));
        assert_eq!(parts(&m, usize::MAX / 2, usize::MAX), [(usize::MAX / 2, usize::MAX / 2 + 4096, 7)]);
    }
}
