//! `stria fsck`: the stores of a stopped cluster in its directory, checked and repaired by the crate `fsck`.
//!
//! Decides where the stores are, what is printed and which exit code tells what; what is a fault, and what becomes of one, is that
//! crate's (`docs/internals/integrity.md`).
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use fsck::{Outcome, Store, Stores};
use mds::MetaKv;
use rt::Rt;

use crate::cli;
use crate::daemon::{ClusterDir, on_shard};
use crate::failure::Failure;

/// Memory for pages of a database that is read.
const CACHE_BYTES: usize = 64 << 20;
/// Exit code when everything that was wrong was put right, as fsck(8) has it.
const CORRECTED: u8 = 1;
/// Exit code when something is wrong and stays so, as fsck(8) has it.
const UNCORRECTED: u8 = 4;
/// Exit code when nothing could be said, as fsck(8) has it.
const NOT_CHECKED: u8 = 8;

/// The stores of a cluster's directory.
struct Here {
    rt: Rt,
    dir: ClusterDir,
}

impl Here {
    fn store(&self, dir: PathBuf) -> Store {
        Store { rt: self.rt.clone(), dir }
    }
}

impl Stores for Here {
    fn cluster(&self) -> u64 {
        self.dir.cluster
    }
    fn fsname(&self) -> &str {
        self.dir.fsname.as_str()
    }
    fn mdt_uuid(&self) -> Option<u64> {
        self.dir.mdt_identity().map(|(_, uuid)| uuid)
    }
    fn mdt(&self) -> Store {
        self.store(self.dir.mdt())
    }
    async fn mdt_elsewhere(&self) -> Result<Option<Rc<dyn MetaKv>>, String> {
        let place = store_pg::Place::of_dir(&self.dir.mdt()).map_err(|e| e.to_string())?;
        match place {
            Some(_) => self.dir.try_open_mdt(&self.rt).await.map(Some).map_err(|e| e.to_string()),
            None => Ok(None),
        }
    }
    fn osts(&self) -> Vec<u16> {
        self.dir.ost_indices()
    }
    fn removed(&self) -> Vec<u16> {
        (0..self.dir.index_end()).filter(|i| self.dir.is_struck_out(*i)).collect()
    }
    fn ost(&self, index: u16) -> Store {
        self.store(self.dir.ost(index))
    }
    async fn is_in_place(&self, index: u16) -> Result<(), String> {
        self.dir.check_ost(&self.rt, index).await
    }
    fn cache_bytes(&self) -> usize {
        CACHE_BYTES
    }
    fn say(&self, text: &str) {
        note!("{text}");
    }
}

/// The verb `fsck`. Exit code 0: nothing is wrong; 1: it was put right; 4: something is wrong, or lies on OSTs that are not
/// of the directory; 8: that cannot be said.
///
/// # Errors
/// A store is in use, damaged beyond reading, or another cluster's.
pub fn fsck(arguments: &cli::Fsck) -> Result<ExitCode, Failure> {
    check_and_repair(arguments).map_err(|e| e.exiting(NOT_CHECKED))
}

fn check_and_repair(arguments: &cli::Fsck) -> Result<ExitCode, Failure> {
    let dir = ClusterDir::open(&arguments.dir)?;
    on_shard(frames::FramePool::new(512 << 20), async |rt| {
        dir.check_mdt()?;
        if arguments.repair {
            dir.check_unlisted(&rt).await?;
        }
        let stores = Here { rt, dir };
        let outcome = fsck::run(&stores, arguments.data, arguments.repair).await.map_err(|e| Failure::from(e.0))?;
        Ok(match outcome {
            Outcome::Clean => ExitCode::SUCCESS,
            Outcome::Corrected => ExitCode::from(CORRECTED),
            Outcome::Uncorrected => ExitCode::from(UNCORRECTED),
        })
    })
}
