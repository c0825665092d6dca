//! Objects in memory: for tests and experiments that have no disk. Committed at once, gone with the process.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use frames::FramePool;
use rt::{LocalFuture, Rt};
use types::{ClientId, Duration, FsError, ObjectId, Origin, Transno, WallTime};
use wire::Crc;

use super::volatile::{Books, apply_attr, apply_size, ready};
use super::{
    Applied, BLOCK_BYTES, BadBlock, BlockRange, BlockRun, Blocks, Charged, Fenced, OBJECT_BYTES_MAX, ObjectAttr,
    ObjectInfo, ObjectStore, SizeRule, Space, StoreIdentity, StoreResult, Update, Usages,
};
use crate::pages::{ZeroPages, crc_of_zeros};

enum Block {
    /// Space without data.
    Reserved,
    Data(Box<[u8]>, Crc),
}

#[derive(Default)]
struct Object {
    attr: ObjectAttr,
    blocks: BTreeMap<u64, Block>,
}

impl Object {
    fn drop_range(&mut self, range: BlockRange) -> u64 {
        let gone: Vec<u64> = self.blocks.range(range.first..range.end()).map(|(b, _)| *b).collect();
        for b in &gone {
            self.blocks.remove(b);
        }
        gone.len() as u64
    }
    /// Blocks that the update would add at most, given what is there.
    fn added(&self, update: &Update) -> u64 {
        let holes = |r: BlockRange| r.count - self.blocks.range(r.first..r.end()).count() as u64;
        update.reserves.iter().map(|r| holes(*r)).sum::<u64>()
            + update.puts.iter().map(|p| holes(p.range())).sum::<u64>()
    }
}

#[derive(Default)]
struct State {
    books: Books<Object>,
    used_blocks: u64,
    usages: Usages,
    shares: BTreeMap<Charged, u64>,
    advice: BTreeMap<ObjectId, Vec<u8>>,
    revoked: Vec<(u64, WallTime)>,
}

/// A store that keeps everything in memory.
pub struct MemoryStore {
    me: std::rc::Weak<MemoryStore>,
    identity: StoreIdentity,
    capacity_blocks: u64,
    pool: FramePool,
    zeros: ZeroPages,
    state: RefCell<State>,
    closed: Cell<bool>,
    rt: Rt,
    shares_take: Cell<Duration>,
    look_takes: Cell<Option<Duration>>,
    update_takes: Cell<Option<Duration>>,
    unreadable: RefCell<BTreeSet<(ObjectId, u64)>>,
    damaged: RefCell<BTreeSet<ObjectId>>,
}

impl MemoryStore {
    /// An empty store of `capacity_bytes` (rounded down to blocks).
    #[must_use]
    pub fn new(rt: &Rt, identity: StoreIdentity, capacity_bytes: u64) -> Rc<MemoryStore> {
        let pool = rt.frames();
        Rc::new_cyclic(|me| MemoryStore {
            me: me.clone(),
            identity,
            capacity_blocks: capacity_bytes / BLOCK_BYTES,
            pool,
            zeros: ZeroPages::new(pool),
            state: RefCell::default(),
            closed: Cell::new(false),
            rt: rt.clone(),
            shares_take: Cell::new(Duration::ZERO),
            look_takes: Cell::new(None),
            update_takes: Cell::new(None),
            unreadable: RefCell::default(),
            damaged: RefCell::default(),
        })
    }

    /// How long it takes from now on until a share is remembered: 0 at first.
    pub fn set_time_of_shares(&self, time: Duration) {
        self.shares_take.set(time);
    }

    /// How long the next look takes whether it is another server's; it never is.
    pub fn set_time_of_next_look(&self, time: Duration) {
        self.look_takes.set(Some(time));
    }

    /// How long the next update takes before it is there.
    pub fn set_time_of_next_update(&self, time: Duration) {
        self.update_takes.set(Some(time));
    }

    /// From now on the medium does not give a block of an object back.
    pub fn set_unreadable(&self, object: ObjectId, block: u64) {
        self.unreadable.borrow_mut().insert((object, block));
    }

    /// Whether what is noted of an object is damaged from now on.
    pub fn set_damaged(&self, object: ObjectId, is_damaged: bool) {
        let mut damaged = self.damaged.borrow_mut();
        if is_damaged {
            damaged.insert(object)
        } else {
            damaged.remove(&object)
        };
    }

    fn check(&self) -> StoreResult<()> {
        if self.closed.get() { Err(FsError::Io) } else { Ok(()) }
    }

