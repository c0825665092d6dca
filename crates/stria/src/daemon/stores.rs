//! The stores of a cluster's directory: which belong to it, whether what lies in their places is them, making and
//! replacing them.
//!
//! A store is made once, by `mkfs` or by the `up` that makes the whole cluster, and written down with its identity in
//! `cluster.toml`. From then on a store that is not there is missing, whatever else lies in its place: a disk that is not
//! mounted must never be taken for an empty OST.
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use cluster::{MdtError, empty_mdt, format_mdt, format_ost_store};
use mds::MetaKv;
use mds::kv::KvError;
use oss::store::StoreIdentity;
use rt::Rt;
use types::OstIndex;

use super::dir::{ClusterDir, sync_dir};
use super::settings::{is_inside, refuse_inside};
use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::out::word;

/// What a file system has in an empty root directory.
const OF_AN_EMPTY_DISK: &str = "lost+found";
/// What the making of an OST's store begins with, and its last file.
const BEGUN_WITH: &str = "meta.redb";
const LAST_FILE: &str = "data";
/// What a server leaves that tried to open what was begun.
const OF_A_TRY: &str = "lock";
/// What the making of a metadata store in a file begins with.
const OF_A_BEGUN_MDT: [&str; 3] = [store_redb::STORE_FILE, "mdt.redb.whole", OF_A_TRY];

/// The OSTs of a cluster's directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Osts {
    /// Those whose stores are in their places.
    pub here: Vec<u16>,
    /// Those that cannot be served, and why: a sentence each.
    pub away: Vec<(u16, String)>,
}

impl Osts {
    /// So many, all in their places.
    #[must_use]
    pub fn all(count: u16) -> Osts {
        Osts { here: (0..count).collect(), away: Vec::new() }
    }

    /// Those cannot be served either.
    pub fn leave(&mut self, left: &[(u16, String)]) {
        self.here.retain(|i| left.iter().all(|(l, _)| l != i));
        self.away.extend_from_slice(left);
    }

    /// Indices of those that cannot be served.
    #[must_use]
    pub fn away_indices(&self) -> Vec<OstIndex> {
        self.away.iter().map(|(i, _)| OstIndex(*i)).collect()
    }
}

/// The database that the settings name for the metadata store, if they name one.
fn database_of(config: &Config) -> Result<Option<store_pg::Place>, Failure> {
    if config.mdt_store.is_empty() {
        return Ok(None);
    }
    let passfile = Some(&config.mdt_passfile).filter(|p| !p.is_empty()).map(std::path::absolute).transpose();
    let passfile = passfile.map_err(|e| Failure::usage(format!("mdt.passfile: {e}")))?;
    let place = store_pg::Place::parse(&config.mdt_store, passfile.as_deref());
    place.map(Some).map_err(|e| Failure::usage(format!("mdt.store: {e}")))
}

/// Whether OST stores of this kind lie in directories.
fn on_disk(config: &Config) -> bool {
    !matches!(config.store_kind.as_str(), "memory" | "null")
}

impl ClusterDir {
    /// Makes the stores of a new cluster, or goes on with making them where it was interrupted. A directory of an earlier
    /// format is taken over: what is there is written down. Changes nothing otherwise.
    ///
    /// # Errors
    /// A store cannot be made; those made before it stay. `osts` is not the number of OSTs that there are.
    pub async fn complete(&mut self, rt: &Rt, osts: Option<u16>, config: &Config) -> Outcome {
        self.make_private(&rt.secret_bytes())?;
        if !self.is_registered() {
            self.take_over(rt, config).await?;
        }
        if let Some(count) = self.making() {
            let count = osts.unwrap_or(count);
            self.make_mdt(rt, config).await?;
            let all: Vec<u16> = (0..count).collect();
            self.make_osts(rt, &all, config).await?;
            self.made()?;
        }
        self.end_removal(rt).await?;
        let have = self.osts();
        match osts.filter(|n| *n != have) {
            None => Ok(()),
            Some(n) if n < have => Err(Failure::usage(format!(
                "--osts {n}: {} has {have} OSTs, and none is taken away here: leave --osts out, or say {have}; 'stria ost drain' and 'stria ost remove' take one out",
                self.path().display()
            ))),
            Some(n) => Err(Failure::usage(format!(
                "--osts {n}: {at} has {have} OSTs: 'stria mkfs --dir {dir} --osts {n}' adds what is missing, 'stria ost add --dir {dir}' also while it runs",
                at = self.path().display(),
                dir = word(self.path())
            ))),
        }
    }

