//! What can still be read of a damaged database: for `stria fsck --repair`, when no commit is whole any more.
//!
//! A table's tree is walked from the root of the newest commit. A page that matches the checksum in the page above is
//! believed. Of a page that does not, those records are believed that the caller knows to be whole (they carry checksums of
//! their own), and only under keys for which no whole page has a record: such a page may be an old one. When the page above
//! is damaged, too, what it says of places may be wrong, and the page is looked for by its checksum in the whole file.
//! The layout of pages: `docs/design.md` of redb, file format 3.
use std::collections::{HashMap, HashSet};
use std::io;

use rt::BlockingFile;
use xxhash_rust::xxh3::xxh3_128;

use crate::{GOD_BYTE, HEADER_BYTES, PRIMARY_BIT, SLOT_AT};

const PAGE_BYTES: u64 = 4096;
pub(crate) const LEAF: u8 = 1;
const BRANCH: u8 = 2;
/// Where a leaf's offsets begin; where a branch's checksums do.
const LEAF_HEAD: usize = 4;
const BRANCH_HEAD: usize = 8;
const CHECKSUM_BYTES: usize = 16;
pub(crate) const NUMBER_BYTES: usize = 8;
const OFFSET_BYTES: usize = 4;
/// Longest page that is looked at: above every record of ours.
const ORDER_MAX: u64 = 12;
const DEPTH_MAX: usize = 128;
/// Damaged pages that are looked through for definitions of tables; these have few.
const UNREAD_MAX: usize = 64;
/// How many entries are thought of at most when a page does not say how many it has: what fits into a short one. Longer pages
/// have few and long ones, and comparing all that might be one would take hours.
const ENTRIES_MAX: [usize; 2] = [PAGE_BYTES as usize / (2 * OFFSET_BYTES), 16];
/// Where a commit slot says whether there is a tree of tables, and where.
pub(crate) const SLOT_HAS_ROOT: usize = 1;
pub(crate) const SLOT_ROOT: usize = 8;
/// Where the definition of a table has its root, behind a byte that says whether there is one.
const DEFINITION_ROOT: usize = 10;
pub(crate) const ROOT_BYTES: usize = NUMBER_BYTES + CHECKSUM_BYTES + 8;
const PAGE_BYTES_AT: usize = 12;
const REGION_HEADER_PAGES_AT: usize = 16;
const REGION_DATA_PAGES_AT: usize = 20;
/// How many regions are whole, and how many pages the last one has that is not.
const REGIONS_AT: usize = 24;
const LAST_REGION_PAGES_AT: usize = 28;
/// Most pages a region can have.
const REGION_PAGES_MAX: u64 = 1 << 20;

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Salvaged {
    /// Records handed out.
    pub records: u64,
    /// Pages that did not match their checksums and were not found elsewhere.
    pub damaged_pages: u64,
}

/// Takes a record; the last argument: from a page that is whole. It gets all of those first, and must not replace a record
/// by one that is not.
pub type Take<'a> = dyn FnMut(&[u8], &[u8], bool) -> io::Result<()> + 'a;

/// Whether a value is what was stored under its key, as far as the two tell by themselves.
pub type IsWhole<'a> = dyn Fn(&[u8], &[u8]) -> bool + 'a;

/// Widths of a table's keys and values in bytes; `None`: of any length. They decide how its pages are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Shape {
    /// Of its keys.
    pub key: Option<usize>,
    /// Of its values.
    pub value: Option<usize>,
}

/// A commit of a damaged database, as its slot in the header has it.
#[derive(Clone, Debug)]
pub struct Commit {
    header: Vec<u8>,
    slot: usize,
}

/// The commits of a database that may have records, the newest first: two at most.
///
/// # Errors
/// The file cannot be read.
pub fn commits(file: &dyn BlockingFile) -> io::Result<Vec<Commit>> {
    let mut header = vec![0; HEADER_BYTES];
    file.read(0, &mut header)?;
    let first = usize::from(header[GOD_BYTE] & PRIMARY_BIT);
    let has_root = |slot: &usize| header[SLOT_AT[*slot] + SLOT_HAS_ROOT] != 0;
    Ok([first, 1 - first].into_iter().filter(has_root).map(|slot| Commit { header: header.clone(), slot }).collect())
}

