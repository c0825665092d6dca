//! The server's flock and fcntl locks: conflicts, waiting, deadlock detection.
//!
//! Decides as a local Linux file system does, over all clients: a request is checked against held ranges only, never
//! against waiting requests (a second read lock succeeds while a writer waits); waiters are tried oldest first when
//! something is given back; a waiting `fcntl` request that would close a cycle of waiting owners fails with
//! `Deadlock`, also where one process is several owners, because it uses several clients of one host; converting a `flock` gives up the old lock first. Flocks are never cached by clients, so nothing is
//! called back.
//! Cost: O(log n + conflicts) per request, plus the waiters of the file when something is given back.
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use types::{ClientId, Extent, Fid};

use crate::flock::{FlockKind, FlockMode, FlockOutcome, FlockRange, FlockRequest, OwnerRanges};
use crate::interval::{Entry, IntervalIndex};
use crate::lock::{Action, DenyReason, LockCookie};
use crate::namespace::Namespace;

type OwnerKey = (ClientId, u64);
type FileKey = (Fid, FlockKind);
/// An owner with the process that it named last.
type Actor = (OwnerKey, u32);
/// Host and process.
type Process = (u64, u32);
/// A waiting request: whose, where, its age.
type Wait = (OwnerKey, FileKey, u64);

/// How much there may be, each of ranges and of waiting requests.
#[derive(Clone, Copy, Debug)]
struct Room {
    of_all: usize,
    of_client: usize,
}

/// What a client has of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Part {
    ranges: usize,
    waits: usize,
}

#[derive(Clone, Debug)]
struct Owner {
    slot: u64,
    pid: u32,
    held: OwnerRanges,
}

#[derive(Clone, Debug)]
struct FlockFile {
    owners: BTreeMap<OwnerKey, Owner>,
    /// Slot number to owner, for hits in the indexes.
    slots: BTreeMap<u64, OwnerKey>,
    next_slot: u64,
    shared: IntervalIndex,
    exclusive: IntervalIndex,
    /// By age.
    waiters: BTreeMap<u64, (ClientId, FlockRequest)>,
}

/// See the module's head. Reached through [`Namespace`]'s `flock_*` calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlockTable {
    files: BTreeMap<FileKey, FlockFile>,
    /// Waiting requests of an owner: where each one waits. POSIX locks only; the edges of the wait graph.
    waits: BTreeMap<OwnerKey, BTreeSet<(FileKey, u64)>>,
    /// Where clients run; those of which it is not known are not here.
    hosts: BTreeMap<ClientId, u64>,
    /// Of those, clients that may have ended: what they hold goes with their eviction, so nobody waits for it for ever.
    away: BTreeSet<ClientId>,
    /// The same waiting requests by host and process, for those of whom both are known.
    waits_of_processes: BTreeMap<Process, BTreeSet<Wait>>,
    /// Waiting requests by the client's name.
    by_cookie: BTreeMap<(ClientId, LockCookie), (FileKey, u64)>,
    next_wait: u64,
    ranges: usize,
    /// The same by client; who has nothing is not in it.
    parts: BTreeMap<ClientId, Part>,
}

impl FlockFile {
    fn new() -> FlockFile {
        FlockFile {
            owners: BTreeMap::new(),
            slots: BTreeMap::new(),
            next_slot: 0,
            shared: IntervalIndex::new(),
            exclusive: IntervalIndex::new(),
            waiters: BTreeMap::new(),
        }
    }

    /// Calls `f` for each held range that stands against the request, the exclusive ones by start and then the shared ones by start,
    /// until it answers false: that leaves out the rest of its kind. Whether none was left out.
    fn conflicts(
        &self,
        owner: OwnerKey,
        extent: Extent,
        exclusive: bool,
        f: &mut dyn FnMut(OwnerKey, &Entry, bool) -> bool,
    ) -> bool {
        let mut is_whole = true;
        if types::planted!("flock-in-conflict") {
            return is_whole;
        }
        let own = self.owners.get(&owner).map(|o| o.slot);
        for (index, is_exclusive) in [(&self.exclusive, true), (&self.shared, false)] {
            if !is_exclusive && !exclusive {
                continue;
            }
            is_whole &= index.visit(extent, &mut |e| match self.slots.get(&e.gid) {
                Some(holder) if Some(e.gid) != own => f(*holder, e, is_exclusive),
                _ => true,
            });
        }
        is_whole
    }