    /// An OST that was about to leave when whoever took it out was interrupted has left or stays, as the metadata store says. One that is in
    /// use says nothing: the command is given again.
    async fn end_removal(&mut self, rt: &Rt) -> Outcome {
        let Some(ost) = self.leaving() else { return Ok(()) };
        let Ok(kv) = self.open_mdt(rt).await else { return Ok(()) };
        let known = mds::replace::stores(&kv).await.map_err(|e| self.mdt_failed(&e))?;
        drop(kv);
        if known.removed.contains(&OstIndex(ost)) { self.strike_out(ost) } else { self.note_leaving(None) }
    }

    /// Adds OSTs up to `count`, behind all indices that there ever were.
    ///
    /// # Errors
    /// A store cannot be made; those made before it stay.
    pub async fn add_osts(&mut self, rt: &Rt, count: u16, config: &Config) -> Outcome {
        let mut all = self.ost_indices();
        let more = count.saturating_sub(all.len() as u16);
        all.extend((self.index_end()..).take(usize::from(more)));
        self.make_osts(rt, &all, config).await
    }

    async fn take_over(&mut self, rt: &Rt, config: &Config) -> Outcome {
        refuse_store_inside(&self.mdt(), &[store_redb::STORE_FILE])?;
        let mut found = Vec::new();
        if !is_empty(&self.mdt()) {
            // The cluster map knows every store that ever served, also those that are not there today.
            let known = mds::replace::stores(&self.open_mdt(rt).await?).await.map_err(|e| self.mdt_failed(&e))?;
            if known.cluster == self.cluster {
                found.push(("mdt0".to_string(), known.uuid));
                found.extend(known.osts.iter().map(|(ost, uuid)| (format!("ost{}", ost.0), *uuid)));
            }
        }
        for i in self.ost_indices() {
            if let Ok((identity, _)) = self.identity_of(rt, i).await
                && identity.cluster == self.cluster
                && identity.ost == OstIndex(i)
                && found.iter().all(|(name, _)| *name != format!("ost{i}"))
            {
                found.push((format!("ost{i}"), identity.uuid));
            }
        }
        self.register(found)?;
        self.keep_settings(config)
    }

    async fn make_mdt(&mut self, rt: &Rt, config: &Config) -> Outcome {
        if config.store_kind == "memory" || self.uuid_of("mdt0").is_some() {
            return Ok(());
        }
        refuse_store_inside(&self.mdt(), &[store_redb::STORE_FILE])?;
        clear_begun_mdt(rt, &self.mdt()).await?;
        if !is_empty(&self.mdt()) {
            // Made, but not written down when an earlier try ended.
            let known = mds::replace::stores(&self.open_mdt(rt).await?).await.map_err(|e| self.mdt_failed(&e))?;
            if known.cluster == self.cluster {
                return self.register(vec![("mdt0".into(), known.uuid)]);
            }
        }
        // SAFETY: plain system calls without arguments.
        let owner = unsafe { (libc::geteuid(), libc::getegid()) };
        let (database, place) = (database_of(config)?, Place::begin(&self.mdt())?);
        let uuid = format_mdt(rt, &place.at, database.as_ref(), &self.fsname, self.cluster, owner).await;
        let uuid = uuid.map_err(|e| Failure::from(e.to_string()))?;
        place.finish()?;
        self.register(vec![("mdt0".into(), uuid)])
    }

    /// Makes the stores of these OSTs, but for those that there are.
    ///
    /// # Errors
    /// A store cannot be made; those made before it stay.
    pub async fn make_osts(&mut self, rt: &Rt, indices: &[u16], config: &Config) -> Outcome {
        for i in indices.iter().copied() {
            let name = format!("ost{i}");
            if self.uuid_of(&name).is_some() {
                continue;
            }
            let mut identity = self.new_identity(rt, i);
            if on_disk(config) {
                refuse_store_inside(&self.ost(i), &cluster::OST_FILES)?;
                match self.identity_of(rt, i).await {
                    // Made, but not written down when an earlier try ended.
                    Ok((there, _)) if there.cluster == self.cluster && there.ost == OstIndex(i) => identity = there,
                    _ => self.make_ost(rt, identity.clone(), config, 0).await?,
                }
            }
            self.register(vec![(name, identity.uuid)])?;
        }
        Ok(())
    }

