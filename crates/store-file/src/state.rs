//! What an open store has in memory, and the moments at which it changes. No I/O here.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hashbrown::HashMap;
use oss::store::{
    Applied, BlockRange, BlockRun, Charged, OBJECT_BYTES_MAX, ObjectAttr, Promise, ReplyRecord, SizeRule, StoreResult,
    Update, Usages,
};
use rustc_hash::FxBuildHasher;
use types::{ClientId, FsError, ObjectId, Origin, Transno, WallTime};
use wire::connect::Opening;

use crate::db::DbOp;
use crate::format::Extent;
use crate::map::Object;
use crate::space::{Run, SpaceMap};

/// A piece of new data and where it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// Which of the update's runs.
    pub run: usize,
    /// First block within the object.
    pub first: u64,
    pub to: Run,
    /// The space was reserved there before; it stays mapped until the data are written.
    pub reused: bool,
}

/// What became of an update whose data are written.
pub(crate) enum Outcome {
    Applied(Applied),
    /// There is no space for what it reserves: so many blocks have to be ready.
    NoRoom(u64),
    /// Reserved blocks that it wrote into are no longer there: place and write again.
    Stale,
}

/// What has to happen before more blocks are free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Coming {
    /// A commit.
    Commit,
    /// Reads and writes that are under way end.
    Others,
}

/// Where an update's data go.
pub(crate) struct Placement {
    pub placed: Vec<Placed>,
    epoch: u64,
}

/// Everything that one commit takes along.
pub(crate) struct Batch {
    pub id: u64,
    pub ops: Vec<DbOp>,
    pub transno: Transno,
    pub data_written: bool,
}

/// See the module's head.
pub(crate) struct State {
    pub objects: HashMap<ObjectId, Object, FxBuildHasher>,
    /// Objects that were destroyed, by the commit after which the database knows.
    pub tombs: BTreeMap<ObjectId, u64>,
    dirty: BTreeSet<ObjectId>,
    ops: Vec<DbOp>,
    pub sequences: BTreeMap<u64, u32>,
    /// Objects up to this one that do not exist may be lost.
    pub lost_through: u32,
    pub sessions: BTreeMap<ClientId, u64>,
    pub origins: BTreeMap<ClientId, Origin>,
    /// Answers that the store had when it was opened.
    pub answers: BTreeMap<ClientId, Vec<ReplyRecord>>,
    /// Answers since the last batch: those of earlier requests over the same slots are forgotten.
    answered: BTreeMap<(ClientId, u16), ReplyRecord>,
    /// What clients held that were quiet when the store was opened.
    pub quiet: Vec<(ClientId, Vec<u8>)>,
    /// Objects with advice.
    advised: BTreeSet<ObjectId>,
    /// The advice that the store had when it was opened.
    pub advice: Vec<(ObjectId, Vec<u8>)>,
    /// Objects of which a cut is promised.
    promised: BTreeSet<ObjectId>,
    /// The promises that the store had when it was opened.
    pub promises: Vec<(ObjectId, Promise)>,
    /// Credentials that were revoked, and when they would have ended.
    pub revoked: BTreeMap<u64, WallTime>,
    /// Blocks by whose they are.
    pub usages: Usages,
    /// The shares that the store had when it was opened.
    pub shares: Vec<(Charged, u64)>,
    /// Every object has an owner.
    pub is_owned: bool,
    pub space: SpaceMap,
    freeing: Vec<Run>,
    freeing_blocks: u64,
    /// Freed by a commit, but reads that began before may still be under way.
    quarantine: VecDeque<(u64, Vec<Run>)>,
    /// Blocks below the end of the data file that have no space on the medium.
    pub bare: BTreeMap<u64, u64>,
    pub bare_blocks: u64,
    /// Placements whose data are being written: most of them free what they replace.
    pub placing: u32,
    /// Reserved blocks that are being written where they are.
    claims: Vec<Run>,
    readers: BTreeMap<u64, u32>,
    epoch: u64,
    pub applied: Transno,
    pub committed: Transno,
    /// Number of the commit that takes the next change along.
    pub commit_next: u64,
    /// Last commit that is done.
    pub commit_done: u64,
    /// What is being loaded: none of it leaves memory meanwhile.
    loads: BTreeMap<u64, Load>,
    load_next: u64,
    pub object_count: u64,
    pub data_written: bool,
    pub changed: bool,
    /// Block checksums in memory, and chunks of maps.
    mapped_blocks: usize,
    chunks: usize,
    /// Objects and blocks below which a load does not look for what may leave memory: when it last did, it found too little.
    shrinks_from: (usize, usize),
    /// How often the limits were reached.
    pub shrinks: u64,
}

