//! Programs that follow the changelog: they register, read on, keep what they have taken in, clear that in pieces and at times twice, die
//! and come again from what they had kept. One is there before anything has a name, another one comes and goes, and is slow.
//!
//! Every record comes once and in order to whoever reads on, is always the same, and stays until all have cleared it, whoever dies. In the
//! end the records, carried out from the first one on, give the names that there are.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use client::Client;
use types::{Duration, Fid, FsError, Rng};
use wire::Op;
use wire::changelog::{
    ChangeRecord, ChangelogAct, ChangelogReply, ChangelogRequest, ChangelogUserReply, ChangelogUserRequest, Names,
};
use wire::mdt::Cred;

use super::class::FaultClass;
use super::context::Context;
use super::model::Author;

/// Pages that are read in the end before that counts as going round in circles.
const PAGES_MAX: u32 = 10_000;
/// Where repairs put what has no name.
const LOST_FOUND: &[u8] = b"lost+found";
const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;

/// Every record that anybody has read, and the programs.
pub struct Followed {
    context: Rc<Context>,
    records: Rc<RefCell<BTreeMap<u64, ChangeRecord>>>,
    /// The program that is there from the beginning, when it does not run.
    first: Rc<RefCell<Option<Consumer>>>,
}

/// A program.
struct Consumer {
    context: Rc<Context>,
    records: Rc<RefCell<BTreeMap<u64, ChangeRecord>>>,
    name: &'static str,
    rng: Rng,
    /// Its number; `None`: it is not registered.
    user: Option<u32>,
    /// The names, where it knows those of before its first record.
    names: Option<Names>,
    /// The last record that it has read.
    taken_in: u64,
    /// What it does not forget when it dies.
    kept: (Option<Names>, u64),
    /// The last record that it has cleared, as far as that was answered, and that it asked for.
    cleared: u64,
    asked: u64,
    /// Longest pause, in milliseconds.
    every_ms: u64,
}

async fn about_user(c: Rc<Client>, q: ChangelogUserRequest) -> Result<ChangelogUserReply, FsError> {
    c.sessions().mdc().ask(Op::ChangelogUser, &q).await
}

/// All names below the root.
async fn walk(c: &Rc<Client>) -> Result<Names, String> {
    let (mut found, mut dirs) = (Names::new(), vec![Fid::ROOT]);
    while let Some(dir) = dirs.pop() {
        let mut cookie = 0;
        loop {
            let page = c.meta().readdir(&Cred::default(), dir, cookie, 4096, false).await;
            let page = page.map_err(|e| format!("readdir of {dir}: {e}"))?;
            for e in &page.entries {
                cookie = e.cookie;
                let attr = c.getattr(&Cred::default(), e.fid, None).await;
                let attr = attr.map_err(|err| format!("{}: {err}", String::from_utf8_lossy(&e.name)))?.attr;
                if attr.mode & S_IFMT == S_IFDIR {
                    dirs.push(e.fid);
                }
                found.insert((dir, e.name.to_vec()), e.fid);
            }
            if page.eof || page.entries.is_empty() {
                break;
            }
        }
    }
    Ok(found)
}

