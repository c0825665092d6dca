//! Which file an object or an inode is of, as far as that can be found out: objects do not know it.
//!
//! Of metadata requests the inode is known, and its path asked for. An object is looked for in the layouts of the inodes that
//! were opened of late, which the metadata target's ring names.
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde_json::json;
use trace::why::{MDT, place_of};
use trace::{Record, Target};
use types::{Fid, ObjectId};
use wire::Op;

use super::{Found, Meant};
use crate::control;
use crate::failure::{Failure, Outcome};

/// Inodes whose layouts are looked at for an object.
const INODES_MAX: usize = 64;

/// The objects of a file by the OST's index; none where it has no layout.
pub(super) fn objects_of(path: &Path) -> Outcome<Vec<(u32, ObjectId)>> {
    let Some(bytes) = crate::lfs::stored_layout(path)? else { return Ok(Vec::new()) };
    let (_, layout) = layout::xattr::decode_layout(&bytes).map_err(|e| {
        Failure::with_errno(format!("{}: its layout cannot be read: {e}", path.display()), libc::EBADMSG)
    })?;
    Ok(layout.objects().iter().map(|o| (u32::from(o.ost.0), o.object)).collect())
}

/// Names of what requests touched.
#[derive(Default)]
pub(super) struct Names(HashMap<(u32, ObjectId), PathBuf>);

impl Names {
    /// For `shown`, which is of what is `meant`; a trace without a mount has no names.
    pub fn of(meant: &Meant, shown: &[Found<'_>], targets: &[Target], connection: Option<u32>) -> Names {
        let mut names = Names::default();
        if let Meant::File { path, fid, objects } = meant {
            names.0.extend(objects.iter().map(|o| (*o, path.clone())));
            names.0.insert((MDT, ObjectId(*fid)), path.clone());
            return names;
        }
        let Some(connection) = connection else { return names };
        let touched = |f: &Found<'_>| (place_of(f.target.name()), f.record.object);
        let wanted: BTreeSet<(u32, ObjectId)> = shown.iter().filter(|f| !f.at_client).map(touched).collect();
        for (_, inode) in wanted.iter().filter(|(place, _)| *place == MDT) {
            if let Some(path) = path_of(connection, inode.0) {
                names.0.insert((MDT, *inode), path);
            }
        }
        let inodes = if wanted.iter().all(|(place, _)| *place == MDT) { Vec::new() } else { opened(targets) };
        for inode in inodes {
            let Some(path) = path_of(connection, inode) else { continue };
            // One that is gone by now, or may not be looked at, has no name to give.
            let objects = if path.is_file() { objects_of(&path).unwrap_or_default() } else { Vec::new() };
            names.0.extend(objects.into_iter().map(|o| (o, path.clone())));
            if wanted.iter().all(|w| names.0.contains_key(w)) {
                break;
            }
        }
        names
    }

    /// The file that a request touched.
    pub fn find(&self, target: &Target, record: &Record) -> Option<&Path> {
        self.0.get(&(place_of(target.name()), record.object)).map(PathBuf::as_path)
    }
}

/// Inodes that were opened or made of late, the last ones first.
fn opened(targets: &[Target]) -> Vec<Fid> {
    let of_mdt = targets.iter().filter(|t| place_of(t.name()) == MDT).flat_map(|t| t.records.iter().rev());
    let mut seen = BTreeSet::new();
    let opens = of_mdt.filter(|r| matches!(r.op, Op::MdtOpen | Op::MdtCreate | Op::MdtClose) && r.errno == 0);
    opens.map(|r| r.object.0).filter(|fid| seen.insert(*fid)).take(INODES_MAX).collect()
}

fn path_of(connection: u32, fid: Fid) -> Option<PathBuf> {
    let answer = control::ask(connection, &json!({"do": "fid2path", "fid": fid.to_string()})).ok()?;
    let path = answer["paths"].as_array()?.first()?.as_str()?;
    Some(Path::new(answer["mount_point"].as_str()?).join(path))
}
