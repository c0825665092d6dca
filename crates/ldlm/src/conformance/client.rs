//! A client of the model: programs that want locks for a while, a cache that flushes in its own time.
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Event, Model, ModelClient, ToClient, ToServer};
use crate::LockMode;
use crate::lock::{EnqueueFlags, EnqueueRequest, InodeBits, LockCookie, LockPolicyData, ResourceId};
use crate::lock_cache::{Acquire, CacheAction};

impl Model {
    /// A program of client `i` wants a lock.
    pub(super) fn client_want(&mut self, i: usize) -> Result<(), String> {
        if !self.clients[i].alive || self.clients[i].wants_left == 0 {
            return Ok(());
        }
        self.clients[i].wants_left -= 1;
        let (resource, mode, data) = self.wish();
        let roll = self.rng.below(10);
        let flags = match roll {
            0 => EnqueueFlags::NOWAIT,
            1 => EnqueueFlags::GLIMPSE,
            2 => EnqueueFlags::NO_EXPAND,
            _ => EnqueueFlags::NONE,
        };
        if roll == 4 {
            let req = EnqueueRequest::new(self.clients[i].cache.reserve(), resource, mode, data);
            let req = req.flags(EnqueueFlags::NOWAIT);
            self.clients[i].intents.insert(req.cookie, req);
            self.send(Event::ToServer(i, self.link(i), ToServer::Intent(req)));
            return Ok(());
        }
        // Sometimes answered under a lock that is on its way out, as a read that holds up an invalidation must be.
        if roll == 3
            && let Some(cookie) = self.clients[i].cache.find_revoking(self.now, resource, mode, &data)
        {
            return self.hold(i, cookie);
        }
        match self.clients[i].cache.acquire(self.now, resource, mode, data, flags) {
            Acquire::Held(cookie) => {
                self.report.hits += 1;
                self.hold(i, cookie)?;
            }
            Acquire::Joined(cookie) => self.wait(i, cookie),
            Acquire::Enqueue(req) => self.enqueue(i, req)?,
        }
        Ok(())
    }

    fn wish(&mut self) -> (ResourceId, LockMode, LockPolicyData) {
        let fid = self.fid();
        let pick = self.rng.below(20);
        if pick < 8 {
            let mode = if pick < 5 { LockMode::Pr } else { LockMode::Ex };
            let mode = if pick == 7 { LockMode::Cw } else { mode };
            return (ResourceId::inode(fid), mode, LockPolicyData::bits(self.bits()));
        }
        if pick == 19 {
            return (ResourceId::extent(fid), LockMode::Group, LockPolicyData::group(1 + self.rng.below(2)));
        }
        let mode = [LockMode::Pr, LockMode::Pw, LockMode::Cw, LockMode::Cr][self.rng.below(4) as usize];
        (ResourceId::extent(fid), mode, LockPolicyData::extent(self.extent()))
    }

    fn enqueue(&mut self, i: usize, req: EnqueueRequest) -> Result<(), String> {
        let mut early = Vec::new();
        let mut out = Vec::new();
        if self.rng.chance(0.5) {
            for lock in self.clients[i].cache.early_cancels(req.resource, req.mode, &req.data) {
                self.flush_under(i, &lock, InodeBits::NONE, None);
                early.extend(self.clients[i].cache.cancelled_early(self.now, lock.cookie, &mut out));
            }
        }
        self.wait(i, req.cookie);
        self.send(Event::ToServer(i, self.link(i), ToServer::Enqueue(req, early)));
        self.act(i, out)
    }

    fn wait(&mut self, i: usize, cookie: LockCookie) {
        *self.clients[i].waiting.entry(cookie).or_insert(0) += 1;
        if self.rng.chance(self.config.give_up) {
            let ms = self.rng.below(10);
            self.after(ms, Event::GiveUp(i, cookie));
        }
    }

    /// A program has its lock, for a while.
    fn hold(&mut self, i: usize, cookie: LockCookie) -> Result<(), String> {
        self.report.granted += 1;
        self.use_lock(i, cookie)?;
        let ms = self.rng.below(4);
        self.after(ms, Event::Release(i, cookie));
        Ok(())
    }

    pub(super) fn next_want(&mut self, i: usize) {
        let ms = self.rng.below(6);
        self.after(ms, Event::Want(i));
        if self.rng.chance(0.05) {
            self.after(ms, Event::Shrink(i));
        }
    }

