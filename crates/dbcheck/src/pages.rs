//! The pages of a database that is in use, compared with their checksums on the medium, some bytes at a time: for scrubs.
//!
//! A commit is held by a transaction that reads, so that no page of it is used again, and all pages that its trees reach are read
//! from the file, past the engine's cache. Space that later commits free is not used again meanwhile. When the header changed
//! while the commit was taken hold of, another one is taken; what is found wrong counts when it is still so at the commit of a second
//! pass, for the engine does not say which commit a transaction reads.
use std::collections::BTreeSet;
use std::io;

use redb::{ReadTransaction, ReadableDatabase};
use rt::BlockingFile;
use types::scrub::Looked;
use xxhash_rust::xxh3::xxh3_128;

use crate::salvage::{
    Child, Geometry, LEAF, NUMBER_BYTES, ROOT_BYTES, SLOT_HAS_ROOT, SLOT_ROOT, Shape, checksum_at, children,
    root_of_definition, shape_of_definition, u16_at, u64_at,
};
use crate::{GOD_BYTE, HEADER_BYTES, Open, PRIMARY_BIT, SLOT_AT, header_faults};

/// What a header begins with.
const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";
/// Behind the root of the caller's tables a slot has that of the engine's own.
const SLOT_HAS_OWN_ROOT: usize = SLOT_HAS_ROOT + 1;
const SLOT_OWN_ROOT: usize = SLOT_ROOT + ROOT_BYTES;
/// What a slot's checksum covers, and where it is.
const SLOT_COVERED: usize = 112;
/// How often a commit is taken hold of at most before one is found that stays.
const TRIES: usize = 1000;

/// A page that is to be compared.
struct Todo {
    child: Child,
    shape: Shape,
    /// In whose tree, for people.
    table: String,
    /// Its records define tables.
    defines: bool,
}

/// One pass over the pages of a commit.
struct Pass {
    _held: ReadTransaction,
    geometry: Option<Geometry>,
    todo: Vec<Todo>,
    /// Where a fault is (0: in the header), and which.
    faults: Vec<(u64, String)>,
}

/// See the module's head.
pub struct PageCheck {
    file: Box<dyn BlockingFile>,
    pass: Option<Pass>,
    /// Places that the first pass found wrong; `None` in a first pass.
    suspects: Option<BTreeSet<u64>>,
}

impl std::fmt::Debug for PageCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageCheck").field("suspects", &self.suspects).finish_non_exhaustive()
    }
}

impl PageCheck {
    /// Over the file of a database, as a file of its own beside the engine's.
    #[must_use]
    pub fn new(file: Box<dyn BlockingFile>) -> PageCheck {
        PageCheck { file, pass: None, suspects: None }
    }

    /// Compares the next pages, about so many bytes of them. Blocks while they are read.
    ///
    /// # Errors
    /// The file cannot be read, or no commit could be taken hold of.
    pub fn look(&mut self, database: &Open, bytes: u64) -> io::Result<Looked> {
        let mut out = Looked::default();
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None => Pass::begin(database, &*self.file)?,
        };
        while out.bytes < bytes {
            let Some(todo) = pass.todo.pop() else {
                self.end(pass, &mut out);
                return Ok(out);
            };
            out.bytes += pass.page(&*self.file, todo)?;
        }
        self.pass = Some(pass);
        Ok(out)
    }

    fn end(&mut self, pass: Pass, out: &mut Looked) {
        match self.suspects.take() {
            None if pass.faults.is_empty() => out.is_over = true,
            None => self.suspects = Some(pass.faults.into_iter().map(|(at, _)| at).collect()),
            Some(before) => {
                let still = pass.faults.into_iter().filter(|(at, _)| before.contains(at));
                out.faults.extend(still.map(|(_, what)| what));
                out.is_over = true;
            }
        }
    }
}

fn read_header(file: &dyn BlockingFile) -> io::Result<Vec<u8>> {
    let mut header = vec![0; HEADER_BYTES];
    file.read(0, &mut header)?;
    Ok(header)
}