/// An object and blocks of its map that somebody brings into memory.
struct Load {
    id: ObjectId,
    ranges: Vec<BlockRange>,
    /// The object was removed meanwhile: what was read of it is no more.
    is_gone: bool,
}

/// What one chunk counts for besides its checksums, in those: it is a node of the map even when it holds nothing.
const CHUNK_COST: usize = 8;

impl State {
    pub fn new(start: &crate::db::Start, space: SpaceMap) -> State {
        State {
            objects: HashMap::default(),
            tombs: BTreeMap::new(),
            dirty: BTreeSet::new(),
            ops: Vec::new(),
            sequences: start.sequences.iter().copied().collect(),
            lost_through: start.lost_through,
            sessions: start.sessions.iter().copied().collect(),
            origins: start.origins.iter().copied().collect(),
            answers: answers_of_sessions(start),
            answered: BTreeMap::new(),
            quiet: start.quiet.clone(),
            advised: start.advice.iter().map(|(o, _)| *o).collect(),
            advice: start.advice.clone(),
            promised: start.promises.iter().map(|(o, _)| *o).collect(),
            promises: start.promises.clone(),
            revoked: start.revoked.iter().copied().collect(),
            usages: start.usages.clone(),
            shares: start.shares.clone(),
            is_owned: start.is_owned,
            space,
            freeing: Vec::new(),
            freeing_blocks: 0,
            quarantine: VecDeque::new(),
            bare: BTreeMap::new(),
            bare_blocks: 0,
            placing: 0,
            claims: Vec::new(),
            readers: BTreeMap::new(),
            epoch: 0,
            applied: start.transno,
            committed: start.transno,
            commit_next: 1,
            commit_done: 0,
            loads: BTreeMap::new(),
            load_next: 0,
            object_count: start.objects,
            data_written: false,
            changed: false,
            mapped_blocks: 0,
            chunks: 0,
            shrinks_from: (0, 0),
            shrinks: 0,
        }
    }

    fn next_transno(&mut self, replay: Option<Transno>) -> Transno {
        self.changed = true;
        let t = replay.unwrap_or(Transno(self.applied.0.saturating_add(1)));
        self.applied = self.applied.max(t);
        t
    }

    /// What has to happen before more blocks are free; `None`: nothing will.
    pub fn coming_free(&self) -> Option<Coming> {
        let held = |uncommitted: bool| {
            self.quarantine.iter().any(|(tag, runs)| (*tag == u64::MAX) == uncommitted && !runs.is_empty())
        };
        if self.freeing_blocks > 0 || held(true) {
            return Some(Coming::Commit);
        }
        (held(false) || self.placing > 0).then_some(Coming::Others)
    }

    /// These blocks have no space on the medium any more.
    pub fn add_bare(&mut self, run: Run) {
        self.bare.insert(run.start, run.blocks);
        self.bare_blocks += run.blocks;
    }

    /// Up to `most` blocks without space, to be given space again.
    pub fn take_bare(&mut self, most: u64) -> Option<Run> {
        let (start, blocks) = self.bare.pop_first()?;
        let take = blocks.min(most);
        if take < blocks {
            self.bare.insert(start + take, blocks - take);
        }
        self.bare_blocks -= take;
        Some(Run { start, blocks: take })
    }

