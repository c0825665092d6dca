//! What overlapping operations allow a reader to find.
use std::collections::BTreeMap;

use types::Extent;

use crate::cluster::model::{Author, Sound, bytes};

/// What an operation does to the file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// Bytes of a stamp.
    Write(Extent, u64),
    /// Bytes of a stamp, those from a place of it on.
    Copy(Extent, u64, u64),
    /// Zeroes; with `true` the file reaches to their end afterwards.
    Zero(Extent, bool),
    /// The file reaches so far at least.
    Reach(u64),
    /// The file ends here.
    Cut(u64),
    /// So many bytes of a stamp behind the end, which is known once it was answered.
    Append(u64, u64, Option<u64>),
}

impl Change {
    /// Whether so many bytes are all that it writes.
    pub fn is_whole(&self, bytes: u64) -> bool {
        matches!(self, Change::Copy(x, ..) if x.len() == bytes)
    }
}

/// What a cell may hold by an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Zeroes,
    /// A stamp's bytes from a place on.
    Stamp(u64, u64),
    /// Nobody knows where its author, who is lost, put what.
    Anything,
}

#[derive(Clone, Debug)]
struct Entry {
    id: u64,
    change: Change,
    author: Author,
    begin: u64,
    /// When it was answered.
    end: Option<u64>,
    /// When a sound client had seen it, by cell: it may have been half done then.
    seen: BTreeMap<u64, u64>,
    stable: bool,
}

impl Entry {
    fn is_sure(&self, sound: Sound<'_>) -> bool {
        self.stable || self.end.is_some() && sound(self.author)
    }
    /// From when on it counts for sure as the content of a cell, or (`None`) as what the file reaches to.
    fn done(&self, cell: Option<u64>, sound: Sound<'_>) -> Option<u64> {
        if !self.is_sure(sound) {
            return None;
        }
        let seen = cell.and_then(|c| self.seen.get(&c).copied());
        Some(self.end?.min(seen.unwrap_or(u64::MAX)))
    }
    /// What it makes of a cell's content: one of these.
    fn contents(&self, cell: Extent, cell_bytes: u64, sound: Sound<'_>) -> Vec<Content> {
        let one = match self.change {
            Change::Write(x, stamp) if x.contains_offset(cell.start) => Content::Stamp(stamp, cell.start),
            Change::Copy(x, stamp, from) if x.contains_offset(cell.start) => {
                Content::Stamp(stamp, from + (cell.start - x.start))
            }
            Change::Zero(x, _) if x.contains_offset(cell.start) => Content::Zeroes,
            Change::Cut(size) if cell.start >= size => Content::Zeroes,
            Change::Append(len, stamp, Some(at)) if Extent::at(at, len).contains_offset(cell.start) => {
                Content::Stamp(stamp, cell.start - at)
            }
            Change::Append(_, _, None) if !sound(self.author) => Content::Anything,
            Change::Append(len, stamp, None) => {
                let places = (0..len.min(cell.start + 1)).step_by(cell_bytes as usize);
                return places.map(|from| Content::Stamp(stamp, from)).collect();
            }
            _ => return Vec::new(),
        };
        vec![one]
    }
    /// What it makes of whether the file reaches over a cell.
    fn reach(&self, cell: Extent) -> Option<bool> {
        match self.change {
            Change::Write(x, _) | Change::Copy(x, ..) | Change::Zero(x, true) if cell.start < x.end => Some(true),
            Change::Reach(end) if cell.start < end => Some(true),
            Change::Cut(size) => Some(cell.start < size),
            Change::Append(len, _, Some(at)) if cell.start < at + len => Some(true),
            Change::Append(_, _, None) => Some(true),
            _ => None,
        }
    }
    /// How far the file reaches by it at most, if it reached to `before`.
    fn most(&self, before: u64) -> u64 {
        before.max(match self.change {
            Change::Write(x, _) | Change::Copy(x, ..) | Change::Zero(x, _) => x.end,
            Change::Reach(end) | Change::Cut(end) => end,
            Change::Append(len, _, at) => at.unwrap_or(before) + len,
        })
    }
}

/// Everything since the file was settled.
pub(super) struct History {
    cell: u64,
    base: Vec<u8>,
    entries: Vec<Entry>,
    next: u64,
    /// An append began within a cell, behind what a lost client left: cells say nothing until the file is settled.
    is_shifted: bool,
}

/// Where holes begin and end: between blocks of a store.
const HOLE_ALIGN: u64 = 4096;