    /// Makes the metadata store of a copy, in its place, which is empty, or in the database that `config` names.
    ///
    /// # Errors
    /// Something is there, or runs; the file is no such copy of this store, or damaged. Nothing is in the place then.
    pub async fn refill_mdt(
        &self,
        rt: &Rt,
        file: &Path,
        kind: mds::backup::Kind,
        config: &Config,
    ) -> Result<mds::backup::Header, Failure> {
        let at = self.mdt();
        if let Some(p) = self.processes().into_iter().find(|p| p.runs() && matches!(&*p.name, "up" | "mdt0")) {
            let (name, pid, at) = (p.name, p.pid, self.path().display());
            let why = format!("{name} (process {pid}) runs on {at}: 'stria stop --dir {}' first", word(self.path()));
            return Err(Failure::with_errno(why, libc::EBUSY));
        }
        refuse_store_inside(&at, &[store_redb::STORE_FILE])?;
        if !is_empty(&at) {
            let why = format!("{} is not empty: move what is there away first", at.display());
            return Err(Failure::with_errno(why, libc::ENOTEMPTY));
        }
        let identity = self.mdt_identity();
        let identity = identity.ok_or_else(|| format!("{} names no metadata store", self.path().display()))?;
        let (database, place) = (database_of(config)?, Place::begin(&at)?);
        let kv = empty_mdt(rt, &place.at, database.as_ref(), &self.fsname, identity).await;
        let kv = kv.map_err(|e| Failure::from(e.to_string()))?;
        let least = mds::backup::Numbers::at(rt.wall(), self.put_back_boot());
        let restored = mds::backup::restore_above(rt, file, &kv, identity, kind, least).await;
        let (header, boot) = restored.map_err(|e| Failure::from(format!("{}: {e}", file.display())))?;
        if kind == mds::backup::Kind::Backup {
            self.name_replaced(rt, &kv).await?;
            self.name_removed(&kv).await?;
            ClusterDir::open(self.path())?.note_put_back(boot)?;
        }
        drop(kv);
        place.finish()?;
        Ok(header)
    }

    /// OSTs that got a new store after a copy was made are known by that one in the store that was made of the copy.
    async fn name_replaced(&self, rt: &Rt, kv: &Rc<dyn MetaKv>) -> Outcome {
        let failed = |e: KvError| self.mdt_failed(&e);
        for (ost, uuid) in mds::replace::stores(kv).await.map_err(failed)?.osts {
            let Some(now) = self.uuid_of(&format!("ost{}", ost.0)).filter(|now| *now != uuid) else { continue };
            let lost = match self.identity_of(rt, ost.0).await {
                Ok((there, lost)) if there.uuid == now => lost,
                _ => mds::replace::last_object(kv, ost).await.map_err(failed)?,
            };
            mds::replace::replaced_since(kv, ost, now, lost).await.map_err(failed)?;
            note!("OST{:04x} has another store since the copy was made: objects of before are lost", ost.0);
        }
        Ok(())
    }

    /// OSTs that left after a copy was made are listed by the store that was made of the copy: nobody waits for them.
    async fn name_removed(&self, kv: &Rc<dyn MetaKv>) -> Outcome {
        let failed = |e: KvError| self.mdt_failed(&e);
        for (ost, _) in mds::replace::stores(kv).await.map_err(failed)?.osts {
            if !self.is_struck_out(ost.0) {
                continue;
            }
            let remedy = format!(
                "'stria fsck --repair --dir {}' on the stopped cluster gives these files up and moves what is newer on other OSTs to lost+found; then 'stria ost remove {}' takes it out again",
                word(self.path()),
                ost.0
            );
            let what = "it was removed after the backup that was put back was made: what files had there then is EIO";
            mds::replace::removed_since(kv, ost, &format!("{what}. {remedy}")).await.map_err(failed)?;
            note!("OST{:04x} was removed since the copy was made: {remedy}", ost.0);
        }
        Ok(())
    }

    /// What lies in the place of an OST, unless that is on a mount of Stria.
    async fn identity_of(&self, rt: &Rt, index: u16) -> Result<(StoreIdentity, u32), Failure> {
        let at = self.ost(index);
        refuse_store_inside(&at, &cluster::OST_FILES)?;
        store_file::identity(rt, &at).await.map_err(|e| Failure::from(e.to_string()))
    }