    /// Space for the runs of an update: reserved blocks are used where they are, the rest is new. An error, and nothing
    /// taken, when there is not enough: so many blocks have to be ready. The object and the map of the runs are in memory. What is freed from now on
    /// stays as it is until [`State::settle`] gives the placement up. `spare` blocks stay for overwrites when the update
    /// fills holes.
    pub fn place(&mut self, id: ObjectId, puts: &[BlockRun], spare: u64) -> StoreResult<Result<Placement, u64>> {
        let object = self.objects.get(&id).ok_or(FsError::NotFound)?;
        let mut placed = Vec::new();
        for (run, p) in puts.iter().enumerate() {
            for (first, to) in object.reserved(p.range()) {
                if !self.claims.iter().any(|c| c.start < to.start + to.blocks && to.start < c.start + c.blocks) {
                    placed.push(Placed { run, first, to, reused: true });
                }
            }
        }
        let reused: u64 = placed.iter().map(|p| p.to.blocks).sum();
        let want: u64 = puts.iter().map(|p| p.range().count).sum::<u64>() - reused;
        let keep = if puts.iter().any(|p| object.holes(p.range()) > 0) { spare } else { 0 };
        if want > 0 && want + keep > self.space.ready() {
            return Ok(Err(want + keep));
        }
        self.placing += 1;
        self.claims.extend(placed.iter().map(|p| p.to));
        let size = object.attr.blocks + want + reused;
        for (run, p) in puts.iter().enumerate() {
            let mine: Vec<BlockRange> = placed
                .iter()
                .filter(|q| q.run == run)
                .map(|q| BlockRange { first: q.first, count: q.to.blocks })
                .collect();
            for gap in gaps(p.range(), &mine) {
                let runs = self.space.alloc(id, object.goal(gap.first), size, gap.count);
                let mut first = gap.first;
                for to in runs.expect("the sum of all gaps is free") {
                    placed.push(Placed { run, first, to, reused: false });
                    first += to.blocks;
                }
            }
        }
        Ok(Ok(Placement { placed, epoch: self.read_begins() }))
    }

    /// Gives a placement up: after its update was applied (`used`), or instead.
    pub fn settle(&mut self, placement: &Placement, used: bool) {
        self.placing -= 1;
        for p in &placement.placed {
            if p.reused {
                self.claims.retain(|c| *c != p.to);
            } else if !used {
                self.space.free(p.to);
            }
        }
        self.read_ends(placement.epoch);
    }

