//! The stores of a stopped cluster: the metadata against itself and against the objects of the OSTs, for `stria fsck` and for
//! simulated clusters.
//!
//! Reads everything; changes nothing unless it is told to repair (`mds::repair`). What is a fault: a page of a database that
//! does not match its checksum, a finding of the metadata server's own check, an object that a file owns and no OST has, an
//! object with data that no file owns, a block that does not match its checksum, a store of the cluster that is not in its
//! place. What is checked how, and what is left out, stands in `docs/internals/integrity.md`.
//! Objects that the next start removes (a crash came before the creates that they were made for were committed) are said and
//! are no fault, and so are objects that files without a name miss (a migration's old ones).
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;

use mds::MetaKv;
use mds::check::Report;
use mds::repair::{Objects, Stray};
use mds::salvaged::Revoked;
use oss::store::ObjectInfo;
use rt::{DirLock, Rt};
use store_file::format::Superblock;
use store_file::{BadPlace, OpenError};
use store_redb::Mended;
use types::{ObjectId, OstIndex, format_size};
use wire::credential::Revocation;

/// Repairs that one run does: what one gives up, the next one may find a place for.
const ROUNDS_MAX: usize = 5;
/// Findings of one kind that are said; the rest is counted.
const SHOWN_MAX: usize = 1000;

/// Where a store is.
#[derive(Clone)]
pub struct Store {
    /// The world that has its directory; no process has the store open.
    pub rt: Rt,
    /// Its directory there.
    pub dir: PathBuf,
}

/// The stores of a cluster, and who they should be.
pub trait Stores {
    /// The cluster's id.
    fn cluster(&self) -> u64;
    /// Name of the file system.
    fn fsname(&self) -> &str;
    /// Identity of the metadata store, where that is known from elsewhere than the store.
    fn mdt_uuid(&self) -> Option<u64>;
    /// The metadata store.
    fn mdt(&self) -> Store;
    /// The records of the metadata store, opened, when they are in no file of its directory but in an engine that looks after its own
    /// medium. The default: they are in the file.
    fn mdt_elsewhere(&self) -> impl Future<Output = Result<Option<Rc<dyn MetaKv>>, String>> {
        std::future::ready(Ok(None))
    }
    /// OSTs of the cluster.
    fn osts(&self) -> Vec<u16>;
    /// OSTs that have left the cluster for good: what files had there is gone.
    fn removed(&self) -> Vec<u16> {
        Vec::new()
    }
    /// The store of an OST.
    fn ost(&self, index: u16) -> Store;
    /// Whether the store in an OST's place is that OST's; if not, a sentence that says so.
    fn is_in_place(&self, index: u16) -> impl Future<Output = Result<(), String>>;
    /// Memory for pages of a database that is read.
    fn cache_bytes(&self) -> usize;
    /// Tells what was found, and what was done about it: a sentence.
    fn say(&self, text: &str);
}

/// Why nothing can be said: a store is in use, damaged beyond reading, or another cluster's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FsckError(pub String);

impl fmt::Display for FsckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for FsckError {}

fn failed(e: impl fmt::Display) -> FsckError {
    FsckError(e.to_string())
}

/// What a check came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing is wrong.
    Clean,
    /// What was wrong was put right.
    Corrected,
    /// Something is wrong, and stays so; or files have objects on OSTs that are not these stores', and were not looked for.
    Uncorrected,
}

/// Checks all stores; `data`: every block of data, too. With `repairs` puts right what can be, and checks again.
///
/// # Errors
/// A store is in use, damaged beyond reading, or another cluster's.
pub async fn run(stores: &impl Stores, data: bool, repairs: bool) -> Result<Outcome, FsckError> {
    let mut found = check_all(stores, data).await?;
    let mut rounds = 0;
    while repairs && !(found.faults == 0 && found.left_over.is_empty()) && rounds < ROUNDS_MAX {
        rounds += 1;
        if repair(stores, found).await? == 0 {
            stores.say("nothing more can be repaired here");
            return Ok(Outcome::Uncorrected);
        }
        stores.say("checking again");
        found = check_all(stores, data).await?;
    }
    Ok(match (found.faults, rounds) {
        (0, _) if found.elsewhere => Outcome::Uncorrected,
        (0, 0) => Outcome::Clean,
        (0, _) => Outcome::Corrected,
        _ => Outcome::Uncorrected,
    })
}