    /// Opens the metadata store; `InUse`: a server has it.
    pub(crate) async fn try_open_mdt(&self, rt: &Rt) -> Result<Rc<dyn MetaKv>, MdtError> {
        cluster::open_mdt(rt, &self.mdt(), self.mdt_identity()).await
    }
    pub(crate) async fn open_mdt(&self, rt: &Rt) -> Result<Rc<dyn MetaKv>, Failure> {
        self.try_open_mdt(rt).await.map_err(|e| Failure::from(e.to_string()))
    }

    /// Refuses a setting that says the metadata store is elsewhere than it is.
    ///
    /// # Errors
    /// That it is.
    pub fn check_engine(&self, config: &Config) -> Outcome {
        let Some(wanted) = database_of(config)? else { return Ok(()) };
        let there = store_pg::Place::of_dir(&self.mdt()).map_err(|e| Failure::from(e.to_string()))?;
        let at = self.mdt().join(store_pg::PLACE_FILE);
        match there {
            Some(there) if there == wanted => Ok(()),
            Some(there) => Err(Failure::usage(format!(
                "mdt.store: '{wanted}', but the metadata store is in '{there}', as {} says: leave the setting out, or change that file when the database has moved",
                at.display()
            ))),
            None => Err(Failure::usage(format!(
                "mdt.store: '{wanted}', but the metadata store is in {}: 'stria mdt export' and 'stria mdt import' move it",
                self.mdt().display()
            ))),
        }
    }
    fn mdt_failed(&self, e: &KvError) -> Failure {
        Failure::from(format!("{}: {e}", self.mdt().display()))
    }

    fn new_identity(&self, rt: &Rt, index: u16) -> StoreIdentity {
        StoreIdentity { cluster: self.cluster, fsname: self.fsname.clone(), ost: OstIndex(index), uuid: rt.random() }
    }

    async fn make_ost(&self, rt: &Rt, identity: StoreIdentity, config: &Config, lost_through: u32) -> Outcome {
        let place = Place::begin(&self.ost(identity.ost.0))?;
        let made = format_ost_store(rt, &place.at, identity, config.store_capacity_bytes, lost_through).await;
        made.map_err(|e| Failure::from(e.0))?;
        place.finish()
    }

    /// Which OSTs can be served: those whose stores lie in their places, without those that are left out on purpose.
    ///
    /// # Errors
    /// An OST that is to be left out is none of this cluster's; the metadata store is missing.
    pub async fn examine(&self, rt: &Rt, config: &Config, without: &[u16]) -> Result<Osts, Failure> {
        if let Some(wrong) = without.iter().find(|i| !self.has_ost(**i)) {
            let (at, have) = (self.path().display(), self.osts());
            return Err(Failure::with_errno(
                format!("--without-ost {wrong}: {at} has {have} OSTs ({})", self.indices_text()),
                libc::ENOENT,
            ));
        }
        if config.store_kind != "memory" {
            self.check_mdt()?;
            self.check_engine(config)?;
        }
        if on_disk(config) {
            self.check_unlisted(rt).await?;
        } else {
            self.check_unused(config)?;
        }
        let mut osts = Osts::default();
        for i in self.ost_indices() {
            if without.contains(&i) {
                osts.away.push((i, format!("OST {i} is left out (--without-ost {i})")));
                continue;
            }
            match if on_disk(config) { self.check_ost(rt, i).await } else { Ok(()) } {
                Ok(()) => osts.here.push(i),
                Err(why) => osts.away.push((i, why)),
            }
        }
        Ok(osts)
    }

    /// Refuses OSTs without stores where there are stores: whoever changed the kind would find none of the bytes that are there, and keep none.
    ///
    /// # Errors
    /// There is one.
    fn check_unused(&self, config: &Config) -> Outcome {
        let Some(i) = self.ost_indices().into_iter().find(|i| !is_free(&self.ost(*i))) else { return Ok(()) };
        Err(Failure::usage(format!(
            "store.kind = {}, but {} has what is kept on a disk: put 'store.kind' of {} back (\"file\", if nobody set another)",
            config.store_kind,
            self.ost(i).display(),
            self.path().join("cluster.toml").display()
        )))
    }

