//! A program that looks on: one client makes a name, another one sees it, and then its maker and the metadata server die, before the
//! name is on stable storage. Whether it is there afterwards or not, all clients must be of one opinion.
use std::rc::Rc;

use client::{Client, NewNode};
use types::{Duration, Fid, FsError, Rng};
use wire::mdt::{Cred, NodeKind};

use super::context::Context;
use super::model::Author;
use super::moments::Gap;

/// Names made and looked at in one round.
const NAMES: u64 = 4;
/// Times that everybody is asked, when somebody was not there or they differ.
const ATTEMPTS_MAX: u32 = 20;

/// See the module's head.
pub struct Onlooker {
    context: Rc<Context>,
    dir: Fid,
    rng: Rng,
    rounds: u64,
    /// [`Context::double_deaths`] before a round.
    deaths: u64,
}

fn node() -> NewNode {
    NewNode { kind: NodeKind::Directory, mode: 0o040_755, ..NewNode::default() }
}
fn name(round: u64, nth: u64) -> Vec<u8> {
    format!("r{round}n{nth}").into_bytes()
}

/// Which of a round's names are there, as a client believes.
async fn seen(c: Rc<Client>, dir: Fid, round: u64) -> Result<Vec<bool>, FsError> {
    let mut all = Vec::new();
    for nth in 0..NAMES {
        all.push(match c.lookup(&Cred::default(), dir, &name(round, nth)).await {
            Ok(entry) => !entry.attr.fid.is_zero(),
            Err(FsError::NotFound) => false,
            Err(e) => return Err(e),
        });
    }
    Ok(all)
}

impl Onlooker {
    /// Makes the directory before anything goes wrong.
    ///
    /// # Errors
    /// What a client answers.
    pub async fn new(context: Rc<Context>) -> Result<Onlooker, String> {
        let rng = context.rng("onlooker");
        let made = context.on(0, "mkdir", async move |c| {
            let dir = c.create(&Cred::default(), Fid::ROOT, b"seen", node()).await?.attr.fid;
            c.meta().sync_meta(Fid::ROOT).await.map(|()| dir)
        });
        let dir = made.await.ok_or("the client died")?.map_err(|e| format!("mkdir: {e}"))?;
        Ok(Onlooker { context, dir, rng, rounds: 0, deaths: 0 })
    }
    /// Works until the run is calm.
    pub async fn run(mut self) {
        if self.context.cluster.clients.len() < 2 {
            return;
        }
        while !self.context.calm.get() && !self.context.failed() {
            self.context.cluster.sim.sleep(Duration::from_millis(self.rng.below(15_000))).await;
            if !self.context.ending.get() {
                self.round().await;
            }
        }
    }
    async fn round(&mut self) {
        let maker = self.context.any_client(&mut self.rng).await;
        let looker = self.context.any_client(&mut self.rng).await;
        if maker == looker {
            return;
        }
        self.rounds += 1;
        self.deaths = self.context.double_deaths();
        let (dir, round, some) = (self.dir, self.rounds, self.rng.below(NAMES));
        // The looker is not quiet then, and believes that there are no such names.
        let (made_by, seen_by) = (self.context.author(maker), self.context.author(looker));
        let _ = self.context.on(looker, "onlooker: look", async move |c| seen(c, dir, round).await).await;
        let made = self.context.on(maker, "onlooker: create", async move |c| {
            for nth in some..NAMES {
                c.create(&Cred::default(), dir, &name(round, nth), node()).await?;
            }
            Ok::<_, FsError>(())
        });
        let made = made.await;
        let found = self.context.on(looker, "onlooker: look", async move |c| seen(c, dir, round).await).await;
        let sound = |author: Option<Author>| author.is_some_and(|a| self.context.is_sound(a));
        if let (Some(Ok(())), Some(Ok(found))) = (made, found)
            && sound(made_by)
            && sound(seen_by)
            && self.deaths == self.context.double_deaths()
        {
            let all = (0..NAMES).all(|n| found[n as usize] == (n >= some));
            let told = format!("client{looker} finds {found:?} when {some}..{NAMES} have been made");
            self.context.expect("onlooker", if all { Ok(()) } else { Err(told) });
        }
        let (over, ended) = rt::sync::oneshot();
        if self.context.gaps.wish(Gap { dies: maker, late: looker, over }) && ended.await.is_some() {
            self.agree(round).await;
        }
    }
    /// Asks all clients.
    async fn agree(&mut self, round: u64) {
        let dir = self.dir;
        for attempt in 0..ATTEMPTS_MAX {
            if self.context.failed() {
                return;
            }
            self.context.wait_dead_forgotten().await;
            let mut said = Vec::new();
            for c in 0..self.context.cluster.clients.len() {
                let Some(author) = self.context.author(c) else { continue };
                let found = self.context.on(c, "onlooker: look", async move |c| seen(c, dir, round).await).await;
                // Who has not come back yet has not heard that its locks are called back, and may answer from what it knows.
                if let Some(Ok(found)) = found
                    && self.context.is_sound(author)
                    && self.context.cluster.has_all_sessions(c)
                {
                    said.push((c, found));
                }
            }
            // A callback is on its way for some moments after a recovery: who has not heard it answers from what it knows.
            let differ = said.iter().any(|(_, found)| *found != said[0].1);
            if said.len() > 1 && (!differ || attempt + 1 == ATTEMPTS_MAX) {
                let outcome =
                    if differ { Err(format!("clients say of names that nobody changes: {said:?}")) } else { Ok(()) };
                return self.context.expect("onlooker", outcome);
            }
            self.context.cluster.sim.sleep(Duration::from_millis(500)).await;
        }
    }
}
