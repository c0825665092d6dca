//! A store without bytes: for measuring everything above it. Reads answer a pattern that follows from object and
//! offset, writes are compared with that pattern and dropped. Sizes are kept, so clients see ordinary files.
use std::cell::RefCell;
use std::rc::Rc;

use frames::{FRAME_BYTES, FramePool, Segment};
use rt::{LocalFuture, Rt};
use types::{ClientId, FsError, ObjectId, Origin, Transno};
use wire::crc32c;

use super::volatile::{Books, apply_attr, apply_size, ready};
use super::{
    Applied, BLOCK_BYTES, BadBlock, BlockRange, Blocks, Fenced, OBJECT_BYTES_MAX, ObjectAttr, ObjectInfo, ObjectStore,
    Space, StoreIdentity, StoreResult, Update,
};

/// Fills `page` with the pattern of block `block` of `object`: little-endian words, each mixed from object and offset.
pub fn pattern_page(object: ObjectId, block: u64, page: &mut [u8]) {
    let seed = object.0.seq.rotate_left(32) ^ u64::from(object.0.oid);
    let base = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (block << 12);
    for (i, word) in page.chunks_exact_mut(8).enumerate() {
        let z = (base ^ (i as u64) << 3).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word.copy_from_slice(&(z ^ z >> 29).to_le_bytes());
    }
}

#[derive(Default)]
struct State {
    books: Books<ObjectAttr>,
    mismatches: u64,
}

/// The null store.
pub struct NullStore {
    identity: StoreIdentity,
    capacity_bytes: u64,
    pool: FramePool,
    check_writes: bool,
    state: RefCell<State>,
}

impl NullStore {
    /// A store that claims `capacity_bytes`. With `check_writes`, a block that is not the pattern is refused as
    /// `Corrupt`; blocks behind the written size may be zeros.
    #[must_use]
    pub fn new(rt: &Rt, identity: StoreIdentity, capacity_bytes: u64, check_writes: bool) -> Rc<NullStore> {
        let pool = rt.frames();
        Rc::new(NullStore { identity, capacity_bytes, pool, check_writes, state: RefCell::default() })
    }

    /// Blocks written that were not the pattern.
    #[must_use]
    pub fn mismatches(&self) -> u64 {
        self.state.borrow().mismatches
    }

    fn read_now(&self, object: ObjectId, range: BlockRange) -> StoreResult<Blocks> {
        self.state.borrow_mut().books.find(object)?;
        let mut out = Blocks::default();
        let mut block = range.first;
        for mut run in self.pool.alloc(range.count as usize).ok_or(FsError::NoMemory)? {
            for page in run.bytes_mut().expect("a fresh run has one owner").chunks_exact_mut(FRAME_BYTES) {
                pattern_page(object, block, page);
                out.crcs.push(crc32c(page));
                block += 1;
            }
            out.bulk.push(Segment { len: run.len() as u32, run, offset: 0 });
        }
        Ok(out)
    }

    fn check(&self, object: ObjectId, update: &Update) -> StoreResult<()> {
        let mut want = [0; FRAME_BYTES];
        for put in &update.puts {
            let pages = put.bulk.slices().flat_map(|s| s.chunks_exact(FRAME_BYTES));
            for (block, page) in (put.first..).zip(pages) {
                pattern_page(object, block, &mut want);
                let same = page.iter().zip(&want).take_while(|(a, b)| a == b).count();
                if page[same..].iter().any(|b| *b != 0) {
                    self.state.borrow_mut().mismatches += 1;
                    let offset = block * BLOCK_BYTES + same as u64;
                    tracing::error!(%object, offset, "written bytes are not the pattern");
                    return Err(FsError::Corrupt);
                }
            }
        }
        Ok(())
    }

    fn update_now(&self, object: ObjectId, update: &Update) -> StoreResult<Applied> {
        if self.check_writes {
            self.check(object, update)?;
        }
        let state = &mut *self.state.borrow_mut();
        let attr = state.books.find(object)?;
        apply_size(attr, update.size, OBJECT_BYTES_MAX)?;
        apply_attr(attr, update);
        attr.blocks = attr.size.div_ceil(BLOCK_BYTES);
        let attr = *attr;
        Ok(Applied { transno: state.books.commit(update.replay), attr })
    }
}

impl ObjectStore for NullStore {
    fn kind(&self) -> &'static str {
        "null"
    }
    fn identity(&self) -> StoreIdentity {
        self.identity.clone()
    }
    fn boot(&self) -> u64 {
        1
    }
    fn attr(&self, object: ObjectId) -> LocalFuture<StoreResult<ObjectAttr>> {
        ready(self.state.borrow_mut().books.find(object).copied())
    }
    fn read(&self, object: ObjectId, range: BlockRange) -> LocalFuture<StoreResult<Blocks>> {
        ready(self.read_now(object, range))
    }
    fn update(&self, object: ObjectId, update: Update) -> LocalFuture<StoreResult<Applied>> {
        ready(self.update_now(object, &update))
    }
    fn create(&self, seq: u64, to: u32) -> LocalFuture<StoreResult<()>> {
        self.state.borrow_mut().books.create(seq, to);
        ready(Ok(()))
    }
    fn last_object(&self, seq: u64) -> u32 {
        self.state.borrow().books.last_object(seq)
    }
    fn destroy(&self, objects: Vec<ObjectId>, replay: Option<Transno>) -> LocalFuture<StoreResult<Transno>> {
        let state = &mut *self.state.borrow_mut();
        for o in objects {
            state.books.objects.remove(&o);
        }
        ready(Ok(state.books.commit(replay)))
    }
    fn seek(&self, object: ObjectId, block: u64, data: bool) -> LocalFuture<StoreResult<Option<u64>>> {
        let attr = self.state.borrow_mut().books.find(object).copied();
        ready(attr.map(|a| match data {
            true => (block < a.blocks).then_some(block),
            false => Some(block.max(a.blocks)),
        }))
    }
    fn reserved(&self, _object: ObjectId, _range: BlockRange) -> LocalFuture<StoreResult<u64>> {
        ready(Ok(0))
    }
    fn sync(&self) -> LocalFuture<StoreResult<()>> {
        ready(Ok(()))
    }
    fn last_committed(&self) -> Transno {
        self.state.borrow().books.transno
    }
    fn space(&self) -> Space {
        self.state.borrow().books.space(self.capacity_bytes, self.capacity_bytes)
    }
    fn sessions(&self) -> Vec<(ClientId, u64)> {
        self.state.borrow().books.sessions.iter().map(|(c, n)| (*c, *n)).collect()
    }
    fn session_open(&self, client: ClientId, number: u64, _origin: Origin) -> LocalFuture<StoreResult<()>> {
        self.state.borrow_mut().books.sessions.insert(client, number);
        ready(Ok(()))
    }
    fn session_close(&self, client: ClientId) -> LocalFuture<StoreResult<()>> {
        self.state.borrow_mut().books.sessions.remove(&client);
        ready(Ok(()))
    }
    fn objects(&self, after: ObjectId, count: usize) -> LocalFuture<StoreResult<Vec<ObjectInfo>>> {
        ready(Ok(self.state.borrow().books.list(after, count, |attr| *attr)))
    }
    fn verify(&self, _object: ObjectId) -> LocalFuture<StoreResult<Vec<BadBlock>>> {
        ready(Ok(Vec::new()))
    }
    fn fence(&self) -> Option<&dyn Fenced> {
        None
    }
    fn failure(&self) -> Option<FsError> {
        None
    }
    fn close(&self) -> LocalFuture<StoreResult<()>> {
        ready(Ok(()))
    }
}
