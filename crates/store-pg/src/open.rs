//! Opening a store: looking whose it is, waiting for its server's lease to end, taking its epoch.
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use mds::kv::MetaKv;
use mds::record::Superblock;
use mds::{FormatError, MkfsOptions};
use rt::Rt;
use tokio::sync::mpsc;
use types::{Duration, Instant, Origin};

use crate::PgKv;
use crate::link::{StoreRow, Trouble};
use crate::memory::State;
use crate::place::Place;
use crate::snapshot::Engine;
use crate::worker::{self, Claim, Command, Shared};

/// Pause between two looks at a lease that is held, and at a database that does not answer.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a store is tried to be taken whose database has answered and does not any more, or has others' transactions in the way. More
/// than a lease: what was sent before a connection ended may have taken the store, and is waited for.
const TRIED_FOR: Duration = Duration::from_secs(15);

/// Whose store a database holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The file system's name.
    pub fsname: String,
    /// Its cluster.
    pub cluster: u64,
    /// The store.
    pub uuid: u64,
}

/// How long to wait for a store that another server has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// Until it shows that it lives, or its lease has run out.
    Lease,
    /// As long as it takes.
    Forever,
}

/// Why a store cannot be used; first of all where it is.
#[derive(Debug)]
pub enum OpenError {
    /// The database cannot be reached, or says no.
    Database(String, String),
    /// It holds no store.
    Missing(String),
    /// It holds another file system's: what was found, what was wanted (cluster, store).
    Foreign(String, Identity, (u64, u64)),
    /// It holds a store where a new one was to be made.
    Exists(String, Identity),
    /// Another server has it: which.
    InUse(String, String),
    /// It cannot be formatted.
    Format(String, FormatError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Database(p, why) => write!(f, "metadata store {p}: {why}"),
            OpenError::Missing(p) => {
                write!(f, "metadata store {p}: the database holds none: make one with 'stria mkfs' first")
            }
            OpenError::Foreign(p, found, (cluster, uuid)) => write!(
                f,
                "metadata store {p}: the database holds store {:016x} of file system '{}', cluster {:016x}; this is store {uuid:016x} of cluster {cluster:016x}: name the right database",
                found.uuid, found.fsname, found.cluster
            ),
            OpenError::Exists(p, found) => write!(
                f,
                "metadata store {p}: the database holds file system '{}' of cluster {:016x} already: name an empty database, or drop its tables stria_mdt and stria_mdt_records if nobody needs it",
                found.fsname, found.cluster
            ),
            OpenError::InUse(p, who) => {
                write!(
                    f,
                    "metadata store {p}: in use by {who}: stop that server first, or wait for its end as a standby"
                )
            }
            OpenError::Format(p, e) => write!(f, "metadata store {p}: {e}"),
        }
    }
}
impl std::error::Error for OpenError {}

impl StoreRow {
    fn whose(&self) -> Identity {
        Identity { fsname: self.fsname.clone(), cluster: self.identity.0, uuid: self.identity.1 }
    }
}

struct Opening<'a> {
    rt: &'a Rt,
    place: &'a Place,
    engine: Engine,
}

