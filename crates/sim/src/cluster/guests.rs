//! Clients with credentials of their own: they may only read, are for a subtree, have ids that are mapped or squashed, end, and are revoked
//! amid their work, while servers die and come again.
//!
//! What a guest may not do is refused by the very error, and the rest is not. Once a revocation was answered no server knows the guest,
//! serves it or takes anything of it, over all restarts; what had been synced stays as it is, whosever it was.
use std::cell::Cell;
use std::rc::Rc;

use client::{Client, NewFile, NewNode};
use frames::Bulk;
use ptlrpc::ClusterKey;
use types::{ClientId, Duration, Extent, Fid, FsError, Instant, ObjectId, OstIndex, Rng, WallTime};
use wire::Op;
use wire::credential::{Credential, CredentialAct, CredentialFlags, CredentialsReply, CredentialsRequest, IdRange};
use wire::mdt::{Cred, GetattrRequest, NodeKind, SetBits, SetattrRequest};
use wire::ost::{PunchRequest, ReadRequest, WriteRequest};

use super::class::FaultClass;
use super::context::{Context, HANG};
use super::disks::Failures;
use super::model::{Author, bytes};

/// Hosts of guests.
pub const GUESTS: usize = 2;
/// How long a guest may take to join.
const JOINS_WITHIN: Duration = Duration::from_secs(90);
/// How long one tries whose credential is over.
const TRIES_FOR: Duration = Duration::from_secs(20);
/// Operations of a guest at most.
const OPERATIONS_MAX: u64 = 30;
/// A request that is to get no answer has got none after this.
const NO_ANSWER: Duration = Duration::from_secs(3);
/// Ids of guests that are mapped begin here at the servers, and so many are.
const MAPPED: (u32, u32) = (3000, 100);
const SQUASHED: u32 = 65_534;
/// Bytes of a file.
const FILE: u64 = 200_000;
const O_RDWR: u32 = 2;
const O_CREATE_NEW: u32 = 0o302;

fn root() -> Cred {
    Cred::default()
}

/// A file whose bytes are made of a number.
#[derive(Clone)]
struct Known {
    fid: Fid,
    object: ObjectId,
    ost: OstIndex,
    stamp: u64,
}

/// What is over: nobody with it gets in, and a file stays as it was.
struct Over {
    name: String,
    key: ClusterKey,
    id: ClientId,
    /// When, by the clocks of all servers.
    at: WallTime,
    left: Option<(Fid, Vec<u8>)>,
}

/// A guest.
struct Guest {
    host: usize,
    key: ClusterKey,
    said: Credential,
    id: ClientId,
    /// Disk failures before it came, and starts of servers.
    failures: Failures,
    starts: u64,
    /// A file that it made, how much of it is synced, and of what it is made.
    made: Option<(Fid, u64)>,
}

impl Guest {
    fn is(&self, flag: u32) -> bool {
        self.said.flags & flag != 0
    }
    fn only_reads(&self) -> bool {
        self.is(CredentialFlags::READ_ONLY)
    }
    fn has_subtree(&self) -> bool {
        !self.said.subtree.is_zero()
    }
    /// Root of its host at the servers.
    fn root_there(&self) -> u32 {
        match (self.is(CredentialFlags::SQUASH_ROOT), self.said.uids.is_empty()) {
            (true, _) => SQUASHED,
            (false, false) => MAPPED.0,
            (false, true) => 0,
        }
    }
}

/// See the module's head.
pub struct Guests {
    context: Rc<Context>,
    rng: Rng,
    /// The directory that may be a guest's root.
    inside: Fid,
    shared: Known,
    secret: Known,
    rounds: u64,
    /// When a guest's latest operation began.
    began: Cell<Instant>,
    over: Vec<Over>,
}

