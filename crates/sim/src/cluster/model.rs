//! What a file must look like: every write with its author, and what each byte may be when authors are lost.
//!
//! A write counts for sure while its client lives and was not evicted, or once it was synced. What else was written may
//! be there or not, byte by byte; what a survivor then finds and syncs is what counts from there on.
use types::Extent;

use super::disks::Failures;

/// Who wrote: a client's process, as long as no server evicted it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct Author {
    /// Client by index.
    pub client: usize,
    /// Its start.
    pub start: u64,
    /// Evictions of it before.
    pub evictions: u64,
    /// Beginnings and ends of failures of each server's disk before.
    pub disk_failures: Failures,
    /// Times at which it gave an OST up before, or took it back.
    pub given_up: u64,
}

impl Author {
    /// A client's first process, as long as nothing has gone wrong.
    #[must_use]
    pub const fn first(client: usize) -> Author {
        Author { client, start: 1, evictions: 0, disk_failures: Failures::NONE, given_up: 0 }
    }
    /// Whether this is the process that wrote as `before`, with all that it had then.
    #[must_use]
    pub fn has_all_of(self, before: Author) -> bool {
        Author { disk_failures: before.disk_failures, ..self } == before
    }
}

/// Bytes made at once.
const WORD_BYTES: u64 = 8;

/// The bytes that the write `stamp` puts at the offsets of a word; none is 0.
#[inline(always)]
fn word(stamp: u64, index: u64) -> [u8; WORD_BYTES as usize] {
    const LOW: u64 = u64::MAX / 0xff;
    const REST: u64 = LOW * 0x7f;
    let x = stamp.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let x = (x ^ x >> 32).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = x ^ x >> 29;
    // The highest bit of each byte that is 0, and of no other; such a byte becomes 1.
    let zeros = !(((x & REST) + REST) | x | REST);
    (x | zeros >> 7).to_le_bytes()
}

/// The byte that the write `stamp` puts at `offset`; never 0.
#[must_use]
pub fn byte(stamp: u64, offset: u64) -> u8 {
    word(stamp, offset / WORD_BYTES)[(offset % WORD_BYTES) as usize]
}

/// The bytes that the write `stamp` puts into `extent`.
#[must_use]
pub fn bytes(stamp: u64, extent: Extent) -> Vec<u8> {
    let mut made = vec![0; extent.len() as usize];
    make(&mut made, stamp, extent.start);
    made
}

/// Fills `into` with the bytes that the write `stamp` puts at `offset`.
fn make(into: &mut [u8], stamp: u64, offset: u64) {
    let head = (offset.next_multiple_of(WORD_BYTES) - offset) as usize;
    let (head, whole) = into.split_at_mut(head.min(into.len()));
    let single = |bytes: &mut [u8], at: u64| bytes.iter_mut().zip(at..).for_each(|(b, at)| *b = byte(stamp, at));
    let mut index = (offset + head.len() as u64) / WORD_BYTES;
    single(head, offset);
    let (words, tail) = whole.as_chunks_mut::<{ WORD_BYTES as usize }>();
    for place in words {
        *place = word(stamp, index);
        index += 1;
    }
    single(tail, index * WORD_BYTES);
}

#[derive(Clone, Debug)]
enum Change {
    Write(Written),
    Truncate(u64),
    /// What a writer saw of the pages in which its write begins and ends, and wrote along with it.
    Seen {
        at: u64,
        bytes: Vec<u8>,
    },
}

/// Bytes of a page: clients write whole ones of what they know whole.
const PAGE_BYTES: u64 = 4096;

/// Bytes of a write.
#[derive(Clone, Copy, Debug)]
struct Written {
    extent: Extent,
    stamp: u64,
    /// The offset for which its bytes were made: another one when an append went elsewhere.
    made_for: u64,
}

impl Written {
    fn byte(&self, offset: u64) -> u8 {
        byte(self.stamp, self.made_for + (offset - self.extent.start))
    }
}