impl<'a> Opening<'a> {
    fn begin(rt: &'a Rt, place: &'a Place, cache_bytes: usize) -> Result<Opening<'a>, OpenError> {
        let (to, commands) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::new());
        let (of_thread, its_place) = (shared.clone(), place.clone());
        let thread = std::thread::Builder::new()
            .name("stria-pg".into())
            .spawn(move || worker::run(its_place, of_thread, commands))
            .map_err(|e| OpenError::Database(place.to_string(), format!("no thread for it: {e}")))?;
        Ok(Opening { rt, place, engine: Engine::new(to, thread, shared, cache_bytes) })
    }

    fn answered<T>(&self, answer: Option<Result<T, Trouble>>) -> Result<T, OpenError> {
        let ended = || Err(Trouble::Lost("its thread has ended".into()));
        answer.unwrap_or_else(ended).map_err(|why| match why {
            Trouble::Missing => OpenError::Missing(self.place.to_string()),
            why => OpenError::Database(self.place.to_string(), why.to_string()),
        })
    }

    /// [`Opening::answered`]; `None`: it is to be asked again, for what is in the way may pass. `since`: when that began.
    async fn answered_in_time<T>(
        &self,
        answer: Option<Result<T, Trouble>>,
        patience: Patience,
        since: &mut Option<(Instant, String)>,
    ) -> Result<Option<T>, OpenError> {
        let may_pass = matches!(&answer, Some(Err(why)) if why.may_pass() || patience == Patience::Forever);
        let why = match self.answered(answer) {
            Err(why @ OpenError::Database(..)) if may_pass => why,
            answered => {
                *since = None;
                return answered.map(Some);
            }
        };
        let now = self.rt.now();
        let said = why.to_string();
        if since.as_ref().is_none_or(|(_, before)| *before != said) {
            tracing::warn!("{said}; it is tried again");
        }
        let begun = since.as_ref().map_or(now, |(begun, _)| *begun);
        *since = Some((begun, said));
        if patience == Patience::Lease && now.since(begun) >= TRIED_FOR {
            return Err(why);
        }
        self.rt.sleep(LOOK_EVERY).await;
        Ok(None)
    }

    async fn look(&self) -> Result<StoreRow, OpenError> {
        let looked = self.engine.ask(Command::Look).await;
        self.answered(looked)
    }

    /// Refuses a store that lacks what was seen of it before, and remembers how far it is.
    fn checked(&self, row: StoreRow) -> Result<StoreRow, Trouble> {
        if let Some(memory) = self.place.memory() {
            memory.check(&row.state()).map_err(Trouble::Refused)?;
            memory.note(&row.state());
        }
        Ok(row)
    }

    /// Takes the epoch once nobody has it.
    async fn take(self, holder: &str, patience: Patience) -> Result<PgKv, OpenError> {
        let process = written(self.rt.origin());
        let mut seen: Option<(i64, f64)> = None;
        let (mut told, mut silent) = (false, None);
        loop {
            let looked = self.engine.ask(Command::Look).await;
            let looked = looked.map(|row| row.and_then(|row| self.checked(row)));
            let Some(row) = self.answered_in_time(looked, patience, &mut silent).await? else { continue };
            let is_gone = self.rt.is_gone(origin_of(&row.holder_process));
            if row.left_s <= 0.0 || is_gone {
                let claim = Claim {
                    epoch: row.epoch,
                    commit: row.commit,
                    uuid: row.identity.1,
                    holder: holder.into(),
                    process: process.clone(),
                    in_any_case: is_gone,
                };
                let taken = self.engine.ask(|to| Command::Take(claim, to)).await;
                if let Some(Some(commit)) = self.answered_in_time(taken, patience, &mut silent).await? {
                    self.engine.begin(commit);
                    return Ok(PgKv { identity: row.whose(), engine: Rc::new(self.engine) });
                }
                // Whoever has it now may be this server, by what was sent before a connection ended: it is looked at afresh, and nobody
                // lengthens that lease.
                seen = None;
                continue;
            }
            let is_renewed = seen.is_some_and(|(epoch, left)| epoch != row.epoch || row.left_s > left);
            if is_renewed && patience == Patience::Lease {
                return Err(OpenError::InUse(self.place.to_string(), row.holder));
            }
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(
                    "metadata store {}: {} has it: waiting for the end of its lease",
                    self.place,
                    row.holder
                );
            }
            seen = Some((row.epoch, row.left_s));
            let left = Duration::from_nanos((row.left_s * 1e9) as u64);
            self.rt.sleep(left.min(LOOK_EVERY)).await;
        }
    }
}

/// A process as it is written down.
fn written(o: Origin) -> String {
    format!("{:016x} {:016x} {:016x} {:016x}", o.machine, o.boot, o.host, o.process)
}
/// What was written down; nothing known of what cannot be read.
fn origin_of(text: &str) -> Origin {
    let words: Vec<u64> = text.split(' ').filter_map(|w| u64::from_str_radix(w, 16).ok()).collect();
    match words[..] {
        [machine, boot, host, process] => Origin { machine, boot, host, process },
        _ => Origin::default(),
    }
}

/// Who holds a store, for the messages of others.
fn holder() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("process {} on {}", std::process::id(), host.trim())
}

/// Looks whether the store at `place` could be opened, but for another server that may have it: `wanted`, as [`open`].
///
/// # Errors
/// [`OpenError`].
pub async fn look(rt: &Rt, place: &Place, wanted: Option<(u64, u64)>) -> Result<(), OpenError> {
    looked(&Opening::begin(rt, place, 0)?, wanted).await.map(drop)
}