/// Counts faults, and says the first ones.
struct Faults<'a, S> {
    stores: &'a S,
    count: usize,
}

impl<S: Stores> Faults<'_, S> {
    fn note(&mut self, text: &str) {
        self.count += 1;
        if self.count <= SHOWN_MAX {
            self.stores.say(text);
        }
    }
}

/// Whose store it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    Mdt,
    Ost(u16),
}

impl Whose {
    fn store(self, stores: &impl Stores) -> Store {
        match self {
            Whose::Mdt => stores.mdt(),
            Whose::Ost(index) => stores.ost(index),
        }
    }
}

/// What one reading of everything gave.
#[derive(Default)]
struct Checked {
    /// `None`: the metadata cannot be read.
    report: Option<Report>,
    objects: Objects,
    /// Objects that the next recovery removes: no faults. A repair saves them like strays, in case they are not of creates
    /// that a crash undid, but newer than a metadata store that was put back from a copy.
    left_over: Vec<Stray>,
    /// Stores whose databases are damaged.
    broken: Vec<Whose>,
    /// OSTs whose data file has no superblock, with the one that belongs there.
    headless: Vec<(u16, Superblock)>,
    /// OSTs whose rows are damaged or contradict each other.
    bad_rows: Vec<u16>,
    /// Blocks that do not match their checksums: OST, and what `store_file::accept` takes.
    bad_blocks: Vec<(u16, Vec<BadPlace>)>,
    /// Highest object of each OST's sequence that is lost with a store which the OST had before.
    lost_through: BTreeMap<u64, u32>,
    faults: usize,
    /// Files have objects on OSTs of which nothing is known here.
    elsewhere: bool,
    /// Of the OSTs' directories: nobody changes what was read before it is repaired.
    locks: Vec<DirLock>,
}

/// Puts right what can be; how many things were done. What lies deeper goes first: what is found above it may be wrong. The OSTs are
/// locked since the check; a metadata store that was started since then refuses what was found.
async fn repair(stores: &impl Stores, found: Checked) -> Result<usize, FsckError> {
    let mut done = 0;
    // OSTs first: what they know counts where the metadata store has lost it.
    let (osts, mdt): (Vec<Whose>, Vec<Whose>) = found.broken.iter().copied().partition(|whose| *whose != Whose::Mdt);
    for whose in osts {
        done += mend(stores, whose, &found.objects.revoked).await?;
    }
    for whose in if done == 0 { mdt } else { Vec::new() } {
        done += mend(stores, whose, &found.objects.revoked).await?;
    }
    for (index, superblock) in &found.headless {
        let Store { rt, dir } = stores.ost(*index);
        store_file::mend(&rt, &dir, superblock).await.map_err(failed)?;
        stores.say(&format!("repaired: {}: block 0 of the data file was written anew", dir.display()));
        done += 1;
    }
    let (true, Some(report)) = (done == 0 && found.broken.is_empty(), &found.report) else { return Ok(done) };
    let mut objects = found.objects;
    objects.strays.extend(found.left_over);
    let said = repair_metadata(stores, report, &objects).await?;
    // Last: from here on nothing tells any more which files have these objects and blocks.
    for index in &found.bad_rows {
        let Store { rt, dir } = stores.ost(*index);
        store_file::mend_rows(&rt, &dir, stores.cache_bytes()).await.map_err(failed)?;
        stores.say(&format!("repaired: {}: the rows of its database agree with each other", dir.display()));
        done += 1;
    }
    // Where rows went, blocks may be another object's by now: the next check tells whose they are.
    for (index, blocks) in found.bad_blocks.iter().filter(|(index, _)| !found.bad_rows.contains(index)) {
        let Store { rt, dir } = stores.ost(*index);
        store_file::accept(&rt, &dir, stores.cluster(), blocks).await.map_err(failed)?;
        let (shown, n) = (dir.display(), blocks.len());
        stores.say(&format!("repaired: {shown}: {n} block(s) can be read again, with what is there"));
        done += 1;
    }
    Ok(done + said)
}

