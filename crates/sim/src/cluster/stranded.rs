//! A program of two clients: one is stopped while its writes wait at OSTs whose disks stand still, until servers have evicted it, or
//! gives these OSTs up and takes them back; then another one writes to the same places and syncs. Nothing of the first one may come after
//! that.
//!
//! Its writes wait where they can: at the disk, for each other's blocks, in the queue, or, where it had been quiet before, for a commit
//! ahead of all that.
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::rc::Rc;

use client::Client;
use types::{Duration, Extent, Fid, FsError, Rng};
use wire::mdt::Cred;

use super::context::Context;
use super::model::{Author, byte, bytes};
use super::moments::{Leaves, Strand};
use super::shared::look_at;

const O_RDWR: u32 = 2;
/// Bytes of a block: some share a page.
const BLOCK: u64 = 5000;
/// Blocks of the file.
const BLOCKS: u64 = 64;
/// Bytes of the file.
pub const STRANDED_BYTES: u64 = BLOCK * BLOCKS;
/// How long it is left alone, when it is to be quiet before.
const ALONE: Duration = Duration::from_secs(13);
/// Seconds that an eviction may take.
const EVICTED_WITHIN_S: u32 = 100;
/// Looks whether a client has given its OSTs up and taken them back.
const GIVEN_UP_LOOKS: u32 = 100;

/// Blocks whose writes have not returned.
type Pending = Rc<RefCell<BTreeSet<u64>>>;

type Writing<'a> = Pin<Box<dyn Future<Output = Result<(), FsError>> + 'a>>;

/// See the module's head.
pub struct Stranded {
    context: Rc<Context>,
    fid: Fid,
    rng: Rng,
}

impl Stranded {
    /// Over a file of [`STRANDED_BYTES`] zeros that only it writes.
    #[must_use]
    pub fn new(context: Rc<Context>, fid: Fid) -> Stranded {
        let rng = context.rng("stranded");
        Stranded { context, fid, rng }
    }
    /// Leaves a client behind once: before much else goes wrong, or some time within the first half of so many seconds.
    pub async fn run(mut self, seconds: f64) {
        let after = if self.rng.chance(0.6) { 0.0 } else { seconds / 2.0 * self.rng.unit() };
        self.context.cluster.sim.sleep(Duration::from_nanos((after * 1e9) as u64)).await;
        while self.context.cluster.clients.len() > 1 && !self.context.ending.get() {
            let (left, quiet) = (self.context.any_client(&mut self.rng).await, self.rng.chance(0.5));
            self.context.leave_alone(left, quiet);
            let was = self.round(left, quiet).await;
            self.context.leave_alone(left, false);
            if was {
                return;
            }
            self.context.cluster.sim.sleep(Duration::from_millis(500)).await;
        }
    }
    /// Whether a client was left behind.
    async fn round(&mut self, left: usize, quiet: bool) -> bool {
        let clients = self.context.cluster.clients.len();
        let Some(author) = self.context.author(left) else { return false };
        let mut order: Vec<u64> = (0..BLOCKS).collect();
        if self.rng.chance(0.5) {
            self.rng.shuffle(&mut order);
        }
        // With the lock at hand nothing but its writes is on its way.
        if !self.write(left, vec![(order[0], self.context.stamp())], false).await {
            return false;
        }
        if quiet {
            self.context.cluster.sim.sleep(ALONE).await;
        }
        let how = if self.rng.chance(0.5) { Leaves::Evicted } else { Leaves::GivenUp };
        let (over, ended) = rt::sync::oneshot();
        if !self.context.strands.wish(Strand { client: left, how, over }) {
            return false;
        }
        let before: Vec<(u64, u64)> = order.iter().map(|b| (*b, self.context.stamp())).collect();
        let first = if self.rng.chance(0.5) { before.len() } else { self.rng.below(BLOCKS) as usize };
        // What has not returned may come at any time, also over a session that begins after the eviction.
        let pending: Pending = Rc::new(RefCell::new(order.iter().copied().collect()));
        let (fid, context, open) = (self.fid, self.context.clone(), pending.clone());
        self.context.cluster.sim.spawn(async move {
            context
                .on(left, "stranded: writes", async move |c| write_at_once(&c, fid, before, first, open).await)
                .await;
        });
        let after = self.others_write((author, how), clients, &pending).await;
        let whole = ended.await.is_some();
        self.context.cluster.sim.sleep(Duration::from_millis(500 + self.rng.below(2000))).await;
        if let Some((by, stamps)) = after.filter(|_| whole) {
            self.look(by, &stamps).await;
        }
        whole
    }
    /// Whether a client has left the OSTs since it was this author.
    fn has_left(&self, author: Author, how: Leaves) -> bool {
        match how {
            Leaves::Evicted => self.context.cluster.evictions(author.client) > author.evictions,
            Leaves::GivenUp => self.context.has_taken_back(author),
        }
    }
    /// Once the client has left another one writes some blocks and syncs them: who, and which.
    async fn others_write(
        &mut self,
        (author, how): (Author, Leaves),
        clients: usize,
        pending: &Pending,
    ) -> Option<(Author, Vec<(u64, u64)>)> {
        let client = author.client;
        let (looks, pause) = match how {
            Leaves::Evicted => (EVICTED_WITHIN_S, Duration::from_secs(1)),
            Leaves::GivenUp => (GIVEN_UP_LOOKS, Duration::from_millis(20)),
        };
        for look in 0..looks {
            // It was not stopped when something else befell it.
            let goes_on =
                how == Leaves::Evicted && look > 0 && !self.context.cluster.clients[client].host().is_stopped();
            if self.has_left(author, how) || goes_on {
                break;
            }
            self.context.cluster.sim.sleep(pause).await;
        }
        if !self.has_left(author, how) {
            return None;
        }
        let other = (author.client + 1 + self.rng.below(clients as u64 - 1) as usize) % clients;
        let by = self.context.author(other)?;
        let mut order: Vec<u64> = (0..BLOCKS).collect();
        self.rng.shuffle(&mut order);
        order.retain(|block| !pending.borrow().contains(block));
        // Few requests of a client may pass many of another one.
        let most = 1 << self.rng.below(7);
        order.truncate(1 + self.rng.below(most) as usize);
        let stamps: Vec<(u64, u64)> = order.into_iter().map(|b| (b, self.context.stamp())).collect();
        let kept = self.write(other, stamps.clone(), true).await && self.context.is_sound(by);
        kept.then_some((by, stamps))
    }
    async fn write(&self, client: usize, stamps: Vec<(u64, u64)>, sync: bool) -> bool {
        let fid = self.fid;
        let done = self.context.on(client, "stranded: write", async move |c| {
            let file = c.open(&Cred::default(), fid, O_RDWR).await?;
            for (block, stamp) in stamps {
                let extent = Extent::at(block * BLOCK, BLOCK);
                c.data().write(&file, extent.start, &bytes(stamp, extent)).await?;
            }
            let synced = if sync { c.data().fsync(&file, false).await } else { Ok(()) };
            c.release(&file).await?;
            synced
        });
        match done.await {
            Some(Ok(())) => true,
            Some(Err(e)) => {
                tracing::debug!("stranded: {e}");
                false
            }
            None => false,
        }
    }
    /// Every client finds what was written last and synced.
    async fn look(&mut self, by: Author, stamps: &[(u64, u64)]) {
        for c in 0..self.context.cluster.clients.len() {
            if c == by.client && self.context.cluster.clients.len() > 1 {
                continue;
            }
            look_at(&self.context, c, (self.fid, STRANDED_BYTES), "stranded: read", |got| check(got, stamps)).await;
        }
    }
}