/// The row of the store, if it is the one that is wanted, and lacks nothing.
async fn looked(opening: &Opening<'_>, wanted: Option<(u64, u64)>) -> Result<StoreRow, OpenError> {
    let row = found(opening, wanted).await?;
    opening.answered(Some(opening.checked(row)))
}

/// The row of the store, if it is the one that is wanted.
async fn found(opening: &Opening<'_>, wanted: Option<(u64, u64)>) -> Result<StoreRow, OpenError> {
    let row = opening.look().await?;
    match wanted.filter(|w| *w != row.identity) {
        Some(wanted) => Err(OpenError::Foreign(opening.place.to_string(), row.whose(), wanted)),
        None => Ok(row),
    }
}

/// What an older store was taken in as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// What was seen of it before; nothing where that could not be read.
    pub seen: Option<State>,
    /// What it was when it was taken in.
    pub found: State,
}

/// Takes the store at `place` in although it lacks what was seen of it before, as one that was put back from a copy
/// ([`mds::backup::put_back_in_place`]). `None`: it lacks nothing.
///
/// # Errors
/// [`OpenError`]: another server has it; its records fail; what it is from now on cannot be written down.
pub async fn accept(rt: &Rt, place: &Place, wanted: Option<(u64, u64)>) -> Result<Option<Accepted>, OpenError> {
    let Some(memory) = place.memory() else { return Ok(None) };
    let failed = |why: String| OpenError::Database(place.to_string(), why);
    // What is remembered stays until all is done: who is interrupted accepts it again.
    let place = place.unremembered();
    let found = found(&Opening::begin(rt, &place, 0)?, wanted).await?.state();
    if memory.check(&found).is_ok() {
        return Ok(None);
    }
    let seen = memory.newest().ok().flatten();
    let opening = Opening::begin(rt, &place, crate::CACHE_BYTES_DEFAULT)?;
    let kv: Rc<dyn MetaKv> = Rc::new(opening.take(&holder(), Patience::Lease).await?);
    mds::backup::put_back_in_place(&kv, rt.wall()).await.map_err(|e| failed(e.to_string()))?;
    drop(kv);
    let now = Opening::begin(rt, &place, 0)?.look().await?.state();
    memory.write(&now).map_err(|e| failed(format!("that it is accepted cannot be written: {e}")))?;
    Ok(Some(Accepted { seen, found }))
}

/// Opens the store at `place`, of which `wanted` are cluster and uuid, and takes it for this process. `cache_bytes`: records in memory.
///
/// # Errors
/// [`OpenError`].
pub async fn open(
    rt: &Rt,
    place: &Place,
    wanted: Option<(u64, u64)>,
    cache_bytes: usize,
    patience: Patience,
) -> Result<Rc<PgKv>, OpenError> {
    let opening = Opening::begin(rt, place, cache_bytes)?;
    // Before it is taken: a server that was pointed at the wrong database must not stop the right one.
    looked(&opening, wanted).await?;
    opening.take(&holder(), patience).await.map(Rc::new)
}

/// Makes the tables of a store in which nothing is, for what puts records there, and takes it.
///
/// # Errors
/// [`OpenError`]: there is a store with records.
pub async fn create(rt: &Rt, place: &Place, identity: &Identity) -> Result<Rc<PgKv>, OpenError> {
    let opening = Opening::begin(rt, place, crate::CACHE_BYTES_DEFAULT)?;
    let (fsname, of) = (identity.fsname.clone(), (identity.cluster, identity.uuid));
    let made = opening.engine.ask(|to| Command::Create(fsname, of, to)).await;
    opening.answered(made)?;
    let row = opening.look().await?;
    if row.has_records || row.whose() != *identity {
        return Err(OpenError::Exists(place.to_string(), row.whose()));
    }
    opening.take(&holder(), Patience::Lease).await.map(Rc::new)
}

/// Makes a new file system at `place`.
///
/// # Errors
/// [`OpenError`]: there is one; the options are not legal.
pub async fn mkfs(rt: &Rt, place: &Place, options: &MkfsOptions) -> Result<Superblock, OpenError> {
    let identity = Identity { fsname: options.fsname.clone(), cluster: options.cluster, uuid: options.uuid };
    let kv: Rc<dyn MetaKv> = create(rt, place, &identity).await?;
    mds::mkfs::format(&kv, options).await.map_err(|e| OpenError::Format(place.to_string(), e))
}
