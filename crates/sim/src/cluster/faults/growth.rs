//! OSTs come and go, as by `stria ost add`, `drain`, `remove`, `replace` and `drain --cancel`, while programs work and other things go wrong.
//!
//! No file may lose anything by that: programs' own checks hold that, and that no file has objects on an OST that is gone the check of the
//! stores. In the end every client knows the OSTs that there are, and files can be made on each that is open.
use std::rc::Rc;

use client::{Client, Migrate, NewFile};
use layout::{LayoutSpec, Pattern, StripeCount};
use rt::Head;
use types::{Fid, FsError, OstIndex, Rng};
use wire::connect::{MapChange, MapChangeReply, MapChangeRequest, OstFile, OstFilesReply, OstFilesRequest};
use wire::mdt::Cred;
use wire::{Header, Op};

use super::super::class::FaultClass;
use super::super::nodes::NodeId;
use super::{Faults, LocalFuture, SILENT_WITHIN};

/// Virtual seconds after which a drain is given up, at most; when the run is ending, so many after that.
const PATIENCE_S: f64 = 60.0;
/// See [`PATIENCE_S`].
const ENDING_S: f64 = 10.0;
/// Seconds within which every client knows what the cluster map says when all is calm.
const KNOWN_WITHIN_S: u32 = 120;
/// Seconds within which a server without power counts as dead.
const REPLACED_WITHIN_S: u32 = 300;
/// A file whose blocks rot: copies of it are not looked for.
const SCARRED: &[u8] = b"scarred";
const O_CREAT_RDWR: u32 = 0o102;

impl Faults {
    /// Changes which OSTs there are until the run is ending.
    pub(super) async fn growth(&self, mut rng: Rng) {
        let every_s = [1.0, 4.0, 12.0][rng.below(3) as usize];
        while !self.context.ending.get() && !self.context.failed() {
            self.sleep(2.0 * every_s * rng.unit()).await;
            let next = self.context.cluster.next_ost();
            if self.context.ending.get() {
                return;
            }
            match next.filter(|_| rng.chance(0.5)) {
                Some(ost) => self.add_ost(ost, &mut rng).await,
                None => self.empty_ost(&mut rng).await,
            }
        }
    }

    /// The store of another OST is made and served.
    async fn add_ost(&self, ost: usize, rng: &mut Rng) {
        self.grows.set(true);
        while self.checks.get() {
            self.sleep(0.1).await;
        }
        let (cluster, id) = (&self.context.cluster, NodeId::Oss(ost));
        self.note(FaultClass::Growth, &format!("OST {ost} is added"));
        let mut other = Rng::new(rng.next_u64());
        let dies = self.config.kill_mds > 0.0 && rng.chance(0.4);
        let added = async {
            let made = match cluster.format_ost(ost).await {
                Ok(()) => cluster.start(id).await,
                failed => failed,
            };
            if let Err(e) = made {
                self.context.complain(e);
            }
            cluster.ost_came(ost);
            self.grows.set(false);
        };
        let mut all: Vec<LocalFuture<'_>> = vec![Box::pin(added)];
        if dies {
            all.push(Box::pin(self.mds_dies_amid(Op::Register, &mut other)));
        }
        rt::sync::join_all(all).await;
    }

    /// No new objects are given out of an OST; files that have some there get others, and where there are none any more it leaves.
    async fn empty_ost(&self, rng: &mut Rng) {
        let cluster = &self.context.cluster;
        let Some(map) = cluster.clients.iter().find_map(|c| self.map_of(c.id)) else { return };
        let in_map = |ost: &usize| map.osts.iter().any(|e| usize::from(e.ost.0) == *ost);
        let known: Vec<usize> = cluster.ost_indices().into_iter().filter(in_map).collect();
        // Guests ask OSTs for objects that they know.
        let may_go = |ost: &usize| cluster.config.guests == 0 || *ost >= cluster.config.osts;
        let may_go: Vec<usize> = known.iter().copied().filter(may_go).collect();
        if known.len() < 2 || may_go.is_empty() {
            return;
        }
        let ost = may_go[rng.below(may_go.len() as u64) as usize];
        self.note(FaultClass::Growth, &format!("OST {ost} is closed"));
        let closed = self.change(MapChange::Close, ost, rng).await;
        let is_empty = rng.chance(0.8) && self.drain(ost, rng).await;
        let stays = if is_empty { rng.chance(0.3) } else { rng.chance(0.7) };
        if closed && !stays && self.remove_ost(ost, rng).await {
            return;
        }
        if closed && is_empty && rng.chance(0.5) {
            self.replace_ost(ost, rng).await;
        }
        self.note(FaultClass::Growth, &format!("OST {ost} is used again"));
        self.change(MapChange::Open, ost, rng).await;
    }