/// Puts the records of the metadata right; how many things were done.
async fn repair_metadata(stores: &impl Stores, report: &Report, objects: &Objects) -> Result<usize, FsckError> {
    let Store { rt, dir } = stores.mdt();
    let kv: Rc<dyn MetaKv> = match stores.mdt_elsewhere().await.map_err(FsckError)? {
        Some(kv) => kv,
        None => {
            let kv = store_redb::open(rt.clone(), &dir, stores.cache_bytes()).map_err(failed)?;
            // On a full disk a repair fails: nobody would make space for it.
            kv.give_up();
            kv
        }
    };
    let said = mds::repair::repair(&kv, report, objects, rt.wall()).await;
    let said = said.map_err(|e| FsckError(format!("repairing {}: {e}", dir.display())))?;
    for text in &said {
        stores.say(&format!("repaired: {text}"));
    }
    Ok(said.len())
}

/// Puts a damaged database right, or saves what can be read of it; how many things were done.
async fn mend(stores: &impl Stores, whose: Whose, revoked: &Revoked) -> Result<usize, FsckError> {
    let (Store { rt, dir }, cache_bytes) = (whose.store(stores), stores.cache_bytes());
    let mended = match whose {
        Whose::Mdt => store_redb::mend_database(&rt, &dir, cache_bytes).await.map_err(failed)?,
        Whose::Ost(_) => store_file::mend_database(&rt, &dir, cache_bytes).await.map_err(failed)?,
    };
    let shown = dir.display();
    match mended {
        Mended::Header => stores.say(&format!("repaired: {shown}: the header of its database was written anew")),
        Mended::RolledBack => {
            stores.say(&format!("repaired: {shown}: its last commit was damaged, the one before it counts now"));
        }
        Mended::No => return Ok(usize::from(salvage(stores, whose, revoked).await?)),
    }
    Ok(1)
}

/// Saves the records of a database of which no commit is whole. Whether there were any.
async fn salvage(stores: &impl Stores, whose: Whose, revoked: &Revoked) -> Result<bool, FsckError> {
    let (Store { rt, dir }, cache_bytes) = (whose.store(stores), stores.cache_bytes());
    let (saved, aside, settled) = match whose {
        Whose::Mdt => {
            let made = store_redb::salvage(&rt, &dir, cache_bytes, revoked.clone()).await.map_err(failed)?;
            (made.saved, made.aside, made.instead)
        }
        Whose::Ost(_) => {
            let (saved, aside) = store_file::salvage(&rt, &dir, cache_bytes).await.map_err(failed)?;
            (saved, aside, Vec::new())
        }
    };
    let (shown, instead) = (
        dir.display(),
        match whose {
            Whose::Mdt => "put a backup back there ('stria mdt restore')",
            Whose::Ost(_) => "'stria ost replace' gives its objects up",
        },
    );
    if saved.records == 0 {
        stores.say(&format!("{shown}: no record can be read of its database: {instead}"));
        return Ok(false);
    }
    let more = match whose {
        Whose::Mdt => "; a backup, if there is one, may have more ('stria mdt restore')",
        Whose::Ost(_) => "",
    };
    stores.say(&format!(
        "repaired: {shown}: a new database was made of {} record(s) of the damaged one, which had {} damaged page(s) and is {} \
         now{more}",
        saved.records,
        saved.damaged_pages,
        aside.display()
    ));
    for text in settled {
        stores.say(&format!("repaired: {shown}: {text}"));
    }
    Ok(true)
}

async fn check_all(stores: &impl Stores, data: bool) -> Result<Checked, FsckError> {
    let (mut faults, mut found) = (Faults { stores, count: 0 }, Checked::default());
    found.report = check_metadata(stores, &mut faults, &mut found.broken).await?;
    let owned = found.report.as_ref().map(|r| r.objects.keys().copied().collect()).unwrap_or_default();
    found.objects.missing = owned;
    note_elsewhere(stores, &mut found);
    for index in stores.osts() {
        check_ost(stores, index, data, &mut faults, &mut found).await?;
    }
    note_nameless(stores, &mut found);
    for object in &found.objects.missing {
        let lost = found.lost_through.get(&object.0.seq).is_some_and(|last| object.0.oid <= *last);
        let why = if lost { "is lost with the store that its OST had before" } else { "is on no OST" };
        let file = found.report.as_ref().map(|r| r.objects[object]).unwrap_or_default();
        faults.note(&format!("object {object} of file {file} {why}"));
    }
    if faults.count > SHOWN_MAX {
        stores.say(&format!("... and {} more", faults.count - SHOWN_MAX));
    }
    stores.say(&format!("{} fault(s)", faults.count));
    found.faults = faults.count;
    Ok(found)
}