/// The keys of one table under which records may be missing: those below pages that are not what they were. In order, no two overlap.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Lost(Vec<KeyRange>);

/// Behind the first key, up to and with the second one; `None`: there is no bound.
type KeyRange = (Option<Vec<u8>>, Option<Vec<u8>>);

impl Lost {
    /// No record is missing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Whether a record under this key may be missing; of a table whose keys are in the order of their bytes.
    #[must_use]
    pub fn may_have(&self, key: &[u8]) -> bool {
        let behind = |(_, last): &KeyRange| last.as_deref().is_some_and(|last| last < key);
        let first = self.0.get(self.0.partition_point(behind));
        first.is_some_and(|(after, _)| after.as_deref().is_none_or(|after| after < key))
    }
    /// Ranges come in the order of their first keys, and lie within the one before or behind it.
    fn add(&mut self, range: &KeyRange) {
        let within =
            |(_, last): &KeyRange| last.as_ref().is_none_or(|last| range.1.as_ref().is_some_and(|to| to <= last));
        if !self.0.last().is_some_and(within) {
            self.0.push(range.clone());
        }
    }
}

/// Hands out the records that a table had at a commit, as [`salvage_and_lost`], which tells besides what may be missing.
///
/// # Errors
/// As that one.
pub fn salvage(
    file: &dyn BlockingFile,
    commit: &Commit,
    table: &str,
    shape: Shape,
    is_whole: Option<&IsWhole<'_>>,
    take: &mut Take<'_>,
) -> io::Result<Salvaged> {
    salvage_and_lost(file, commit, table, shape, is_whole, take).map(|(saved, _)| saved)
}

/// Hands out the records that a table had at a commit; a table that is not there has none. `is_whole` knows whether a value
/// is what was stored under its key; `None`: nothing tells that. Memory: the records of damaged pages, and, once a page has to be looked for, 32 bytes for
/// each of the file.
///
/// # Errors
/// The file cannot be read, or is no such database; what `take` answers.
pub fn salvage_and_lost(
    file: &dyn BlockingFile,
    commit: &Commit,
    table: &str,
    shape: Shape,
    is_whole: Option<&IsWhole<'_>>,
    take: &mut Take<'_>,
) -> io::Result<(Salvaged, Lost)> {
    let Commit { header, slot } = commit;
    let mut definition: Option<Vec<u8>> = None;
    let is_definition = |key: &[u8], value: &[u8]| {
        key == table.as_bytes() && root_of_definition(value).is_some() && shape_of_definition(value) == Some(shape)
    };
    let mut take_definition = |key: &[u8], value: &[u8], _: bool| {
        if definition.is_none() && key == table.as_bytes() {
            definition = Some(value.to_vec());
        }
        Ok(())
    };
    let is_any = |_: &[u8], value: &[u8]| {
        value.get(DEFINITION_ROOT - 1).is_some_and(|has_root| *has_root < 2) && shape_of_definition(value).is_some()
    };
    let mut tables = Walk { makes_sense: &is_any, ..Walk::new(file, header, Shape::default(), &is_definition)? };
    tables.tree(&header[SLOT_AT[*slot] + SLOT_ROOT..][..ROOT_BYTES], &mut take_definition)?;
    let definition = definition.unwrap_or_else(|| tables.definition_in_damaged(shape, is_whole));
    let (saved, lost) = match root_of_definition(&definition) {
        Some(root) => {
            let mut walk = Walk::new(file, header, shape, is_whole.unwrap_or(&|_, _| false))?;
            (walk.tree(root, take)?, walk.lost)
        }
        None => (Salvaged::default(), if definition.is_empty() { tables.lost } else { Lost::default() }),
    };
    Ok((Salvaged { damaged_pages: saved.damaged_pages + tables.out.damaged_pages, ..saved }, lost))
}

pub(crate) fn root_of_definition(definition: &[u8]) -> Option<&[u8]> {
    let root = definition.get(DEFINITION_ROOT..DEFINITION_ROOT + ROOT_BYTES)?;
    (definition[DEFINITION_ROOT - 1] == 1).then_some(root)
}

