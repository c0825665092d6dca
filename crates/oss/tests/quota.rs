//! Quotas at an OST over sessions: a metadata server that gives shares, clients that write for users.
#![allow(clippy::unwrap_used)]
mod node;

use std::collections::BTreeMap;

use node::*;
use wire::ost::{FileOwner, IoOwner};
use wire::quota::{
    AskQuotaCallback, AskQuotaReply, EVERYBODY, OstQuotaReply, OstQuotaRequest, OstQuotaUsage, OwnRequest, Ownership,
    QuotaKind, QuotaShare, UNLIMITED,
};

const USER: QuotaKind = QuotaKind::User;

/// A metadata server that gives what is left of a limit.
#[derive(Default)]
struct Master {
    limits: RefCell<BTreeMap<(QuotaKind, u32), u64>>,
    asked: RefCell<Vec<AskQuotaCallback>>,
    silent: Cell<bool>,
}

impl Callbacks for Master {
    fn on_callback(self: Rc<Self>, op: Op, body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(async move {
            if op != Op::OstAskQuota || self.silent.get() {
                return Err(FsError::NotSupported);
            }
            let ask: AskQuotaCallback = wire::decode(&body).unwrap();
            let limit = self.limits.borrow().get(&(ask.kind, ask.id)).copied().unwrap_or(UNLIMITED);
            let given = limit.min((ask.used + ask.wanted).max(ask.share));
            let share = if limit == UNLIMITED { UNLIMITED } else { given };
            self.asked.borrow_mut().push(ask);
            Ok(wire::encode(&AskQuotaReply { share }))
        })
    }
}

struct Mds {
    import: Rc<Import>,
    master: Rc<Master>,
}

impl Mds {
    async fn new(rt: Rt, objects: u32) -> Mds {
        let master = Rc::new(Master::default());
        let config = ImportConfig {
            nid: nid(),
            target: "stria-OST0000".into(),
            client: ClientId(99),
            key: ClusterKey::none(),
            recoverable: false,
            ping_interval: Duration::from_secs(10),
            place: 0,
        };
        let weak: std::rc::Weak<dyn Callbacks> = Rc::downgrade(&(master.clone() as Rc<dyn Callbacks>));
        let import = Import::new(rt, config, weak);
        import.ready(Duration::from_secs(5)).await.unwrap();
        let ask = PrecreateRequest { seq: object(1).0.seq, count: objects, ..PrecreateRequest::default() };
        import.ask::<_, PrecreateReply>(Op::OstPrecreate, &ask).await.unwrap();
        Mds { import, master }
    }
    async fn tell(&self, ask: &OstQuotaRequest) -> OstQuotaReply {
        self.import.ask(Op::OstQuota, ask).await.unwrap()
    }
    async fn limit(&self, kind: QuotaKind, id: u32, bytes: u64) -> OstQuotaUsage {
        self.master.limits.borrow_mut().insert((kind, id), bytes);
        let set = vec![QuotaShare { kind, id, share: 0 }];
        self.tell(&OstQuotaRequest { set, ..OstQuotaRequest::default() }).await.usages[0].clone()
    }
    async fn own(&self, oid: u32, uid: u32, unless_owned: bool) {
        let own = Ownership { object: object(oid), uid, gid: uid, project: 0, unless_owned };
        let gone = Ownership { object: object(77), ..own.clone() };
        self.import.ask::<_, ()>(Op::OstOwn, &OwnRequest { objects: vec![gone, own] }).await.unwrap();
    }
}

/// Writes bytes for a user's file, in pieces.
async fn write_pieces(c: &Client, oid: u32, of: u32, extents: &[Extent]) -> Result<(), FsError> {
    let bytes: u64 = extents.iter().map(Extent::len).sum();
    let bulk = Bulk::alloc(c.rt.frames(), bytes as usize).unwrap();
    let ask = WriteRequest {
        object: object(oid),
        extents: extents.to_vec(),
        owner: IoOwner { uid: of, gid: of, ..IoOwner::default() },
        file: Some(FileOwner { uid: of, gid: of, project: 0 }),
        ..WriteRequest::default()
    };
    c.import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await.map(drop)
}