/// Missing objects of files without names are no faults: their number is said.
fn note_nameless(stores: &impl Stores, found: &mut Checked) {
    let Checked { report: Some(report), objects: Objects { missing, .. }, .. } = found else { return };
    let before = missing.len();
    missing.retain(|object| !report.is_nameless(*object));
    let gone = before - missing.len();
    if gone > 0 {
        stores.say(&format!("{gone} object(s) of files without a name are gone already; recovery removes these files"));
    }
}

/// Objects on OSTs that are not these stores', as one that was added on another machine is named by that one's description alone: whether
/// they are there cannot be said here, and a repair must not take them for lost.
fn note_elsewhere(stores: &impl Stores, found: &mut Checked) {
    let known: BTreeSet<u16> = stores.osts().into_iter().chain(stores.removed()).collect();
    let others = found.objects.missing.iter().filter_map(|o| Some(o.ost()?.0)).filter(|ost| !known.contains(ost));
    let others: BTreeSet<u16> = others.collect();
    found.elsewhere = !others.is_empty();
    for index in others {
        stores.say(&format!("OST {index} is not of this directory: its objects are not checked here"));
        note_unreachable(stores, index, found);
    }
}

/// Objects of an OST that cannot be read are not looked for; their number is said.
fn note_unreachable(stores: &impl Stores, index: u16, found: &mut Checked) {
    let Checked { report: Some(report), objects: Objects { missing, .. }, .. } = found else { return };
    let before = missing.len();
    let files: BTreeSet<_> =
        missing.iter().filter(|o| o.0.seq == ObjectId::seq_of(OstIndex(index))).map(|o| report.objects[o]).collect();
    missing.retain(|o| o.0.seq != ObjectId::seq_of(OstIndex(index)));
    let (objects, files) = (before - missing.len(), files.len());
    stores.say(&format!("OST{index:04x}: {objects} objects of {files} files are not checked"));
}

async fn check_metadata<S: Stores>(
    stores: &S,
    faults: &mut Faults<'_, S>,
    broken: &mut Vec<Whose>,
) -> Result<Option<Report>, FsckError> {
    let Store { rt, dir } = stores.mdt();
    let elsewhere = stores.mdt_elsewhere().await.map_err(FsckError)?;
    let (mut image, mut kv) = (None, elsewhere);
    if kv.is_some() {
        stores.say("MDT: its records are in a database: they are checked one by one, its pages are the database's own to check");
    } else {
        // It keeps the store locked.
        let file = image.insert(store_redb::examine(&rt, &dir, stores.cache_bytes()).await.map_err(failed)?);
        file.notes.iter().for_each(|n| stores.say(&format!("MDT: {}: {n}", store_redb::STORE_FILE)));
        for fault in &file.faults {
            faults.note(&format!("MDT: {}: {fault}", store_redb::STORE_FILE));
        }
        if !file.faults.is_empty() {
            broken.push(Whose::Mdt);
        }
        kv = file.kv.take();
    }
    let Some(kv) = kv else {
        stores.say("MDT: the metadata cannot be read");
        return Ok(None);
    };
    // Who the store is stands in two places; what names are hashed with can be drawn again.
    let known = stores.mdt_uuid().map(|uuid| mds::record::Superblock {
        magic: mds::record::SUPER_MAGIC,
        version: mds::record::FORMAT_VERSION,
        cluster: stores.cluster(),
        uuid,
        fsname: stores.fsname().into(),
        hash_key0: rt.random(),
        hash_key1: rt.random(),
        hash_mask: u64::MAX,
        made: rt.wall(),
    });
    let report = mds::check::check_or(&kv, known).await;
    let report = report.map_err(|e| FsckError(format!("{}: {e}", dir.display())))?;
    if report.superblock.cluster != stores.cluster() {
        return Err(FsckError(format!(
            "{} belongs to cluster {:016x}, not to {:016x}: put the right store there",
            dir.display(),
            report.superblock.cluster,
            stores.cluster()
        )));
    }
    for finding in &report.findings {
        faults.note(&format!("MDT: {finding}"));
    }
    stores.say(&format!(
        "MDT: {} inodes, {} objects, {} waiting to be destroyed",
        report.inodes.len(),
        report.objects.len(),
        report.doomed.len()
    ));
    Ok(Some(report))
}

