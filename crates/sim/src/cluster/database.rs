//! A database that several metadata servers reach, as `store-pg` uses one: it outlives them, and only who has taken its epoch last changes
//! anything there.
//!
//! What a metadata server sees of such an engine is simulated: answers that come after commits that were begun later, commits of which
//! nobody hears the end, a lease that runs out, another server's epoch. Connections and statements are tested at a real database.
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use mds::kv::{Answer, KvBatch, KvError, KvLimits, KvSnapshot, MetaKv, Pairs};
use mds::{MemoryKv, MkfsOptions};
use rt::{LocalFuture, Rt};
use simworld::{Host, Sim};
use types::{Duration, Instant, Origin, WallTime};

/// How long a server has the records to itself after it was heard of last.
const LEASE: Duration = Duration::from_secs(3);
/// So much of it counts for the server, whose clock may be slower than the database's.
const LEASE_COUNTED: Duration = Duration::from_millis(2700);
/// How often the lease is lengthened.
const BEAT: Duration = Duration::from_secs(1);
/// Pause between two looks at a lease that somebody else has.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// What does not arrive is sent again after so long.
const AGAIN: Duration = Duration::from_millis(50);
/// The fastest trip to the database or back.
const TRIP_MIN: Duration = Duration::from_micros(20);

fn after(now: WallTime, time: Duration) -> WallTime {
    WallTime(now.0 + time.as_nanos() as i64)
}

/// Who changes the records.
#[derive(Default)]
struct Holder {
    epoch: u64,
    until: WallTime,
    process: Origin,
}

/// See the module's head.
pub struct Database {
    /// Its own, for its clock.
    host: Host,
    records: Rc<MemoryKv>,
    holder: RefCell<Holder>,
    /// Hosts that do not reach it.
    cut_off: RefCell<BTreeSet<String>>,
    trip_max: Duration,
}

impl Database {
    /// Without records. `trip_max`: the slowest trip to it or back; most are much faster.
    pub(super) fn new(sim: &Sim, trip_max: Duration) -> Rc<Database> {
        Rc::new(Database {
            host: sim.host("database"),
            records: MemoryKv::new(),
            holder: RefCell::default(),
            cut_off: RefCell::default(),
            trip_max,
        })
    }
    /// Makes a file system's first records.
    ///
    /// # Errors
    /// A sentence.
    pub(super) async fn format(&self, options: &MkfsOptions) -> Result<(), String> {
        let kv: Rc<dyn MetaKv> = self.records.clone();
        mds::mkfs::format(&kv, options).await.map(drop).map_err(|e| format!("mkfs of the metadata target: {e}"))
    }
    /// A host does not reach it any more, or does again.
    pub(super) fn cut_off(&self, host: &Host, is: bool) {
        let mut all = self.cut_off.borrow_mut();
        if is {
            all.insert(host.name().into())
        } else {
            all.remove(host.name())
        };
    }
    /// The records for the process behind `rt`, once nobody else has them, as a standby waits.
    pub(super) async fn open(self: &Rc<Self>, rt: &Rt, host: &Host) -> Rc<dyn MetaKv> {
        let line = Line { db: self.clone(), rt: rt.clone(), host: host.name().into() };
        loop {
            let sent = rt.now();
            line.trip().await;
            let epoch = self.take(rt);
            line.trip().await;
            let Some(epoch) = epoch else {
                rt.sleep(LOOK_EVERY).await;
                continue;
            };
            let seat = Rc::new(Seat {
                line,
                epoch,
                good_until: Cell::new(sent + LEASE_COUNTED),
                failure: RefCell::default(),
                known: RefCell::new(self.records.snapshot().await.expect("records in memory")),
            });
            rt.spawn(keep_lease(Rc::downgrade(&seat), rt.clone()));
            return Rc::new(Late(seat));
        }
    }
    /// Takes the epoch behind the present one, unless somebody has that.
    fn take(&self, rt: &Rt) -> Option<u64> {
        let mut holder = self.holder.borrow_mut();
        let now = self.host.wall();
        if now < holder.until && !rt.is_gone(holder.process) {
            return None;
        }
        *holder = Holder { epoch: holder.epoch + 1, until: after(now, LEASE), process: rt.origin() };
        Some(holder.epoch)
    }
}

/// The way of a process to the database.
struct Line {
    db: Rc<Database>,
    rt: Rt,
    host: String,
}

impl Line {
    /// A message on its way there or back; while the host is cut off none arrives.
    async fn trip(&self) {
        loop {
            let unit = (self.rt.random() >> 11) as f64 / (1_u64 << 53) as f64;
            let more = self.db.trip_max.as_nanos() as f64 * unit.powi(4);
            self.rt.sleep(TRIP_MIN + Duration::from_nanos(more as u64)).await;
            if !self.db.cut_off.borrow().contains(&self.host) {
                return;
            }
            self.rt.sleep(AGAIN).await;
        }
    }
}

