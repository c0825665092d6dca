//! Reading all data of a target against their checksums while it serves: what nobody reads must not rot unseen.
//!
//! Begun, watched and stopped by a parameter (`obdfilter.*.scrub`). Each piece waits for a turn that no client's request wants
//! ([`crate::dispatch::Dispatcher::admit_background`]), and for as long as its bytes take at the rate that was asked for.
//! Bytes come from the store, past the cache.
use std::rc::Rc;

use types::scrub::{Progress, rate_of};
use types::{Duration, FsError, Instant, MIB, ObjectId};

use crate::ost::Ost;
use crate::store::{BLOCK_BYTES, BlockRange};

/// Blocks that are read at a time.
const BLOCKS_PER_STEP: u64 = 64;
/// Pause when there was no memory for a read.
const MEMORY_PAUSE: Duration = Duration::from_secs(1);
/// Objects that are listed at a time.
const OBJECTS_PER_STEP: usize = 256;

/// How far it is.
#[derive(Default)]
pub(crate) struct ScrubState {
    progress: Progress,
    objects: u64,
    total: u64,
}

impl ScrubState {
    /// Damaged places found.
    pub fn faults(&self) -> u64 {
        self.progress.totals().1
    }
    /// The value of the parameter.
    pub fn text(&self) -> String {
        self.progress.text(&format!("objects: {} of {}", self.objects, self.total))
    }
}

impl Ost {
    /// Begins to read everything at so many MiB/s, or stops (0).
    pub(crate) fn set_scrub(&self, text: &str) -> Result<(), String> {
        let rate = rate_of(text)?;
        let order = {
            let mut s = self.scrub.borrow_mut();
            if rate == 0 {
                s.progress.stop();
                return Ok(());
            }
            (s.objects, s.total) = (0, self.store.space().objects);
            s.progress.begin(rate)
        };
        let scrub = Scrub {
            store: self.store.clone(),
            dispatch: self.dispatch.clone(),
            rt: self.rt.clone(),
            state: self.scrub.clone(),
            target: self.identity.target(),
            order,
            rate: rate * MIB,
        };
        self.rt.spawn(async move {
            let done = scrub.run().await;
            let mut s = scrub.state.borrow_mut();
            if s.progress.on_end(order, done.is_ok()) {
                let (bytes, faults) = s.progress.totals();
                match done {
                    Ok(()) => tracing::info!(target = scrub.target, faults, bytes, "scrub: everything was read"),
                    Err(e) => tracing::error!(target = scrub.target, "scrub: {e}"),
                }
            }
        });
        Ok(())
    }
}

struct Scrub {
    rt: rt::Rt,
    store: Rc<dyn crate::store::ObjectStore>,
    dispatch: crate::dispatch::Dispatcher,
    state: Rc<std::cell::RefCell<ScrubState>>,
    target: String,
    order: u64,
    /// Bytes per second.
    rate: u64,
}

/// Why an object was not read to its end.
enum Unread {
    /// The store says so.
    Store(FsError),
    /// There are no turns any more.
    Ended(FsError),
}

impl Scrub {
    fn is_over(&self) -> bool {
        !self.state.borrow().progress.goes_on(self.order)
    }

    async fn run(&self) -> Result<(), FsError> {
        let pages = self.pages().await;
        self.store.look_at_pages(0).await?;
        pages?;
        let (mut after, mut next) = (ObjectId::default(), self.rt.now());
        loop {
            let page = self.store.objects(after, OBJECTS_PER_STEP).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.object;
            for info in &page {
                match self.object(info.object, &mut next).await {
                    // It was removed meanwhile.
                    Ok(()) | Err(Unread::Store(FsError::NotFound)) => {}
                    // Its map is damaged: nothing of it can be read.
                    Err(Unread::Store(FsError::Corrupt)) => {
                        self.fault(format!("object {}: its records do not match their checksums", info.object))
                    }
                    Err(Unread::Store(e)) if self.store.failure().is_some() => return Err(e),
                    Err(Unread::Store(e)) => {
                        self.fault(format!("object {}: its records cannot be read: {e}", info.object));
                    }
                    Err(Unread::Ended(e)) => return Err(e),
                }
                if self.is_over() {
                    return Ok(());
                }
                self.state.borrow_mut().objects += 1;
            }
        }
    }

    /// Compares the pages of the store's own with their checksums.
    async fn pages(&self) -> Result<(), FsError> {
        let mut next = self.rt.now();
        let range = BlockRange { first: 0, count: BLOCKS_PER_STEP };
        while !self.is_over() {
            self.rt.sleep_until(next).await;
            let permit = self.dispatch.background_turn(ObjectId::default(), range).await?;
            let looked = self.store.look_at_pages(BLOCKS_PER_STEP * BLOCK_BYTES).await?;
            drop(permit);
            looked.faults.into_iter().for_each(|fault| self.fault(fault));
            next = self.went_on(next, looked.bytes);
            if looked.is_over {
                break;
            }
        }
        Ok(())
    }

    /// So many bytes were read; when the next are due.
    fn went_on(&self, due: Instant, bytes: u64) -> Instant {
        self.state.borrow_mut().progress.on_bytes(bytes);
        due.max(self.rt.now()) + Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.rate)
    }

    async fn object(&self, object: ObjectId, next: &mut Instant) -> Result<(), Unread> {
        let mut at = 0;
        while let Some(first) = self.store.seek(object, at, true).await.map_err(Unread::Store)? {
            let range = BlockRange { first, count: BLOCKS_PER_STEP };
            self.rt.sleep_until(*next).await;
            let permit = self.dispatch.background_turn(object, range).await.map_err(Unread::Ended)?;
            if self.is_over() {
                return Ok(());
            }
            if self.read(object, range).await.is_err() {
                for block in range.first..range.end() {
                    match self.read(object, BlockRange { first: block, count: 1 }).await {
                        Ok(_) => {}
                        Err(FsError::NotFound) => return Ok(()),
                        Err(FsError::Corrupt) => {
                            self.fault(format!("object {object}: block {block} does not match its checksum"));
                        }
                        Err(e) if self.store.failure().is_some() => return Err(Unread::Ended(e)),
                        Err(e) => self.fault(format!("object {object}: block {block} cannot be read: {e}")),
                    }
                }
            }
            drop(permit);
            *next = self.went_on(*next, range.count * BLOCK_BYTES);
            at = range.end();
        }
        Ok(())
    }

    /// Reads blocks, whenever there is memory for them.
    async fn read(&self, object: ObjectId, range: BlockRange) -> Result<(), FsError> {
        loop {
            match self.store.read(object, range).await {
                Err(FsError::NoMemory) if !self.is_over() => self.rt.sleep(MEMORY_PAUSE).await,
                outcome => return outcome.map(drop),
            }
        }
    }

    fn fault(&self, what: String) {
        tracing::error!(target = self.target, "scrub: {what}");
        self.state.borrow_mut().progress.on_fault(what);
    }
}