    /// Asks for the removal of an OST, and ends its server; whether the metadata server agreed.
    async fn remove_ost(&self, ost: usize, rng: &mut Rng) -> bool {
        let (cluster, id) = (&self.context.cluster, NodeId::Oss(ost));
        cluster.ost_leaves(ost, true);
        if !self.change(MapChange::RemoveOst, ost, rng).await {
            cluster.ost_leaves(ost, false);
            return false;
        }
        self.note(FaultClass::Growth, &format!("OST {ost} has left"));
        // Nobody counts it from now on, whatever other faults still do to its server.
        cluster.ost_left(ost);
        if self.take_at_last(id).await {
            cluster.kill(id, false);
        }
        self.give_back(id);
        true
    }

    /// The store of an OST that no file has objects on is lost for good, and an empty one takes its place.
    async fn replace_ost(&self, ost: usize, rng: &mut Rng) {
        let (context, id) = (&self.context, NodeId::Oss(ost));
        if context.scars.hit.borrow().iter().any(|(of, _)| *of == ost) {
            return;
        }
        // What is not on stable storage may be undone with a server and a client that die: files would have objects there again.
        if !self.take_at_last(id).await {
            return;
        }
        let power = rng.chance(0.5);
        self.note_kill(id, power, false);
        context.cluster.kill(id, power);
        let committed = self.sync_names(rng).await;
        if committed && self.files_on(ost, rng).await.is_some_and(|files| files.is_empty()) {
            let uuid = rng.next_u64().max(1);
            let replaced = self.ask_replacement(ost, uuid, rng).await;
            if let Some(lost_through) = replaced {
                self.make_replacement(ost, (uuid, lost_through)).await;
            }
            self.note(FaultClass::Growth, &format!("OST {ost} has another store: {replaced:?}"));
        }
        self.start_again(id).await;
        self.give_back(id);
    }
    async fn make_replacement(&self, ost: usize, identity: (u64, u32)) {
        for tries in 1.. {
            let Err(e) = self.context.cluster.replace_store(ost, identity).await else { return };
            // Others have filled the disk, or reads of it bring flipped bits.
            let may_fail = self.config.full_disk > 0.0 || self.config.bit_rot > 0.0;
            if !may_fail || tries > REPLACED_WITHIN_S || self.context.failed() {
                return self.context.complain(e);
            }
            self.sleep(1.0).await;
        }
    }
    /// Takes a node when no other fault has it any more; false when the run went wrong.
    async fn take_at_last(&self, id: NodeId) -> bool {
        while !self.take(id) {
            if self.context.failed() {
                return false;
            }
            self.sleep(0.1).await;
        }
        true
    }
    /// Has the metadata server commit everything; whether it said so.
    async fn sync_names(&self, rng: &mut Rng) -> bool {
        let Some(client) = self.some_client(rng).await else { return false };
        let synced = self
            .context
            .on(client, "growth: commit", async move |c| c.sessions().mdc().ask::<_, ()>(Op::MdtSync, &()).await);
        matches!(synced.await, Some(Ok(())))
    }
    /// Names another store for an OST whose server does not run: the highest object that the lost one may have had.
    async fn ask_replacement(&self, ost: usize, uuid: u64, rng: &mut Rng) -> Option<u32> {
        let (id, osts) = (rng.next_u64().max(1), vec![OstIndex(ost as u16)]);
        let q = MapChangeRequest { id, what: MapChange::ReplaceOst, osts, uuid, ..MapChangeRequest::default() };
        for _ in 0..REPLACED_WITHIN_S {
            let reply = self.ask_change(&q, rng).await?;
            match i32::from(reply.errno) {
                0 => return Some(reply.lost_through),
                // It is not noticed at once that a host has no power.
                errno if errno == FsError::Busy.errno() => self.sleep(1.0).await,
                _ => {
                    self.context
                        .complain(format!("OST {ost} is not replaced: {}", String::from_utf8_lossy(&reply.why)));
                    return None;
                }
            }
        }
        self.context
            .complain(format!("OST {ost} counts as served, {REPLACED_WITHIN_S} s after its host lost its power"));
        None
    }

    /// Migrates files away until a look finds none; false when it is given up before.
    async fn drain(&self, ost: usize, rng: &mut Rng) -> bool {
        let sim = &self.context.cluster.sim;
        let seconds = PATIENCE_S * rng.unit();
        let until = sim.now().0 + (seconds * 1e9) as u64;
        let mut ends = None;
        loop {
            let Some(files) = self.files_on(ost, rng).await else { return false };
            if files.is_empty() {
                return true;
            }
            for file in files.iter().filter(|f| !f.path.is_empty() && f.path[..] != *SCARRED) {
                let now = sim.now().0;
                if self.context.ending.get() {
                    ends.get_or_insert(now + (ENDING_S * 1e9) as u64);
                }
                let until = ends.map_or(until, |e| until.min(e));
                if now >= until || self.context.failed() {
                    return false;
                }
                self.context.copy_begins(file.size);
                self.move_away(file.fid, until, rng).await;
            }
            if sim.now().0 >= until || self.context.failed() {
                return false;
            }
            self.sleep(1.0).await;
        }
    }