impl Pass {
    fn begin(database: &Open, file: &dyn BlockingFile) -> io::Result<Pass> {
        for _ in 0..TRIES {
            file.forget_cached()?;
            let before = read_header(file)?;
            let held = database.begin_read().map_err(io::Error::other)?;
            if read_header(file)? == before {
                return Pass::over(held, &before, file.len()?);
            }
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "commits follow each other too fast for one to be looked at"))
    }

    fn over(held: ReadTransaction, header: &[u8], file_bytes: u64) -> io::Result<Pass> {
        let mut faults = header_faults(header, false);
        if !header.starts_with(&MAGIC) {
            faults.push("the header does not say that this is a database".into());
        }
        // The format's version is judged in both.
        if header[SLOT_AT[0]] != header[SLOT_AT[1]] {
            faults.push("the commits of the header are of different formats".into());
        }
        let slot = &header[SLOT_AT[usize::from(header[GOD_BYTE] & PRIMARY_BIT)]..];
        if checksum_at(slot, SLOT_COVERED) != Some(xxh3_128(&slot[..SLOT_COVERED])) {
            faults.push("the newest commit of the header does not match its checksum".into());
        }
        let geometry = Geometry::of(header, file_bytes).ok();
        if geometry.is_none_or(|g| !g.is_sound(header)) {
            faults.push("the header does not say how large the file and its parts are".into());
        }
        let roots =
            [(SLOT_HAS_ROOT, SLOT_ROOT, "the tables"), (SLOT_HAS_OWN_ROOT, SLOT_OWN_ROOT, "the engine's own tables")];
        let there = roots.into_iter().filter(|(has, ..)| slot[*has] != 0);
        let todo =
            there.filter_map(|(_, root, table)| Todo::of(&slot[root..], Shape::default(), table, true)).collect();
        Ok(Pass { _held: held, geometry, todo, faults: faults.into_iter().map(|what| (0, what)).collect() })
    }

    /// Compares one page; the bytes that were read.
    fn page(&mut self, file: &dyn BlockingFile, todo: Todo) -> io::Result<u64> {
        let Todo { child: (number, checksum), shape, table, defines } = todo;
        let Some((at, len)) = self.geometry.and_then(|g| g.place(number)) else {
            self.faults.push((number, format!("a page of {table} is to be where no page can be")));
            return Ok(0);
        };
        let mut page = vec![0; len];
        file.read(at, &mut page)?;
        if !shape.matches(&page, checksum) {
            self.faults
                .push((at, format!("the page of {table} at byte {at} of the database does not match its checksum")));
            return Ok(len as u64);
        }
        let n = u16_at(&page, 2).unwrap_or_default();
        if page[0] != LEAF {
            let below = |child| Todo { child, shape, table: table.clone(), defines };
            self.todo.extend(children(&page, n).map(below));
        } else if defines {
            let tables = shape.pairs(&page, n).filter_map(|(name, definition)| {
                let root = root_of_definition(definition)?;
                Todo::of(
                    root,
                    shape_of_definition(definition)?,
                    &format!("table {}", String::from_utf8_lossy(name)),
                    false,
                )
            });
            self.todo.extend(tables);
        }
        Ok(len as u64)
    }
}