/// Writes pages for a user's file.
async fn write(c: &Client, oid: u32, by: u32, of: u32, (page, pages): (u64, usize), grant: u64) -> Result<u8, FsError> {
    let bulk = Bulk::alloc(c.rt.frames(), pages * 4096).unwrap();
    let ask = WriteRequest {
        object: object(oid),
        extents: vec![Extent::at(page * 4096, pages as u64 * 4096)],
        owner: IoOwner { uid: by, gid: by, ..IoOwner::default() },
        file: Some(FileOwner { uid: of, gid: of, project: 0 }),
        grant_used: grant,
        grant_wanted: 16 * MIB,
        ..WriteRequest::default()
    };
    let reply = c.import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await?;
    reply.decode::<WriteReply>().map(|r| r.tight)
}

#[test]
fn writes_count_for_the_files_owner_and_are_refused_at_the_limit_but_for_roots_and_overwrites() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (mds, c) = (Mds::new(rt.clone(), 3).await, Client::new(rt, 1).await);
        assert_eq!(write(&c, 1, 5, 5, (0, 4), 0).await, Ok(0), "nobody is limited");
        let used = |id| n.ost.store().usage((USER, id));
        assert_eq!((used(5), used(0)), (4, 0));
        let told = mds.limit(USER, 5, 10 * 4096).await;
        assert_eq!((told.used, told.share), (4 * 4096, 4 * 4096), "a share is never less than what is used");
        write(&c, 1, 5, 5, (4, 6), 0).await.unwrap();
        assert_eq!(write(&c, 1, 5, 5, (10, 1), 0).await, Err(FsError::Quota));
        assert_eq!(write(&c, 2, 6, 5, (0, 1), 0).await, Err(FsError::Quota), "whose file it is counts");
        assert_eq!(used(5), 10, "what was refused has changed nothing");
        write(&c, 1, 5, 5, (2, 8), 0).await.unwrap();
        write(&c, 2, 0, 5, (0, 1), 0).await.unwrap();
        write(&c, 3, 6, 6, (0, 9), 0).await.unwrap();
        assert_eq!((used(5), used(6)), (11, 9));
        // Removing makes room; more of a limit is had by asking.
        c.import.ask::<_, ()>(Op::OstDestroy, &DestroyRequest { objects: vec![object(2)] }).await.unwrap();
        assert_eq!(write(&c, 1, 5, 5, (10, 1), 0).await, Err(FsError::Quota));
        mds.master.limits.borrow_mut().insert((USER, 5), 11 * 4096);
        write(&c, 1, 5, 5, (10, 1), 0).await.unwrap();
        mds.master.limits.borrow_mut().remove(&(USER, 5));
        write(&c, 1, 5, 5, (11, 100), 0).await.unwrap();
        assert_eq!(used(5), 111);
    });
}

#[test]
fn a_block_in_which_several_pieces_of_a_write_lie_is_one_that_is_there() {
    let n = node(9, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (mds, c) = (Mds::new(rt.clone(), 3).await, Client::new(rt, 1).await);
        write(&c, 1, 5, 5, (0, 1), 0).await.unwrap();
        mds.limit(USER, 5, 2 * 4096).await;
        let mut pieces: Vec<Extent> = (0..8).map(|i| Extent::at(16 * i, 8)).collect();
        write_pieces(&c, 1, 5, &pieces).await.expect("what is overwritten needs nothing");
        pieces.push(Extent::at(10 * 4096, 7 * 4096));
        assert_eq!(write_pieces(&c, 1, 5, &pieces).await, Err(FsError::Quota));
        assert_eq!(n.ost.store().usage((USER, 5)), 1);
        pieces[8] = Extent::at(10 * 4096, 4096);
        write_pieces(&c, 1, 5, &pieces).await.expect("one block more is allowed");
    });
}

#[test]
fn zeros_over_holes_count_in_whole_blocks() {
    let n = node(10, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (mds, c) = (Mds::new(rt.clone(), 3).await, Client::new(rt, 1).await);
        write(&c, 1, 5, 5, (0, 1), 0).await.unwrap();
        c.punch(PunchKind::Truncate, Extent::from(4097)).await.unwrap();
        mds.limit(USER, 5, 4097).await;
        let file = Some(FileOwner { uid: 5, gid: 5, project: 0 });
        let owner = IoOwner { uid: 5, gid: 5, ..IoOwner::default() };
        let zero = async |extent| {
            let (object, kind, owner) = (object(1), PunchKind::Zero, owner.clone());
            let ask = PunchRequest { object, kind, extent, owner, file: file.clone(), ..PunchRequest::default() };
            c.import.ask::<_, AttrReply>(Op::OstPunch, &ask).await.map(drop)
        };
        assert_eq!(zero(Extent::new(0, 4097)).await, Err(FsError::Quota), "a second block");
        assert_eq!(n.ost.store().usage((USER, 5)), 1);
        zero(Extent::new(0, 4096)).await.expect("nothing more is needed");
        zero(Extent::new(100, 200)).await.expect("within a block");
        zero(Extent::new(1 << 20, 1 << 21)).await.expect("behind the end");
    });
}