    async fn move_away(&self, fid: Fid, until: u64, rng: &mut Rng) {
        let Some(client) = self.some_client(rng).await else { return };
        let work = async move |c: Rc<Client>| move_away(c, fid, until).await;
        if let Some(Err(e @ (FsError::Protocol | FsError::Access))) =
            self.context.on(client, "growth: migrate", work).await
        {
            self.context.complain(format!("client{client}: migration of {fid}: {e}"));
        }
    }

    /// Files that have objects on an OST; `None`: nobody says.
    async fn files_on(&self, ost: usize, rng: &mut Rng) -> Option<Vec<OstFile>> {
        let (mut files, mut from) = (Vec::new(), Fid::ZERO);
        loop {
            let client = self.some_client(rng).await?;
            let q = OstFilesRequest { ost: OstIndex(ost as u16), from, lost: false };
            let asked = self.context.on(client, "growth: files of an OST", async move |c| {
                c.sessions().mdc().ask::<_, OstFilesReply>(Op::OstFiles, &q).await
            });
            let page = asked.await?.ok()?;
            files.extend(page.files);
            if page.next.is_zero() {
                return Some(files);
            }
            from = page.next;
        }
    }

    /// Has the metadata server change the map, which may die amid that; whether it did so.
    async fn change(&self, what: MapChange, ost: usize, rng: &mut Rng) -> bool {
        let (id, dies) = (rng.next_u64().max(1), self.config.kill_mds > 0.0 && rng.chance(0.2));
        let mut other = Rng::new(rng.next_u64());
        let reply = std::cell::Cell::new(None);
        let osts = vec![OstIndex(ost as u16)];
        let q = MapChangeRequest { id, what, osts, ..MapChangeRequest::default() };
        let asked = async { reply.set(self.ask_change(&q, rng).await) };
        let mut all: Vec<LocalFuture<'_>> = vec![Box::pin(asked)];
        if dies {
            all.push(Box::pin(self.mds_dies_amid(Op::MapChange, &mut other)));
        }
        rt::sync::join_all(all).await;
        let Some(reply) = reply.take() else { return false };
        if reply.errno == 0 {
            return true;
        }
        let why = String::from_utf8_lossy(&reply.why).into_owned();
        // A client knows an OST as soon as the metadata server does, which may die before its store does, too: then the OST registers again.
        let unknown = i32::from(reply.errno) == FsError::NotFound.errno();
        let is_refusal = match what {
            MapChange::RemoveOst => i32::from(reply.errno) == FsError::NotEmpty.errno(),
            // One that is given up does not count as open.
            MapChange::Close => i32::from(reply.errno) == FsError::Busy.errno() && self.context.cluster.misses_an_ost(),
            _ => false,
        };
        if !unknown && !is_refusal {
            self.context.complain(format!("growth: {what:?} of OST {ost}: {why}"));
        }
        tracing::info!("{what:?} of OST {ost}: {why}");
        false
    }

    /// Asks until there is an answer.
    async fn ask_change(&self, q: &MapChangeRequest, rng: &mut Rng) -> Option<MapChangeReply> {
        loop {
            let (client, q) = (self.some_client(rng).await?, q.clone());
            let asked = self.context.on(client, "growth: change of the map", async move |c| {
                c.sessions().mdc().ask::<_, MapChangeReply>(Op::MapChange, &q).await
            });
            if let Some(Ok(reply)) = asked.await {
                return Some(reply);
            }
            self.sleep(0.2).await;
        }
    }

    /// A client that runs, waiting for one; `None` when the run went wrong.
    pub(super) async fn some_client(&self, rng: &mut Rng) -> Option<usize> {
        loop {
            let all = self.context.clients();
            if self.context.failed() {
                return None;
            }
            if !all.is_empty() {
                return Some(all[rng.below(all.len() as u64) as usize]);
            }
            self.sleep(0.1).await;
        }
    }