async fn make(c: &Rc<Client>, dir: Fid, name: &str, stamp: u64) -> Result<Known, FsError> {
    let new = NewFile { flags: O_CREATE_NEW, mode: 0o666, ..NewFile::default() };
    let (entry, file) = c.create_open(&root(), dir, name.as_bytes(), new).await?;
    c.data().write(&file, 0, &bytes(stamp, Extent::new(0, FILE))).await?;
    c.data().fsync(&file, false).await?;
    c.release(&file).await?;
    let fid = entry.attr.fid;
    let layout = c.getxattr(&root(), fid, b"lustre.lov.stored").await?;
    let (_, layout) = layout::xattr::decode_layout(&layout).map_err(|_| FsError::Corrupt)?;
    let first = layout.objects().first().ok_or(FsError::NoData)?;
    Ok(Known { fid, object: first.object, ost: first.ost, stamp })
}

/// Reads a file whole.
async fn read(c: &Rc<Client>, fid: Fid) -> Result<Vec<u8>, FsError> {
    let file = c.open(&root(), fid, 0).await?;
    let got = c.data().read(&file, 0, 2 * FILE as usize).await.map(|b| b.to_vec());
    let released = c.release(&file).await;
    got.and_then(|got| released.map(|()| got))
}

/// What a guest asks an OST past its own client.
#[derive(Clone, Copy, Debug)]
enum Raw {
    Read,
    Write,
    Punch,
}

async fn raw(c: &Rc<Client>, at: &Known, how: Raw) -> Result<(), FsError> {
    let all = c.osts().all();
    let ost = all.iter().find(|o| o.index() == at.ost).ok_or(FsError::NotFound)?.import()?;
    let (object, extent) = (at.object, Extent::new(0, 4096));
    let (op, body, bulk) = match how {
        Raw::Read => {
            let q = ReadRequest { object, extents: vec![extent], ..ReadRequest::default() };
            (Op::OstRead, wire::encode(&q), Bulk::new())
        }
        Raw::Write => {
            let mut bulk = Bulk::alloc(c.rt().frames(), 4096).ok_or(FsError::NoMemory)?;
            bulk.copy_in(0, &[9; 4096]);
            (Op::OstWrite, wire::encode(&WriteRequest { object, extents: vec![extent], ..Default::default() }), bulk)
        }
        Raw::Punch => (Op::OstPunch, wire::encode(&PunchRequest { object, extent, ..Default::default() }), Bulk::new()),
    };
    ost.call(op, body, bulk, ptlrpc::CallOptions::default()).await.map(drop)
}

impl Guests {
    /// Makes the tree, before anything goes wrong.
    ///
    /// # Errors
    /// What a client answers.
    pub async fn new(context: Rc<Context>) -> Result<Guests, String> {
        let (rng, stamps) = (context.rng("guests"), (context.stamp(), context.stamp()));
        let made = context.on(0, "guests: mkdir", async move |c| {
            let node = |mode: u32| NewNode { kind: NodeKind::Directory, mode: 0o040_000 | mode, ..NewNode::default() };
            let inside = c.create(&root(), Fid::ROOT, b"inside", node(0o777)).await?.attr.fid;
            let outside = c.create(&root(), Fid::ROOT, b"outside", node(0o777)).await?.attr.fid;
            let shared = make(&c, inside, "shared", stamps.0).await?;
            let secret = make(&c, outside, "secret", stamps.1).await?;
            c.meta().sync_meta(Fid::ROOT).await.map(|()| (inside, shared, secret))
        });
        let made: Result<_, FsError> = made.await.ok_or("the client died")?;
        let (inside, shared, secret) = made.map_err(|e| format!("guests: {e}"))?;
        Ok(Guests {
            context,
            rng,
            inside,
            shared,
            secret,
            rounds: 0,
            began: Cell::new(Instant::ZERO),
            over: Vec::new(),
        })
    }
    /// Lets guests come and go until all is calm; then nobody gets in whose credential is over.
    pub async fn run(mut self) {
        while !self.context.calm.get() && !self.context.failed() {
            self.round().await;
            self.context.cluster.sim.sleep(Duration::from_millis(self.rng.below(500))).await;
        }
        for over in std::mem::take(&mut self.over) {
            if !self.context.failed() {
                self.stays_over(over).await;
            }
        }
        for host in 0..GUESTS {
            self.context.cluster.end_guest(host);
        }
        self.read_known("the end").await;
    }