#[test]
fn what_has_grant_is_taken_whatever_is_left_and_tells_that_little_is() {
    let n = node(2, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (mds, c) = (Mds::new(rt.clone(), 3).await, Client::new(rt.clone(), 1).await);
        mds.limit(USER, 5, 8 * 4096).await;
        let mut tight = write(&c, 1, 5, 5, (0, 8), 0).await.unwrap();
        tight |= write(&c, 1, 5, 5, (8, 8), 8 * 4096).await.unwrap();
        assert_eq!(tight & USER.bit(), USER.bit());
        assert_eq!(n.ost.store().usage((USER, 5)), 16);
        assert_eq!(write(&c, 1, 5, 5, (16, 1), 0).await, Err(FsError::Quota));
        // With much left nobody is told that there is little.
        mds.limit(USER, 7, 1 << 40).await;
        write(&c, 2, 7, 7, (0, 4), 0).await.unwrap();
        rt.sleep(Duration::from_secs(2)).await;
        assert_eq!(write(&c, 2, 7, 7, (4, 4), 0).await, Ok(0));
        assert!(mds.master.asked.borrow().len() < 12, "{}", mds.master.asked.borrow().len());
    });
}

#[test]
fn a_new_owner_takes_what_an_object_has_along_and_the_first_one_told_stays() {
    let n = node(3, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (mds, c) = (Mds::new(rt.clone(), 3).await, Client::new(rt, 1).await);
        let used = |id| n.ost.store().usage((USER, id));
        write(&c, 1, 5, 5, (0, 4), 0).await.unwrap();
        mds.own(1, 6, true).await;
        assert_eq!((used(5), used(6)), (4, 0));
        mds.own(1, 6, false).await;
        assert_eq!((used(5), used(6)), (0, 4));
        write(&c, 1, 5, 5, (4, 4), 0).await.unwrap();
        assert_eq!((used(5), used(6)), (0, 8), "a client that has not heard of it changes nothing");
        mds.own(2, 6, true).await;
        write(&c, 2, 5, 5, (0, 1), 0).await.unwrap();
        assert_eq!((used(5), used(6)), (0, 9));
        let seek = AllocateRequest {
            object: object(3),
            extent: Extent::at(0, 3 * 4096),
            owner: IoOwner { uid: 8, ..IoOwner::default() },
            file: Some(FileOwner { uid: 8, gid: 8, project: 4 }),
            ..AllocateRequest::default()
        };
        c.import.ask::<_, AttrReply>(Op::OstAllocate, &seek).await.unwrap();
        assert_eq!((used(8), n.ost.store().usage((QuotaKind::Project, 4))), (3, 3));
        mds.limit(QuotaKind::Project, 4, 4 * 4096).await;
        let more = AllocateRequest { extent: Extent::at(0, 5 * 4096), ..seek };
        assert_eq!(c.import.ask::<_, AttrReply>(Op::OstAllocate, &more).await, Err(FsError::Quota));
    });
}

#[test]
fn without_a_metadata_server_a_share_is_used_up_and_whoever_wants_more_waits() {
    let n = node(4, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (mds, c) = (Mds::new(rt.clone(), 3).await, Client::new(rt.clone(), 1).await);
        mds.limit(USER, 5, 8 * 4096).await;
        write(&c, 1, 5, 5, (0, 2), 0).await.unwrap();
        mds.master.silent.set(true);
        let ((tx, rx), later) = (rt::sync::oneshot(), rt.clone());
        let master = mds.master.clone();
        rt.spawn(async move {
            later.sleep(Duration::from_secs(20)).await;
            master.silent.set(false);
            tx.send(later.now());
        });
        let started = rt.now();
        // "Come again" is sent again by the session, as long as its program waits.
        let wrote = write(&c, 1, 5, 5, (2, 6), 0).await;
        assert!(wrote.is_ok(), "{wrote:?}");
        assert!(rx.await.unwrap().since(started) >= Duration::from_secs(20));
        assert_eq!(write(&c, 1, 5, 5, (8, 1), 0).await, Err(FsError::Quota));
        let told = mds.limit(USER, 5, 8 * 4096).await;
        assert_eq!(told.share, 8 * 4096);
    });
}