    /// Refuses stores of the cluster that its description does not name, as one of before they were added does: files there would be
    /// waited for, and a repair would not look at their objects. One that nobody has opened yet was made by a command that died then.
    ///
    /// # Errors
    /// There is one.
    pub async fn check_unlisted(&self, rt: &Rt) -> Outcome {
        for index in self.index_end()..self.osts_present() {
            let dir = self.ost(index);
            let Ok((found, _)) = self.identity_of(rt, index).await else { continue };
            if (found.cluster, found.ost) == (self.cluster, OstIndex(index)) && is_unused(&dir) {
                tracing::warn!(
                    "OST {index}: {} was made, and nobody has used it: 'stria ost add --dir {}' takes it in",
                    dir.display(),
                    word(self.path())
                );
                continue;
            }
            if (found.cluster, found.ost) == (self.cluster, OstIndex(index)) {
                let why = format!(
                    "{} is the store of OST {index} of this cluster, and {} does not name it (a copy of before the OST was added?): put the right one back, or write 'ost{index} = \"{:016x}\"' below its [stores]",
                    dir.display(),
                    self.path().join("cluster.toml").display(),
                    found.uuid
                );
                return Err(Failure::with_errno(why, libc::EINVAL));
            }
        }
        Ok(())
    }

    /// Refuses a directory without the metadata store that belongs there. Whether what is there is the right one is
    /// judged when it is opened.
    ///
    /// # Errors
    /// It is not there, or on a mount of Stria.
    pub fn check_mdt(&self) -> Outcome {
        refuse_store_inside(&self.mdt(), &[store_redb::STORE_FILE])?;
        if !is_empty(&self.mdt()) {
            return Ok(());
        }
        let why = format!(
            "the metadata store of '{}' is not in {} ({}): put it back; without it the file system cannot be read",
            self.fsname,
            self.mdt().display(),
            what_is_there(&self.mdt())
        );
        Err(Failure::with_errno(why, libc::ENOENT))
    }

    /// Whether the store of an OST lies in its place; if not, a sentence that says what does, and what can be done.
    ///
    /// # Errors
    /// That sentence.
    pub async fn check_ost(&self, rt: &Rt, index: u16) -> Result<(), String> {
        let (dir, wanted) = (self.ost(index), self.uuid_of(&format!("ost{index}")));
        let remedy = format!(
            "put it back, or give up its files for good: 'stria ost replace {index} --dir {}'",
            word(self.path())
        );
        if is_free(&dir) {
            let what = what_is_there(&dir);
            return Err(format!("OST {index}: its store is not in {} ({what}): {remedy}", dir.display()));
        }
        let found = match self.identity_of(rt, index).await {
            Ok((found, _)) => found,
            Err(_) if is_headless(&dir) => {
                return Err(format!(
                    "OST {index}: of the store in {at} the file {LAST_FILE} is missing or empty: put that back, or move {at} away and give up its files for good: 'stria ost replace {index} --dir {}'",
                    word(self.path()),
                    at = dir.display()
                ));
            }
            Err(e) => return Err(format!("OST {index}: {e}")),
        };
        let at = dir.display();
        if found.cluster != self.cluster {
            return Err(format!(
                "OST {index}: the store in {at} belongs to cluster {:016x} (its OST {}), this is cluster {:016x}: {remedy}",
                found.cluster, found.ost.0, self.cluster
            ));
        }
        if found.ost != OstIndex(index) {
            return Err(format!(
                "OST {index}: the store in {at} is OST {} of this cluster (were two directories swapped?): {remedy}",
                found.ost.0
            ));
        }
        match wanted {
            Some(uuid) if uuid != found.uuid => Err(format!(
                "OST {index}: the store in {at} is {:016x}, this cluster's OST {index} is {uuid:016x} (an old disk?): {remedy}",
                found.uuid
            )),
            _ => Ok(()),
        }
    }

