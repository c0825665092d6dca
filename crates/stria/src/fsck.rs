//! `stria fsck`: the metadata of a stopped cluster against itself, and against the objects of its OSTs.
//!
//! Reads everything; changes nothing unless it is told to repair (`mds::repair`). What is a fault: a page of a database that
//! does not match its checksum, a finding of the metadata server's own check, an object that a file owns and no OST has, an
//! object with data that no file owns, a block that does not match its checksum, a store of the cluster that is not in its
//! place. What is checked how, and what is left out, stands in `docs/internals/integrity.md`.
//! Objects that the next start removes (a crash came before the creates that they were made for were committed) are said and
//! are no fault.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use mds::MetaKv;
use mds::check::Report;
use mds::repair::{Objects, Stray};
use oss::store::ObjectInfo;
use rt::Rt;
use store_file::format::Superblock;
use store_file::{BadPlace, OpenError};
use store_redb::Mended;
use types::{ObjectId, OstIndex, format_size};

use crate::cli;
use crate::daemon::{ClusterDir, on_shard};
use crate::failure::Failure;

/// Memory for pages of a database that is read.
const CACHE_BYTES: usize = 64 << 20;
/// Repairs that one run does: what one gives up, the next one may find a place for.
const ROUNDS_MAX: usize = 5;
/// Findings of one kind that are printed; the rest is counted.
const SHOWN_MAX: usize = 1000;
/// Exit code when everything that was wrong was put right, as fsck(8) has it.
const CORRECTED: u8 = 1;
/// Exit code when something is wrong and stays so, as fsck(8) has it.
const UNCORRECTED: u8 = 4;
/// Exit code when nothing could be said, as fsck(8) has it.
const NOT_CHECKED: u8 = 8;

/// Collects faults.
#[derive(Default)]
struct Faults {
    count: usize,
}