impl Change {
    /// The byte it makes of `offset`, if it touches it.
    fn at(&self, offset: u64) -> Option<u8> {
        match self {
            Change::Write(w) if w.extent.contains_offset(offset) => Some(w.byte(offset)),
            Change::Truncate(size) if offset >= *size => Some(0),
            Change::Seen { at, bytes } => bytes.get(offset.checked_sub(*at)? as usize).copied(),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    change: Change,
    author: Author,
    /// On stable storage: nothing can undo it.
    stable: bool,
    /// It was answered with success.
    answered: bool,
}

impl Entry {
    /// What may have been written along with a write, of a file with these bytes.
    fn edges(&self, seen: &[u8]) -> Vec<Entry> {
        let Change::Write(w) = &self.change else { return Vec::new() };
        let page = Extent::new(w.extent.start, w.extent.end).align_out(PAGE_BYTES);
        let part = |extent: Extent| {
            let byte = |o: u64| seen.get(o as usize).copied().unwrap_or(0);
            let change = Change::Seen { at: extent.start, bytes: (extent.start..extent.end).map(byte).collect() };
            Entry { change, stable: false, answered: false, ..self.clone() }
        };
        let parts = [Extent::new(page.start, w.extent.start), Extent::new(w.extent.end, page.end)];
        parts.into_iter().filter(|x| !x.is_empty()).map(part).collect()
    }
}

/// A file's content as its history allows it.
#[derive(Clone, Debug, Default)]
pub struct FileModel {
    base: Vec<u8>,
    /// The content when everything in the history was carried out.
    newest: Vec<u8>,
    history: Vec<Entry>,
    /// Bytes of one round of stripes; 0: a cut is one change.
    round: u64,
}

/// Cuts of lost authors of which every combination is looked at; others may be half done.
const WHOLE_CUTS_MAX: usize = 6;

/// Who can be relied on.
pub type Sound<'a> = &'a dyn Fn(Author) -> bool;

impl FileModel {
    /// An empty file whose stripes, one on each of its OSTs, have `round` bytes together.
    #[must_use]
    pub fn striped(round: u64) -> FileModel {
        FileModel { round, ..FileModel::default() }
    }
    /// A write of `stamp` was made, or may have been made when it was not `answered`.
    pub fn write(&mut self, extent: Extent, stamp: u64, author: Author, answered: bool) {
        self.append(extent.start, extent, stamp, author, answered);
    }
    /// The last write was answered when it was on stable storage.
    pub fn last_is_stable(&mut self) {
        if let Some(last) = self.history.last_mut() {
            last.stable = true;
        }
        self.compact();
    }
    /// The same, but the bytes made for `extent` went to `at`.
    pub fn append(&mut self, at: u64, extent: Extent, stamp: u64, author: Author, answered: bool) {
        let change = Change::Write(Written { extent: Extent::at(at, extent.len()), stamp, made_for: extent.start });
        apply(&mut self.newest, &change);
        self.history.push(Entry { change, author, stable: false, answered });
        self.compact();
    }
    /// The file was cut or extended.
    pub fn truncate(&mut self, size: u64, author: Author, answered: bool) {
        let change = Change::Truncate(size);
        apply(&mut self.newest, &change);
        self.history.push(Entry { change, author, stable: false, answered });
        self.compact();
    }
    /// What the file is if of the cuts that are done or not, as a whole, each was or was not.
    fn worlds<'a>(&'a self, sound: Sound<'a>) -> Option<impl Iterator<Item = FileModel> + 'a> {
        let open = |e: &Entry| matches!(e.change, Change::Truncate(_)) && !Self::is_sure(e, sound);
        let open: Vec<usize> =
            (0..self.history.len()).filter(|i| open(&self.history[*i])).take(WHOLE_CUTS_MAX).collect();
        if open.is_empty() || self.round == 0 {
            return None;
        }
        let count = 1_u32 << open.len();
        let world = move |done: u32| {
            let (base, newest) = (self.base.clone(), self.base.clone());
            let mut world = FileModel { base, newest, history: Vec::new(), round: self.round };
            let mut seen = self.base.clone();
            for (i, e) in self.history.iter().enumerate() {
                if seen != world.newest {
                    world.history.extend(e.edges(&seen));
                }
                apply(&mut seen, &e.change);
                let place = open.iter().position(|o| *o == i);
                if place.is_none_or(|p| done >> p & 1 == 1) {
                    apply(&mut world.newest, &e.change);
                    world.history.push(Entry { stable: e.stable || place.is_some(), ..e.clone() });
                } else if let Change::Truncate(size) = e.change
                    && size > world.newest.len() as u64
                {
                    // The file may end at any object that it was to reach: nothing of what it had is gone.
                    let nothing = Written { extent: Extent::at(size, 0), stamp: 0, made_for: size };
                    world.history.push(Entry { change: Change::Write(nothing), ..e.clone() });
                }
            }
            world
        };
        Some((0..count).rev().map(world))
    }
    /// What `judge` says of the file, in the best of all worlds.
    fn in_some_world(&self, sound: Sound<'_>, judge: impl Fn(&FileModel) -> Result<(), String>) -> Result<(), String> {
        let Some(worlds) = self.worlds(sound) else { return judge(self) };
        let mut told = Vec::new();
        for world in worlds {
            match judge(&world) {
                Ok(()) => return Ok(()),
                Err(e) => told.push(e),
            }
        }
        Err(format!("a cut is done in part: {}", told.join("; or else ")))
    }
    /// `author` synced the file with success, having done so far what the history says.
    pub fn synced(&mut self, author: Author) {
        for e in self.history.iter_mut().filter(|e| e.author == author && e.answered) {
            e.stable = true;
        }
        self.compact();
    }
    /// This is the content from now on.
    pub fn settle(&mut self, content: Vec<u8>) {
        self.newest.clone_from(&content);
        self.base = content;
        self.history.clear();
    }
    /// Authors of what is not stable.
    #[must_use]
    pub fn authors(&self) -> Vec<Author> {
        let mut all: Vec<Author> = self.history.iter().map(|e| e.author).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
    /// Changes that are not part of the base yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.history.len()
    }
    fn compact(&mut self) {
        let done = self.history.iter().take_while(|e| e.stable).count();
        for e in self.history.drain(..done) {
            apply(&mut self.base, &e.change);
        }
    }

    fn is_sure(e: &Entry, sound: Sound<'_>) -> bool {
        e.stable || e.answered && sound(e.author)
    }
    /// Smallest and largest size that the file may have.
    #[must_use]
    pub fn sizes(&self, sound: Sound<'_>) -> (u64, u64) {
        let mut range = (self.base.len() as u64, self.base.len() as u64);
        for e in &self.history {
            let sure = Self::is_sure(e, sound);
            range = match e.change {
                Change::Write(w) if sure => (range.0.max(w.extent.end), range.1.max(w.extent.end)),
                Change::Write(w) => (range.0, range.1.max(w.extent.end)),
                Change::Truncate(size) if sure => (size, size),
                // One of more cuts than are looked at: on the OST of the old end it is done, on that of the new end not.
                Change::Truncate(size) => (range.0.min(size.saturating_sub(self.round)), range.1.max(size)),
                Change::Seen { .. } => range,
            };
        }
        range
    }
    fn may_be(&self, offset: u64, value: u8, sound: Sound<'_>) -> bool {
        for e in self.history.iter().rev() {
            if let Some(v) = e.change.at(offset) {
                if v == value {
                    return true;
                }
                if Self::is_sure(e, sound) {
                    return false;
                }
            }
        }
        self.base.get(offset as usize).copied().unwrap_or(0) == value
    }
    /// Judges what a read of `len` bytes at `offset` gave.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn check_read(&self, offset: u64, len: u64, got: &[u8], sound: Sound<'_>) -> Result<(), String> {
        self.in_some_world(sound, |m| m.check_bytes(offset, len, got, sound))
    }
    fn check_bytes(&self, offset: u64, len: u64, got: &[u8], sound: Sound<'_>) -> Result<(), String> {
        let (least, most) = self.sizes(sound);
        let within = |size: u64| size.saturating_sub(offset).min(len);
        let n = got.len() as u64;
        if n < within(least) || n > within(most) {
            return Err(format!("{n} of {len} bytes at {offset}, but the file has {least}..={most}"));
        }
        let newest = &self.newest;
        if newest.get(offset as usize..).is_some_and(|expected| expected.starts_with(got)) {
            return Ok(());
        }
        for (i, b) in got.iter().enumerate() {
            let at = offset + i as u64;
            if newest.get(at as usize) != Some(b) && !self.may_be(at, *b, sound) {
                let want = newest.get(at as usize).copied().unwrap_or(0);
                let bad = got[i..].iter().enumerate().filter(|(k, b)| newest.get(at as usize + k) != Some(*b)).count();
                return Err(format!(
                    "byte {at} is {b}, should be {want} ({bad} bytes from there on differ): {}",
                    self.tell(at, sound)
                ));
            }
        }
        Ok(())
    }
    /// Judges a size.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn check_size(&self, size: u64, sound: Sound<'_>) -> Result<(), String> {
        self.in_some_world(sound, |m| m.check_end(size, sound))
    }
    fn check_end(&self, size: u64, sound: Sound<'_>) -> Result<(), String> {
        let (least, most) = self.sizes(sound);
        if (least..=most).contains(&size) {
            return Ok(());
        }
        Err(format!("size {size}, but the file has {least}..={most}: {}", self.tell(size, sound)))
    }
    /// The latest changes that matter to `offset`, newest first.
    fn tell(&self, offset: u64, sound: Sound<'_>) -> String {
        let touching = self.history.iter().rev().filter(|e| e.change.at(offset).is_some()).take(4);
        let mut lines: Vec<String> = touching
            .map(|e| format!("{:?} by client{} (sure: {})", e.change, e.author.client, Self::is_sure(e, sound)))
            .collect();
        lines.push(format!("base {:?} of {} bytes", self.base.get(offset as usize), self.base.len()));
        lines.join(", ")
    }
}