    /// Makes a new store for an OST whose own is lost. Its index and its place stay, its objects are known as lost from
    /// then on.
    ///
    /// # Errors
    /// The OST's store is in its place; something else is; the metadata store is in use or cannot be written.
    pub async fn replace_ost(&mut self, rt: &Rt, index: u16, config: &Config) -> Result<u32, Failure> {
        self.check_mdt()?;
        let kv = self.open_mdt(rt).await?;
        if let Some(there) = self.made_replacement(rt, index).await {
            let known = mds::replace::stores(&kv).await.map_err(|e| self.mdt_failed(&e))?;
            if known.osts.contains(&(OstIndex(index), there)) {
                // Made, but not written down when an earlier try ended.
                self.register(vec![(format!("ost{index}"), there)])?;
                let lost = mds::replace::last_object(&kv, OstIndex(index)).await;
                return lost.map_err(|e| self.mdt_failed(&e));
            }
        }
        self.may_replace(rt, index, config).await?;
        let lost = mds::replace::last_object(&kv, OstIndex(index)).await.map_err(|e| self.mdt_failed(&e))?;
        let uuid = rt.random();
        // The map first: a store that the map does not know yet would be refused, one that it waits for is made by the
        // next try.
        let replaced = mds::replace::replace_ost(&kv, OstIndex(index), uuid, lost).await;
        replaced.map_err(|e| self.mdt_failed(&e))?;
        drop(kv);
        self.make_replacement(rt, index, config, (uuid, lost)).await?;
        Ok(lost)
    }

    /// Whether a new store may be made for an OST whose own is lost.
    ///
    /// # Errors
    /// There is no such OST here; its place is not empty.
    pub async fn may_replace(&self, rt: &Rt, index: u16, config: &Config) -> Outcome {
        if !on_disk(config) {
            let kind = &config.store_kind;
            return Err(Failure::usage(format!("OST {index}: OSTs of kind {kind} have nothing to replace")));
        }
        if !self.has_ost(index) {
            let (at, have) = (self.path().display(), self.osts());
            let why = format!("OST {index}: {at} has {have} OSTs ({})", self.indices_text());
            return Err(Failure::with_errno(why, libc::ENOENT));
        }
        let dir = self.ost(index);
        if is_free(&dir) {
            return Ok(());
        }
        let what = match self.check_ost(rt, index).await {
            Ok(()) => "the store of this OST is there".to_string(),
            Err(why) => why,
        };
        let why = format!("OST {index}: {} is not empty ({what}): move it away first", dir.display());
        Err(Failure::with_errno(why, libc::ENOTEMPTY))
    }

    /// Makes the store that the metadata server has as an OST's from now on: its uuid, and the highest object that the lost one may have held.
    ///
    /// # Errors
    /// The store cannot be made or written down.
    pub async fn make_replacement(
        &mut self,
        rt: &Rt,
        index: u16,
        config: &Config,
        (uuid, lost): (u64, u32),
    ) -> Outcome {
        let identity = StoreIdentity { uuid, ..self.new_identity(rt, index) };
        self.make_ost(rt, identity, config, lost).await?;
        self.register(vec![(format!("ost{index}"), uuid)])
    }

    /// The store of an OST, if it lies in its place as it is written down.
    pub async fn own_store(&self, rt: &Rt, index: u16) -> Option<u64> {
        let uuid = self.uuid_of(&format!("ost{index}"))?;
        self.check_ost(rt, index).await.is_ok().then_some(uuid)
    }

    /// The store that an interrupted replacement has made, if one lies in an OST's place that is not written down yet.
    pub async fn made_replacement(&self, rt: &Rt, index: u16) -> Option<u64> {
        let (there, _) = self.identity_of(rt, index).await.ok()?;
        let is_other = self.uuid_of(&format!("ost{index}")) != Some(there.uuid);
        (is_other && there.cluster == self.cluster && there.ost == OstIndex(index)).then_some(there.uuid)
    }
}

/// Whether a store may be made in a directory: it is not there, or holds nothing.
fn is_empty(dir: &Path) -> bool {
    match fs::read_dir(dir) {
        Ok(entries) => entries.flatten().all(|e| e.file_name() == OF_AN_EMPTY_DISK),
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    }
}

/// Whether the store of an OST may be made in a directory: it is empty, or a making that was interrupted began there. None is made on a
/// mount of Stria, where nothing is looked at.
pub(crate) fn is_free(dir: &Path) -> bool {
    !is_inside(dir) && (is_empty(dir) || is_begun(dir))
}

/// Refuses a store on a mount of Stria: its directory, or files of it that are links to another device.
pub(super) fn refuse_store_inside(dir: &Path, files: &[&str]) -> Outcome {
    refuse_inside(dir)?;
    files.iter().try_for_each(|file| refuse_inside(&dir.join(file)).map(drop))
}

