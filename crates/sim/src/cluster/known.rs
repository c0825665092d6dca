//! What one program knows of a part of the file system that only it changes, on any of the clients: the state that it must have, and
//! which ones it may have once nobody can be sure what a dead client and a dead server took along. What a state is, how it is read,
//! and which states fit an operation whose answer nobody has, is the program's.
use std::rc::Rc;

use client::Client;
use types::{Duration, Fid, Rng};

use super::context::Context;
use super::model::Author;

/// Attempts to look at everything between faults.
const ATTEMPTS_MAX: u32 = 200;
/// States remembered since the last one that is known to be on stable storage.
const STATES_MAX: usize = 60;

/// See the module's head.
pub struct Known<S> {
    pub context: Rc<Context>,
    /// Of the program, for complaints.
    pub name: String,
    pub state: S,
    /// States since the last one that is stable, that one first; the current one is not among them.
    pub past: Vec<S>,
    /// [`Context::double_deaths`] that are taken into account.
    deaths: u64,
}

/// How a state is read, as a client sees it.
pub trait Reads<S>: AsyncFn(Rc<Client>) -> Result<S, String> + Clone + 'static {}
impl<S, F: AsyncFn(Rc<Client>) -> Result<S, String> + Clone + 'static> Reads<S> for F {}

impl<S: PartialEq + 'static> Known<S> {
    pub fn new(context: Rc<Context>, name: impl Into<String>, state: S) -> Known<S> {
        Known { context, name: name.into(), state, past: Vec::new(), deaths: 0 }
    }
    /// Whether what a client answers counts.
    pub fn is_sound(&self, author: Author) -> bool {
        self.context.is_sound(author) && self.deaths == self.context.double_deaths()
    }
    /// Whether it has to be looked before anything else is done.
    pub fn must_look(&self) -> bool {
        self.deaths != self.context.double_deaths() || self.past.len() > STATES_MAX
    }
    /// An operation was carried out.
    pub fn becomes(&mut self, after: S) {
        let before = std::mem::replace(&mut self.state, after);
        self.past.push(before);
    }

    /// Looks at everything on stable storage, and knows that from then on. `doubtful`: who carried out an operation whose answer nobody
    /// has. `judge` says what is wrong with what was found; its last argument: something died with a client and the metadata
    /// server together.
    pub async fn look(
        &mut self,
        rng: &mut Rng,
        what: &str,
        doubtful: Option<Author>,
        read: impl Reads<S>,
        judge: impl Fn(&Known<S>, &S, bool) -> Result<(), String>,
    ) {
        if let Some(author) = doubtful
            && !self.context.is_sound(author)
        {
            self.context.wait_forgotten(author).await;
        }
        for _ in 0..ATTEMPTS_MAX {
            if self.context.failed() {
                return;
            }
            let deaths = self.context.double_deaths();
            if deaths != self.deaths {
                self.context.wait_dead_forgotten().await;
            }
            while self.context.disks.some_fail() {
                self.context.cluster.sim.sleep(Duration::from_millis(100)).await;
            }
            let c = self.context.any_client(rng).await;
            let Some(author) = self.context.author(c) else { continue };
            let (told, read) = (format!("{}: look", self.name), read.clone());
            let found = self.context.on(c, &told, async move |c| {
                c.meta().sync_meta(Fid::ROOT).await.map_err(|e| format!("sync: {e}"))?;
                read(c).await
            });
            let found = found.await;
            if !self.context.is_sound(author) || deaths != self.context.double_deaths() {
                self.context.cluster.sim.sleep(Duration::from_millis(500)).await;
                continue;
            }
            match found {
                Some(Ok(found)) => {
                    let outcome = judge(self, &found, deaths != self.deaths);
                    self.context.expect(&format!("{}: {what} on client{c}", self.name), outcome);
                    (self.state, self.deaths) = (found, deaths);
                    self.past.clear();
                    return;
                }
                Some(Err(e)) => return self.context.complain(format!("{told} on client{c}: {e}")),
                None => {}
            }
        }
        self.context.complain(format!("{}: its directories could not be read", self.name));
    }

    /// Every client finds what is known. `differ` says how a state that was found differs.
    pub async fn look_from_everywhere(&self, read: impl Reads<S>, differ: impl Fn(&S, &S) -> String) {
        let what = format!("{}: final look", self.name);
        for c in 0..self.context.cluster.clients.len() {
            if self.context.failed() {
                return;
            }
            let read = read.clone();
            let outcome = match self.context.on(c, &what, async move |c| read(c).await).await {
                Some(Ok(found)) if found == self.state => Ok(()),
                Some(Ok(found)) => Err(differ(&found, &self.state)),
                Some(Err(e)) => Err(e),
                None => Ok(()),
            };
            self.context.expect(&format!("{what} on client{c}"), outcome);
        }
    }
}