    fn read_now(&self, object: ObjectId, range: BlockRange) -> StoreResult<Blocks> {
        self.check()?;
        if self.unreadable.borrow().range((object, range.first)..(object, range.end())).next().is_some() {
            return Err(FsError::Io);
        }
        let state = self.state.borrow();
        let object = state.books.objects.get(&object).ok_or(FsError::NotFound)?;
        let mut out = Blocks::default();
        let mut at = range.first;
        while at < range.end() {
            match object.blocks.get(&at) {
                Some(Block::Data(bytes, crc)) => {
                    let mut run = self.pool.alloc_run(1).ok_or(FsError::NoMemory)?;
                    run.bytes_mut().expect("a fresh frame has one owner").copy_from_slice(bytes);
                    out.bulk.push(frames::Segment { run, offset: 0, len: BLOCK_BYTES as u32 });
                    out.crcs.push(*crc);
                }
                _ => {
                    self.zeros.push(&mut out.bulk, 1);
                    out.crcs.push(crc_of_zeros());
                }
            }
            at += 1;
        }
        Ok(out)
    }

    fn update_now(&self, id: ObjectId, update: &Update) -> StoreResult<Applied> {
        self.check()?;
        let state = &mut *self.state.borrow_mut();
        let object = state.books.find(id)?;
        let before = object.attr;
        let mut attr = before;
        apply_size(&mut attr, update.size, OBJECT_BYTES_MAX)?;
        if state.used_blocks + object.added(update) > self.capacity_blocks {
            return Err(FsError::NoSpace);
        }
        for d in &update.drops {
            object.drop_range(*d);
        }
        for r in &update.reserves {
            for b in r.first..r.end() {
                object.blocks.entry(b).or_insert(Block::Reserved);
            }
        }
        for p in &update.puts {
            object.put(p);
        }
        if let SizeRule::Exactly(size) = update.size {
            object.drop_range(BlockRange::new(size.div_ceil(BLOCK_BYTES), u64::MAX));
        }
        apply_attr(&mut attr, update);
        let blocks = object.blocks.len() as u64;
        state.used_blocks = state.used_blocks + blocks - attr.blocks;
        object.attr = ObjectAttr { blocks, ..attr };
        let attr = object.attr;
        state.usages.charge(&before, &attr);
        Ok(Applied { transno: state.books.commit(update.replay), attr })
    }

    fn destroy_now(&self, objects: &[ObjectId], replay: Option<Transno>) -> StoreResult<Transno> {
        self.check()?;
        let state = &mut *self.state.borrow_mut();
        for id in objects {
            state.advice.remove(id);
            if let Some(o) = state.books.objects.remove(id) {
                state.used_blocks -= o.attr.blocks;
                state.usages.charge(&o.attr, &ObjectAttr::default());
            }
        }
        Ok(state.books.commit(replay))
    }

    fn seek_now(&self, object: ObjectId, block: u64, data: bool) -> StoreResult<Option<u64>> {
        self.check()?;
        let state = self.state.borrow();
        let object = state.books.objects.get(&object).ok_or(FsError::NotFound)?;
        let mut at = block;
        for (b, content) in object.blocks.range(block..) {
            let is_data = matches!(content, Block::Data(..));
            if data && is_data {
                return Ok(Some(*b));
            }
            if !data && (*b != at || !is_data) {
                return Ok(Some(at));
            }
            at = b + 1;
        }
        Ok(if data { None } else { Some(at) })
    }
}

impl Object {
    fn put(&mut self, run: &BlockRun) {
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        for (i, crc) in run.crcs.iter().enumerate() {
            run.bulk.copy_out(i * BLOCK_BYTES as usize, &mut bytes);
            self.blocks.insert(run.first + i as u64, Block::Data(bytes.clone().into_boxed_slice(), *crc));
        }
    }
}