/// Whether a directory holds what is left of a store that was made in its place by a command that died: the database, and no head of the
/// data file, which is written last. A store that ever served has more files than these, and data behind that block: it is none of these
/// however damaged it is.
fn is_begun(dir: &Path) -> bool {
    let began = dir.join(BEGUN_WITH).exists();
    began && holds_only(dir, &[BEGUN_WITH, LAST_FILE, OF_A_TRY]) && is_headless(dir)
}

/// Whether all that a directory holds are files of these names, and what an empty disk has.
fn holds_only(dir: &Path, names: &[&str]) -> bool {
    let Ok(mut entries) = fs::read_dir(dir) else { return false };
    entries.all(|entry| {
        entry.is_ok_and(|e| {
            let (name, is_file) = (e.file_name(), e.file_type().is_ok_and(|t| t.is_file()));
            name == OF_AN_EMPTY_DISK || (is_file && names.iter().any(|n| name == *n))
        })
    })
}

/// Takes away what is left of a metadata store that was made in its place, a mounted disk, by a command that ended before it was one.
async fn clear_begun_mdt(rt: &Rt, dir: &Path) -> Outcome {
    if is_empty(dir) || !holds_only(dir, &OF_A_BEGUN_MDT) {
        return Ok(());
    }
    if store_redb::is_unmade(rt, dir).await.map_err(|e| Failure::from(e.to_string()))? {
        for path in OF_A_BEGUN_MDT.map(|name| dir.join(name)) {
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Failure::io("removing", &path, &e)),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Whether the store in a directory was never opened, and has room for nothing but its head.
fn is_unused(dir: &Path) -> bool {
    let never_opened = !dir.join(store_file::EPOCH_FILE).exists();
    let bytes = fs::metadata(dir.join(LAST_FILE)).map_or(u64::MAX, |m| m.len());
    never_opened && bytes <= oss::store::BLOCK_BYTES
}

/// Whether nothing was written into the data file of a directory.
fn is_headless(dir: &Path) -> bool {
    let file = dir.join(LAST_FILE);
    match fs::symlink_metadata(&file) {
        Err(e) => e.kind() == io::ErrorKind::NotFound,
        Ok(meta) => {
            let is_short = meta.is_file() && meta.len() <= oss::store::BLOCK_BYTES;
            is_short && fs::read(&file).is_ok_and(|bytes| bytes.iter().all(|b| *b == 0))
        }
    }
}

fn what_is_there(dir: &Path) -> &'static str {
    match dir.exists() {
        _ if is_begun(dir) => "a command that was interrupted began to make one there",
        true => "the directory is empty: is its disk mounted?",
        false => "there is no such directory",
    }
}

fn clear(dir: &Path) -> Outcome {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Failure::io("removing", dir, &e)),
        _ => Ok(()),
    }
}

/// Where a store is made before it gets its name, so that a store that is there is whole. A directory that a disk is
/// mounted on cannot be renamed: there it is made in its place, and is none until its last file is written.
struct Place {
    at: PathBuf,
    dir: PathBuf,
}

impl Place {
    fn begin(dir: &Path) -> Result<Place, Failure> {
        refuse_inside(dir)?;
        if !is_free(dir) {
            let why = format!("{} is not empty: a store is made in an empty directory", dir.display());
            return Err(Failure::with_errno(why, libc::ENOTEMPTY));
        }
        let device = |p: &Path| fs::metadata(p).map(|m| m.dev()).ok();
        let mounted = dir.is_dir() && device(dir) != dir.parent().and_then(device);
        // What was begun in its place is taken up there, too.
        let in_place = mounted || is_begun(dir);
        let at = if in_place { dir.to_path_buf() } else { dir.with_extension("making") };
        if !in_place {
            // What an earlier try left there (the disk was full, the power went).
            clear(&at)?;
        }
        Ok(Place { at, dir: dir.into() })
    }
    fn finish(self) -> Outcome {
        // A disk's own directory was not made here.
        let closed = fs::set_permissions(&self.at, fs::Permissions::from_mode(0o700));
        closed.map_err(|e| Failure::io("closing to other users", &self.at, &e))?;
        sync_dir(&self.at)?;
        if self.at != self.dir {
            fs::rename(&self.at, &self.dir).map_err(|e| Failure::io("naming", &self.dir, &e))?;
        }
        self.dir.parent().map_or(Ok(()), sync_dir)
    }
}