/// The widths that a definition names, behind its root: for keys, then for values, whether there is one, and how many bytes.
pub(crate) fn shape_of_definition(definition: &[u8]) -> Option<Shape> {
    let width = |at: usize| match definition.get(at)? {
        0 => Some(None),
        _ => u32_at(definition, at + 1).map(Some),
    };
    let at = DEFINITION_ROOT + ROOT_BYTES;
    Some(Shape { key: width(at)?, value: width(at + 1 + OFFSET_BYTES)? })
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
}
fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
}
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
pub(crate) fn checksum_at(bytes: &[u8], at: usize) -> Option<u128> {
    Some(u128::from_le_bytes(bytes.get(at..at + CHECKSUM_BYTES)?.try_into().ok()?))
}

/// A child of a branch: page number and checksum.
pub(crate) type Child = (u64, u128);

impl Shape {
    /// Bytes of a leaf with `n` records before the first key: offsets of what has no fixed width.
    fn head(self, n: usize) -> usize {
        LEAF_HEAD + OFFSET_BYTES * n * (usize::from(self.key.is_none()) + usize::from(self.value.is_none()))
    }
    /// Where key `i` of a leaf with `n` records ends.
    fn key_end(self, page: &[u8], n: usize, i: usize) -> Option<usize> {
        match self.key {
            Some(width) => Some(self.head(n) + width * (i + 1)),
            None => u32_at(page, LEAF_HEAD + OFFSET_BYTES * i),
        }
    }
    /// Where value `i` of a leaf with `n` records ends; values lie behind all keys.
    fn value_end(self, page: &[u8], n: usize, i: usize) -> Option<usize> {
        match self.value {
            Some(width) => Some(self.key_end(page, n, n.checked_sub(1)?)? + width * (i + 1)),
            None => u32_at(page, LEAF_HEAD + OFFSET_BYTES * (if self.key.is_none() { n + i } else { i })),
        }
    }
    /// The records of a leaf with `n` of them, as far as their places lie within it.
    pub(crate) fn pairs(self, page: &[u8], n: usize) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..n).filter_map(move |i| {
            let key = if i == 0 { self.head(n) } else { self.key_end(page, n, i - 1)? }..self.key_end(page, n, i)?;
            let value = if i == 0 { self.key_end(page, n, n - 1)? } else { self.value_end(page, n, i - 1)? }
                ..self.value_end(page, n, i)?;
            Some((page.get(key)?, page.get(value)?))
        })
    }
    /// Key `i` of a branch with `n` keys: none that is higher is below child `i`.
    fn branch_key(self, page: &[u8], n: usize, i: usize) -> Option<&[u8]> {
        let keys = BRANCH_HEAD + (CHECKSUM_BYTES + NUMBER_BYTES) * (n + 1);
        let end = |i: usize| match self.key {
            Some(width) => Some(keys + width * (i + 1)),
            None => u32_at(page, keys + OFFSET_BYTES * i),
        };
        let first = keys + if self.key.is_none() { OFFSET_BYTES * n } else { 0 };
        page.get(if i == 0 { first } else { end(i - 1)? }..end(i)?)
    }
    /// Which keys are below child `i` of a branch with `n` keys, below which are those `within`.
    fn range_below(self, page: &[u8], n: usize, i: usize, within: &KeyRange) -> KeyRange {
        let key = |i: usize| self.branch_key(page, n, i).map(<[u8]>::to_vec);
        let after = if i == 0 { within.0.clone() } else { key(i - 1) };
        (after, if i == n { within.1.clone() } else { key(i) })
    }
    /// Where the part of a page ends that its checksum covers.
    fn end_of(self, page: &[u8]) -> Option<usize> {
        let n = u16_at(page, 2)?;
        let last = n.checked_sub(1)?;
        match page[0] {
            LEAF => self.value_end(page, n, last),
            BRANCH => {
                let keys = BRANCH_HEAD + (CHECKSUM_BYTES + NUMBER_BYTES) * (n + 1);
                self.key.map_or_else(|| u32_at(page, keys + OFFSET_BYTES * last), |width| Some(keys + width * n))
            }
            _ => None,
        }
    }
    pub(crate) fn matches(self, page: &[u8], checksum: u128) -> bool {
        self.end_of(page).and_then(|end| page.get(..end)).is_some_and(|covered| xxh3_128(covered) == checksum)
    }
}