    /// Applies an update whose data are written. The object and the map of everything it touches are in memory.
    /// When it fails nothing has changed, and the placed space is still the caller's.
    pub fn apply(&mut self, id: ObjectId, update: &Update, placed: &[Placed], spare: u64) -> StoreResult<Outcome> {
        let object = self.objects.get_mut(&id).ok_or(FsError::NotFound)?;
        let there =
            |p: &Placed| object.reserved(BlockRange { first: p.first, count: p.to.blocks }) == [(p.first, p.to)];
        if !placed.iter().filter(|p| p.reused).all(there) {
            return Ok(Outcome::Stale);
        }
        let mut attr = object.attr;
        oss::store::apply_size(&mut attr, update.size, OBJECT_BYTES_MAX)?;
        let wanted: u64 = update.reserves.iter().map(|r| r.count).sum();
        let (before, chunks) = (object.attr, object.chunk_count());
        let mut freed = Vec::new();
        if wanted > 0 {
            let at_most =
                |r: &BlockRange| if update.drops.iter().any(|d| d.overlaps(r)) { r.count } else { object.holes(*r) };
            let want = update.reserves.iter().map(at_most).sum::<u64>();
            if want > 0 && want + spare > self.space.ready() {
                return Ok(Outcome::NoRoom(want + spare));
            }
        }
        for p in placed.iter().filter(|p| p.reused) {
            object.take_reserved(BlockRange { first: p.first, count: p.to.blocks });
        }
        for d in &update.drops {
            object.unmap(*d, &mut freed);
        }
        for r in &update.reserves {
            for hole in object.hole_ranges(*r) {
                let size = object.attr.blocks + hole.count;
                let runs = self.space.alloc(id, object.goal(hole.first), size, hole.count);
                let mut first = hole.first;
                for run in runs.expect("checked above") {
                    object.map(first, run, None);
                    first += run.blocks;
                }
            }
        }
        for p in &update.puts {
            object.unmap(p.range(), &mut freed);
        }
        for p in placed {
            let put = &update.puts[p.run];
            let at = (p.first - put.first) as usize;
            object.map(p.first, p.to, Some(&put.crcs[at..at + p.to.blocks as usize]));
        }
        if let SizeRule::Exactly(size) = update.size {
            object.unmap(BlockRange::new(size.div_ceil(oss::store::BLOCK_BYTES), u64::MAX), &mut freed);
        }
        oss::store::apply_attr(&mut attr, update);
        attr.blocks = object.attr.blocks;
        object.attr = attr;
        object.attr_dirty = true;
        self.chunks = self.chunks + object.chunk_count() - chunks;
        self.usages.charge(&before, &attr);
        self.mapped_blocks = (self.mapped_blocks + attr.blocks as usize).saturating_sub(before.blocks as usize);
        self.dirty.insert(id);
        self.data_written |= !placed.is_empty();
        self.free_later(freed);
        if update.keeps_promise {
            self.set_promise(id, None);
        }
        let transno = self.next_transno(update.replay);
        let applied = Applied { transno, attr };
        // Whoever has left asks for no answer again, and nobody would forget it.
        if let Some(answers) = update.answers.filter(|a| self.sessions.contains_key(&a.client)) {
            self.answered.insert((answers.client, answers.slot), answers.record(&applied));
        }
        Ok(Outcome::Applied(applied))
    }

    fn free_later(&mut self, freed: Vec<Run>) {
        self.freeing_blocks += freed.iter().map(|r| r.blocks).sum::<u64>();
        self.freeing.extend(freed);
    }

    /// Removes an object whose whole map is in memory.
    pub fn destroy(&mut self, id: ObjectId) {
        let Some(mut object) = self.objects.remove(&id) else { return };
        self.mapped_blocks = self.mapped_blocks.saturating_sub(object.mapped());
        self.chunks -= object.chunk_count();
        self.usages.charge(&object.attr, &ObjectAttr::default());
        let mut freed = Vec::new();
        object.unmap(BlockRange::new(0, u64::MAX), &mut freed);
        self.free_later(freed);
        self.space.close_window(id);
        self.dirty.remove(&id);
        self.tombs.insert(id, self.commit_next);
        self.ops.push(DbOp::DropObject(id));
        if self.advised.remove(&id) {
            self.ops.push(DbOp::Advice(id, Vec::new()));
        }
        self.set_promise(id, None);
        self.object_count -= 1;
        self.loads.values_mut().filter(|l| l.id == id).for_each(|l| l.is_gone = true);
        // Its blocks come free with a commit, also when what is destroyed along with it is not loaded yet.
        self.changed = true;
    }

    /// Ends a destroy: its transaction.
    pub fn destroyed(&mut self, replay: Option<Transno>) -> Transno {
        self.next_transno(replay)
    }

    /// Makes empty objects up to `to` in a sequence.
    pub fn create(&mut self, seq: u64, to: u32) {
        let last = self.sequences.entry(seq).or_default();
        for oid in *last + 1..=to {
            let id = ObjectId(types::Fid::new(seq, oid));
            self.objects.insert(id, Object::fresh());
            self.dirty.insert(id);
            self.object_count += 1;
        }
        if to > *last {
            *last = to;
            self.ops.push(DbOp::Sequence(seq, to));
            self.changed = true;
        }
    }