    /// Asks for something as the administrator does, until that is answered.
    async fn ask(&mut self, q: CredentialsRequest) -> Option<CredentialsReply> {
        while !self.context.failed() {
            let c = self.context.any_client(&mut self.rng).await;
            let (author, begun) = (self.context.author(c), self.context.cluster.sim.now());
            let (what, own) =
                (format!("guests: {:?} {}", q.what, String::from_utf8_lossy(&q.credential.name)), q.clone());
            let done = self.context.on(c, &what, async move |c| {
                c.sessions().mdc().ask::<_, CredentialsReply>(Op::Credentials, &own).await
            });
            match done.await {
                Some(Ok(reply)) => return Some(reply),
                Some(Err(e)) => {
                    let sound = author.is_some_and(|a| self.context.is_sound(a));
                    if sound && !self.context.is_refused_for_space(c, &e.to_string(), begun) {
                        self.context.complain(format!("{what} on client{c}: {e}"));
                    }
                    self.context.cluster.sim.sleep(Duration::from_millis(200)).await;
                }
                None => {}
            }
        }
        None
    }
    fn draw(&mut self) -> Credential {
        let rng = &mut self.rng;
        let mut said = Credential {
            id: rng.next_u64() | 1,
            name: format!("c{}", self.rounds).as_str().into(),
            ..Credential::default()
        };
        if rng.chance(0.35) {
            said.flags |= CredentialFlags::READ_ONLY;
        }
        if rng.chance(0.5) {
            said.path = "inside".into();
        }
        if rng.chance(0.3) {
            said.flags |= CredentialFlags::SQUASH_ROOT;
        }
        (said.squash_uid, said.squash_gid) = (SQUASHED, SQUASHED);
        if rng.chance(0.4) {
            said.uids = vec![IdRange { client: 0, server: MAPPED.0, count: MAPPED.1 }];
            said.gids.clone_from(&said.uids);
        }
        if rng.chance(0.2) {
            let seconds = 10 + rng.below(60) as i64;
            // Hosts' clocks are apart; the end may come at any moment.
            said.expires = WallTime(self.context.cluster.mds.host().wall().0 + seconds * 1_000_000_000);
        }
        said
    }
    async fn round(&mut self) {
        self.rounds += 1;
        let (credential, failures) = (self.draw(), self.context.disks.failures());
        let Some(issued) = self.ask(CredentialsRequest { what: CredentialAct::Issue, credential }).await else {
            return;
        };
        let Some(row) = issued.rows.first().filter(|_| issued.errno == 0) else {
            let why = String::from_utf8_lossy(&issued.why).into_owned();
            let fails = self.context.disks.some_fail() || self.context.disks.failures() != failures;
            if !why.contains("would have expired already") && !fails {
                self.context.complain(format!("guests: issue: {why}"));
            }
            return;
        };
        let said = row.credential.clone();
        let key = match self.context.cluster.key_of(said.clone()) {
            Ok(key) => key,
            Err(e) => return self.context.complain(format!("guests: {e}")),
        };
        let host = self.rng.below(GUESTS as u64) as usize;
        self.context.cluster.end_guest(host);
        let failures = self.context.disks.failures();
        // Servers may be away for longer.
        let Ok(id) = self.context.cluster.start_guest(host, key.clone(), JOINS_WITHIN).await else { return };
        let starts = self.server_starts();
        let mut guest = Guest { host, key, said, id, failures, starts, made: None };
        let operations = 3 + self.rng.below(OPERATIONS_MAX);
        for _ in 0..operations {
            if !self.is_sound(&guest) || self.context.failed() || self.context.calm.get() {
                break;
            }
            self.one(&mut guest).await;
            self.context.cluster.sim.sleep(Duration::from_micros(self.rng.below(60_000))).await;
        }
        self.part(guest).await;
    }
    /// The end of a guest's work.
    async fn part(&mut self, guest: Guest) {
        if self.context.failed() {
            return;
        }
        if self.rng.chance(0.6) {
            return self.revoke(guest).await;
        }
        if guest.said.expires.0 != 0 {
            let (name, at) = (String::from_utf8_lossy(&guest.said.name).into_owned(), guest.said.expires);
            self.over.push(Over { name, key: guest.key, id: guest.id, at, left: None });
        } else {
            self.context.cluster.end_guest(guest.host);
        }
    }
    /// Whether what a guest is answered counts.
    fn is_sound(&self, guest: &Guest) -> bool {
        let cluster = &self.context.cluster;
        let runs = cluster.guest(guest.host).is_some_and(|c| c.sessions().id() == guest.id);
        let lives = guest.said.expires.0 == 0;
        runs && lives
            && cluster.evictions_of(guest.id) == 0
            && !self.context.disks.some_fail()
            && self.context.disks.failures() == guest.failures
    }
    async fn on<T: 'static>(
        &self,
        guest: &Guest,
        what: &str,
        work: impl AsyncFnOnce(Rc<Client>) -> T + 'static,
    ) -> Option<T> {
        let cluster = &self.context.cluster;
        let begun = cluster.sim.now();
        self.began.set(begun);
        self.context.count(|c| c.operations += 1);
        tracing::debug!(guest = guest.host, "{what}");
        match rt::sync::race(cluster.on_guest(guest.host, work), cluster.sim.sleep(HANG)).await {
            Ok(done) => done,
            Err(()) => {
                self.context.complain(format!(
                    "{what} on guest{} hangs since {:.6} s",
                    guest.host,
                    begun.0 as f64 / 1e9
                ));
                None
            }
        }
    }
    /// What a guest was answered, where that counts.
    fn judge<T>(&self, guest: &Guest, what: &str, done: &Option<Result<T, FsError>>, must: Result<(), FsError>) {
        let Some(done) = done.as_ref().filter(|_| self.is_sound(guest)) else { return };
        let found = done.as_ref().map(|_| ()).map_err(|e| *e);
        // A full scheduler head says no more than that, and a client asks again for bulk that came damaged.
        let is_away = found == Err(FsError::Io) && self.context.cluster.misses_an_ost();
        let is_no_answer = is_away || matches!(found, Err(FsError::Overloaded | FsError::Corrupt));
        let (context, began) = (&self.context, self.began.get());
        let lacks_space = |e: &str| context.waited_for_objects(e, began) || context.lacks_space(e);
        if is_no_answer || found.is_err_and(|e| lacks_space(&e.to_string())) {
            return;
        }
        if must.is_err() && found == must {
            self.context.count(|c| c.by_class[FaultClass::Credentials.index()] += 1);
        }
        let told = format!("{found:?}, should be {must:?}: {:?}", guest.said);
        self.context.expect(&format!("guest{}: {what}", guest.host), if found == must { Ok(()) } else { Err(told) });
    }
    fn changes(guest: &Guest) -> Result<(), FsError> {
        if guest.only_reads() { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    async fn one(&mut self, guest: &mut Guest) {
        match self.rng.below(10) {
            0 | 1 => self.reads(guest).await,
            2 | 3 => self.makes(guest).await,
            4 => self.looks_outside(guest).await,
            5 | 6 => self.asks_osts(guest).await,
            7 => self.changes_owner(guest).await,
            _ => self.rewrite().await,
        }
    }
    /// A guest reads a file of others.
    async fn reads(&mut self, guest: &Guest) {
        let (fid, stamp) = (self.shared.fid, self.shared.stamp);
        let done = self.on(guest, "read", async move |c| read(&c, fid).await).await;
        if let Some(Ok(got)) = done.as_ref().filter(|_| self.is_sound(guest)) {
            let same = *got == bytes(stamp, Extent::new(0, FILE));
            let told = format!("other bytes than those that were synced: {}", got.len());
            self.context.expect("guest: read", if same { Ok(()) } else { Err(told) });
        }
        self.judge(guest, "read of a file below its root", &done, Ok(()));
    }
    /// A guest makes a file and syncs it.
    async fn makes(&mut self, guest: &mut Guest) {
        let stamp = self.context.stamp();
        let (dir, name) = (if guest.has_subtree() { Fid::ROOT } else { self.inside }, format!("g{stamp}"));
        let done = self.on(guest, "create", async move |c| make(&c, dir, &name, stamp).await.map(|k| k.fid)).await;
        let sound = self.is_sound(guest);
        self.judge(guest, "create", &done, Guests::changes(guest));
        let Some(Ok(fid)) = done.filter(|_| sound) else { return };
        guest.made = Some((fid, stamp));
        let c = self.context.any_client(&mut self.rng).await;
        let author = self.context.author(c);
        let looked = self.context.on(c, "guests: look", async move |c| {
            let attr = c.getattr(&root(), fid, None).await?.attr;
            Ok::<_, FsError>((attr.uid, read(&c, fid).await?))
        });
        let Some(Ok((uid, got))) = looked.await else { return };
        if author.is_some_and(|a| self.context.is_sound(a)) {
            let same = uid == guest.root_there() && got == bytes(stamp, Extent::new(0, FILE));
            let told = format!("{fid} is of {uid}, should be of {}, and has {} bytes", guest.root_there(), got.len());
            self.context.expect("guests: what one made", if same { Ok(()) } else { Err(told) });
        }
    }
    /// A guest names what lies outside.
    async fn looks_outside(&mut self, guest: &Guest) {
        let fid = self.secret.fid;
        let done = self.on(guest, "getattr outside", async move |c| {
            let q = GetattrRequest { cred: root(), fid, ..Default::default() };
            let mdc = c.sessions().mdc();
            mdc.call(Op::MdtGetattr, wire::encode(&q), Bulk::new(), ptlrpc::CallOptions::default()).await.map(drop)
        });
        let must = if guest.has_subtree() { Err(FsError::Stale) } else { Ok(()) };
        let done = done.await;
        self.judge(guest, "getattr of a file that lies outside", &done, must);
    }
    /// A guest asks an OST by itself.
    async fn asks_osts(&mut self, guest: &Guest) {
        let how = [Raw::Read, Raw::Write, Raw::Punch][self.rng.below(3) as usize];
        if guest.has_subtree() {
            let at = self.secret.clone();
            let done = self.on(guest, "an object outside", async move |c| raw(&c, &at, how).await).await;
            return self.judge(guest, &format!("{how:?} of an object outside"), &done, Err(FsError::Access));
        }
        if guest.only_reads() {
            let at = self.secret.clone();
            let must = if matches!(how, Raw::Read) { Ok(()) } else { Err(FsError::ReadOnly) };
            let done = self.on(guest, "an object", async move |c| raw(&c, &at, how).await).await;
            self.judge(guest, &format!("{how:?} of an object"), &done, must);
        }
    }
    /// A guest gives a file to somebody for whom it has no id.
    async fn changes_owner(&mut self, guest: &Guest) {
        if guest.said.uids.is_empty() && !guest.only_reads() {
            return;
        }
        let fid = self.shared.fid;
        let own = SetattrRequest { valid: SetBits::UID, uid: MAPPED.1 + 7, cred: root(), fid, ..Default::default() };
        let done = self.on(guest, "chown", async move |c| {
            let mdc = c.sessions().mdc();
            mdc.call(Op::MdtSetattr, wire::encode(&own), Bulk::new(), ptlrpc::CallOptions::default()).await.map(drop)
        });
        let must = if guest.only_reads() { FsError::ReadOnly } else { FsError::Invalid };
        let done = done.await;
        self.judge(guest, "chown", &done, Err(must));
    }
    /// A usual client writes a file that guests read.
    async fn rewrite(&mut self) {
        let (fid, stamp) = (self.shared.fid, self.context.stamp());
        while !self.context.failed() && !self.context.cluster.config.is_small() {
            let c = self.context.any_client(&mut self.rng).await;
            let author = self.context.author(c);
            let done = self.context.on(c, "guests: write and fsync", async move |c| {
                let file = c.open(&root(), fid, O_RDWR).await?;
                let written = c.data().write(&file, 0, &bytes(stamp, Extent::new(0, FILE))).await.map(drop);
                let synced = c.data().fsync(&file, false).await;
                let released = c.release(&file).await;
                written.and(synced).and(released)
            });
            if let Some(Ok(())) = done.await
                && author.is_some_and(|a| self.context.is_sound(a))
            {
                self.shared.stamp = stamp;
                return;
            }
            self.context.cluster.sim.sleep(Duration::from_millis(500)).await;
        }
    }

    /// A guest's credential is revoked amid its work.
    async fn revoke(&mut self, guest: Guest) {
        let left = self.leave_dirty(&guest).await;
        let credential = Credential { name: guest.said.name.clone(), ..Credential::default() };
        let name = String::from_utf8_lossy(&credential.name).into_owned();
        let Some(reply) = self.ask(CredentialsRequest { what: CredentialAct::Revoke, credential }).await else {
            return;
        };
        if reply.errno != 0 {
            let why = String::from_utf8_lossy(&reply.why).into_owned();
            return self.context.complain(format!("guests: revoke {name}: {why}"));
        }
        self.context.count(|c| c.by_class[FaultClass::Credentials.index()] += 1);
        if reply.untold.is_empty() {
            self.is_out(&guest, &name).await;
        } else {
            // Those hear of it with the metadata server's next session.
            self.await_out(guest.id, &format!("{name} is revoked")).await;
        }
        let left = match left {
            Some((fid, stamp)) => self.look_at_what_is_left(fid, stamp).await,
            None => None,
        };
        if self.rng.chance(0.5) {
            self.context.cluster.end_guest(guest.host);
        }
        self.over.push(Over { name, key: guest.key, id: guest.id, at: WallTime::default(), left });
    }
    /// A guest writes on behind what it synced.
    async fn leave_dirty(&mut self, guest: &Guest) -> Option<(Fid, u64)> {
        let (fid, stamp) = guest.made.filter(|_| self.is_sound(guest))?;
        let done = self.on(guest, "write", async move |c| {
            let file = c.open(&root(), fid, O_RDWR).await?;
            c.data().write(&file, FILE, &bytes(stamp, Extent::at(FILE, FILE))).await.map(drop)
        });
        let done = done.await;
        self.judge(guest, "write", &done, Ok(()));
        self.is_sound(guest).then_some((fid, stamp))
    }
    /// No server knows a guest, and none answers it.
    async fn is_out(&mut self, guest: &Guest, name: &str) {
        let knows = self.context.cluster.who_knows(guest.id);
        // A server that was started since may wait for it to come back, which it cannot.
        let may_wait = self.server_starts() != guest.starts || self.context.cluster.config.reopens;
        let told = format!("{name} is revoked, and still known to {knows:?}");
        self.context.expect("guests: revocation", if knows.is_empty() || may_wait { Ok(()) } else { Err(told) });
        let at = self.shared.clone();
        let asked = self.context.cluster.on_guest(guest.host, async move |c| raw(&c, &at, Raw::Read).await);
        let answer = rt::sync::race(asked, self.context.cluster.sim.sleep(NO_ANSWER)).await;
        if let Ok(Some(Ok(()))) = answer {
            self.context.complain(format!("guests: {name} is revoked, and still reads"));
        }
    }
    fn server_starts(&self) -> u64 {
        self.context.cluster.starts_of_servers()
    }
    async fn await_out(&mut self, id: ClientId, what: &str) {
        let begun = self.context.cluster.sim.now();
        while !self.context.cluster.has_forgotten(id) && !self.context.failed() {
            self.context.cluster.sim.sleep(Duration::from_millis(500)).await;
            if self.context.cluster.sim.now().since(begun) > HANG {
                let knows = self.context.cluster.who_knows(id);
                return self.context.complain(format!("guests: {what}, and still known to {knows:?}"));
            }
        }
    }
    /// What a revoked guest's file is from now on: what it had synced is there.
    async fn look_at_what_is_left(&mut self, fid: Fid, stamp: u64) -> Option<(Fid, Vec<u8>)> {
        let (got, _) = self.read_sound(fid).await?;
        let wanted = bytes(stamp, Extent::new(0, FILE));
        let same = got.get(..FILE as usize) == Some(&wanted[..]);
        let told = format!("{fid} has lost what was synced before its guest was revoked: {} bytes", got.len());
        self.context.expect("guests: what is left", if same { Ok(()) } else { Err(told) });
        Some((fid, got))
    }
    /// A file's bytes, as a usual client reads them.
    async fn read_sound(&mut self, fid: Fid) -> Option<(Vec<u8>, Author)> {
        while !self.context.failed() {
            let c = self.context.any_client(&mut self.rng).await;
            let author = self.context.author(c);
            let read = self.context.on(c, "guests: read", async move |c| read(&c, fid).await).await;
            let sound = author.filter(|a| self.context.is_sound(*a));
            match (read, sound) {
                (Some(Ok(got)), Some(author)) => return Some((got, author)),
                (Some(Err(e)), Some(_)) => self.context.complain(format!("guests: read of {fid} on client{c}: {e}")),
                _ => self.context.cluster.sim.sleep(Duration::from_millis(500)).await,
            }
        }
        None
    }
    /// Files of others are as they were written.
    async fn read_known(&mut self, when: &str) {
        for known in [self.shared.clone(), self.secret.clone()] {
            let Some((got, _)) = self.read_sound(known.fid).await else { return };
            let same = got == bytes(known.stamp, Extent::new(0, FILE));
            let told = format!("{} has other bytes than those that were synced: {}", known.fid, got.len());
            self.context.expect(&format!("guests: {when}"), if same { Ok(()) } else { Err(told) });
        }
    }
    /// Nothing of what is over comes back.
    async fn stays_over(&mut self, over: Over) {
        let cluster = &self.context.cluster;
        // Clocks are two minutes apart at most when the run begins, and come apart by 2 % of the time since.
        let apart = Duration::from_secs(130 + cluster.sim.now().0 / 1_000_000_000 / 40);
        let latest = over.at.0.saturating_add_unsigned(apart.as_nanos() as u64);
        while over.at.0 != 0 && cluster.mds.host().wall().0 < latest {
            cluster.sim.sleep(Duration::from_secs(1)).await;
        }
        // A server that was started since may wait for it to come back, which it cannot.
        self.await_out(over.id, &format!("{} is over", over.name)).await;
        let cluster = &self.context.cluster;
        if self.rng.chance(0.5) {
            cluster.end_guest(0);
            if let Ok(id) = cluster.start_guest(0, over.key, TRIES_FOR).await {
                self.context.complain(format!("guests: {} is over, and gets in again as {id}", over.name));
            }
        }
        if let Some((fid, left)) = over.left
            && let Some((got, _)) = self.read_sound(fid).await
        {
            let told = format!("{fid} changed after its guest was revoked: {} bytes, were {}", got.len(), left.len());
            self.context.expect("guests: what is left", if got == left { Ok(()) } else { Err(told) });
        }
    }
}