    /// Who holds what stands against the request, each with its process. At most twice as many as there are owners, however many ranges
    /// they have: where there are more ranges than owners in the way each owner is looked at, by its own ranges.
    fn holders_against(&self, owner: OwnerKey, extent: Extent, exclusive: bool) -> Vec<Actor> {
        let actor = |holder: OwnerKey| (holder, self.owners.get(&holder).map_or(0, |o| o.pid));
        let mut found: Vec<Actor> = Vec::new();
        let is_whole = self.conflicts(owner, extent, exclusive, &mut |holder, _, _| {
            found.push(actor(holder));
            found.len() <= self.owners.len()
        });
        if is_whole {
            return found;
        }
        let others = self.owners.iter().filter(|(holder, _)| **holder != owner);
        others.filter(|(_, o)| o.held.stands_against(extent, exclusive)).map(|(holder, _)| actor(*holder)).collect()
    }

    fn is_free(&self, owner: OwnerKey, extent: Extent, exclusive: bool) -> bool {
        let mut free = true;
        self.conflicts(owner, extent, exclusive, &mut |_, _, _| {
            free = false;
            false
        });
        free
    }

    /// Changes what `owner` holds; answers by how many ranges the file grew.
    fn set(&mut self, owner: OwnerKey, pid: u32, extent: Extent, mode: Option<bool>) -> isize {
        if mode.is_none() && !self.owners.contains_key(&owner) {
            return 0;
        }
        let next_slot = &mut self.next_slot;
        let slots = &mut self.slots;
        let who = self.owners.entry(owner).or_insert_with(|| {
            *next_slot += 1;
            slots.insert(*next_slot, owner);
            Owner { slot: *next_slot, pid, held: OwnerRanges::default() }
        });
        // Who gives a range back need not say who it is (a kernel does not), and stays the holder of the rest.
        if mode.is_some() {
            who.pid = pid;
        }
        let before = who.held.len() as isize;
        let (removed, added) = who.held.set(extent, mode);
        for (list, insert) in [(removed, false), (added, true)] {
            for (e, exclusive) in list {
                let index = if exclusive { &mut self.exclusive } else { &mut self.shared };
                // One owner's ranges never share a start, so (start, slot) names one range.
                if insert {
                    index.insert(Entry { extent: e, seq: who.slot, gid: who.slot, fresh: false });
                } else {
                    index.remove(e.start, who.slot);
                }
            }
        }
        let grew = who.held.len() as isize - before;
        if who.held.is_empty() {
            let slot = who.slot;
            self.owners.remove(&owner);
            self.slots.remove(&slot);
        }
        grew
    }

    fn is_unused(&self) -> bool {
        self.owners.is_empty() && self.waiters.is_empty()
    }
}

impl FlockTable {
    fn set(&mut self, key: FileKey, owner: OwnerKey, pid: u32, extent: Extent, mode: Option<bool>) {
        let grew = self.files.entry(key).or_insert_with(FlockFile::new).set(owner, pid, extent, mode);
        self.ranges = self.ranges.checked_add_signed(grew).expect("ranges are counted exactly");
        self.count_for(owner.0, |part| part.ranges = part.ranges.saturating_add_signed(grew));
    }

    fn count_for(&mut self, client: ClientId, change: impl FnOnce(&mut Part)) {
        let part = self.parts.entry(client).or_default();
        change(part);
        if *part == Part::default() {
            self.parts.remove(&client);
        }
    }

    fn part(&self, client: ClientId) -> Part {
        self.parts.get(&client).copied().unwrap_or_default()
    }