/// All blocks, and a sync. The first so many at the same time, and the others when those are on their way: what is sent then lies
/// between. What it answers reaches nobody who would believe it.
async fn write_at_once(
    c: &Rc<Client>,
    fid: Fid,
    stamps: Vec<(u64, u64)>,
    first: usize,
    pending: Pending,
) -> Result<(), FsError> {
    let file = c.open(&Cred::default(), fid, O_RDWR).await?;
    let write = |(block, stamp): &(u64, u64)| {
        let (c, file, extent, pending) = (c.clone(), file.clone(), Extent::at(block * BLOCK, BLOCK), pending.clone());
        let (block, stamp) = (*block, *stamp);
        async move {
            let done = c.data().write(&file, extent.start, &bytes(stamp, extent)).await.map(drop);
            pending.borrow_mut().remove(&block);
            done
        }
    };
    let (early, late) = stamps.split_at(first);
    let all = |some: &[(u64, u64)]| rt::sync::join_all(some.iter().map(write).collect());
    let sent = async {
        let done = all(early).await.into_iter().collect::<Result<(), FsError>>();
        if late.is_empty() { done } else { done.and(c.data().fsync(&file, false).await) }
    };
    let others = async {
        c.rt().sleep(Duration::from_millis(10)).await;
        all(late).await.into_iter().collect::<Result<(), FsError>>()
    };
    let both: Vec<Writing<'_>> = vec![Box::pin(sent), Box::pin(others)];
    rt::sync::join_all(both).await.into_iter().collect::<Result<(), FsError>>()?;
    c.data().fsync(&file, false).await?;
    c.release(&file).await
}

fn check(got: &[u8], stamps: &[(u64, u64)]) -> Result<(), String> {
    for (block, stamp) in stamps {
        for at in block * BLOCK..(block + 1) * BLOCK {
            let (value, want) = (got.get(at as usize), byte(*stamp, at));
            if value != Some(&want) {
                return Err(format!(
                    "byte {at} is {value:?}, should be {want}: write {stamp} came after an eviction and was synced"
                ));
            }
        }
    }
    Ok(())
}