#[test]
fn a_share_that_is_given_up_counts_until_the_store_knows_of_it() {
    let n = node(5, 1 << 30, OstConfig::default());
    let (rt, store) = (n.world.rt(), n.store.clone());
    n.world.run(async move {
        let mds = Mds::new(rt.clone(), 1).await;
        let say = |share| OstQuotaRequest { set: vec![QuotaShare { kind: USER, id: 5, share }], ..Default::default() };
        let all = OstQuotaRequest { all: true, ..OstQuotaRequest::default() };
        assert_eq!(mds.tell(&say(100 * MIB)).await.usages[0].share, 100 * MIB);
        store.set_time_of_shares(Duration::from_secs(3));
        let (answered, told) = (Cell::new(false), say(10 * MIB));
        let less = async {
            let share = mds.tell(&told).await.usages[0].share;
            answered.set(true);
            share
        };
        let asks = async {
            rt.sleep(Duration::from_secs(1)).await;
            let share = mds.tell(&all).await.usages[0].share;
            assert!(!answered.get(), "the test shows nothing");
            share
        };
        let both: Vec<std::pin::Pin<Box<dyn Future<Output = u64> + '_>>> = vec![Box::pin(less), Box::pin(asks)];
        // If this OST died now, the one that it had would be found in its store.
        assert_eq!(rt::sync::join_all(both).await, [10 * MIB, 100 * MIB]);
        assert_eq!(mds.tell(&all).await.usages[0].share, 10 * MIB);
        // One that is gone in between is not forgotten, either.
        let (gone, again) = (say(UNLIMITED), say(5 * MIB));
        let first = async { mds.tell(&gone).await.usages[0].share };
        let second = async {
            rt.sleep(Duration::from_secs(1)).await;
            mds.tell(&again).await.usages[0].share
        };
        let third = async {
            rt.sleep(Duration::from_secs(2)).await;
            mds.tell(&all).await.usages[0].share
        };
        let three: Vec<std::pin::Pin<Box<dyn Future<Output = u64> + '_>>> =
            vec![Box::pin(first), Box::pin(second), Box::pin(third)];
        assert_eq!(rt::sync::join_all(three).await, [10 * MIB, 5 * MIB, 10 * MIB]);
        assert_eq!(mds.tell(&all).await.usages[0].share, 5 * MIB);
    });
}

type Outcome<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), FsError>> + 'a>>;

#[test]
fn what_there_is_no_space_for_counts_for_nobody_while_space_is_looked_for() {
    let n = node(8, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (mds, c) = (Mds::new(rt.clone(), 3).await, Client::new(rt.clone(), 1).await);
        mds.limit(USER, 5, 64 * 4096).await;
        // It has grant, which is asked for before there is said to be no space.
        write(&c, 1, 5, 5, (0, 1), 0).await.unwrap();
        let file = Some(FileOwner { uid: 5, gid: 5, project: 0 });
        let extent = Extent::new(0, oss::store::OBJECT_BYTES_MAX);
        let ask = AllocateRequest { object: object(1), extent, file, ..AllocateRequest::default() };
        let over = Cell::new(false);
        let reserved = async {
            let reserved = c.import.ask::<_, AttrReply>(Op::OstAllocate, &ask).await.map(drop);
            over.set(true);
            reserved
        };
        let wrote = async {
            let wrote = write(&c, 2, 5, 5, (0, 4), 0).await.map(drop);
            assert!(!over.get(), "the test shows nothing");
            wrote
        };
        let both: Vec<Outcome<'_>> = vec![Box::pin(reserved), Box::pin(wrote)];
        assert_eq!(rt::sync::join_all(both).await, [Err(FsError::NoSpace), Ok(())]);
        assert_eq!(n.ost.quota_of((USER, 5)).0, 5 * 4096);
    });
}

/// The metadata server says whether users have a default limit.
async fn say_default(mds: &Mds, is_there: bool) -> u64 {
    let share = if is_there { 0 } else { UNLIMITED };
    let set = vec![QuotaShare { kind: USER, id: EVERYBODY, share }];
    mds.tell(&OstQuotaRequest { set, ..OstQuotaRequest::default() }).await.usages[0].share
}