impl Todo {
    fn of(root: &[u8], shape: Shape, table: &str, defines: bool) -> Option<Todo> {
        let child = (u64_at(root, 0)?, checksum_at(root, NUMBER_BYTES)?);
        Some(Todo { child, shape, table: table.into(), defines })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use redb::{Database, ReadableTable, StorageBackend, TableDefinition};

    use super::*;

    const WIDE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("wide");
    const NUMBERS: TableDefinition<u64, (u64, u64)> = TableDefinition::new("numbers");
    const LITTLE: u64 = 16 << 10;

    /// A file in memory that several have open.
    #[derive(Clone, Debug, Default)]
    struct File(Arc<Mutex<Vec<u8>>>);

    impl File {
        fn flip(&self, at: usize) {
            self.0.lock().unwrap()[at] ^= 1 << (at % 8);
        }
    }

    impl BlockingFile for File {
        fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
            let (all, at) = (self.0.lock().unwrap(), offset as usize);
            into.copy_from_slice(all.get(at..at + into.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        }
        fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
            self.0.lock().unwrap()[offset as usize..][..from.len()].copy_from_slice(from);
            Ok(())
        }
        fn len(&self) -> io::Result<u64> {
            Ok(self.0.lock().unwrap().len() as u64)
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.lock().unwrap().resize(len as usize, 0);
            Ok(())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }

    impl StorageBackend for File {
        fn len(&self) -> io::Result<u64> {
            BlockingFile::len(self)
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            BlockingFile::read(self, offset, out)
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            BlockingFile::set_len(self, len)
        }
        fn sync_data(&self) -> io::Result<()> {
            Ok(())
        }
        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            BlockingFile::write(self, offset, data)
        }
    }

    fn value(i: u64) -> Vec<u8> {
        (0..i * 37 % 700).map(|n| (n * 31 + i) as u8).collect()
    }

    fn fill(database: &Database, records: std::ops::Range<u64>) {
        let txn = database.begin_write().unwrap();
        for i in records {
            txn.open_table(WIDE).unwrap().insert(i.to_be_bytes().as_slice(), value(i).as_slice()).unwrap();
            txn.open_table(NUMBERS).unwrap().insert(i, (i * 3, i * 5)).unwrap();
        }
        txn.commit().unwrap();
    }

    fn database(records: u64) -> (File, Open) {
        let file = File::default();
        let database = Database::builder().create_with_backend(file.clone()).unwrap();
        fill(&database, 0..records);
        fill(&database, records / 2..records / 2 + 20);
        (file, Open::new(database))
    }

    fn check(file: &File, database: &Open) -> Vec<String> {
        let mut check = PageCheck::new(Box::new(file.clone()));
        let mut faults = Vec::new();
        loop {
            let looked = check.look(database, LITTLE).unwrap();
            faults.extend(looked.faults);
            if looked.is_over {
                return faults;
            }
        }
    }

    /// Whether all records are read as they were by who opens the file anew, as after a crash.
    fn reads_the_same(bytes: Vec<u8>, records: u64) -> bool {
        let same = || {
            let database = Database::builder().create_with_backend(File(Arc::new(Mutex::new(bytes)))).ok()?;
            let txn = database.begin_read().ok()?;
            let (wide, numbers) = (txn.open_table(WIDE).ok()?, txn.open_table(NUMBERS).ok()?);
            let mut seen = 0;
            for row in wide.iter().ok()? {
                let (k, v) = row.ok()?;
                let i = u64::from_be_bytes(k.value().try_into().ok()?);
                seen += u64::from(v.value() == value(i) && numbers.get(i).ok()??.value() == (i * 3, i * 5));
            }
            Some(seen == records)
        };
        crate::guarded(same).ok().flatten() == Some(true)
    }

    #[test]
    fn every_flipped_byte_that_anybody_would_read_is_found_while_the_database_is_open() {
        let records = 300;
        let (file, database) = database(records);
        assert_eq!(check(&file, &database), Vec::<String>::new());
        let (mut found, mut missed) = (0, 0);
        let len = BlockingFile::len(&file).unwrap() as usize;
        for at in (0..HEADER_BYTES).chain((HEADER_BYTES..len).step_by(61)) {
            file.flip(at);
            match check(&file, &database).is_empty() {
                false => found += 1,
                true => {
                    missed += 1;
                    let bytes = file.0.lock().unwrap().clone();
                    assert!(reads_the_same(bytes, records), "byte {at} is read, and was not found");
                }
            }
            file.flip(at);
        }
        assert!(found > 1000 && missed > 100, "{found} found, {missed} not: the test shows nothing");
        assert_eq!(check(&file, &database), Vec::<String>::new());
    }

    #[test]
    fn what_is_committed_meanwhile_is_no_fault() {
        let (file, database) = database(400);
        let mut check = PageCheck::new(Box::new(file.clone()));
        let (mut passes, mut next) = (0, 0);
        while passes < 5 {
            let looked = check.look(&database, LITTLE).unwrap();
            assert_eq!(looked.faults, Vec::<String>::new());
            passes += u32::from(looked.is_over);
            fill(&database, next % 400..next % 400 + 7);
            next += 7;
        }
        assert!(next > 200, "{next} records were written meanwhile");
    }
}