impl Faults {
    fn note(&mut self, text: &str) {
        self.count += 1;
        if self.count <= SHOWN_MAX {
            note!("{text}");
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
    /// Databases that are damaged: directories, and whether it is the metadata store's.
    broken: Vec<(PathBuf, bool)>,
    /// Stores whose data file has no superblock, with the one that belongs there.
    headless: Vec<(PathBuf, Superblock)>,
    /// Directories of stores whose rows are damaged or contradict each other.
    bad_rows: Vec<PathBuf>,
    /// Blocks that do not match their checksums: directory, and what `store_file::accept` takes.
    bad_blocks: Vec<(PathBuf, Vec<BadPlace>)>,
    faults: usize,
}

/// The verb `fsck`. Exit code 0: nothing is wrong; 1: it was put right; 4: something is wrong; 8: that cannot be said.
///
/// # Errors
/// A store is in use, damaged beyond reading, or another cluster's.
pub fn fsck(arguments: &cli::Fsck) -> Result<ExitCode, Failure> {
    check_and_repair(arguments).map_err(|e| e.exiting(NOT_CHECKED))
}

fn check_and_repair(arguments: &cli::Fsck) -> Result<ExitCode, Failure> {
    let dir = ClusterDir::open(&arguments.dir)?;
    on_shard(frames::FramePool::new(512 << 20), async |rt| {
        let mut found = check_all(&rt, &dir, arguments.data).await?;
        let mut rounds = 0;
        while arguments.repair && !(found.faults == 0 && found.left_over.is_empty()) && rounds < ROUNDS_MAX {
            rounds += 1;
            if repair(&rt, &dir, found).await? == 0 {
                note!("nothing more can be repaired here");
                return Ok(ExitCode::from(UNCORRECTED));
            }
            note!("checking again");
            found = check_all(&rt, &dir, arguments.data).await?;
        }
        Ok(match (found.faults, rounds) {
            (0, 0) => ExitCode::SUCCESS,
            (0, _) => ExitCode::from(CORRECTED),
            _ => ExitCode::from(UNCORRECTED),
        })
    })
}

/// Puts right what can be; how many things were done. What lies deeper goes first: what is found above it may be wrong.
async fn repair(rt: &Rt, dir: &ClusterDir, found: Checked) -> Result<usize, Failure> {
    let mut done = 0;
    for (at, metadata) in &found.broken {
        let mended = match metadata {
            true => store_redb::mend_database(rt, at, CACHE_BYTES).await.map_err(|e| Failure::from(e.to_string()))?,
            false => {
                let _lock = lock(at)?;
                store_file::mend_database(rt, at, CACHE_BYTES).await.map_err(|e| Failure::from(e.to_string()))?
            }
        };
        let shown = at.display();
        match mended {
            Mended::Header => note!("repaired: {shown}: the header of its database was written anew"),
            Mended::RolledBack => {
                note!("repaired: {shown}: its last commit was damaged, the one before it counts now");
            }
            Mended::No => done += usize::from(salvage(rt, at, *metadata).await?),
        }
        done += usize::from(mended != Mended::No);
    }
    for (at, superblock) in &found.headless {
        let _lock = lock(at)?;
        store_file::mend(rt, at, superblock).await.map_err(|e| Failure::from(e.to_string()))?;
        note!("repaired: {}: block 0 of the data file was written anew", at.display());
        done += 1;
    }
    let (true, Some(report)) = (done == 0 && found.broken.is_empty(), &found.report) else { return Ok(done) };
    let kv = open_metadata(rt, dir)?;
    let mut objects = found.objects;
    objects.strays.extend(found.left_over);
    let said = mds::repair::repair(&kv, report, &objects, rt.wall()).await;
    let said = said.map_err(|e| Failure::from(format!("repairing {}: {e}", dir.mdt().display())))?;
    drop(kv);
    for text in &said {
        note!("repaired: {text}");
    }
    // Last: from here on nothing tells any more which files have these objects and blocks.
    for at in &found.bad_rows {
        let _lock = lock(at)?;
        store_file::mend_rows(rt, at, CACHE_BYTES).await.map_err(|e| Failure::from(e.to_string()))?;
        note!("repaired: {}: the rows of its database agree with each other", at.display());
        done += 1;
    }
    for (at, blocks) in &found.bad_blocks {
        let _lock = lock(at)?;
        let accepted = store_file::accept(rt, at, dir.cluster, blocks).await;
        accepted.map_err(|e| Failure::from(e.to_string()))?;
        note!("repaired: {}: {} block(s) can be read again, with what is there", at.display(), blocks.len());
        done += 1;
    }
    Ok(done + said.len())
}

/// Saves the records of a database of which no commit is whole. Whether there were any.
async fn salvage(rt: &Rt, at: &Path, metadata: bool) -> Result<bool, Failure> {
    let saved = match metadata {
        true => store_redb::salvage(rt, at, CACHE_BYTES).await.map_err(|e| Failure::from(e.to_string())),
        false => {
            let _lock = lock(at)?;
            store_file::salvage(rt, at, CACHE_BYTES).await.map_err(|e| Failure::from(e.to_string()))
        }
    };
    let (saved, aside) = saved?;
    let (shown, instead) = (
        at.display(),
        match metadata {
            true => "put a backup back there ('stria mdt restore')",
            false => "'stria mkfs --replace' gives its objects up",
        },
    );
    if saved.records == 0 {
        note!("{shown}: no record can be read of its database: {instead}");
        return Ok(false);
    }
    let more = if metadata { "; a backup, if there is one, may have more ('stria mdt restore')" } else { "" };
    note!(
        "repaired: {shown}: a new database was made of {} record(s) of the damaged one, which had {} damaged page(s) and is {} \
         now{more}",
        saved.records,
        saved.damaged_pages,
        aside.display()
    );
    Ok(true)
}

fn lock(store: &Path) -> Result<rt::DirLock, Failure> {
    store_file::lock_dir(store).map_err(|e| Failure::from(e.to_string()))
}

async fn check_all(rt: &Rt, dir: &ClusterDir, data: bool) -> Result<Checked, Failure> {
    let (mut faults, mut found) = (Faults::default(), Checked::default());
    dir.check_mdt()?;
    found.report = check_metadata(rt, dir, &mut faults, &mut found).await?;
    let owned = found.report.as_ref().map(|r| r.objects.keys().copied().collect()).unwrap_or_default();
    found.objects.missing = owned;
    let mut lost_through = BTreeMap::new();
    for index in dir.ost_indices() {
        check_ost(rt, dir, index, data, &mut faults, &mut found, &mut lost_through).await?;
    }
    for object in &found.objects.missing {
        let lost = lost_through.get(&object.0.seq).is_some_and(|last| object.0.oid <= *last);
        let why = if lost { "is lost with the store that its OST had before" } else { "is on no OST" };
        let file = found.report.as_ref().map(|r| r.objects[object]).unwrap_or_default();
        faults.note(&format!("object {object} of file {file} {why}"));
    }
    if faults.count > SHOWN_MAX {
        note!("... and {} more", faults.count - SHOWN_MAX);
    }
    note!("{} fault(s)", faults.count);
    found.faults = faults.count;
    Ok(found)
}

/// Objects of an OST that cannot be read are not looked for; their number is said.
fn note_unreachable(index: u16, found: &mut Checked) {
    let Checked { report: Some(report), objects: Objects { missing, .. }, .. } = found else { return };
    let before = missing.len();
    let files: BTreeSet<_> =
        missing.iter().filter(|o| o.0.seq == ObjectId::seq_of(OstIndex(index))).map(|o| report.objects[o]).collect();
    missing.retain(|o| o.0.seq != ObjectId::seq_of(OstIndex(index)));
    note!("OST{index:04x}: {} objects of {} files are not checked", before - missing.len(), files.len());
}

fn open_metadata(rt: &Rt, dir: &ClusterDir) -> Result<Rc<dyn MetaKv>, Failure> {
    let kv = store_redb::open(rt.clone(), &dir.mdt(), store_redb::CACHE_BYTES_DEFAULT);
    Ok(kv.map_err(|e| Failure::from(e.to_string()))?)
}

async fn check_metadata(
    rt: &Rt,
    dir: &ClusterDir,
    faults: &mut Faults,
    found: &mut Checked,
) -> Result<Option<Report>, Failure> {
    let at = |path: &Path, e: &dyn std::fmt::Display| Failure::from(format!("{}: {e}", path.display()));
    let image = store_redb::examine(rt, &dir.mdt(), CACHE_BYTES).await.map_err(|e| Failure::from(e.to_string()))?;
    image.notes.iter().for_each(|n| note!("MDT: {}: {n}", store_redb::STORE_FILE));
    for fault in &image.faults {
        faults.note(&format!("MDT: {}: {fault}", store_redb::STORE_FILE));
    }
    if !image.faults.is_empty() {
        found.broken.push((dir.mdt(), true));
    }
    let Some(kv) = image.kv else {
        note!("MDT: the metadata cannot be read");
        return Ok(None);
    };
    // Who the store is stands in two places; what names are hashed with can be drawn again.
    let known = dir.mdt_identity().map(|(cluster, uuid)| mds::record::Superblock {
        magic: mds::record::SUPER_MAGIC,
        version: mds::record::FORMAT_VERSION,
        cluster,
        uuid,
        fsname: dir.fsname.as_str().into(),
        hash_key0: rt.random(),
        hash_key1: rt.random(),
        hash_mask: u64::MAX,
        made: rt.wall(),
    });
    let report = mds::check::check_or(&kv, known).await.map_err(|e| at(&dir.mdt(), &e))?;
    if report.superblock.cluster != dir.cluster {
        return Err(Failure::from(format!(
            "{} belongs to cluster {:016x}, not to {:016x}: put the right store there",
            dir.mdt().display(),
            report.superblock.cluster,
            dir.cluster
        )));
    }
    for finding in &report.findings {
        faults.note(&format!("MDT: {finding}"));
    }
    note!(
        "MDT: {} inodes, {} objects, {} waiting to be destroyed",
        report.inodes.len(),
        report.objects.len(),
        report.doomed.len()
    );
    Ok(Some(report))
}

async fn check_ost(
    rt: &Rt,
    dir: &ClusterDir,
    index: u16,
    data: bool,
    faults: &mut Faults,
    found: &mut Checked,
    lost_through: &mut BTreeMap<u64, u32>,
) -> Result<(), Failure> {
    let at = dir.ost(index);
    let headless = match store_file::identity(rt, &at).await {
        Ok((_, lost)) => {
            lost_through.insert(ObjectId::seq_of(OstIndex(index)), lost);
            false
        }
        Err(e) => matches!(e, OpenError::Corrupt(..)),
    };
    if !headless && let Err(why) = dir.check_ost(rt, index).await {
        faults.note(&why);
        note_unreachable(index, found);
        return Ok(());
    }
    let _lock = lock(&at)?;
    let checked = store_file::check(rt, &at, data, CACHE_BYTES).await.map_err(|e| Failure::from(e.to_string()))?;
    checked.notes.iter().for_each(|n| note!("OST{index:04x}: {n}"));
    for fault in &checked.faults {
        faults.note(&format!("OST{index:04x}: {fault}"));
    }
    if let Some(superblock) = checked.superblock
        && superblock.identity.cluster == dir.cluster
        && superblock.identity.ost == OstIndex(index)
    {
        lost_through.insert(ObjectId::seq_of(OstIndex(index)), superblock.lost_through);
        found.headless.push((at.clone(), superblock));
    }
    if checked.broken {
        found.broken.push((at.clone(), false));
    }
    if !checked.complete {
        note_unreachable(index, found);
        return Ok(());
    }
    found.objects.damaged.extend(checked.bad_blocks.iter().map(|b| b.object).chain(checked.suspects));
    if checked.bad_rows {
        found.bad_rows.push(at.clone());
    }
    if !checked.bad_blocks.is_empty() {
        found.bad_blocks.push((at, checked.bad_blocks));
    }
    compare(index, &checked.objects, faults, found);
    Ok(())
}

/// The objects of an OST against the files that own them.
fn compare(index: u16, objects: &[ObjectInfo], faults: &mut Faults, found: &mut Checked) {
    let bytes: u64 = objects.iter().map(|info| info.attr.blocks * oss::store::BLOCK_BYTES).sum();
    note!("OST{index:04x}: {} objects, {}", objects.len(), format_size(bytes));
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
        note!(
            "OST{index:04x}: recovery will remove {} object(s) with {}: what they were made for was not committed, or the \
             metadata store is an old copy; --repair moves them to lost+found instead",
            removed.0,
            format_size(removed.1)
        );
    }
}

fn stray(index: u16, info: &ObjectInfo) -> Stray {
    Stray {
        ost: OstIndex(index),
        object: info.object,
        size: info.attr.size,
        blocks: info.attr.blocks * (oss::store::BLOCK_BYTES / 512),
        mtime: info.attr.mtime,
        uid: info.attr.owner.uid,
        gid: info.attr.owner.gid,
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
    use super::*;
    use oss::store::ObjectAttr;

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
