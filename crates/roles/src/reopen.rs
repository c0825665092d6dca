//! A target whose store failed comes back by itself when its medium is well again.
//!
//! A store latches its first failed write or sync: what it holds in memory may be ahead of the medium for good, and only opening it
//! anew, by what the medium has, makes it whole. That needs every reference to the old one gone. So each target lives in a group
//! of tasks of its own ([`rt::Group`]), and its keeper, which is no part of that group,
//!
//! 1. probes the medium by a small file, and looks at a database whether it lacks nothing that was acknowledged, with growing pauses, and closes nothing before that has gone well: until then the target
//!    answers EIO at once to whoever changes something, and still answers reads that need no medium;
//! 2. takes the target out of its server and ends the group: for its clients and for the store the target died as if its process had
//!    been killed;
//! 3. waits until no operation of the old target's can reach a file any more;
//! 4. opens the store, again and again if need be, and serves it as a target that was started again: another boot, a later epoch of
//!    the store, a recovery window. Clients connect again and replay what was not committed.
//!
//! Other targets of the process go on. A target whose store another server has taken over is over: who runs its server starts it anew, to wait
//! for its turn. A store that another server has in its file, or a metadata store with a record that is damaged, is left as
//! it is, and so is one of whose database a page turned out not to be what was written: it answers EIO until `stria fsck --repair`.
//! One whose database turns out to be damaged when it is opened again stays out, and is tried again.
//!
//! A target of whose store the cluster says by now that another one has taken its place ([`OstStore::named_by`]) is not waited for: that one is
//! opened instead.
use std::fmt::Display;
use std::path::PathBuf;
use std::rc::{Rc, Weak};

use oss::store::ObjectStore;
use oss::{Oss, Ost, OstConfig};
use rt::{Group, LocalFuture, Rt};
use types::{Duration, Instant};

use crate::RoleError;

/// How often a target is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause after the first try that failed; doubled up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// Longest pause between two tries.
pub const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A store that fails again so soon after it was opened is not well: the pause goes on growing.
const WELL_AFTER: Duration = Duration::from_secs(60);
/// Pause between two looks whether everything has let the old store go.
const LET_GO_PAUSE: Duration = Duration::from_millis(20);
/// After so long that is told.
const LET_GO_TOLD_AFTER: Duration = Duration::from_secs(10);

/// Why a store takes nothing any more.
pub(crate) enum Failure {
    /// Its medium failed, so that opening it again may help.
    Medium(String),
    /// Its medium changed what was written: only a repair helps.
    Damage,
    /// It is another server's now.
    Replaced(String),
}

/// What `store_failure` says of a damaged store.
const DAMAGED: &str =
    "it is not opened again: its database is damaged. Stop its server, run 'stria fsck --repair', and start it again";

/// A target that can be started again in its process.
pub(crate) trait Seat {
    /// Its name, for the log.
    fn name(&self) -> String;
    /// Whether its server has ended, or is about to.
    fn is_over(&self) -> bool;
    /// Whether that is for itself alone: its server goes on, and lets its store go.
    fn is_let_go(&self) -> bool {
        false
    }
    /// Why its store failed; nothing where it is another server's now.
    fn failure(&self) -> Option<Failure>;
    /// Whether another store is to be opened in its place, whatever becomes of the medium of this one.
    fn is_replaced(&self) -> bool {
        false
    }
    /// Says in the target's parameters what is done about it.
    fn note_mending(&self, text: &str);
    /// Looks whether its store could be opened again, where more is to be known than files of its medium tell.
    fn looks_well(&self, _rt: &Rt) -> LocalFuture<Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Takes it out of its server.
    fn take_out(&self);
    /// It was taken out for good: another server has its store.
    fn note_replaced(&self, _why: &str) {}
    /// Opens the store and serves it, with tasks in the group behind `rt`. It is the `times`-th time.
    fn start(&self, rt: Rt, times: u64) -> LocalFuture<Result<(), String>>;
}