impl Followed {
    /// Registers the first program, before anything else happens.
    ///
    /// # Errors
    /// What a client answers.
    pub async fn new(context: &Rc<Context>) -> Result<Followed, String> {
        let records = Rc::default();
        let mut first = Consumer::new(context, &records, "follower 0");
        first.register().await;
        let names = context.on(0, "follower: names", async move |c| walk(&c).await).await;
        first.names = Some(names.ok_or("the client died")??);
        first.keep();
        let first = Rc::new(RefCell::new(Some(first)));
        Ok(Followed { context: context.clone(), records, first })
    }
    /// What runs beside all others.
    pub fn programs(&self) -> Vec<rt::LocalFuture<()>> {
        let (first, second) = (self.first.clone(), Consumer::new(&self.context, &self.records, "follower 1"));
        let run_first = async move {
            let taken = first.take();
            if let Some(mut consumer) = taken {
                consumer.run().await;
                first.replace(Some(consumer));
            }
        };
        let run_second = async move {
            let mut consumer = second;
            consumer.run().await;
        };
        vec![Box::pin(run_first), Box::pin(run_second)]
    }
    /// All is calm, and nobody changes anything any more.
    pub async fn check(&self) {
        let Some(mut first) = self.first.take() else { return };
        first.read_to_the_end().await;
        if self.context.failed() {
            // It may not have read them all.
            return;
        }
        let (context, client) = (&self.context, self.context.any_client(&mut first.rng).await);
        let walked = context.on(client, "follower: names", async move |c| walk(&c).await);
        let (Some(walked), Some(names)) = (walked.await, first.names) else { return };
        let outcome = walked.and_then(|found| self.compare(names, found));
        context.expect(&format!("the changelog's names, as client{client} sees them"), outcome);
    }
    fn compare(&self, mut told: Names, mut found: Names) -> Result<(), String> {
        if self.context.counts.get().by_class[FaultClass::Fsck.index()] > 0 {
            // What a repair does to names is no record.
            let lost = found.get(&(Fid::ROOT, LOST_FOUND.to_vec())).copied();
            let is_of_repairs = |(dir, name): &(Fid, Vec<u8>)| Some(*dir) == lost || name == LOST_FOUND;
            told.retain(|at, _| !is_of_repairs(at));
            found.retain(|at, _| !is_of_repairs(at));
        }
        let differ = told.keys().chain(found.keys()).find(|at| told.get(*at) != found.get(*at));
        let Some(at) = differ else { return Ok(()) };
        let (dir, name) = (at.0, String::from_utf8_lossy(&at.1));
        Err(format!("{dir} {name} is {:?}, the records say {:?}", found.get(at), told.get(at)))
    }
}