    /// A program is done with its lock.
    pub(super) fn client_done(&mut self, i: usize, cookie: LockCookie) -> Result<(), String> {
        if self.clients[i].alive {
            self.use_lock(i, cookie)?;
        }
        self.client_release(i, cookie)
    }

    fn client_release(&mut self, i: usize, cookie: LockCookie) -> Result<(), String> {
        let mut out = Vec::new();
        if !self.clients[i].alive {
            return Ok(());
        }
        self.clients[i].cache.release(self.now, cookie, &mut out);
        self.next_want(i);
        self.act(i, out)
    }

    pub(super) fn client_give_up(&mut self, i: usize, cookie: LockCookie) -> Result<(), String> {
        let Some(n) = self.clients[i].waiting.get_mut(&cookie) else { return Ok(()) };
        *n -= 1;
        if *n == 0 {
            self.clients[i].waiting.remove(&cookie);
        }
        self.report.refused += 1;
        self.client_release(i, cookie)
    }

    pub(super) fn client_flushed(&mut self, i: usize, cookie: LockCookie) -> Result<(), String> {
        let mut out = Vec::new();
        if self.clients[i].alive {
            self.clients[i].cache.flushed(self.now, cookie, &mut out);
        }
        self.act(i, out)
    }

    pub(super) fn client_shrink(&mut self, i: usize) -> Result<(), String> {
        let mut out = Vec::new();
        if self.clients[i].alive {
            self.clients[i].cache.shrink(self.now, 2, &mut out);
        }
        self.act(i, out)
    }

    pub(super) fn client_message(&mut self, i: usize, msg: ToClient) -> Result<(), String> {
        if !self.clients[i].alive {
            return Ok(());
        }
        let mut out = Vec::new();
        let ModelClient { cache, intents, .. } = &mut self.clients[i];
        match msg {
            ToClient::Intent(cookie, lock) => {
                let is_first = intents.remove(&cookie).is_some();
                let held = cache.adopt(self.now, cookie, lock, &mut out);
                let user = lock.filter(|_| held).and_then(|l| cache.find(self.now, l.resource, l.mode, &l.data));
                match (is_first, user) {
                    (true, Some(user)) => self.hold(i, user)?,
                    (true, None) => {
                        self.report.refused += 1;
                        self.next_want(i);
                    }
                    (false, Some(_)) => return Err(format!("{cookie:?} was taken from a repeated reply")),
                    (false, None) => {}
                }
            }
            ToClient::Reply(req, outcome) => cache.on_reply(self.now, req.resource, req.cookie, outcome, &mut out),
            ToClient::Completion(lock) => cache.on_granted(self.now, lock, &mut out),
            ToClient::Blocking(lock, mode, wanted) => {
                cache.on_blocking(lock.handle, lock.cookie, lock.resource, mode, &wanted, &mut out);
            }
        }
        self.act(i, out)
    }

    /// Does what the cache wants done.
    pub(super) fn act(&mut self, i: usize, actions: Vec<CacheAction>) -> Result<(), String> {
        for action in actions {
            match action {
                CacheAction::Granted(lock) => {
                    for _ in 0..self.clients[i].waiting.remove(&lock.cookie).unwrap_or(0) {
                        self.hold(i, lock.cookie)?;
                    }
                }
                CacheAction::Denied { cookie, .. } => {
                    for _ in 0..self.clients[i].waiting.remove(&cookie).unwrap_or(0) {
                        self.report.refused += 1;
                        self.next_want(i);
                    }
                }
                CacheAction::Revoke { lock, keep, keep_mode } => {
                    self.flush_under(i, &lock, keep, keep_mode);
                    let ms = self.rng.below(4);
                    self.after(ms, Event::Flushed(i, lock.cookie));
                }
                CacheAction::SendCancel { handle, .. } => {
                    self.send(Event::ToServer(i, self.link(i), ToServer::Cancel(handle)));
                }
                CacheAction::SendNarrow { handle, keep, .. } => {
                    self.report.narrowed += 1;
                    self.send(Event::ToServer(i, self.link(i), ToServer::Narrow(handle, keep)));
                }
                CacheAction::SendConvert { handle, mode, .. } => {
                    self.report.converted += 1;
                    self.send(Event::ToServer(i, self.link(i), ToServer::Convert(handle, mode)));
                }
                CacheAction::Lost(lock) if self.clients[i].connection == 0 => {
                    return Err(format!("{} lost {lock:?} and was never evicted", self.clients[i].id));
                }
                CacheAction::Lost(_) => {}
            }
        }
        Ok(())
    }
}