/// Pauses between tries.
struct Pauses(Duration);
impl Pauses {
    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

/// Looks after a target as long as its server lives. `dirs`: what its medium is probed by.
pub(crate) async fn keep(rt: Rt, seat: Rc<dyn Seat>, dirs: Vec<PathBuf>, mut group: Group) {
    let (mut pauses, mut opened, mut times) = (Pauses(PAUSE_FIRST), None::<Instant>, 0);
    loop {
        rt.sleep(LOOK_EVERY).await;
        if seat.is_over() {
            if seat.is_let_go() {
                group.end();
            }
            return;
        }
        let (name, failed) = (seat.name(), rt.now());
        let why = match seat.failure() {
            None => continue,
            Some(Failure::Medium(why)) => why,
            Some(Failure::Damage) => {
                tracing::error!(target = name, "{DAMAGED}");
                seat.note_mending(DAMAGED);
                if !until_replaced(&rt, &*seat).await {
                    return;
                }
                "its database is damaged".into()
            }
            Some(Failure::Replaced(why)) => {
                seat.take_out();
                group.end();
                seat.note_replaced(&why);
                return;
            }
        };
        tracing::warn!(
            target = name,
            "its store failed ({why}): its medium is tried every {} s at last, and when that goes well it comes back by itself",
            PAUSE_MAX.as_secs()
        );
        if opened.is_some_and(|at| failed.since(at) < WELL_AFTER) {
            rt.sleep(pauses.next()).await;
        } else {
            pauses = Pauses(PAUSE_FIRST);
        }
        if !until_well(&rt, &*seat, &dirs, &mut pauses).await {
            return;
        }
        seat.take_out();
        group.end();
        until_let_go(&rt, &name, &group).await;
        times += 1;
        let Some(next) = until_open(&rt, &*seat, times, &mut pauses).await else { return };
        group = next;
        opened = Some(rt.now());
        tracing::warn!(
            target = name,
            "its medium is well again: its store was opened again, {} s after it was seen to have failed; it waits for its clients",
            rt.now().since(failed).as_secs()
        );
    }
}

/// Waits until another store is to take the place of this one; false when the server ended first.
async fn until_replaced(rt: &Rt, seat: &dyn Seat) -> bool {
    while !seat.is_replaced() {
        if seat.is_over() {
            return false;
        }
        rt.sleep(LOOK_EVERY).await;
    }
    true
}

/// Probes until all goes well, or another store is there; false when the server ended first.
async fn until_well(rt: &Rt, seat: &dyn Seat, dirs: &[PathBuf], pauses: &mut Pauses) -> bool {
    let mut told = String::new();
    loop {
        let mut probed = Ok(());
        for dir in dirs {
            if probed.is_ok() {
                probed = rt.probe(dir).await.map_err(|e| format!("{}: {e}", dir.display()));
            }
        }
        if probed.is_ok() {
            probed = seat.looks_well(rt).await;
        }
        if seat.is_over() {
            return false;
        }
        let Err(why) = probed else { return true };
        if seat.is_replaced() {
            return true;
        }
        let pause = pauses.next();
        seat.note_mending(&format!("tried again every {} s: {why}", pause.as_secs()));
        if told != why {
            tracing::warn!(target = seat.name(), "its medium is not well: {why}; it is tried again");
            told = why;
        }
        rt.sleep(pause).await;
        if seat.is_over() {
            return false;
        }
    }
}

/// Waits until nothing of an ended group can reach a file. What the medium does not answer at all it waits for, too: what is written
/// late must not meet the store that is opened next.
async fn until_let_go(rt: &Rt, name: &str, group: &Group) {
    let (since, mut told) = (rt.now(), false);
    while !group.has_let_go() {
        if rt.now().since(since) > LET_GO_TOLD_AFTER && !std::mem::replace(&mut told, true) {
            tracing::warn!(
                target = name,
                "operations of before its failure have not ended; its store is not opened before"
            );
        }
        rt.sleep(LET_GO_PAUSE).await;
    }
}

/// Opens the store until that goes well; `None` when the server ended first.
async fn until_open(rt: &Rt, seat: &dyn Seat, times: u64, pauses: &mut Pauses) -> Option<Group> {
    let mut told = String::new();
    while !seat.is_over() {
        let (inner, group) = rt.group();
        let Err(why) = seat.start(inner, times).await else { return Some(group) };
        group.end();
        if told != why {
            tracing::error!(target = seat.name(), "its store cannot be opened again: {why}; it is tried again");
            told = why;
        }
        rt.sleep(pauses.next()).await;
        until_let_go(rt, &seat.name(), &group).await;
    }
    None
}

/// The store that is an OST's now.
type Named = Rc<dyn Fn() -> Option<u64>>;
/// Opens an OST's store, with tasks in the group behind the handle that it is given.
type OpenOst = Box<dyn Fn(Rt) -> LocalFuture<Result<Rc<dyn ObjectStore>, String>>>;
/// Sets what can only be set on a target that runs.
pub type TuneOst = Rc<dyn Fn(&Rc<Ost>) -> Result<(), String>>;

/// The tasks of a store that nobody serves (yet): they end with it, wherever it is dropped. A task that stayed would keep the store open, and
/// locked, for ever.
struct Unserved(Option<Group>);

impl Unserved {
    fn into_group(mut self) -> Group {
        self.0.take().expect("only its end takes it")
    }
}

impl Drop for Unserved {
    fn drop(&mut self) {
        if let Some(group) = self.0.take() {
            group.end();
        }
    }
}

/// An OST's store that was opened for a server, and how it is opened again. Dropped, it closes.
pub struct OstStore {
    store: Rc<dyn ObjectStore>,
    dirs: Vec<PathBuf>,
    open: OpenOst,
    named: Named,
    rt: Rt,
    tasks: Unserved,
}

impl OstStore {
    /// Opens a store by `open`, now and whenever it failed and its medium is well again. `dirs`: directories on the devices of its files,
    /// in which a small file named `probe` may be made.
    ///
    /// # Errors
    /// What `open` says.
    pub async fn open<E: Display + 'static>(
        rt: &Rt,
        dirs: Vec<PathBuf>,
        open: impl Fn(Rt) -> LocalFuture<Result<Rc<dyn ObjectStore>, E>> + 'static,
    ) -> Result<OstStore, E> {
        let (inner, group) = rt.group();
        let tasks = Unserved(Some(group.clone()));
        let store = match open(inner.clone()).await {
            Ok(store) => store,
            Err(e) => {
                drop(tasks);
                // Whoever tries again, or another process, meets nothing of this try.
                let place = dirs.first().map(|dir| dir.display().to_string()).unwrap_or_default();
                until_let_go(rt, &place, &group).await;
                return Err(e);
            }
        };
        let open: OpenOst = Box::new(move |rt| {
            let opened = open(rt);
            Box::pin(async move { opened.await.map_err(|e| e.to_string()) })
        });
        Ok(OstStore { store, dirs, open, named: Rc::new(|| None), rt: inner, tasks })
    }
    /// `named` says which store (its uuid) is the OST's by now, as the cluster has it: when that is another one and this one has failed, `open`
    /// is asked to open it at once.
    #[must_use]
    pub fn named_by(self, named: impl Fn() -> Option<u64> + 'static) -> OstStore {
        OstStore { named: Rc::new(named), ..self }
    }
}