    /// The metadata server dies when it has been asked something of this kind, or has answered, or a moment later.
    async fn mds_dies_amid(&self, op: Op, rng: &mut Rng) {
        let id = NodeId::Mds;
        if self.client_died_lately() || !self.take(id) {
            return;
        }
        let host = self.context.cluster.node(id).host();
        let met = if rng.chance(0.5) {
            let is_it = move |head: &Head| Header::from_bytes(head).is_ok_and(|h| h.op == op);
            let silent = host.falls_silent(is_it, 1 + rng.below(4));
            rt::sync::race(silent, self.context.cluster.sim.sleep(SILENT_WITHIN)).await.is_ok()
        } else {
            self.sleep(0.02 * rng.unit() * rng.unit()).await;
            true
        };
        let power = rng.chance(self.config.power);
        tracing::info!("amid {op:?}: {met}");
        self.note_kill(id, power, false);
        self.context.mds_died();
        self.restart(id, power, rng).await;
        self.give_back(id);
    }

    fn map_of(&self, id: NodeId) -> Option<wire::connect::ConfigReply> {
        let NodeId::Client(index) = id else { return None };
        self.context.cluster.client(index).map(|c| c.osts().map())
    }

    /// All is calm: every client knows the OSTs that there are, and each that is open has objects for files.
    pub(super) async fn osts_are_known(&self) {
        let cluster = &self.context.cluster;
        let are = cluster.ost_indices();
        for client in 0..cluster.clients.len() {
            let knows = || {
                let map = self.map_of(NodeId::Client(client)).unwrap_or_default();
                map.osts.iter().filter(|e| e.active).map(|e| usize::from(e.ost.0)).collect::<Vec<_>>()
            };
            let mut rounds = 0;
            while knows() != are && rounds < KNOWN_WITHIN_S * 2 && !self.context.failed() {
                self.sleep(0.5).await;
                rounds += 1;
            }
            let outcome = if knows() == are { Ok(()) } else { Err(format!("{:?}, there are {are:?}", knows())) };
            self.context.expect(&format!("OSTs that client{client} knows"), outcome);
        }
        let Some(map) = self.map_of(NodeId::Client(0)) else { return };
        for ost in are.into_iter().filter(|o| !map.closed.contains(&OstIndex(*o as u16))) {
            if self.context.failed() || cluster.config.is_small() || self.context.is_some_disk_full() {
                return;
            }
            let mut rounds = 0;
            let outcome = loop {
                let made = self.context.on(0, "growth: create on an OST", async move |c| make_on(c, ost).await).await;
                match made {
                    // One whose store is well again waits for its clients first, and gives out no objects meanwhile.
                    Some(Err(FsError::NoTarget)) if rounds < KNOWN_WITHIN_S * 2 => {}
                    Some(Err(e)) => break Err(e.to_string()),
                    Some(Ok(())) | None => break Ok(()),
                }
                self.sleep(0.5).await;
                rounds += 1;
            };
            self.context.expect(&format!("a file on OST {ost}"), outcome);
        }
    }
}

/// Gives a file objects elsewhere, in the same form.
async fn move_away(c: Rc<Client>, fid: Fid, until: u64) -> Result<(), FsError> {
    let cred = Cred::default();
    let bytes = c.getxattr(&cred, fid, b"lustre.lov").await?;
    let (_, layout) = layout::xattr::decode_layout(&bytes).map_err(|_| FsError::Protocol)?;
    let mut spec = LayoutSpec::default();
    spec.stripe_size = Some(layout.stripe_size());
    spec.stripe_count = StripeCount::Exactly(layout.stripe_count());
    spec.overstripe = layout.pattern() == Pattern::Raid0Overstriped;
    let how = Migrate { layout: layout::xattr::encode_spec(&spec), gives_way: false, bytes_per_s: 0 };
    let file = c.open(&cred, fid, 0).await?;
    let stopped = || c.rt().now().0 > until;
    let done = c.migrate(&cred, file.inode(), &how, &stopped).await.map(drop);
    let released = c.release(&file).await;
    done.and(released)
}

/// Makes a file on one OST, writes it and reads it.
async fn make_on(c: Rc<Client>, ost: usize) -> Result<(), FsError> {
    let cred = Cred::default();
    let mut spec = LayoutSpec::default();
    (spec.stripe_count, spec.index) = (StripeCount::Exactly(1), Some(OstIndex(ost as u16)));
    let spec = layout::xattr::encode_spec(&spec);
    let new = NewFile { flags: O_CREAT_RDWR, mode: 0o644, layout: &spec, ..NewFile::default() };
    let name = format!("grown{ost}");
    let (_, file) = c.create_open(&cred, Fid::ROOT, name.as_bytes(), new).await?;
    c.data().write(&file, 0, &[7; 4096]).await?;
    c.data().fsync(&file, false).await?;
    let got = c.data().read(&file, 0, 4096).await?.to_vec();
    c.release(&file).await?;
    if got == [7; 4096] { Ok(()) } else { Err(FsError::Corrupt) }
}