    /// Objects behind the last one of a sequence, up to `to`, are lost.
    pub fn lose(&mut self, seq: u64, to: u32) {
        let last = self.sequences.entry(seq).or_default();
        if to > *last {
            *last = to;
            self.lost_through = self.lost_through.max(to);
            self.ops.extend([DbOp::Sequence(seq, to), DbOp::Lost(self.lost_through)]);
            self.changed = true;
        }
    }

    /// The mark of an opening is kept from now on.
    pub fn keep_mark(&mut self, opening: &Opening) {
        self.ops.push(DbOp::Mark(opening.boot, opening.mark));
        self.changed = true;
    }

    /// The store was opened so often at least, and knows no client.
    pub fn disown(&mut self, boot: u64) {
        for client in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.session_close(client);
        }
        self.ops.push(DbOp::Opened(boot));
        self.changed = true;
    }

    /// Advice on an object is this from now on; empty: none.
    pub fn set_advice(&mut self, id: ObjectId, body: Vec<u8>) {
        let had = if body.is_empty() { self.advised.remove(&id) } else { !self.advised.insert(id) };
        if had || !body.is_empty() {
            self.ops.push(DbOp::Advice(id, body));
            self.changed = true;
        }
    }

    /// The promise to cut an object is this from now on.
    pub fn set_promise(&mut self, id: ObjectId, promise: Option<Promise>) {
        let had = if promise.is_none() { self.promised.remove(&id) } else { !self.promised.insert(id) };
        if had || promise.is_some() {
            self.ops.push(DbOp::Promise(id, promise));
            self.changed = true;
        }
    }

    /// These credentials are revoked, too; those that ended before `since` by themselves are forgotten.
    pub fn revoke(&mut self, credentials: &[(u64, WallTime)], since: WallTime) {
        let over: Vec<u64> = self.revoked.iter().filter(|(_, e)| e.0 != 0 && **e < since).map(|(id, _)| *id).collect();
        let gone = over.into_iter().map(|id| (id, None));
        let news: Vec<_> = gone.chain(credentials.iter().map(|(id, expires)| (*id, Some(*expires)))).collect();
        for (id, expires) in news {
            let before = match expires {
                Some(expires) => self.revoked.insert(id, expires),
                None => self.revoked.remove(&id),
            };
            if before != expires {
                self.ops.push(DbOp::Revoked(id, expires));
                self.changed = true;
            }
        }
    }

    /// One may have so many bytes from now on.
    pub fn set_share(&mut self, who: Charged, bytes: Option<u64>) {
        self.ops.push(DbOp::Share(who, bytes));
        self.changed = true;
    }

    /// Every object has an owner from now on.
    pub fn set_owned(&mut self) {
        self.is_owned = true;
        self.ops.push(DbOp::Owned);
        self.changed = true;
    }

    pub fn session_open(&mut self, client: ClientId, number: u64, origin: Origin) {
        let before = (self.sessions.insert(client, number), self.origins.insert(client, origin));
        if before != (Some(number), Some(origin)) {
            self.ops.push(DbOp::SessionOpen(client, number, origin));
            self.changed = true;
        }
    }

    pub fn session_close(&mut self, client: ClientId) {
        self.origins.remove(&client);
        self.answers.remove(&client);
        self.answered.retain(|(whose, _), _| *whose != client);
        if self.sessions.remove(&client).is_some() {
            self.ops.push(DbOp::SessionClose(client));
            self.changed = true;
        }
    }

    /// A remembered client holds what `row` says and nothing more; `None`: it may hold more from now on.
    pub fn set_quiet(&mut self, client: ClientId, row: Option<Vec<u8>>) {
        if self.sessions.contains_key(&client) {
            self.ops.push(DbOp::Quiet(client, row));
            self.changed = true;
        }
    }

    /// Everything that changed since the last batch; `None` when nothing did.
    pub fn batch(&mut self) -> Option<Batch> {
        if !self.changed {
            return None;
        }
        let id = self.commit_next;
        self.commit_next += 1;
        self.changed = false;
        // Removals and tables of names first, then what the remaining objects look like now.
        let mut ops = std::mem::take(&mut self.ops);
        ops.extend(std::mem::take(&mut self.answered).into_values().map(DbOp::Answer));
        if !types::planted!("usage-apart") {
            ops.extend(self.usages.take_changed().into_iter().map(|(who, blocks)| DbOp::Usage(who, blocks)));
        }
        for object in std::mem::take(&mut self.dirty) {
            let Some(o) = self.objects.get_mut(&object) else { continue };
            ops.push(DbOp::PutObject(object, o.attr));
            o.take_dirty(id, |first, e| {
                ops.push(match e {
                    Some(e) => DbOp::PutExtent(object, first, e.clone()),
                    None => DbOp::DropExtent(object, first),
                });
            });
        }
        self.freeing_blocks = 0;
        self.quarantine.push_back((u64::MAX, std::mem::take(&mut self.freeing)));
        let data_written = std::mem::take(&mut self.data_written);
        Some(Batch { id, ops, transno: self.applied, data_written })
    }

    /// A batch is on stable storage.
    pub fn committed(&mut self, batch: &Batch) {
        self.commit_done = batch.id;
        self.committed = self.committed.max(batch.transno);
        self.tombs.retain(|_, until| *until > batch.id);
        if let Some(entry) = self.quarantine.iter_mut().find(|(tag, _)| *tag == u64::MAX) {
            entry.0 = self.epoch;
        }
        self.epoch += 1;
        self.release();
    }

    /// A read begins: blocks freed from now on stay as they are until it ends.
    pub fn read_begins(&mut self) -> u64 {
        *self.readers.entry(self.epoch).or_default() += 1;
        self.epoch
    }

    /// A read has ended.
    pub fn read_ends(&mut self, epoch: u64) {
        if let Some(n) = self.readers.get_mut(&epoch) {
            *n -= 1;
            if *n == 0 {
                self.readers.remove(&epoch);
                self.release();
            }
        }
    }

    fn release(&mut self) {
        let oldest = self.readers.keys().next().copied().unwrap_or(u64::MAX - 1);
        while let Some((tag, _)) = self.quarantine.front()
            && *tag < oldest
        {
            let (_, runs) = self.quarantine.pop_front().expect("there is a front");
            runs.into_iter().for_each(|r| self.space.free(r));
        }
    }

    /// Somebody brings an object and the map of `ranges` into memory: both stay there from when they have come until
    /// [`State::load_ends`].
    pub fn load_begins(&mut self, id: ObjectId, ranges: &[BlockRange]) -> u64 {
        self.load_next += 1;
        self.loads.insert(self.load_next, Load { id, ranges: ranges.to_vec(), is_gone: false });
        self.load_next
    }

    /// All that there is from block `first` on is read for a load: of that, too, nothing leaves memory until it ends. What others bring
    /// meanwhile is newer than what was read; and without any of it, what was read would not tell which chunks hold nothing.
    pub fn load_widens(&mut self, load: u64, first: u64) {
        let load = self.loads.get_mut(&load).expect("it has not ended");
        load.ranges.push(BlockRange::new(first, u64::MAX));
    }

    /// That load has ended.
    pub fn load_ends(&mut self, load: u64) {
        self.loads.remove(&load);
    }

    /// An object that was read for a load comes into memory, with the rows of its whole map where they were read along.
    pub fn loaded(&mut self, load: u64, id: ObjectId, attr: ObjectAttr, rows: Option<Vec<(u64, Extent)>>) {
        if self.loads[&load].is_gone || self.objects.contains_key(&id) {
            return;
        }
        self.objects.insert(id, Object::known(attr));
        if let Some(rows) = rows {
            self.loaded_map(load, id, 0..u64::MAX, rows);
        }
    }

    /// Rows of whole chunks that were read for a load come into memory.
    pub fn loaded_map(&mut self, load: u64, id: ObjectId, chunks: std::ops::Range<u64>, rows: Vec<(u64, Extent)>) {
        if self.loads[&load].is_gone {
            return;
        }
        let Some(object) = self.objects.get_mut(&id) else { return };
        let before = object.chunk_count();
        self.mapped_blocks += object.load(chunks, rows);
        self.chunks += object.chunk_count() - before;
    }

    /// Objects, block checksums and what counts as such that memory holds.
    pub fn held(&self) -> (usize, usize) {
        (self.objects.len(), self.mapped_blocks + self.chunks * CHUNK_COST)
    }

    /// Lets clean objects and maps go until memory is within its limits, after a load. When too little may go, nobody looks
    /// again before a commit or more has come in: a look goes over everything.
    pub fn shrink_loaded(&mut self, objects_max: usize, mapped_max: usize) {
        let (objects, mapped) = self.held();
        if objects > self.shrinks_from.0 || mapped > self.shrinks_from.1 {
            self.shrink(objects_max, mapped_max);
        }
    }

    /// Lets clean objects and maps go until memory is within its limits.
    pub fn shrink(&mut self, objects_max: usize, mapped_max: usize) {
        self.shrinks_from = (objects_max, mapped_max);
        let within = |(objects, mapped): (usize, usize), part: usize| {
            objects <= objects_max / 8 * part && mapped <= mapped_max / 8 * part
        };
        let (objects, mapped) = self.held();
        if objects <= objects_max && mapped <= mapped_max {
            return;
        }
        self.shrinks += 1;
        let done = self.commit_done;
        let mut loads: BTreeMap<ObjectId, Vec<BlockRange>> = BTreeMap::new();
        for load in self.loads.values() {
            loads.entry(load.id).or_default().extend(&load.ranges);
        }
        let ids: Vec<ObjectId> = self.objects.keys().copied().collect();
        for id in ids {
            if within(self.held(), 7) {
                return;
            }
            let Some(o) = self.objects.get_mut(&id) else { continue };
            let (loading, chunks) = (loads.get(&id), o.chunk_count());
            let (gone, left) = if loading.is_none() && o.is_clean(done) {
                let n = o.mapped();
                self.objects.remove(&id);
                (n, 0)
            } else {
                let kept = |chunk| loading.is_some_and(|l| l.iter().any(|r| Object::touches(*r, chunk)));
                (o.shed(done, kept), o.chunk_count())
            };
            self.mapped_blocks = self.mapped_blocks.saturating_sub(gone);
            self.chunks = self.chunks + left - chunks;
        }
        let (objects, mapped) = self.held();
        self.shrinks_from = (objects_max.max(objects + objects_max / 8), mapped_max.max(mapped + mapped_max / 8));
    }
}

/// The remembered answers, by client.
fn answers_of_sessions(start: &crate::db::Start) -> BTreeMap<ClientId, Vec<ReplyRecord>> {
    let mut out: BTreeMap<ClientId, Vec<ReplyRecord>> = BTreeMap::new();
    for r in &start.answers {
        out.entry(r.client).or_default().push(r.clone());
    }
    out
}

/// The parts of `range` outside the disjoint `parts`.
fn gaps(range: BlockRange, parts: &[BlockRange]) -> Vec<BlockRange> {
    let mut sorted = parts.to_vec();
    sorted.sort_by_key(|p| p.first);
    let (mut out, mut at) = (Vec::new(), range.first);
    for p in sorted {
        if p.first > at {
            out.push(BlockRange::new(at, p.first));
        }
        at = p.end();
    }
    if at < range.end() {
        out.push(BlockRange::new(at, range.end()));
    }
    out
}