async fn check_ost<S: Stores>(
    stores: &S,
    index: u16,
    data: bool,
    faults: &mut Faults<'_, S>,
    found: &mut Checked,
) -> Result<(), FsckError> {
    let (Store { rt, dir }, seq) = (stores.ost(index), ObjectId::seq_of(OstIndex(index)));
    let headless = match store_file::identity(&rt, &dir).await {
        Ok((_, lost)) => {
            found.lost_through.insert(seq, lost);
            false
        }
        Err(e) => matches!(e, OpenError::Corrupt(..)),
    };
    if !headless && let Err(why) = stores.is_in_place(index).await {
        faults.note(&why);
        note_unreachable(stores, index, found);
        return Ok(());
    }
    found.locks.push(store_file::lock_dir(&rt, &dir).await.map_err(failed)?);
    let checked = match store_file::check(&rt, &dir, data, stores.cache_bytes()).await {
        // Its other files say nothing without the one that is missing or cannot be read; the other stores can be checked.
        Err(e @ (OpenError::Missing(_) | OpenError::Io(..))) => {
            faults.note(&format!(
                "OST{index:04x}: {e}: put it back, or move {} away: 'stria ost replace {index}' gives its objects up",
                dir.display()
            ));
            note_unreachable(stores, index, found);
            return Ok(());
        }
        checked => checked.map_err(failed)?,
    };
    if let Some(why) = older_copy(index, &checked, found) {
        faults.note(&format!("OST{index:04x}: {why}"));
        note_unreachable(stores, index, found);
        return Ok(());
    }
    checked.notes.iter().for_each(|n| stores.say(&format!("OST{index:04x}: {n}")));
    for fault in &checked.faults {
        faults.note(&format!("OST{index:04x}: {fault}"));
    }
    if let Some(superblock) = checked.superblock
        && superblock.identity.cluster == stores.cluster()
        && superblock.identity.ost == OstIndex(index)
    {
        found.lost_through.insert(seq, superblock.lost_through);
        found.headless.push((index, superblock));
    }
    if checked.broken {
        found.broken.push(Whose::Ost(index));
    }
    if !checked.complete {
        note_unreachable(stores, index, found);
        return Ok(());
    }
    let revoked = checked.revoked.iter().map(|(id, expires)| Revocation { id: *id, expires: *expires });
    found.objects.revoked.known.extend(revoked);
    found.objects.revoked.asked += 1;
    found.objects.damaged.extend(checked.bad_blocks.iter().map(|b| b.object).chain(checked.suspects));
    if checked.bad_rows {
        found.bad_rows.push(index);
    }
    if !checked.bad_blocks.is_empty() {
        found.bad_blocks.push((index, checked.bad_blocks));
    }
    compare(index, &checked.objects, faults, found);
    Ok(())
}

/// Why the servers would refuse the store of an OST as an older copy. What of a damaged one was lost may make it look like one: its database
/// is put right first.
fn older_copy(index: u16, checked: &store_file::Checked, found: &Checked) -> Option<String> {
    let report = found.report.as_ref().filter(|_| checked.complete && !checked.broken)?;
    let last = checked.last_objects.get(&ObjectId::seq_of(OstIndex(index))).copied().unwrap_or(0);
    Some(report.older_copy(OstIndex(index), &checked.openings, last)?.to_string())
}

/// The objects of an OST against the files that own them.
fn compare<S: Stores>(index: u16, objects: &[ObjectInfo], faults: &mut Faults<'_, S>, found: &mut Checked) {
    let stores = faults.stores;
    let bytes: u64 = objects.iter().map(|info| info.attr.blocks * oss::store::BLOCK_BYTES).sum();
    stores.say(&format!("OST{index:04x}: {} objects, {}", objects.len(), format_size(bytes)));
    let Checked { report: Some(report), objects: known, left_over, .. } = found else { return };
    let doomed: BTreeSet<ObjectId> = report.doomed.iter().copied().collect();
    let mut removed = (0, 0);
    for info in objects {
        known.missing.remove(&info.object);
        let owned = report.objects.contains_key(&info.object) || doomed.contains(&info.object);
        let Some(text) = unaccounted(index, info, owned) else { continue };
        if report.is_left_over(OstIndex(index), info.object) {
            removed = (removed.0 + 1, removed.1 + info.attr.size);
            left_over.push(stray(index, info));
        } else {
            faults.note(&text);
            known.strays.push(stray(index, info));
        }
    }
    if removed.0 > 0 {
        stores.say(&format!(
            "OST{index:04x}: recovery will remove {} object(s) with {}: what they were made for was not committed, or the \
             metadata store is an old copy; --repair moves them to lost+found instead",
            removed.0,
            format_size(removed.1)
        ));
    }
}