/// When a read began and ended.
type When = (u64, u64);

impl History {
    /// An empty file of cells of so many bytes.
    pub fn new(cell: u64) -> History {
        History { cell, base: Vec::new(), entries: Vec::new(), next: 0, is_shifted: false }
    }
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    pub fn begin(&mut self, change: Change, now: u64, author: Author) -> u64 {
        self.next += 1;
        self.entries.push(Entry {
            id: self.next,
            change,
            author,
            begin: now,
            end: None,
            seen: BTreeMap::new(),
            stable: false,
        });
        self.next
    }
    pub fn end(&mut self, id: u64, now: u64) {
        if let Some(e) = self.entries.iter_mut().find(|e| e.id == id) {
            e.end = Some(now);
        }
    }
    /// An append was answered to have gone to `at`: there the file ended at a moment since it began.
    ///
    /// # Errors
    /// A sentence that says why it did not.
    pub fn end_append(&mut self, id: u64, at: u64, now: u64, sound: Sound<'_>) -> Result<(), String> {
        let Some(i) = self.entries.iter().position(|e| e.id == id) else { return Ok(()) };
        self.is_shifted |= !at.is_multiple_of(self.cell);
        // What it wrote itself is no reason for its own place.
        let begin = std::mem::replace(&mut self.entries[i].begin, u64::MAX);
        let checked = self.check_size(at, (begin, now), sound);
        let e = &mut self.entries[i];
        (e.begin, e.end) = (begin, Some(now));
        if let Change::Append(_, _, place) = &mut e.change {
            *place = Some(at);
        }
        checked.map_err(|e| format!("it went to {at}: {e}"))
    }
    /// How far the file may reach at most.
    pub fn most(&self) -> u64 {
        let base = self.base.len() as u64;
        let known = self.entries.iter().filter(|e| !matches!(e.change, Change::Append(_, _, None)));
        let most = known.fold(base, |most, e| e.most(most));
        let unknown = self.entries.iter().filter(|e| matches!(e.change, Change::Append(_, _, None)));
        unknown.fold(most, |most, e| e.most(most))
    }
    /// Whether the file ended with a cell when it was settled.
    pub fn is_even(&self) -> bool {
        (self.base.len() as u64).is_multiple_of(self.cell)
    }
    /// A sync that began at `begin` answered success: what was answered by then stays, whoever wrote it, for its client was alive all the
    /// time.
    pub fn synced(&mut self, begin: u64, sound: Sound<'_>) {
        let of = |e: &&mut Entry| e.end.is_some_and(|end| end <= begin) && sound(e.author);
        self.entries.iter_mut().filter(of).for_each(|e| e.stable = true);
    }
    pub fn authors(&self) -> Vec<Author> {
        let mut all: Vec<Author> = self.entries.iter().map(|e| e.author).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
    /// This is the content from now on.
    pub fn settle(&mut self, content: Vec<u8>) {
        self.base = content;
        self.entries.clear();
        self.is_shifted = false;
    }

    /// Entries, by place, that a read at `when` may still find in a register, and whether it may find the base.
    fn allowed<T>(
        &self,
        of: impl Fn(&Entry) -> Option<T>,
        cell: Option<u64>,
        when: When,
        sound: Sound<'_>,
    ) -> (Vec<(usize, T)>, bool) {
        let touching: Vec<(usize, T)> =
            self.entries.iter().enumerate().filter_map(|(i, e)| of(e).map(|v| (i, v))).collect();
        let touching: Vec<(usize, T)> =
            touching.into_iter().filter(|(i, _)| self.entries[*i].begin <= when.1).collect();
        // Those that had surely replaced what was before them when the read began: (beginning).
        let replaced: Vec<u64> = touching
            .iter()
            .map(|(i, _)| &self.entries[*i])
            .filter(|e| e.done(cell, sound).is_some_and(|d| d < when.0))
            .map(|e| e.begin)
            .collect();
        let latest = replaced.iter().max().copied();
        let base = latest.is_none();
        let kept = touching.into_iter().filter(|(i, _)| {
            let done = self.entries[*i].done(cell, sound);
            done.is_none_or(|done| latest.is_none_or(|begin| begin <= done))
        });
        (kept.collect(), base)
    }

    /// Judges what a read of whole cells gave.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn check_read(&mut self, x: Extent, got: &[u8], when: When, sound: Sound<'_>) -> Result<(), String> {
        if self.is_shifted {
            return Ok(());
        }
        self.check_reach(x, x.start + got.len() as u64, when, sound)?;
        let mut seen = Vec::new();
        for (i, found) in got.chunks(self.cell as usize).enumerate() {
            let cell = Extent::at(x.start + i as u64 * self.cell, found.len() as u64);
            let contents = |e: &Entry| Some(e.contents(cell, self.cell, sound)).filter(|all| !all.is_empty());
            let (entries, base) = self.allowed(contents, Some(cell.start), when, sound);
            let entries: Vec<(usize, Content)> =
                entries.into_iter().flat_map(|(i, all)| all.into_iter().map(move |c| (i, c))).collect();
            if entries.iter().any(|(_, c)| *c == Content::Anything) {
                continue;
            }
            let values: Vec<Vec<u8>> = entries.iter().map(|(_, c)| content(*c, cell.len())).collect();
            let of_base = |at: u64| self.base.get(at as usize).copied().unwrap_or(0);
            for (k, byte) in found.iter().enumerate() {
                let at = cell.start + k as u64;
                if !(base && of_base(at) == *byte || values.iter().any(|v| v[k] == *byte)) {
                    return Err(format!("byte {at} is {byte}: {}", self.tell(cell, when, sound)));
                }
            }
            let whole: Vec<usize> =
                entries.iter().zip(&values).filter(|(_, v)| v[..] == *found).map(|((i, _), _)| *i).collect();
            // Zeroes may be of any that makes zeroes; a stamp is of one write. Of a cell that the file's end parts, the rest may be
            // another OST's, where the write has still to come.
            if let [one] = whole[..]
                && cell.len() == self.cell
                && entries.iter().any(|(i, c)| *i == one && *c != Content::Zeroes)
            {
                seen.push((one, cell.start));
            }
        }
        for (i, cell) in seen {
            let at = self.entries[i].seen.entry(cell).or_insert(u64::MAX);
            *at = (*at).min(when.1);
        }
        Ok(())
    }
    /// Judges where the next hole (or data) from `at` on was found; `None`: ENXIO.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn check_seek(
        &self,
        at: u64,
        hole: bool,
        found: Option<u64>,
        when: When,
        sound: Sound<'_>,
    ) -> Result<(), String> {
        if self.is_shifted {
            return Ok(());
        }
        match (hole, found) {
            // The file ends before.
            (true, None) => self.check_reach(Extent::at(at, self.cell), at, when, sound),
            (true, Some(found)) => {
                let at_end = self.check_size(found, when, sound);
                let hole = Extent::new(found, (found + 1).next_multiple_of(HOLE_ALIGN));
                at_end.or_else(|_| self.check_zeroes(hole, when, sound))
            }
            (false, None) => self.check_zeroes(Extent::new(at, self.most().max(at)), when, sound),
            (false, Some(found)) => {
                let within = Extent::at(found / self.cell * self.cell, self.cell);
                self.check_zeroes(Extent::new(at, found), when, sound)?;
                self.check_reach(within, within.end, when, sound)
            }
        }
    }
    /// Judges that all whole cells of `x` hold zeroes, or lie behind the end.
    fn check_zeroes(&self, x: Extent, when: When, sound: Sound<'_>) -> Result<(), String> {
        let first = x.start.next_multiple_of(self.cell);
        for start in (first..x.end).step_by(self.cell as usize).take_while(|s| s + self.cell <= x.end) {
            let cell = Extent::at(start, self.cell);
            let contents = |e: &Entry| Some(e.contents(cell, self.cell, sound)).filter(|all| !all.is_empty());
            let (entries, base) = self.allowed(contents, Some(cell.start), when, sound);
            let of_base = |at: u64| self.base.get(at as usize).copied().unwrap_or(0) == 0;
            let by_base = base && (cell.start..cell.end).all(of_base);
            let may_be = |c: &Content| matches!(c, Content::Zeroes | Content::Anything);
            if !by_base && !entries.iter().any(|(_, all)| all.iter().any(may_be)) {
                return Err(format!("a hole where there is data at {start}: {}", self.tell(cell, when, sound)));
            }
        }
        Ok(())
    }
    /// Judges a size.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn check_size(&self, size: u64, when: When, sound: Sound<'_>) -> Result<(), String> {
        if self.is_shifted {
            return Ok(());
        }
        let most = self.most();
        if size > most {
            return Err(format!("size {size}, but nothing ever reached behind {most}"));
        }
        self.check_reach(Extent::new(0, most), size, when, sound)
    }
    /// Judges that of `x` the file has what is below `end`.
    fn check_reach(&self, x: Extent, end: u64, when: When, sound: Sound<'_>) -> Result<(), String> {
        for start in (x.start..x.end).step_by(self.cell as usize) {
            let cell = Extent::at(start, self.cell);
            let (entries, base) = self.allowed(|e| e.reach(cell), None, when, sound);
            let of_base = base.then_some(cell.start < self.base.len() as u64);
            let may = |value: bool| of_base == Some(value) || entries.iter().any(|(_, v)| *v == value);
            let (yes, no) = (may(true), may(false));
            // What a lost client wrote last may end within a cell.
            let as_settled = base && end == self.base.len() as u64;
            let right = match end {
                _ if as_settled => true,
                e if e >= cell.end => yes,
                e if e <= cell.start => no,
                _ => yes && no,
            };
            if !right {
                let there = if yes { "reaches behind it" } else { "ends before it" };
                let told = self.tell(cell, when, sound);
                return Err(format!("the end is found at {end}; the file {there} at {}: {told}", cell.start));
            }
        }
        Ok(())
    }
    /// The operations on a cell, newest first.
    fn tell(&self, cell: Extent, when: When, sound: Sound<'_>) -> String {
        let concerns = |e: &&Entry| !e.contents(cell, self.cell, sound).is_empty() || e.reach(cell).is_some();
        let touching = self.entries.iter().rev().filter(concerns);
        let lines: Vec<String> = touching
            .take(8)
            .map(|e| {
                format!(
                    "{:?} by client{} {}..{:?} seen {:?} sure {}",
                    e.change,
                    e.author.client,
                    e.begin,
                    e.end,
                    e.seen.get(&cell.start),
                    e.is_sure(sound)
                )
            })
            .collect();
        format!("read {}..{}; {}; base {} bytes", when.0, when.1, lines.join(", "), self.base.len())
    }
}