impl ObjectStore for MemoryStore {
    fn kind(&self) -> &'static str {
        "memory"
    }
    fn identity(&self) -> StoreIdentity {
        self.identity.clone()
    }
    fn boot(&self) -> u64 {
        1
    }
    fn attr(&self, object: ObjectId) -> LocalFuture<StoreResult<ObjectAttr>> {
        let found = self.state.borrow().books.objects.get(&object).map(|o| o.attr);
        let known = if self.damaged.borrow().contains(&object) { Err(FsError::Corrupt) } else { Ok(()) };
        ready(self.check().and(known).and_then(|()| found.ok_or(FsError::NotFound)))
    }
    fn read(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<Blocks>> {
        ready(self.read_now(object, range))
    }
    fn update(&self, object: ObjectId, update: Update) -> LocalFuture<StoreResult<Applied>> {
        let Some(time) = self.update_takes.take() else { return ready(self.update_now(object, &update)) };
        let me = self.me.upgrade().expect("whoever calls has it");
        Box::pin(async move {
            me.rt.sleep(time).await;
            me.update_now(object, &update)
        })
    }
    fn create(&self, seq: u64, to: u32) -> LocalFuture<StoreResult<()>> {
        self.state.borrow_mut().books.create(seq, to);
        ready(self.check())
    }
    fn last_object(&self, seq: u64) -> u32 {
        self.state.borrow().books.last_object(seq)
    }
    fn destroy(&self, objects: Vec<ObjectId>, replay: Option<Transno>) -> LocalFuture<StoreResult<Transno>> {
        ready(self.destroy_now(&objects, replay))
    }
    fn seek(&self, object: ObjectId, block: u64, data: bool) -> LocalFuture<StoreResult<Option<u64>>> {
        ready(self.seek_now(object, block, data))
    }
    fn reserved(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<u64>> {
        let state = self.state.borrow();
        let count = state.books.objects.get(&object).map(|o| {
            let within = o.blocks.range(range.first..range.end());
            within.filter(|(_, content)| matches!(content, Block::Reserved)).count() as u64
        });
        ready(count.ok_or(FsError::NotFound))
    }
    fn allocated(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<u64>> {
        let state = self.state.borrow();
        let count = state.books.objects.get(&object).map(|o| o.blocks.range(range.first..range.end()).count() as u64);
        ready(count.ok_or(FsError::NotFound))
    }
    fn sync(&self) -> LocalFuture<StoreResult<()>> {
        ready(self.check())
    }
    fn last_committed(&self) -> Transno {
        self.state.borrow().books.transno
    }
    fn space(&self) -> Space {
        let state = self.state.borrow();
        let free = (self.capacity_blocks - state.used_blocks) * BLOCK_BYTES;
        state.books.space(self.capacity_blocks * BLOCK_BYTES, free)
    }
    fn sessions(&self) -> Vec<(ClientId, u64)> {
        self.state.borrow().books.sessions.iter().map(|(c, n)| (*c, *n)).collect()
    }
    fn session_open(&self, client: ClientId, number: u64, _origin: Origin) -> LocalFuture<StoreResult<()>> {
        self.state.borrow_mut().books.sessions.insert(client, number);
        ready(self.check())
    }
    fn session_close(&self, client: ClientId) -> LocalFuture<StoreResult<()>> {
        self.state.borrow_mut().books.sessions.remove(&client);
        ready(self.check())
    }
    fn advice(&self) -> Vec<(ObjectId, Vec<u8>)> {
        self.state.borrow().advice.iter().map(|(o, r)| (*o, r.clone())).collect()
    }
    fn set_advice(&self, object: ObjectId, record: Vec<u8>) -> LocalFuture<StoreResult<()>> {
        let state = &mut *self.state.borrow_mut();
        let found = self.check().and_then(|()| state.books.find(object).map(drop));
        if found.is_ok() {
            state.advice.remove(&object);
            if !record.is_empty() {
                state.advice.insert(object, record);
            }
        }
        ready(found)
    }
    fn revoked(&self) -> Vec<(u64, WallTime)> {
        self.state.borrow().revoked.clone()
    }
    fn revoke(&self, credentials: Vec<(u64, WallTime)>, _since: WallTime) -> LocalFuture<StoreResult<()>> {
        self.state.borrow_mut().revoked.extend(credentials);
        ready(self.check())
    }
    fn usage(&self, who: Charged) -> u64 {
        self.state.borrow().usages.of(who)
    }
    fn shares(&self) -> Vec<(Charged, u64)> {
        self.state.borrow().shares.iter().map(|(who, share)| (*who, *share)).collect()
    }
    fn set_shares(&self, shares: Vec<(Charged, Option<u64>)>) -> LocalFuture<StoreResult<()>> {
        let all = &mut self.state.borrow_mut().shares;
        for (who, share) in shares {
            match share {
                Some(share) => all.insert(who, share),
                None => all.remove(&who),
            };
        }
        let (rt, takes, done) = (self.rt.clone(), self.shares_take.get(), self.check());
        Box::pin(async move {
            if !takes.is_zero() {
                rt.sleep(takes).await;
            }
            done
        })
    }
    fn objects(&self, after: ObjectId, count: usize) -> LocalFuture<StoreResult<Vec<ObjectInfo>>> {
        let list = self.state.borrow().books.list(after, count, |o| o.attr);
        ready(self.check().map(|()| list))
    }
    fn verify(&self, object: ObjectId) -> LocalFuture<StoreResult<Vec<BadBlock>>> {
        let state = self.state.borrow();
        let Some(o) = state.books.objects.get(&object) else { return ready(Err(FsError::NotFound)) };
        let bad = |(b, c): (&u64, &Block)| match c {
            Block::Data(bytes, crc) if wire::crc32c(bytes) != *crc => Some(BadBlock { object, block: *b }),
            _ => None,
        };
        ready(Ok(o.blocks.iter().filter_map(bad).collect()))
    }
    fn fence(&self) -> Option<&dyn Fenced> {
        Some(self)
    }
    fn failure(&self) -> Option<FsError> {
        self.check().err()
    }
    fn close(&self) -> LocalFuture<StoreResult<()>> {
        self.closed.set(true);
        ready(Ok(()))
    }
}

impl Fenced for MemoryStore {
    fn still_ours(&self) -> LocalFuture<StoreResult<()>> {
        let (rt, takes) = (self.rt.clone(), self.look_takes.take().unwrap_or_default());
        Box::pin(async move {
            rt.sleep(takes).await;
            Ok(())
        })
    }
    fn is_surely_ours(&self) -> bool {
        self.look_takes.get().is_none()
    }
    fn is_replaced(&self) -> bool {
        false
    }
    fn on_replaced(&self, _: Box<dyn Fn()>) {}
}