    fn tidy(&mut self, key: FileKey) {
        if self.files.get(&key).is_some_and(FlockFile::is_unused) {
            self.files.remove(&key);
        }
    }

    fn request(&mut self, client: ClientId, req: &FlockRequest, room: Room, out: &mut Vec<Action>) -> FlockOutcome {
        let (key, owner) = ((req.fid, req.kind), (client, req.owner));
        if self.by_cookie.contains_key(&(client, req.cookie)) {
            return FlockOutcome::Waiting;
        }
        if req.mode == FlockMode::Unlock {
            if !self.has_room(key, owner, req.extent, None, room) {
                return FlockOutcome::Denied(DenyReason::NoLocks);
            }
            self.set(key, owner, req.pid, req.extent, None);
            self.wake(key, out);
            return FlockOutcome::Granted;
        }
        let exclusive = req.mode == FlockMode::Exclusive;
        if req.kind == FlockKind::Flock && self.holds_other(key, owner, exclusive) {
            self.set(key, owner, req.pid, req.extent, None);
            self.wake(key, out);
        }
        let free = self.files.get(&key).is_none_or(|f| f.is_free(owner, req.extent, exclusive));
        if free && self.has_room(key, owner, req.extent, Some(exclusive), room) {
            self.set(key, owner, req.pid, req.extent, Some(exclusive));
            self.wake(key, out); // it may have been a downgrade
            return FlockOutcome::Granted;
        }
        if free {
            return FlockOutcome::Denied(DenyReason::NoLocks);
        }
        if !req.wait {
            return FlockOutcome::Denied(DenyReason::WouldBlock);
        }
        // What waits is granted without another look at the room.
        let may_wait = self.by_cookie.len() < room.of_all && self.part(client).waits < room.of_client;
        if !may_wait || !self.has_room(key, owner, req.extent, Some(exclusive), room) {
            return FlockOutcome::Denied(DenyReason::NoLocks);
        }
        if req.kind == FlockKind::Posix && self.closes_a_cycle((owner, req.pid), key, req.extent, exclusive) {
            return FlockOutcome::Denied(DenyReason::Deadlock);
        }
        self.next_wait += 1;
        let seq = self.next_wait;
        let file = self.files.get_mut(&key).expect("a conflict is in a file that exists");
        file.waiters.insert(seq, (client, *req));
        self.by_cookie.insert((client, req.cookie), (key, seq));
        self.count_for(client, |part| part.waits += 1);
        if req.kind == FlockKind::Posix {
            self.waits.entry(owner).or_default().insert((key, seq));
            if let Some(process) = self.process((owner, req.pid)) {
                self.waits_of_processes.entry(process).or_default().insert((owner, key, seq));
            }
        }
        FlockOutcome::Waiting
    }

    /// Whether what `owner` holds may be changed so: it does not grow, or there is room for it.
    fn has_room(&self, key: FileKey, owner: OwnerKey, extent: Extent, mode: Option<bool>, room: Room) -> bool {
        let held = self.files.get(&key).and_then(|f| f.owners.get(&owner));
        let growth = held.map_or(isize::from(mode.is_some()), |o| o.held.growth(extent, mode));
        let fits = |ranges: usize, max: usize| ranges.checked_add_signed(growth).is_some_and(|ranges| ranges <= max);
        growth <= 0 || fits(self.ranges, room.of_all) && fits(self.part(owner.0).ranges, room.of_client)
    }

    /// Whether `owner` has this file flocked the other way.
    fn holds_other(&self, key: FileKey, owner: OwnerKey, exclusive: bool) -> bool {
        let held = self.files.get(&key).and_then(|f| f.owners.get(&owner));
        held.is_some_and(|o| o.held.iter().any(|(_, e)| e != exclusive))
    }