impl Consumer {
    fn new(context: &Rc<Context>, records: &Rc<RefCell<BTreeMap<u64, ChangeRecord>>>, name: &'static str) -> Consumer {
        let mut rng = context.rng(name);
        let every_ms = [100, 1000, 8000][rng.below(3) as usize];
        Consumer {
            context: context.clone(),
            records: records.clone(),
            name,
            rng,
            user: None,
            names: None,
            taken_in: 0,
            kept: (None, 0),
            cleared: 0,
            asked: 0,
            every_ms,
        }
    }
    fn keep(&mut self) {
        self.kept = (self.names.clone(), self.taken_in);
    }
    async fn run(&mut self) {
        while !self.context.calm.get() && !self.context.failed() {
            self.context.cluster.sim.sleep(Duration::from_millis(self.rng.below(self.every_ms))).await;
            match self.user {
                None if self.rng.chance(0.3) => self.register().await,
                None => {}
                Some(_) => self.one().await,
            }
        }
    }
    async fn one(&mut self) {
        match self.rng.below(20) {
            0..12 => drop(self.read_page().await),
            12..15 => self.keep(),
            15..18 => self.clear().await,
            // What it had not kept it reads again.
            18 => (self.names, self.taken_in) = self.kept.clone(),
            _ if self.names.is_none() => self.deregister().await,
            _ => {}
        }
    }
    /// Asks something on any client; `None`: nobody knows what became of it.
    async fn ask<A: 'static>(
        &mut self,
        what: &str,
        work: impl AsyncFnOnce(Rc<Client>) -> Result<A, FsError> + 'static,
    ) -> Option<A> {
        let context = self.context.clone();
        let c = context.any_client(&mut self.rng).await;
        let (author, begun): (Option<Author>, _) = (context.author(c), context.cluster.sim.now());
        let what = format!("{}: {what}", self.name);
        match context.on(c, &what, work).await? {
            Ok(answer) => Some(answer),
            Err(e) => {
                let sound = author.is_some_and(|a| context.is_sound(a));
                if sound && !context.is_refused_for_space(c, &e.to_string(), begun) {
                    context.complain(format!("{what} on client{c}: {e}"));
                }
                None
            }
        }
    }
    /// Before it asks again: a client that a server does not let in fails at once.
    async fn pause(&mut self) {
        let ms = 1 + self.rng.below(self.every_ms);
        self.context.cluster.sim.sleep(Duration::from_millis(ms)).await;
    }
    async fn register(&mut self) {
        let id = self.rng.next_u64() | 1;
        while !self.context.failed() {
            let q = ChangelogUserRequest { id, ..ChangelogUserRequest::default() };
            let Some(reply) = self.ask("register", async move |c| about_user(c, q).await).await else {
                self.pause().await;
                continue;
            };
            if reply.errno != 0 {
                let why = String::from_utf8_lossy(&reply.why).into_owned();
                return self.context.complain(format!("{}: register: {why}", self.name));
            }
            self.user = Some(reply.user);
            (self.taken_in, self.cleared, self.asked) = (reply.index, reply.index, reply.index);
            return self.keep();
        }
    }
    async fn deregister(&mut self) {
        let (Some(user), id) = (self.user, self.rng.next_u64() | 1) else { return };
        while !self.context.failed() {
            let q = ChangelogUserRequest { id, act: ChangelogAct::Deregister, user, index: 0 };
            let Some(reply) = self.ask("deregister", async move |c| about_user(c, q).await).await else {
                self.pause().await;
                continue;
            };
            if reply.errno != 0 {
                let why = String::from_utf8_lossy(&reply.why).into_owned();
                self.context.complain(format!("{}: deregister: {why}", self.name));
            }
            self.user = None;
            return;
        }
    }
    /// Clears what it has kept, or a part of it.
    async fn clear(&mut self) {
        let (Some(user), through) = (self.user, self.kept.1) else { return };
        if through <= self.cleared {
            return;
        }
        let most = through - self.cleared;
        let index = if self.rng.chance(0.5) { through } else { self.cleared + 1 + self.rng.below(most) };
        for _ in 0..1 + self.rng.below(2) {
            let asked = self.asked;
            self.asked = asked.max(index);
            let q = ChangelogUserRequest { act: ChangelogAct::Clear, user, index, id: 0 };
            let what = format!("clear up to {index}");
            let Some(reply) = self.ask(&what, async move |c| about_user(c, q).await).await else { return };
            // An earlier request, whose answer nobody has, may have gone further.
            let went_further = i32::from(reply.errno) == FsError::Invalid.errno() && index < asked;
            if reply.errno != 0 && !went_further {
                let why = String::from_utf8_lossy(&reply.why).into_owned();
                return self.context.complain(format!("{}: {what}: {why}", self.name));
            }
            self.cleared = self.cleared.max(index);
        }
    }
    /// Reads on; what there is, `None`: nobody answers.
    async fn read_page(&mut self) -> Option<ChangelogReply> {
        let q = ChangelogRequest { from: self.taken_in + 1 };
        let asked = self.ask("read", async move |c| c.sessions().mdc().ask(Op::Changelog, &q).await);
        let page: ChangelogReply = asked.await?;
        for r in &page.records {
            if let Err(e) = self.take_in(r) {
                self.context.complain(format!("{}: record {}: {e}", self.name, r.index));
                return None;
            }
        }
        let taken = page.records.len() as u64;
        self.context.count(|c| {
            c.by_class[FaultClass::Changelog.index()] += taken;
            c.checks += taken;
        });
        Some(page)
    }
    fn take_in(&mut self, r: &ChangeRecord) -> Result<(), String> {
        if r.index != self.taken_in + 1 {
            return Err(format!("it should be {}, which was not cleared ({} was)", self.taken_in + 1, self.cleared));
        }
        let mut all = self.records.borrow_mut();
        let known = all.entry(r.index).or_insert_with(|| r.clone());
        if known != r {
            return Err(format!("it was {known:?}, and is {r:?}"));
        }
        drop(all);
        self.taken_in = r.index;
        self.names.as_mut().map_or(Ok(()), |names| r.carry_out(names))
    }
    async fn read_to_the_end(&mut self) {
        for _ in 0..PAGES_MAX {
            if self.context.failed() {
                return;
            }
            let Some(page) = self.read_page().await else { continue };
            if page.last == self.taken_in {
                return;
            }
        }
        self.context.complain(format!("{}: the records after {} do not come", self.name, self.taken_in));
    }
}