struct OstSeat {
    oss: Weak<Oss>,
    target: String,
    config: OstConfig,
    tune: TuneOst,
    open: OpenOst,
    named: Named,
}

impl OstSeat {
    fn ost(&self) -> Option<Rc<Ost>> {
        self.oss.upgrade()?.osts().into_iter().find(|ost| ost.store().identity().target() == self.target)
    }
}

impl Seat for OstSeat {
    fn name(&self) -> String {
        self.target.clone()
    }
    fn is_over(&self) -> bool {
        self.oss.upgrade().is_none_or(|oss| oss.server().is_stopping() || !oss.is_kept(&self.target))
    }
    fn is_let_go(&self) -> bool {
        self.oss.upgrade().is_some_and(|oss| !oss.server().is_stopping() && !oss.is_kept(&self.target))
    }
    fn is_replaced(&self) -> bool {
        let served = self.ost().map(|ost| ost.store().identity().uuid);
        served.is_some_and(|served| (self.named)().is_some_and(|named| named != served))
    }
    fn failure(&self) -> Option<Failure> {
        let ost = self.ost()?;
        let why = ost.failed_medium()?;
        Some(if ost.store().is_damaged() { Failure::Damage } else { Failure::Medium(why) })
    }
    fn note_mending(&self, text: &str) {
        if let Some(ost) = self.ost() {
            ost.note_mending(text);
        }
    }
    fn take_out(&self) {
        if let Some(oss) = self.oss.upgrade() {
            oss.take_out(&self.target);
        }
    }
    fn start(&self, rt: Rt, times: u64) -> LocalFuture<Result<(), String>> {
        let (opened, oss) = ((self.open)(rt.clone()), self.oss.clone());
        let (config, tune) = (self.config.clone(), self.tune.clone());
        Box::pin(async move {
            let store = opened.await?;
            let Some(oss) = oss.upgrade().filter(|oss| !oss.server().is_stopping()) else {
                return Err("its server ends".into());
            };
            let ost = oss.add_in(&rt, store, config)?;
            ost.note_reopened(times);
            tune(&ost).inspect_err(|_| oss.take_out(&ost.store().identity().target()))
        })
    }
}