    /// Whether a wait of `owner` for these bytes would wait, over any number of owners, for `owner` itself.
    ///
    /// A process that uses several clients of one host is an owner at each, and waits for itself through any of them. Two
    /// owners at one client are two: open file descriptions may have locks of their own.
    fn closes_a_cycle(&self, who: Actor, key: FileKey, extent: Extent, exclusive: bool) -> bool {
        let mut seen: BTreeSet<Actor> = BTreeSet::new();
        let mut todo: Vec<Actor> = Vec::new();
        self.holders_against(who.0, key, extent, exclusive, &mut todo);
        while let Some(holder) = todo.pop() {
            if self.is_same(holder, who) {
                return true;
            }
            if !seen.insert(holder) {
                continue;
            }
            let own = self.waits.get(&holder.0).into_iter().flatten().map(|(file, seq)| (holder.0, *file, *seq));
            let process = self.process(holder).and_then(|p| self.waits_of_processes.get(&p));
            let elsewhere = process.into_iter().flatten().filter(|(o, ..)| o.0 != holder.0.0).copied();
            let elsewhere = elsewhere.filter(|_| !self.away.contains(&holder.0.0));
            for (waiter, file, seq) in own.chain(elsewhere) {
                if let Some((_, r)) = self.files.get(&file).and_then(|f| f.waiters.get(&seq)) {
                    self.holders_against(waiter, file, r.extent, r.mode == FlockMode::Exclusive, &mut todo);
                }
            }
        }
        false
    }

    /// Host and process of an owner.
    fn process(&self, ((client, _), pid): Actor) -> Option<Process> {
        self.hosts.get(&client).map(|host| (*host, pid)).filter(|(_, pid)| *pid != 0)
    }

    fn is_same(&self, a: Actor, b: Actor) -> bool {
        let elsewhere = a.0.0 != b.0.0 && !self.away.contains(&a.0.0) && !self.away.contains(&b.0.0);
        a.0 == b.0 || elsewhere && self.process(a).is_some_and(|p| self.process(b) == Some(p))
    }

    fn holders_against(&self, owner: OwnerKey, key: FileKey, extent: Extent, exclusive: bool, into: &mut Vec<Actor>) {
        if let Some(file) = self.files.get(&key) {
            into.append(&mut file.holders_against(owner, extent, exclusive));
        }
    }

    fn unwait(&mut self, key: FileKey, seq: u64) -> Option<(ClientId, FlockRequest)> {
        let (client, req) = self.files.get_mut(&key)?.waiters.remove(&seq)?;
        if self.by_cookie.remove(&(client, req.cookie)).is_some() {
            self.count_for(client, |part| part.waits = part.waits.saturating_sub(1));
        }
        let owner = (client, req.owner);
        if let Some(process) = self.process((owner, req.pid))
            && let Some(set) = self.waits_of_processes.get_mut(&process)
        {
            set.remove(&(owner, key, seq));
            if set.is_empty() {
                self.waits_of_processes.remove(&process);
            }
        }
        if let Some(set) = self.waits.get_mut(&owner) {
            set.remove(&(key, seq));
            if set.is_empty() {
                self.waits.remove(&owner);
            }
        }
        Some((client, req))
    }

    /// Tries the waiters of a file, oldest first, until nothing more changes.
    fn wake(&mut self, key: FileKey, out: &mut Vec<Action>) {
        let (mut from, mut new_edges) = (0, false);
        while let Some((seq, exclusive)) = self.next_grantable(key, from) {
            let (client, r) = self.unwait(key, seq).expect("the waiter was just found");
            let owner = (client, r.owner);
            // Only a downgrade can help a waiter that was passed over; everything else takes, it does not give.
            from = if !exclusive && self.holds_other(key, owner, exclusive) { 0 } else { seq + 1 };
            self.set(key, owner, r.pid, r.extent, Some(exclusive));
            out.push(Action::FlockGranted { client, cookie: r.cookie });
            // A new holder closes a cycle only if it waits for something itself (another thread of the owner).
            let process = self.process((owner, r.pid));
            let waits = process.is_some_and(|p| self.waits_of_processes.contains_key(&p));
            new_edges |= waits || self.waits.contains_key(&owner);
        }
        if new_edges {
            self.refuse_new_cycles(key, out);
        }
        self.tidy(key);
    }