fn stray(index: u16, info: &ObjectInfo) -> Stray {
    Stray {
        ost: OstIndex(index),
        object: info.object,
        size: info.attr.size,
        blocks: info.attr.blocks * (oss::store::BLOCK_BYTES / 512),
        mtime: info.attr.mtime,
        uid: info.attr.owner.unwrap_or_default().uid,
        gid: info.attr.owner.unwrap_or_default().gid,
    }
}

/// Objects without data that nobody owns are made ahead for new files.
fn unaccounted(index: u16, info: &ObjectInfo, owned: bool) -> Option<String> {
    let empty = info.attr.size == 0 && info.attr.blocks == 0;
    (!owned && !empty)
        .then(|| format!("OST{index:04x}: object {} with {} bytes belongs to no file", info.object, info.attr.size))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use oss::store::ObjectAttr;
    use types::Fid;

    /// A cluster of which OSTs 0 and 1 are here, and 2 was taken out; no store is opened.
    #[derive(Default)]
    struct Described(RefCell<Vec<String>>);

    impl Stores for Described {
        fn cluster(&self) -> u64 {
            7
        }
        fn fsname(&self) -> &'static str {
            "fs"
        }
        fn mdt_uuid(&self) -> Option<u64> {
            None
        }
        fn mdt(&self) -> Store {
            unreachable!("no store is opened")
        }
        fn osts(&self) -> Vec<u16> {
            vec![0, 1]
        }
        fn removed(&self) -> Vec<u16> {
            vec![2]
        }
        fn ost(&self, _: u16) -> Store {
            unreachable!("no store is opened")
        }
        async fn is_in_place(&self, _: u16) -> Result<(), String> {
            Ok(())
        }
        fn cache_bytes(&self) -> usize {
            0
        }
        fn say(&self, text: &str) {
            self.0.borrow_mut().push(text.into());
        }
    }

    #[test]
    fn objects_of_osts_that_are_not_of_the_directory_are_not_missing_and_those_of_a_removed_one_are() {
        let objects: BTreeMap<ObjectId, Fid> =
            (0..5).map(|ost| (ObjectId::new(OstIndex(ost), 3), Fid::new(0x2_0000_0400, 1 + u32::from(ost)))).collect();
        let mut found = Checked::default();
        found.objects.missing = objects.keys().copied().collect();
        let mut report = Report::default();
        report.objects = objects;
        found.report = Some(report);
        let stores = Described::default();
        note_elsewhere(&stores, &mut found);
        let left: Vec<u16> = found.objects.missing.iter().map(|o| o.ost().unwrap().0).collect();
        assert_eq!(left, [0, 1, 2]);
        assert!(found.elsewhere);
        let said = stores.0.take();
        assert_eq!(said.len(), 4, "{said:?}");
        assert_eq!(said[2], "OST 4 is not of this directory: its objects are not checked here");
        assert_eq!(said[3], "OST0004: 1 objects of 1 files are not checked");
        note_elsewhere(&stores, &mut found);
        assert!(!found.elsewhere && stores.0.take().is_empty());
    }

    #[test]
    fn only_objects_with_data_and_without_a_file_are_faults() {
        let info = |size, blocks| ObjectInfo {
            object: ObjectId::new(OstIndex(1), 7),
            attr: ObjectAttr { size, blocks, ..ObjectAttr::default() },
        };
        assert!(unaccounted(1, &info(0, 0), false).is_none());
        assert!(unaccounted(1, &info(9, 1), true).is_none());
        assert!(unaccounted(1, &info(9, 1), false).unwrap().contains("9 bytes belongs to no file"));
        assert!(unaccounted(1, &info(0, 1), false).is_some(), "blocks beyond the end are data");
    }
}