/// Starts the targets of stores in a server, and looks after them.
///
/// # Errors
/// [`RoleError`]: a policy does not exist; what `tune` refuses.
pub(crate) fn seat(
    rt: &Rt,
    oss: &Rc<Oss>,
    stores: Vec<OstStore>,
    config: &OstConfig,
    tune: &TuneOst,
) -> Result<(), RoleError> {
    for OstStore { store, dirs, open, named, rt: inner, tasks } in stores {
        let target = store.identity().target();
        let ost = oss.add_in(&inner, store, config.clone()).map_err(RoleError)?;
        tune(&ost).map_err(RoleError)?;
        oss.keep(&target);
        let (config, tune) = (config.clone(), tune.clone());
        let seat = OstSeat { oss: Rc::downgrade(oss), target, config, tune, open, named };
        rt.spawn(keep(rt.clone(), Rc::new(seat), dirs, tasks.into_group()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rt::DirLock;
    use rt::sync::Event;

    #[test]
    fn a_store_that_does_not_open_to_the_end_lets_its_directory_go() {
        let dir = tempfile::tempdir().unwrap();
        let opened = rt::real::run(frames::FramePool::new(1 << 20), |rt| {
            let path = dir.path().to_path_buf();
            async move {
                let locked = path.clone();
                let open = move |rt: Rt| -> LocalFuture<Result<Rc<dyn ObjectStore>, String>> {
                    let path = locked.clone();
                    Box::pin(async move {
                        // As the task of a store that commits, which outlives the failure of what comes behind it.
                        let lock = rt.lock_dir_waiting(&path).await.unwrap();
                        rt.spawn(async move {
                            Event::new().wait().await;
                            drop(lock);
                        });
                        Err("it is the fast tier of another store".to_string())
                    })
                };
                let failed = OstStore::open(&rt, vec![path.clone()], open).await.err().unwrap();
                (failed, DirLock::try_take(&path).is_ok())
            }
        });
        assert_eq!(opened.unwrap(), ("it is the fast tier of another store".to_string(), true));
    }
}