    /// The oldest waiter from `from` on that nothing stands against.
    fn next_grantable(&self, key: FileKey, from: u64) -> Option<(u64, bool)> {
        let file = self.files.get(&key)?;
        let free = |(seq, (client, r)): (&u64, &(ClientId, FlockRequest))| {
            let exclusive = r.mode == FlockMode::Exclusive;
            file.is_free((*client, r.owner), r.extent, exclusive).then_some((*seq, exclusive))
        };
        file.waiters.range(from..).find_map(free)
    }

    /// A grant gave some waiters a new holder to wait for: whoever now waits for itself is told so.
    fn refuse_new_cycles(&mut self, key: FileKey, out: &mut Vec<Action>) {
        let seqs: Vec<u64> = self.files.get(&key).map(|f| f.waiters.keys().copied().collect()).unwrap_or_default();
        for seq in seqs {
            let Some((client, r)) = self.files.get(&key).and_then(|f| f.waiters.get(&seq)).copied() else { continue };
            if self.closes_a_cycle(((client, r.owner), r.pid), key, r.extent, r.mode == FlockMode::Exclusive) {
                self.unwait(key, seq);
                out.push(Action::FlockDenied { client, cookie: r.cookie, reason: DenyReason::Deadlock });
            }
        }
    }

    fn test(&self, client: ClientId, req: &FlockRequest) -> Option<FlockRange> {
        let file = self.files.get(&(req.fid, req.kind))?;
        let mut first: Option<FlockRange> = None;
        file.conflicts(
            (client, req.owner),
            req.extent,
            req.mode == FlockMode::Exclusive,
            &mut |holder, e, exclusive| {
                if first.is_none_or(|f| e.extent.start < f.extent.start) {
                    let pid = file.owners.get(&holder).map_or(0, |o| o.pid);
                    let (fid, kind, (client, owner)) = (req.fid, req.kind, holder);
                    first = Some(FlockRange { fid, kind, client, owner, pid, extent: e.extent, exclusive });
                }
                // The others of its kind start later.
                false
            },
        );
        first
    }

    /// Drops everything of one owner in one file, held and waiting.
    fn drop_owner(&mut self, client: ClientId, key: FileKey, owner: u64, out: &mut Vec<Action>) -> usize {
        let waiting: Vec<u64> = match self.files.get(&key) {
            None => return 0,
            Some(f) => f.waiters.iter().filter(|(_, (c, r))| *c == client && r.owner == owner).map(|w| *w.0).collect(),
        };
        for seq in &waiting {
            self.unwait(key, *seq);
        }
        let before = self.ranges;
        self.set(key, (client, owner), 0, Extent::ALL, None);
        let gone = waiting.len() + (before - self.ranges);
        self.wake(key, out);
        gone
    }

    /// Everything of a client goes; answers how much.
    pub fn evict(&mut self, client: ClientId, out: &mut Vec<Action>) -> usize {
        // What waits is taken out by its host, so the host goes last.
        let mine = (client, LockCookie(0))..=(client, LockCookie(u64::MAX));
        let waiting: Vec<(FileKey, u64)> = self.by_cookie.range(mine).map(|(_, w)| *w).collect();
        let mut gone = waiting.len();
        for (key, seq) in waiting {
            self.unwait(key, seq);
        }
        let range = (client, 0)..=(client, u64::MAX);
        let holds = |f: &FlockFile| f.owners.range(range.clone()).map(|(o, _)| *o).collect::<Vec<_>>();
        let held: Vec<(FileKey, Vec<OwnerKey>)> = self.files.iter().map(|(k, f)| (*k, holds(f))).collect();
        for (key, owners) in held {
            let before = self.ranges;
            for owner in &owners {
                self.set(key, *owner, 0, Extent::ALL, None);
            }
            gone += before - self.ranges;
            if owners.is_empty() {
                self.tidy(key);
            } else {
                self.wake(key, out);
            }
        }
        self.hosts.remove(&client);
        self.away.remove(&client);
        gone
    }