fn content(content: Content, len: u64) -> Vec<u8> {
    if let Content::Stamp(stamp, from) = content { bytes(stamp, Extent::at(from, len)) } else { vec![0; len as usize] }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: u64 = 10;

    fn author(client: usize) -> Author {
        Author::first(client)
    }
    fn write(h: &mut History, cells: std::ops::Range<u64>, stamp: u64, when: When) -> u64 {
        let x = Extent::new(cells.start * CELL, cells.end * CELL);
        let id = h.begin(Change::Write(x, stamp), when.0, author(0));
        h.end(id, when.1);
        id
    }

    #[test]
    fn a_read_finds_what_overlaps_it_or_was_last_and_nothing_older() {
        let mut h = History::new(CELL);
        let x = Extent::new(0, CELL);
        write(&mut h, 0..1, 1, (10, 20));
        write(&mut h, 0..1, 2, (30, 50));
        let sound = |_: Author| true;
        assert!(h.check_read(x, &bytes(1, x), (40, 45), &sound).is_ok(), "the second write is under way");
        assert!(h.check_read(x, &bytes(2, x), (41, 46), &sound).is_ok());
        assert!(h.check_read(x, &bytes(1, x), (47, 48), &sound).is_err(), "the second write was seen already");
        assert!(h.check_read(x, &[0; 10], (47, 48), &sound).is_err());
        assert!(h.check_read(x, &bytes(1, x), (60, 61), &|_| false).is_ok(), "its author is lost");
    }

    #[test]
    fn what_is_looked_for_lies_where_the_file_may_have_it() {
        let mut h = History::new(CELL);
        write(&mut h, 2..4, 1, (10, 20));
        let (sound, when) = (|_: Author| true, (30, 40));
        assert!(h.check_seek(0, false, Some(2 * CELL), when, &sound).is_ok());
        assert!(h.check_seek(0, false, Some(3 * CELL), when, &sound).is_err(), "data before it are passed over");
        assert!(
            h.check_seek(0, false, None, when, &sound).is_err()
                && h.check_seek(4 * CELL, false, None, when, &sound).is_ok()
        );
        assert!(h.check_seek(2 * CELL, true, Some(4 * CELL), when, &sound).is_ok(), "its end");
        assert!(h.check_seek(2 * CELL, true, Some(2 * CELL), when, &sound).is_err(), "data pass for a hole");
        assert!(
            h.check_seek(3 * CELL, true, None, when, &sound).is_err()
                && h.check_seek(4 * CELL, true, None, when, &sound).is_ok()
        );
        let copied = h.begin(Change::Copy(Extent::new(0, CELL), 7, CELL), 50, author(0));
        h.end(copied, 60);
        assert!(h.check_read(Extent::new(0, CELL), &bytes(7, Extent::new(CELL, 2 * CELL)), (70, 80), &sound).is_ok());
        assert!(h.check_seek(0, false, Some(2 * CELL), (70, 80), &sound).is_err());
    }

    #[test]
    fn a_cell_of_which_a_part_is_seen_may_be_written_to_its_end_later() {
        let mut h = History::new(CELL);
        let x = Extent::new(0, CELL);
        let id = h.begin(Change::Write(x, 1), 10, author(0));
        let sound = |_: Author| true;
        assert!(h.check_read(x, &bytes(1, x)[..4], (20, 25), &sound).is_ok(), "its first bytes, on one OST");
        let cut = h.begin(Change::Cut(0), 30, author(0));
        h.end(cut, 40);
        h.end(id, 50);
        let mut rest = vec![0; 4];
        rest.extend(&bytes(1, x)[4..]);
        assert!(h.check_read(x, &rest, (60, 65), &sound).is_ok(), "the others after the cut, on the next one");
    }

    #[test]
    fn a_sync_keeps_what_others_wrote_before_it_whatever_becomes_of_them() {
        let other = Author { client: 1, ..author(1) };
        let x = Extent::new(0, CELL);
        let found = |lost_before: bool, end: u64| {
            let mut h = History::new(CELL);
            write(&mut h, 0..1, 1, (1, 2));
            let id = h.begin(Change::Write(x, 2), 10, other);
            h.end(id, end);
            h.synced(30, &|a| a != other || !lost_before);
            h.check_read(x, &bytes(1, x), (60, 61), &|a| a != other)
        };
        assert!(found(false, 20).is_err(), "it was there");
        assert!(found(true, 20).is_ok(), "its client was gone when the sync was answered");
        assert!(found(false, 40).is_ok(), "it was answered after the sync had begun");
    }

    #[test]
    fn an_append_goes_to_where_the_file_ended_while_it_was_under_way() {
        let sound = |_: Author| true;
        let ends_at = |at: u64, cut: When| {
            let mut h = History::new(CELL);
            write(&mut h, 0..3, 1, (10, 20));
            let id = h.begin(Change::Append(2 * CELL, 9, None), 40, author(0));
            let cell = Extent::new(at, at + CELL);
            assert!(
                h.check_read(cell, &bytes(9, Extent::new(0, CELL)), (41, 42), &sound).is_ok(),
                "it may be anywhere"
            );
            let id_cut = h.begin(Change::Cut(CELL), cut.0, author(1));
            h.end(id_cut, cut.1);
            let ended = h.end_append(id, at, 50, &sound);
            let second = h.check_read(
                Extent::new(at + CELL, at + 2 * CELL),
                &bytes(9, Extent::new(CELL, 2 * CELL)),
                (60, 61),
                &sound,
            );
            ended.and(second)
        };
        assert!(ends_at(3 * CELL, (51, 52)).is_err(), "a later cut takes it away");
        assert!(ends_at(CELL, (45, 47)).is_ok() && ends_at(CELL, (30, 35)).is_ok());
        assert!(ends_at(3 * CELL, (30, 35)).is_err(), "the file had been cut before");
        assert!(ends_at(CELL, (60, 65)).is_err(), "it was not cut yet");
    }

    #[test]
    fn a_cut_takes_away_content_and_reach() {
        let mut h = History::new(CELL);
        write(&mut h, 0..3, 1, (10, 20));
        let cut = h.begin(Change::Cut(CELL), 30, author(0));
        let (x, sound) = (Extent::new(0, 3 * CELL), |_: Author| true);
        assert!(h.check_size(3 * CELL, (31, 32), &sound).is_ok() && h.check_size(CELL, (31, 32), &sound).is_ok());
        h.end(cut, 40);
        assert!(h.check_size(3 * CELL, (41, 42), &sound).is_err());
        assert!(h.check_read(x, &bytes(1, Extent::new(0, CELL)), (41, 42), &sound).is_ok());
        write(&mut h, 2..3, 2, (50, 60));
        let mut want = bytes(1, Extent::new(0, CELL));
        want.extend([0; 10]);
        want.extend(bytes(2, Extent::new(2 * CELL, 3 * CELL)));
        assert!(h.check_read(x, &want, (61, 62), &sound).is_ok());
        want[12] = bytes(1, x)[12];
        assert!(h.check_read(x, &want, (61, 62), &sound).is_err(), "what was cut comes back");
    }
}