/// The children of a branch with `keys` keys.
pub(crate) fn children(page: &[u8], keys: usize) -> impl Iterator<Item = Child> {
    let numbers = BRANCH_HEAD + CHECKSUM_BYTES * (keys + 1);
    (0..=keys).map_while(move |i| {
        Some((u64_at(page, numbers + NUMBER_BYTES * i)?, checksum_at(page, BRANCH_HEAD + CHECKSUM_BYTES * i)?))
    })
}

/// Where pages are in a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    file_bytes: u64,
    region_bytes: u64,
    /// Where a region's pages begin within it.
    pages_at: u64,
}

impl Geometry {
    /// As a header has it.
    ///
    /// # Errors
    /// `InvalidData`: no header has that.
    pub fn of(header: &[u8], file_bytes: u64) -> io::Result<Geometry> {
        let of = |at| u32_at(header, at).unwrap_or_default() as u64;
        let (head, data) = (of(REGION_HEADER_PAGES_AT), of(REGION_DATA_PAGES_AT));
        if data == 0 || head > REGION_PAGES_MAX || data > REGION_PAGES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the header does not say where pages are"));
        }
        Ok(Geometry { file_bytes, region_bytes: (head + data) * PAGE_BYTES, pages_at: head * PAGE_BYTES })
    }
    /// As the engine gives it to every file, for a file whose header is damaged.
    fn usual(file_bytes: u64) -> Geometry {
        Geometry { file_bytes, region_bytes: REGION_PAGES_MAX * PAGE_BYTES, pages_at: 0 }
    }
    /// Whether a header has the sizes of pages and regions that the engine gives every file, and names no more pages than there are.
    pub fn is_sound(&self, header: &[u8]) -> bool {
        let of = |at| u32_at(header, at).unwrap_or_default() as u64;
        let (whole, rest) = (of(REGIONS_AT), of(LAST_REGION_PAGES_AT));
        let last = if rest == 0 { 0 } else { self.pages_at + rest * PAGE_BYTES };
        let fixed = of(PAGE_BYTES_AT) == PAGE_BYTES && of(REGION_DATA_PAGES_AT) == REGION_PAGES_MAX;
        fixed && PAGE_BYTES + whole.saturating_mul(self.region_bytes) + last <= self.file_bytes
    }
    /// Offset and length of a page; `None` for one that cannot be there.
    pub fn place(&self, number: u64) -> Option<(u64, usize)> {
        let order = number >> 59;
        if order > ORDER_MAX {
            return None;
        }
        let (index, region) = (number & (0xf_ffff >> order), (number >> 20) & 0xf_ffff);
        let bytes = PAGE_BYTES << order;
        let at = PAGE_BYTES + region * self.region_bytes + self.pages_at + index * bytes;
        (at + bytes <= self.file_bytes).then_some((at, bytes as usize))
    }
}

struct Walk<'a> {
    file: &'a dyn BlockingFile,
    file_bytes: u64,
    shape: Shape,
    geometry: Geometry,
    is_whole: &'a IsWhole<'a>,
    /// Which records tell how many a damaged leaf has: with a wrong number keys have others' values.
    makes_sense: &'a IsWhole<'a>,
    seen: HashSet<u64>,
    seen_damaged: HashSet<u64>,
    /// Of damaged pages.
    kept: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where pages are by their checksums: offset and length.
    places: Option<HashMap<u128, (u64, usize)>>,
    /// Damaged pages of which no record could be read.
    unread: Vec<Vec<u8>>,
    lost: Lost,
    out: Salvaged,
}