    fn held(&self) -> impl Iterator<Item = FlockRange> {
        self.files.iter().flat_map(|((fid, kind), f)| {
            f.owners.iter().flat_map(move |((client, owner), o)| {
                let (fid, kind, client, owner, pid) = (*fid, *kind, *client, *owner, o.pid);
                o.held.iter().map(move |(extent, exclusive)| FlockRange {
                    fid,
                    kind,
                    client,
                    owner,
                    pid,
                    extent,
                    exclusive,
                })
            })
        })
    }

    /// Two owners' ranges never conflict; counts and indexes agree; nobody waits without a reason.
    pub fn check(&self) -> Result<(), &'static str> {
        let mut ranges = 0;
        for (key, file) in &self.files {
            let held: usize = file.owners.values().map(|o| o.held.len()).sum();
            ranges += held;
            if held != file.shared.len() + file.exclusive.len() {
                return Err("a flock index lost a range");
            }
            for (owner, o) in &file.owners {
                if o.held.iter().any(|(e, exclusive)| !file.is_free(*owner, e, exclusive)) {
                    return Err("two owners hold conflicting flocks");
                }
            }
            if self.next_grantable(*key, 0).is_some() {
                return Err("a flock request waits for nobody");
            }
        }
        if ranges != self.ranges {
            return Err("flock ranges are miscounted");
        }
        let mut parts: BTreeMap<ClientId, Part> = BTreeMap::new();
        for (owner, o) in self.files.values().flat_map(|f| &f.owners) {
            parts.entry(owner.0).or_default().ranges += o.held.len();
        }
        for (client, _) in self.by_cookie.keys() {
            parts.entry(*client).or_default().waits += 1;
        }
        if parts != self.parts {
            return Err("a client's part of the flocks is miscounted");
        }
        let by_process: usize = self.waits_of_processes.values().map(BTreeSet::len).sum();
        if by_process > self.waits.values().map(BTreeSet::len).sum() {
            return Err("a process waits more often than its owners");
        }
        let waiting: usize = self.files.values().map(|f| f.waiters.len()).sum();
        if waiting != self.by_cookie.len() { Err("flock waiters are miscounted") } else { Ok(()) }
    }
}

impl Namespace {
    /// `fcntl(F_SETLK, F_SETLKW)` and `flock()`. A repetition of a waiting request answers `Waiting` again; of one
    /// that was granted, `Granted` again. An unlock that would leave more ranges than there is room for is refused and changes nothing.
    pub fn flock_set(&mut self, client: ClientId, req: &FlockRequest, out: &mut Vec<Action>) -> FlockOutcome {
        let (of_all, of_client) = self.flocks_max();
        self.flock_set_within(client, req, Room { of_all, of_client }, out)
    }

    fn flock_set_within(
        &mut self,
        client: ClientId,
        req: &FlockRequest,
        room: Room,
        out: &mut Vec<Action>,
    ) -> FlockOutcome {
        let whole = req.kind == FlockKind::Posix || req.extent == Extent::ALL;
        if req.extent.start >= req.extent.end || !whole {
            return FlockOutcome::Denied(DenyReason::Invalid);
        }
        let outcome = self.flocks.request(client, req, room, out);
        if outcome == FlockOutcome::Denied(DenyReason::NoLocks) {
            self.count_limit_hit();
        }
        outcome
    }

    /// Says on which host a client runs (0: not known), before it asks for anything. Deadlocks are then found as well where
    /// a process is an owner at several clients of that host.
    pub fn flock_host(&mut self, client: ClientId, host: u64) {
        if host != 0 {
            self.flocks.hosts.entry(client).or_insert(host);
        }
    }