/// A process that has taken an epoch.
struct Seat {
    line: Line,
    epoch: u64,
    /// Until when nobody else can have taken the next one, by its own clock.
    good_until: Cell<Instant>,
    failure: RefCell<Option<KvError>>,
    /// As of its last commit.
    known: RefCell<Rc<dyn KvSnapshot>>,
}

impl Seat {
    fn is_good(&self) -> bool {
        self.line.rt.now() < self.good_until.get() && self.failure.borrow().is_none()
    }
    /// At the database: whether the records are its own still.
    fn judge(&self) -> Result<(), KvError> {
        let epoch = self.line.db.holder.borrow().epoch;
        if epoch == self.epoch {
            return Ok(());
        }
        let why = KvError::Fenced(format!(
            "another server has taken the metadata store over (its epoch is {epoch}, this server's is {})",
            self.epoch
        ));
        self.failure.borrow_mut().get_or_insert(why.clone());
        Err(why)
    }
    /// At the database: the lease is lengthened.
    fn lengthen(&self) -> Result<(), KvError> {
        self.judge()?;
        let db = &self.line.db;
        db.holder.borrow_mut().until = after(db.host.wall(), LEASE);
        Ok(())
    }
    /// A round trip that lengthens the lease.
    async fn renew(&self) -> Result<(), KvError> {
        let sent = self.line.rt.now();
        self.line.trip().await;
        self.lengthen()?;
        self.line.trip().await;
        self.good_until.set(sent + LEASE_COUNTED);
        Ok(())
    }
    async fn asked<T>(self: Rc<Self>, answer: Result<T, KvError>) -> Result<T, KvError> {
        self.line.trip().await;
        self.judge()?;
        self.line.trip().await;
        answer
    }
    async fn commit(&self, batch: Arc<KvBatch>) -> Result<(), KvError> {
        if let Some(e) = &*self.failure.borrow() {
            return Err(e.clone());
        }
        let sent = self.line.rt.now();
        self.line.trip().await;
        self.lengthen()?;
        self.line.db.records.commit(batch).await?;
        let known = self.line.db.records.snapshot().await?;
        self.line.trip().await;
        self.good_until.set(sent + LEASE_COUNTED);
        *self.known.borrow_mut() = known;
        Ok(())
    }
}

async fn keep_lease(seat: Weak<Seat>, rt: Rt) {
    loop {
        rt.sleep(BEAT).await;
        let Some(seat) = seat.upgrade() else { return };
        if seat.renew().await.is_err() {
            return;
        }
    }
}

/// The records as one process has them.
struct Late(Rc<Seat>);

impl MetaKv for Late {
    fn limits(&self) -> KvLimits {
        KvLimits {
            batch_ops_max: 128 << 10,
            batch_bytes_max: 256 << 20,
            key_bytes_max: 2048,
            value_bytes_max: 1 << 20,
            snapshot_isolation: true,
        }
    }
    fn snapshot(&self) -> LocalFuture<Result<Rc<dyn KvSnapshot>, KvError>> {
        let snapshot: Rc<dyn KvSnapshot> =
            Rc::new(LateSnapshot { seat: self.0.clone(), of: self.0.known.borrow().clone() });
        Box::pin(std::future::ready(Ok(snapshot)))
    }
    fn commit(&self, batch: Arc<KvBatch>) -> LocalFuture<Result<(), KvError>> {
        let seat = self.0.clone();
        Box::pin(async move { seat.commit(batch).await })
    }
    fn failure(&self) -> Option<KvError> {
        self.0.failure.borrow().clone()
    }
    fn is_sure(&self) -> bool {
        self.0.is_good()
    }
    fn confirm(&self) -> LocalFuture<Result<(), KvError>> {
        Box::pin(self.0.clone().asked(Ok(())))
    }
    fn space(&self) -> (u64, u64) {
        (1 << 40, 1 << 40)
    }
}

struct LateSnapshot {
    seat: Rc<Seat>,
    of: Rc<dyn KvSnapshot>,
}

fn now<T>(answer: Answer<T>) -> Result<T, KvError> {
    match answer {
        Answer::Now(value) => value,
        Answer::Later(_) => unreachable!("records in memory"),
    }
}

impl KvSnapshot for LateSnapshot {
    fn get(&self, key: &[u8]) -> Answer<Option<Vec<u8>>> {
        let value = now(self.of.get(key));
        // Records that were read or written lately are in the server's memory.
        if self.seat.is_good() && self.seat.line.rt.random().is_multiple_of(2) {
            return Answer::Now(value);
        }
        Answer::Later(Box::pin(self.seat.clone().asked(value)))
    }
    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Answer<Pairs> {
        let pairs = now(self.of.range(from, to, limit));
        Answer::Later(Box::pin(self.seat.clone().asked(pairs)))
    }
}