impl<'a> Walk<'a> {
    fn new(file: &'a dyn BlockingFile, header: &[u8], shape: Shape, is_whole: &'a IsWhole<'a>) -> io::Result<Walk<'a>> {
        let file_bytes = file.len()?;
        Ok(Walk {
            file,
            file_bytes,
            shape,
            geometry: Geometry::of(header, file_bytes)
                .ok()
                .filter(|geometry| geometry.is_sound(header))
                .unwrap_or(Geometry::usual(file_bytes)),
            is_whole,
            makes_sense: is_whole,
            seen: HashSet::new(),
            seen_damaged: HashSet::new(),
            kept: Vec::new(),
            places: None,
            unread: Vec::new(),
            lost: Lost::default(),
            out: Salvaged::default(),
        })
    }

    fn tree(&mut self, root: &[u8], take: &mut Take<'_>) -> io::Result<Salvaged> {
        if let (Some(number), Some(checksum)) = (u64_at(root, 0), checksum_at(root, NUMBER_BYTES)) {
            self.descend((number, checksum), false, &(None, None), 0, take)?;
        }
        for (key, value) in std::mem::take(&mut self.kept) {
            take(&key, &value, false)?;
            self.out.records += 1;
        }
        Ok(self.out)
    }

    /// The definition of a table whose name or place cannot be read any more: it has the widths of that table's keys and
    /// values, names a page and its checksum, and there is that page; and its first record is one of that table, where that can be
    /// told: two tables may have the same widths.
    fn definition_in_damaged(&self, shape: Shape, is_whole: Option<&IsWhole<'_>>) -> Vec<u8> {
        let named = |at: &[u8]| {
            let root = root_of_definition(at).filter(|_| shape_of_definition(at) == Some(shape))?;
            let page = self.read(self.place(u64_at(root, 0)?)?)?;
            let there = shape.matches(&page, checksum_at(root, NUMBER_BYTES)?);
            (there && is_whole.is_none_or(|f| self.first_record(shape, page, f))).then(|| at.to_vec())
        };
        self.unread
            .iter()
            .flat_map(|page| (0..page.len()).filter_map(|at| named(&page[at..])))
            .next()
            .unwrap_or_default()
    }

    /// Whether the first record below a page is whole.
    fn first_record(&self, shape: Shape, page: Vec<u8>, is_whole: &IsWhole<'_>) -> bool {
        let mut page = page;
        for _ in 0..DEPTH_MAX {
            let n = u16_at(&page, 2).unwrap_or_default();
            if page[0] == LEAF {
                return shape.pairs(&page, n).next().is_some_and(|(k, v)| is_whole(k, v));
            }
            let first = children(&page, n).next().and_then(|(number, _)| self.place(number));
            let Some(next) = first.and_then(|p| self.read(p)) else { return false };
            page = next;
        }
        false
    }

    fn place(&self, number: u64) -> Option<(u64, usize)> {
        self.geometry.place(number)
    }

    fn read(&self, (at, len): (u64, usize)) -> Option<Vec<u8>> {
        let mut page = vec![0; len];
        self.file.read(at, &mut page).ok().map(|()| page)
    }

    /// Whether the page of this number is what its checksum says.
    fn is_whole_page(&self, (number, checksum): Child) -> bool {
        let page = self.place(number).and_then(|p| self.read(p));
        page.is_some_and(|p| self.shape.matches(&p, checksum))
    }

    fn descend(
        &mut self,
        child: Child,
        above_is_whole: bool,
        keys: &KeyRange,
        depth: usize,
        take: &mut Take<'_>,
    ) -> io::Result<()> {
        let (number, checksum) = child;
        if depth > DEPTH_MAX {
            self.lost.add(keys);
            return Ok(());
        }
        let mut page = self.place(number).and_then(|p| self.read(p));
        if !above_is_whole && !page.as_ref().is_some_and(|p| self.shape.matches(p, checksum)) {
            page = self.find(checksum)?.or(page);
        }
        let Some(page) = page else {
            self.lost.add(keys);
            self.out.damaged_pages += 1;
            return Ok(());
        };
        if !self.shape.matches(&page, checksum) {
            self.lost.add(keys);
            return self.damaged(number, &page, keys, depth, take);
        }
        if !self.seen.insert(number) {
            return Ok(());
        }
        let n = u16_at(&page, 2).unwrap_or_default();
        if page[0] == LEAF {
            for (key, value) in self.shape.pairs(&page, n) {
                take(key, value, true)?;
                self.out.records += 1;
            }
            return Ok(());
        }
        let shape = self.shape;
        children(&page, n).enumerate().try_for_each(|(i, child)| {
            self.descend(child, true, &shape.range_below(&page, n, i, keys), depth + 1, take)
        })
    }

    /// A page that is not what it was: as leaf or branch, with the number of entries of which most makes sense.
    fn damaged(
        &mut self,
        number: u64,
        page: &[u8],
        keys: &KeyRange,
        depth: usize,
        take: &mut Take<'_>,
    ) -> io::Result<()> {
        if !self.seen_damaged.insert(number) {
            return Ok(());
        }
        self.out.damaged_pages += 1;
        let said = u16_at(page, 2).unwrap_or_default();
        let most = ENTRIES_MAX[usize::from(page.len() as u64 > PAGE_BYTES)];
        let numbers = || std::iter::once(said).chain(1..=most);
        let shape = self.shape;
        let sense = |n: usize| shape.pairs(page, n).filter(|(k, v)| (self.makes_sense)(k, v)).count();
        // What the page says, if that makes sense; else what makes most sense.
        let records = if said > 0 && sense(said) + 1 >= said.max(2) {
            said
        } else {
            numbers().max_by_key(|n| (sense(*n), *n == said)).unwrap_or(said)
        };
        let saved = shape.pairs(page, records).filter(|(k, v)| (self.is_whole)(k, v));
        let before = self.kept.len();
        self.kept.extend(saved.map(|(k, v)| (k.to_vec(), v.to_vec())));
        if self.kept.len() > before {
            return Ok(());
        }
        if self.unread.len() < UNREAD_MAX {
            self.unread.push(page.to_vec());
        }
        let there = |c: &Child| {
            self.place(c.0).and_then(|p| self.read((p.0, 1))).is_some_and(|b| b[0] == LEAF || b[0] == BRANCH)
        };
        let sound = |n: usize| {
            let all: Vec<Child> = children(page, n).collect();
            (all.len() == n + 1).then(|| all.iter().filter(|c| there(c)).count()).filter(|sound| sound + 1 >= all.len())
        };
        // Children that are what their checksums say are nobody else's. Where there is none, those that could be pages.
        let whole = |n: usize| {
            // With a wrong number every child is a wrong one: the first three tell.
            let first = children(page, n).take(3).any(|c| self.is_whole_page(c));
            if first { children(page, n).filter(|c| self.is_whole_page(*c)).count() } else { 0 }
        };
        let best = numbers().map(|n| (whole(n), n == said, n)).max().filter(|(count, ..)| *count > 0);
        let entries = match best {
            Some((.., n)) => Some(n),
            None if sound(said).is_some() => Some(said),
            None => numbers().filter(|n| sound(*n).is_some()).max(),
        };
        let Some(entries) = entries else { return Ok(()) };
        let all: Vec<Child> = children(page, entries).collect();
        // Which keys are below which of them is not known.
        all.into_iter().try_for_each(|c| self.descend(c, false, keys, depth + 1, take))
    }

    /// The page with this checksum, wherever it is.
    fn find(&mut self, checksum: u128) -> io::Result<Option<Vec<u8>>> {
        if self.places.is_none() {
            let mut places = HashMap::new();
            let mut at = PAGE_BYTES;
            while at + PAGE_BYTES <= self.file_bytes {
                let mut page = vec![0; PAGE_BYTES as usize];
                self.file.read(at, &mut page)?;
                let end = self.shape.end_of(&page).filter(|end| *end as u64 <= PAGE_BYTES << ORDER_MAX);
                if let Some(end) = end.filter(|end| at + *end as u64 <= self.file_bytes) {
                    if end > page.len() {
                        page.resize(end, 0);
                        self.file.read(at, &mut page)?;
                    }
                    places.insert(xxh3_128(&page[..end]), (at, end));
                }
                at += PAGE_BYTES;
            }
            self.places = Some(places);
        }
        let place = self.places.as_ref().and_then(|p| p.get(&checksum).copied());
        Ok(place.and_then(|p| self.read(p)))
    }
}
