//! Clients that append to one file as fast as they can, several programs on each, and ask for its size all the time, while their
//! processes stutter: answers come when what they answer has long been otherwise.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use client::Client;
use types::{Duration, Fid, Rng};
use wire::mdt::Cred;

use super::context::Context;
use super::model::Author;
use super::moments::Stutter;
use super::shared::Log;

/// Programs that append on each client.
const APPENDERS: usize = 2;
/// Records of each in one burst.
const RECORDS: u64 = 16;
/// Questions for the size by each client in one burst, at most.
const LOOKS_MAX: u32 = 400;

/// See the module's head.
pub struct Crowd {
    context: Rc<Context>,
    log: Rc<Log>,
    rng: Rng,
    /// Longest time between two bursts, in seconds.
    every_s: u64,
    /// Where the file ends at least.
    end: u64,
}

async fn ask_for_size(c: Rc<Client>, fid: Fid, goes_on: Rc<Cell<bool>>) {
    for _ in 0..LOOKS_MAX {
        if !goes_on.get() {
            return;
        }
        let _ = c.getattr(&Cred::default(), fid, None).await;
        c.rt().sleep(Duration::from_micros(50)).await;
    }
}

impl Crowd {
    /// Over an empty file.
    #[must_use]
    pub fn new(context: Rc<Context>, fid: Fid) -> Crowd {
        let mut rng = context.rng("crowd");
        let every_s = [2, 4, 10][rng.below(3) as usize];
        Crowd { log: Log::new(context.clone(), fid), context, rng, every_s, end: 0 }
    }
    /// Works until the run is calm.
    pub async fn run(mut self) {
        while !self.context.calm.get() && !self.context.failed() {
            self.context.cluster.sim.sleep(Duration::from_millis(self.rng.below(1000 * self.every_s))).await;
            self.burst().await;
        }
        if !self.context.failed() {
            self.log.check().await;
        }
    }
    async fn burst(&mut self) {
        let authors: Vec<Author> = self.context.clients().into_iter().filter_map(|c| self.context.author(c)).collect();
        let Some(reader) = authors.first().map(|a| a.client) else { return };
        let goes_on = Rc::new(Cell::new(true));
        let clients = authors.iter().map(|a| a.client).collect();
        self.context.stutters.wish(Stutter { clients, goes_on: goes_on.clone() });
        let mut appends = Vec::new();
        let mut work: Vec<rt::LocalFuture<()>> = Vec::new();
        for author in authors {
            for _ in 0..APPENDERS {
                appends.push(append(self.context.clone(), self.log.clone(), author, Rng::new(self.rng.next_u64())));
            }
            let (context, fid, goes_on) = (self.context.clone(), self.log.fid(), goes_on.clone());
            work.push(Box::pin(async move {
                let look = async move |c| ask_for_size(c, fid, goes_on).await;
                context.on(author.client, "crowd: sizes", look).await;
            }));
        }
        let ends = Rc::new(RefCell::new(Vec::new()));
        let (goes_on, told) = (goes_on.clone(), ends.clone());
        work.push(Box::pin(async move {
            *told.borrow_mut() = rt::sync::join_all(appends).await;
            goes_on.set(false);
        }));
        rt::sync::join_all(work).await;
        let from = self.end;
        self.end = ends.take().into_iter().flatten().max().unwrap_or(from).max(from);
        self.log.look(reader, from).await;
    }
}

/// One program's part of a burst: where its last record ended.
async fn append(context: Rc<Context>, log: Rc<Log>, author: Author, mut rng: Rng) -> Option<u64> {
    let (mut left, mut end) = (RECORDS, None);
    while left > 0 {
        let now = 1 + rng.below(left.min(8));
        let soon = rng.chance(0.5);
        let pieces = rng.chance(0.3).then(|| rng.below(3000));
        let last = log.several(author.client, author, now, pieces, soon).await?;
        end = end.max(Some(last));
        left -= now;
        context.cluster.sim.sleep(Duration::from_micros(rng.below(3000))).await;
    }
    end
}
