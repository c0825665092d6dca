//! `stria fsck`: the metadata of a stopped cluster against itself, and against the objects of its OSTs.
//!
//! Reads everything; changes nothing unless it is told to repair, and then deletes nothing (`mds::repair`). What is a fault: a finding of the metadata server's own check, an object that a
//! file owns and no OST has, an object with data that no file owns, a block that does not match its checksum, a store of the
//! cluster that is not in its place.
//! Objects that the next start removes (a crash came before the creates that they were made for were committed) are said and
//! are no fault.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

use mds::MetaKv;
use mds::check::Report;
use mds::repair::Stray;
use oss::store::{ObjectInfo, ObjectStore};
use rt::Rt;
use store_file::FileStoreConfig;
use types::{ObjectId, OstIndex, format_size};

use crate::cli;
use crate::daemon::{ClusterDir, on_shard};
use crate::failure::Failure;

/// Objects read at a time.
const OBJECTS_PER_READ: usize = 4096;
/// Findings of one kind that are printed; the rest is counted.
const SHOWN_MAX: usize = 1000;
/// Exit code when everything that was wrong was put right, as fsck(8) has it.
const CORRECTED: u8 = 1;
/// Exit code when something is wrong and stays so, as fsck(8) has it.
const UNCORRECTED: u8 = 4;

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
struct Checked {
    report: Report,
    strays: Vec<Stray>,
    /// Objects that the next recovery removes: no faults. A repair saves them like strays, in case they are not of creates
    /// that a crash undid, but newer than a metadata store that was put back from a copy.
    left_over: Vec<Stray>,
    faults: usize,
}

/// The verb `fsck`. Exit code 0: nothing is wrong; 1: it was put right; 4: something is wrong.
///
/// # Errors
/// A store is in use, damaged beyond reading, or another cluster's.
pub fn fsck(arguments: &cli::Fsck) -> Result<ExitCode, Failure> {
    let dir = ClusterDir::open(&arguments.dir)?;
    on_shard(cache::frames::FramePool::new(512 << 20), async |rt| {
        let found = check_all(&rt, &dir, arguments.data).await?;
        if found.faults == 0 && (found.left_over.is_empty() || !arguments.repair) {
            return Ok(ExitCode::SUCCESS);
        }
        if !arguments.repair {
            return Ok(ExitCode::from(UNCORRECTED));
        }
        let kv = open_metadata(&rt, &dir)?;
        let strays: Vec<Stray> = found.strays.into_iter().chain(found.left_over).collect();
        let done = mds::repair::repair(&kv, &found.report, &strays, rt.wall()).await;
        let done = done.map_err(|e| Failure::from(format!("repairing {}: {e}", dir.mdt().display())))?;
        drop(kv);
        for text in &done {
            note!("repaired: {text}");
        }
        note!("checking again");
        let left = check_all(&rt, &dir, arguments.data).await?;
        Ok(ExitCode::from(if left.faults == 0 { CORRECTED } else { UNCORRECTED }))
    })
}

async fn check_all(rt: &Rt, dir: &ClusterDir, data: bool) -> Result<Checked, Failure> {
    let mut faults = Faults::default();
    dir.check_mdt()?;
    let report = check_metadata(rt, dir, &mut faults).await?;
    let mut missing: BTreeSet<ObjectId> = report.objects.keys().copied().collect();
    let (mut strays, mut left_over) = (Vec::new(), Vec::new());
    let mut lost_through = BTreeMap::new();
    for index in 0..dir.osts() {
        if let Err(why) = dir.check_ost(rt, index).await {
            faults.note(&why);
            note_unreachable(index, &report, &mut missing);
            continue;
        }
        let identity = store_file::identity(rt, &dir.ost(index)).await;
        lost_through.insert(ObjectId::seq_of(OstIndex(index)), identity.map_or(0, |(_, lost)| lost));
        let found = check_ost(rt, dir, index, &report, data, &mut missing, &mut faults).await?;
        strays.extend(found.0);
        left_over.extend(found.1);
    }
    for object in &missing {
        let lost = lost_through.get(&object.0.seq).is_some_and(|last| object.0.oid <= *last);
        let why = if lost { "is lost with the store that its OST had before" } else { "is on no OST" };
        faults.note(&format!("object {object} of file {} {why}", report.objects[object]));
    }
    if faults.count > SHOWN_MAX {
        note!("... and {} more", faults.count - SHOWN_MAX);
    }
    note!("{} fault(s)", faults.count);
    Ok(Checked { report, strays, left_over, faults: faults.count })
}

/// Objects of an OST that is not there are not looked for; their number is said.
fn note_unreachable(index: u16, report: &Report, missing: &mut BTreeSet<ObjectId>) {
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

async fn check_metadata(rt: &Rt, dir: &ClusterDir, faults: &mut Faults) -> Result<Report, Failure> {
    let at = |path: &Path, e: &dyn std::fmt::Display| Failure::from(format!("{}: {e}", path.display()));
    let kv = open_metadata(rt, dir)?;
    let report = mds::check::check(&kv).await.map_err(|e| at(&dir.mdt(), &e))?;
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
    Ok(report)
}

async fn check_ost(
    rt: &Rt,
    dir: &ClusterDir,
    index: u16,
    report: &Report,
    data: bool,
    missing: &mut BTreeSet<ObjectId>,
    faults: &mut Faults,
) -> Result<(Vec<Stray>, Vec<Stray>), Failure> {
    let store = cluster::open_ost(rt, &dir.ost(index), dir.cluster, FileStoreConfig::default()).await;
    let store = store.map_err(|e| Failure::from(e.0))?;
    let doomed: BTreeSet<ObjectId> = report.doomed.iter().copied().collect();
    let failed = |e: types::FsError| Failure::with_errno(format!("{}: {e}", dir.ost(index).display()), e.errno());
    let (mut objects, mut bytes, mut strays) = (0u64, 0u64, Vec::new());
    let mut left_over = Vec::new();
    let mut after = ObjectId::default();
    loop {
        let page = store.objects(after, OBJECTS_PER_READ).await.map_err(failed)?;
        let Some(last) = page.last() else { break };
        after = last.object;
        for info in &page {
            objects += 1;
            bytes += info.attr.blocks * 4096;
            missing.remove(&info.object);
            let owned = report.objects.contains_key(&info.object) || doomed.contains(&info.object);
            if let Some(text) = unaccounted(index, info, owned) {
                if report.is_left_over(OstIndex(index), info.object) {
                    left_over.push(stray(index, info));
                } else {
                    faults.note(&text);
                    strays.push(stray(index, info));
                }
            }
            if data {
                check_blocks(&*store, index, info.object, faults).await.map_err(failed)?;
            }
        }
    }
    note!("OST{index:04x}: {objects} objects, {}", format_size(bytes));
    if !left_over.is_empty() {
        note!(
            "OST{index:04x}: recovery will remove {} object(s) with {}: what they were made for was not committed, or the \
             metadata store is an old copy; --repair moves them to lost+found instead",
            left_over.len(),
            format_size(left_over.iter().map(|s| s.size).sum())
        );
    }
    store.close().await.map_err(failed)?;
    Ok((strays, left_over))
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

async fn check_blocks(
    store: &dyn ObjectStore,
    index: u16,
    object: ObjectId,
    faults: &mut Faults,
) -> Result<(), types::FsError> {
    for bad in store.verify(object).await? {
        faults.note(&format!("OST{index:04x}: object {object}: {bad:?}"));
    }
    Ok(())
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