    /// Says which clients of the host that `client` runs on are away, before it asks for anything: a mount that died holds its
    /// locks until it is evicted, and a process that has opened its file through another mount waits for that, not for itself.
    pub fn flock_away(&mut self, client: ClientId, is_away: impl Fn(ClientId) -> bool) {
        let Some(host) = self.flocks.hosts.get(&client).copied() else { return };
        let mates = self.flocks.hosts.iter().filter(|(c, h)| **h == host && **c != client).map(|(c, _)| *c);
        let away: Vec<(ClientId, bool)> = mates.map(|c| (c, is_away(c))).collect();
        for (mate, is_away) in away {
            if is_away {
                self.flocks.away.insert(mate)
            } else {
                self.flocks.away.remove(&mate)
            };
        }
        self.flocks.away.remove(&client);
    }

    /// `fcntl(F_GETLK)`: the first range that stands in the way of `req`, if any.
    #[must_use]
    pub fn flock_test(&self, client: ClientId, req: &FlockRequest) -> Option<FlockRange> {
        self.flocks.test(client, req)
    }

    /// Withdraws a waiting request (a signal came). False: it waits no longer, so its outcome stands.
    pub fn flock_cancel_wait(&mut self, client: ClientId, cookie: LockCookie) -> bool {
        let Some((key, seq)) = self.flocks.by_cookie.get(&(client, cookie)).copied() else { return false };
        self.flocks.unwait(key, seq);
        self.flocks.tidy(key);
        true
    }

    /// A descriptor was closed: everything `owner` holds or waits for in the file goes.
    pub fn flock_drop_owner(&mut self, client: ClientId, fid: Fid, kind: FlockKind, owner: u64, out: &mut Vec<Action>) {
        self.flocks.drop_owner(client, (fid, kind), owner, out);
    }

    /// Puts a range back that a client held when the server went down, whether or not there is room: there was when it was granted, and
    /// its holder goes on believing in it. A repetition changes nothing.
    ///
    /// # Errors
    /// `WouldBlock`: another client holds a conflicting range; this one is lost. `Invalid`: malformed.
    pub fn flock_replay(&mut self, client: ClientId, range: &FlockRange) -> Result<(), DenyReason> {
        let mode = if range.exclusive { FlockMode::Exclusive } else { FlockMode::Shared };
        let (fid, kind, owner, pid, extent) = (range.fid, range.kind, range.owner, range.pid, range.extent);
        let req = FlockRequest { fid, kind, owner, pid, mode, extent, wait: false, cookie: LockCookie(0) };
        let room = Room { of_all: usize::MAX, of_client: usize::MAX };
        match self.flock_set_within(client, &req, room, &mut Vec::new()) {
            FlockOutcome::Denied(reason) => Err(reason),
            FlockOutcome::Granted | FlockOutcome::Waiting => Ok(()),
        }
    }

    /// All ranges held now, by file, kind, client and owner.
    pub fn flocks(&self) -> impl Iterator<Item = FlockRange> {
        self.flocks.held()
    }

    /// Flock requests that wait now.
    #[must_use]
    pub fn flock_waiters(&self) -> usize {
        self.flocks.by_cookie.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_a_request_waits_for_is_as_many_as_there_are_owners_however_many_ranges_they_hold() {
        let mut file = FlockFile::new();
        let (many, few, asker): (OwnerKey, OwnerKey, OwnerKey) = ((ClientId(1), 1), (ClientId(2), 1), (ClientId(3), 1));
        for at in 0..1000 {
            file.set(many, 7, Extent::at(at * 4, 1), Some(at % 2 == 0));
        }
        file.set(few, 8, Extent::at(2, 1), Some(false));
        let whom = |extent: Extent, exclusive: bool| {
            let mut found = file.holders_against(asker, extent, exclusive);
            assert!(found.len() <= 3, "{} actors", found.len());
            found.dedup();
            found
        };
        assert_eq!(whom(Extent::ALL, true), [(many, 7), (few, 8)]);
        assert_eq!(whom(Extent::ALL, false), [(many, 7)]);
        assert_eq!(whom(Extent::at(1, 2), true), [(few, 8)]);
        assert_eq!(whom(Extent::at(1, 2), false), []);
        assert_eq!(whom(Extent::at(4, 1), true), [(many, 7)]);
        assert_eq!(whom(Extent::at(4, 1), false), []);
    }
}