#[test]
fn where_a_kind_has_a_default_an_unknown_id_asks_with_its_first_bytes_and_root_never() {
    let n = node(6, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (mds, c) = (Mds::new(rt.clone(), 4).await, Client::new(rt, 1).await);
        write(&c, 1, 5, 5, (0, 4), 0).await.unwrap();
        assert_eq!(say_default(&mds, true).await, 0);
        mds.master.limits.borrow_mut().insert((USER, 5), 6 * 4096);
        mds.master.limits.borrow_mut().insert((USER, 6), 2 * 4096);
        write(&c, 1, 5, 5, (4, 2), 0).await.unwrap();
        assert_eq!(write(&c, 1, 5, 5, (6, 1), 0).await, Err(FsError::Quota), "what it had before counts");
        assert_eq!(write(&c, 2, 6, 6, (0, 3), 0).await, Err(FsError::Quota));
        write(&c, 2, 6, 6, (0, 2), 0).await.unwrap();
        // What has grant is taken, and says that little is left: with the very first bytes.
        mds.master.limits.borrow_mut().insert((USER, 8), 0);
        let tight = write(&c, 4, 8, 8, (0, 1), 4096).await.unwrap();
        assert_eq!(tight & USER.bit(), USER.bit());
        assert_eq!(write(&c, 4, 8, 8, (1, 1), 0).await, Err(FsError::Quota));
        let asked = |id| mds.master.asked.borrow().iter().filter(|a| a.id == id).count();
        write(&c, 3, 0, 0, (0, 9), 0).await.unwrap();
        assert_eq!((asked(0), asked(EVERYBODY)), (0, 0), "root has no limit, and nobody is everybody");
        // Who has no limit is asked for once.
        for page in 0..5 {
            write(&c, 3, 7, 7, (9 + page, 1), 0).await.unwrap();
        }
        assert_eq!(asked(0), 0, "the file is root's");
        mds.own(3, 7, false).await;
        for page in 0..5 {
            write(&c, 3, 7, 7, (20 + page, 1), 0).await.unwrap();
        }
        assert_eq!(asked(7), 1);
        let used = n.ost.store().usage((USER, 7)) * 4096;
        assert_eq!(mds.limit(USER, 7, 0).await.share, used, "it has one now");
        assert_eq!(write(&c, 3, 7, 7, (40, 1), 0).await, Err(FsError::Quota));
        // Without the default, and without a word about each, nobody is limited when that is asked.
        mds.master.limits.borrow_mut().clear();
        assert_eq!(say_default(&mds, false).await, UNLIMITED);
        write(&c, 2, 6, 6, (2, 9), 0).await.unwrap();
        let before = mds.master.asked.borrow().len();
        mds.own(1, 9, false).await;
        write(&c, 1, 9, 9, (9, 5), 0).await.unwrap();
        assert_eq!(mds.master.asked.borrow().len(), before, "an unknown id asks no more");
    });
}

#[test]
fn an_answer_of_before_does_not_free_an_id_that_was_limited_meanwhile() {
    let n = node(7, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (mds, c) = (Mds::new(rt.clone(), 3).await, Client::new(rt.clone(), 1).await);
        say_default(&mds, true).await;
        // Nobody knows of user 5: it has no limit, and that is remembered.
        write(&c, 1, 5, 5, (0, 4), 0).await.unwrap();
        let all = OstQuotaRequest { all: true, ..OstQuotaRequest::default() };
        let told: BTreeMap<u32, u64> = mds.tell(&all).await.usages.iter().map(|u| (u.id, u.share)).collect();
        assert_eq!(told, BTreeMap::from([(5, UNLIMITED), (EVERYBODY, 0)]), "the metadata server hears of it");
        mds.limit(USER, 5, 4 * 4096).await;
        assert_eq!(write(&c, 1, 5, 5, (4, 1), 0).await, Err(FsError::Quota));
        // With the default it is known again that it has none.
        let free = vec![QuotaShare { kind: USER, id: 5, share: UNLIMITED }];
        mds.tell(&OstQuotaRequest { set: free, ..OstQuotaRequest::default() }).await;
        let before = mds.master.asked.borrow().len();
        write(&c, 1, 5, 5, (4, 4), 0).await.unwrap();
        assert_eq!(mds.master.asked.borrow().len(), before);
    });
}