fn apply(content: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(w) => {
            let x = w.extent;
            if content.len() < x.end as usize {
                content.resize(x.end as usize, 0);
            }
            make(&mut content[x.start as usize..x.end as usize], w.stamp, w.made_for);
        }
        Change::Truncate(size) => content.resize(*size as usize, 0),
        Change::Seen { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn author(client: usize) -> Author {
        Author::first(client)
    }

    #[test]
    fn a_lost_authors_write_may_be_there_or_not_and_a_survivors_must() {
        let mut m = FileModel::default();
        m.write(Extent::new(0, 10), 1, author(0), true);
        m.synced(author(0));
        m.write(Extent::new(0, 6), 2, author(0), true);
        m.write(Extent::new(4, 8), 3, author(1), true);
        let sound = |a: Author| a.client == 1;
        let (one, two, three) =
            (bytes(1, Extent::new(0, 10)), bytes(2, Extent::new(0, 10)), bytes(3, Extent::new(0, 10)));
        let mut found = one.clone();
        found[4..8].copy_from_slice(&three[4..8]);
        assert!(m.check_read(0, 10, &found, &sound).is_ok());
        found[1] = two[1];
        assert!(m.check_read(0, 10, &found, &sound).is_ok());
        assert!(m.check_read(0, 10, &found, &|_| true).is_err());
        found[5] = two[5];
        assert!(m.check_read(0, 10, &found, &sound).is_err());
    }

    #[test]
    fn no_byte_is_zero_and_each_is_where_it_was_made_for() {
        for (stamp, start, end) in [(1, 0, 4096), (7, 3, 4), (0, 5, 5), (u64::MAX, 13, 5000), (1 << 40, 8, 16)] {
            let made = bytes(stamp, Extent::new(start, end));
            assert_eq!(made.len() as u64, end - start);
            assert!((start..end).zip(&made).all(|(offset, b)| *b != 0 && *b == byte(stamp, offset)));
        }
        assert_eq!(word(0, 0), [1; 8]);
    }

    #[test]
    fn an_append_is_where_it_went() {
        let mut m = FileModel::default();
        m.write(Extent::new(0, 10), 1, author(0), true);
        m.append(0, Extent::new(10, 14), 2, author(1), true);
        let appended = bytes(2, Extent::new(10, 14));
        let sound = |a: Author| a.client == 1;
        assert!(m.check_read(0, 100, &appended, &sound).is_ok());
        assert!(m.check_read(0, 100, &bytes(2, Extent::new(0, 4)), &sound).is_err());
    }

    #[test]
    fn stat_may_not_say_what_a_lost_author_told() {
        let mut m = FileModel::default();
        m.write(Extent::new(0, 10), 1, author(0), true);
        m.synced(author(0));
        m.truncate(4, author(0), true);
        m.settle(bytes(1, Extent::new(0, 10)));
        assert!(m.check_size(10, &|_| true).is_ok());
        assert!(m.check_size(4, &|_| true).is_err());
    }

    #[test]
    fn what_was_cut_reads_zeros_where_it_grows_again() {
        let mut m = FileModel::default();
        m.write(Extent::new(0, 10), 1, author(0), true);
        m.truncate(4, author(0), true);
        m.write(Extent::new(8, 10), 2, author(0), true);
        let mut want = bytes(1, Extent::new(0, 4));
        want.extend([0; 4]);
        want.extend(bytes(2, Extent::new(8, 10)));
        assert!(m.check_read(0, 100, &want, &|_| true).is_ok());
        want[5] = 7;
        assert!(m.check_read(0, 100, &want, &|_| true).is_err());
        assert!(m.check_size(9, &|_| true).is_err());
        assert!(m.check_size(9, &|_| false).is_ok());
    }

    #[test]
    fn what_a_survivor_saw_of_a_cut_that_is_undone_may_be_written_with_its_pages() {
        let mut m = FileModel::striped(4096 * 2);
        m.write(Extent::new(0, 9000), 1, author(0), true);
        m.synced(author(0));
        m.truncate(0, author(0), true);
        m.write(Extent::new(5000, 5100), 2, author(1), true);
        let sound = |a: Author| a.client == 1;
        let mut found = bytes(1, Extent::new(0, 9000));
        found[5000..5100].copy_from_slice(&bytes(2, Extent::new(5000, 5100)));
        assert!(m.check_read(0, 9000, &found, &sound).is_ok());
        found[4096..5000].fill(0);
        assert!(m.check_read(0, 9000, &found, &sound).is_ok(), "zeros of the page that was written");
        found[4095] = 0;
        assert!(m.check_read(0, 9000, &found, &sound).is_err(), "zeros of another page");
    }

    #[test]
    fn a_cut_of_a_lost_author_is_done_as_a_whole_or_not_at_all() {
        let mut m = FileModel::striped(8);
        m.write(Extent::new(0, 20), 1, author(0), true);
        m.synced(author(0));
        m.truncate(2, author(0), false);
        let (none, long) = (|_: Author| false, bytes(1, Extent::new(0, 20)));
        let check =
            |m: &FileModel, got: &[u8]| m.check_read(0, 100, got, &none).and(m.check_size(got.len() as u64, &none));
        let mut half = long.clone();
        half[2..4].fill(0);
        assert!(check(&m, &long).is_ok() && check(&m, &long[..2]).is_ok());
        assert!(check(&m, &half).is_err() && check(&m, &long[..16]).is_err());
        // One that makes the file longer may reach some of its objects only.
        let mut m = FileModel::striped(8);
        m.write(Extent::new(0, 20), 1, author(0), true);
        m.synced(author(0));
        m.truncate(40, author(0), false);
        let longer = |n: usize| long.iter().copied().chain(std::iter::repeat(0)).take(n).collect::<Vec<u8>>();
        assert!(check(&m, &long).is_ok() && check(&m, &longer(33)).is_ok() && check(&m, &longer(40)).is_ok());
        assert!(check(&m, &longer(41)).is_err() && check(&m, &long[..19]).is_err());
    }
}
