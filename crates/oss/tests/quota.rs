//! Quotas at an OST over sessions: a metadata server that gives shares, clients that write for users.
#![allow(clippy::unwrap_used)]
mod node;

use std::collections::BTreeMap;

use node::*;
use wire::ost::{FileOwner, IoOwner};
use wire::quota::{
    AskQuotaCallback, AskQuotaReply, OstQuotaReply, OstQuotaRequest, OstQuotaUsage, OwnRequest, Ownership, QuotaKind,
    QuotaShare, UNLIMITED,
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
            let share = limit.min((ask.used + ask.wanted).max(ask.share));
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
        let ask = PrecreateRequest { seq: object(1).0.seq, last_used: 0, count: objects, orphans: false };
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
