//! Sessions over both transports: answers, bulk, callbacks, wrong keys, restarts.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use frames::{Bulk, FramePool};
use ptlrpc::stream::{Sink, Source, ends};
use ptlrpc::{
    Binding, CallOptions, Callbacks, ClusterKey, Export, Import, ImportConfig, Limits, ReplyRecord, Request, SLOTS_MAX,
    Server, ServerConfig, Service, SessionKey, SessionRecord,
};
use rt::{LocalFuture, Nid, Rt};
use types::{ClientId, Duration, FsError, Origin, Transno, Xid};
use wire::connect::{AuthRequest, ConnectReply, ConnectRequest, Lasting, ParamsRequest, Role};
use wire::credential::{CREDENTIAL_VERSION, Credential};
use wire::{Flags, Header, Op};

/// Counts `MdtSync` requests as transactions, sends bulk back, and keeps what a store would keep.
#[derive(Default)]
struct Store {
    applied: RefCell<Vec<u64>>,
    replies: RefCell<BTreeMap<(ClientId, u16), ReplyRecord>>,
    clients: RefCell<Vec<(ClientId, Option<Binding>)>>,
    origins: RefCell<BTreeMap<ClientId, Origin>>,
    committed: Cell<u64>,
}

/// A transaction that is on stable storage when its server ends, which does not answer it any more.
const UNANSWERED: u64 = 404;

struct Echo {
    store: Rc<Store>,
    commit: bool,
    applied: RefCell<Vec<u64>>,
}

impl Service for Echo {
    fn target(&self) -> String {
        "echo".into()
    }
    fn cluster(&self) -> u64 {
        7
    }
    fn uuid(&self) -> u64 {
        9
    }
    fn handle(self: Rc<Self>, request: Request) -> LocalFuture<()> {
        Box::pin(async move {
            match request.header.op {
                Op::OstRead => {
                    let bulk = request.bulk.clone();
                    request.reply_bulk(&(), bulk, None);
                }
                Op::MdtGetattr => {
                    let answer = request.export.callback(Op::LockGlimpse, &7u64, Duration::from_secs(5)).await;
                    let answer = answer.map(|b| wire::decode::<u64>(&b).unwrap());
                    request.reply(answer.as_ref().map_err(|e| *e));
                }
                Op::MdtSync | Op::MdtCreate => {
                    let value: u64 = request.decode().unwrap();
                    self.applied.borrow_mut().push(value);
                    if value == UNANSWERED && self.applied.borrow().iter().filter(|v| **v == value).count() == 1 {
                        *self.store.applied.borrow_mut() = self.applied.borrow().clone();
                        return std::future::pending().await;
                    }
                    let transno = Transno(self.applied.borrow().len() as u64);
                    let result = Ok(wire::encode(&(value * 2)));
                    if self.commit {
                        *self.store.applied.borrow_mut() = self.applied.borrow().clone();
                        self.store.committed.set(transno.0);
                        let record = request.record(transno, &result);
                        self.store.replies.borrow_mut().insert((record.client, record.slot), record);
                    }
                    request.reply_transno(transno, result);
                }
                Op::MdtListxattr => request.reply(Ok(&wire::Bytes(vec![7; 2 << 20]))),
                Op::MdtReadlink => request.reply(Ok(&wire::Bytes(vec![7; 1 << 20]))),
                _ => request.reply::<()>(Err(FsError::NotSupported)),
            }
        })
    }
    fn last_committed(&self, _client: ClientId) -> Transno {
        Transno(self.store.committed.get())
    }
    fn sessions(&self) -> Vec<SessionRecord> {
        let replies = self.store.replies.borrow();
        let of = |c: ClientId| replies.values().filter(|r| r.client == c).cloned().collect();
        let origins = self.store.origins.borrow();
        let record = |(c, b): &(ClientId, Option<Binding>)| SessionRecord {
            client: *c,
            binding: *b,
            replies: of(*c),
            origin: origins.get(c).copied().unwrap_or_default(),
        };
        self.store.clients.borrow().iter().map(record).collect()
    }
    fn session_opened(self: Rc<Self>, export: Rc<Export>, known: bool) -> LocalFuture<Result<(), FsError>> {
        if !known {
            self.store.clients.borrow_mut().push((export.client(), export.binding()));
            self.store.origins.borrow_mut().insert(export.client(), export.origin());
        }
        Box::pin(std::future::ready(Ok(())))
    }
    fn session_closed(self: Rc<Self>, client: ClientId, _evicted: bool) -> LocalFuture<()> {
        self.store.clients.borrow_mut().retain(|(c, _)| *c != client);
        Box::pin(std::future::ready(()))
    }
}

struct Answering;
impl Callbacks for Answering {
    fn on_callback(self: Rc<Self>, _op: Op, body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        let n: u64 = wire::decode(&body).unwrap();
        Box::pin(std::future::ready(Ok(wire::encode(&(n + 1)))))
    }
}

fn serve(rt: &Rt, nid: &Nid, store: &Rc<Store>, commit: bool, boot: u64, key: ClusterKey) -> (Rc<Server>, Nid) {
    let config =
        ServerConfig { key, recovery_window: Duration::from_secs(5), client_timeout: Duration::from_secs(60), boot };
    let server = Server::new(rt.clone(), config);
    let applied = RefCell::new(store.applied.borrow().clone());
    server.add(Rc::new(Echo { store: store.clone(), commit, applied }));
    let bound = server.listen(nid).unwrap();
    (server, bound)
}

fn import(rt: &Rt, nid: Nid, key: ClusterKey, callbacks: &Rc<dyn Callbacks>) -> Rc<Import> {
    import_of(rt, (nid, ClientId(5)), key, callbacks)
}

fn import_of(rt: &Rt, (nid, client): (Nid, ClientId), key: ClusterKey, callbacks: &Rc<dyn Callbacks>) -> Rc<Import> {
    let config = ImportConfig {
        nid,
        target: "echo".into(),
        client,
        key,
        recoverable: true,
        ping_interval: Duration::from_secs(10),
        place: 0,
    };
    Import::new(rt.clone(), config, Rc::downgrade(callbacks))
}

/// The key of these tests' cluster.
fn key() -> ClusterKey {
    ClusterKey::from_text(b"0123456789abcdef").unwrap()
}

fn both(test: impl AsyncFn(Rt, Nid)) {
    let pool = FramePool::new(64 << 20);
    rt::real::run(pool, async |rt| test(rt, Nid::parse("127.0.0.1:0").unwrap()).await).unwrap();
    let name = format!("local:test-{:?}", std::thread::current().id());
    rt::real::run(pool, async |rt| test(rt, Nid::parse(&name).unwrap()).await).unwrap();
}

#[test]
fn bulk_and_callbacks_work_over_both_transports() {
    both(async |rt, nid| {
        let (_server, nid) = serve(&rt, &nid, &Rc::default(), true, 1, key());
        let callbacks: Rc<dyn Callbacks> = Rc::new(Answering);
        let import = import(&rt, nid, key(), &callbacks);
        for len in [1usize, 4095, 4096, 1 << 20, (4 << 20) + 17] {
            let mut bulk = rt.bulk(len).await;
            let pattern: Vec<u8> = (0..len).map(|i| (i % 249) as u8).collect();
            bulk.copy_in(0, &pattern);
            let reply = import.call(Op::OstRead, vec![1, 2, 3], bulk, CallOptions::default()).await.unwrap();
            assert_eq!(reply.bulk.to_vec(), pattern);
        }
        let answer: u64 = import.ask(Op::MdtGetattr, &()).await.unwrap();
        assert_eq!(answer, 8);
        assert_eq!(import.ask::<_, ()>(Op::MdtLink, &()).await, Err(FsError::NotSupported));
        import.close().await;
        assert_eq!(import.ask::<_, u64>(Op::MdtGetattr, &()).await, Err(FsError::NotConnected));
    });
}

#[test]
fn a_server_that_sees_a_process_alive_does_not_believe_that_it_is_gone() {
    both(async |rt, nid| {
        let (server, nid) = serve(&rt, &nid, &Rc::default(), true, 1, key());
        let callbacks: Rc<dyn Callbacks> = Rc::new(Answering);
        let sessions = SessionKey::new([3; 32]);
        let config = |client| ImportConfig {
            nid: nid.clone(),
            target: "echo".into(),
            client: ClientId(client),
            key: key(),
            recoverable: true,
            ping_interval: Duration::from_secs(10),
            place: 0,
        };
        let living = Import::with_key(rt.clone(), config(6), Rc::downgrade(&callbacks), sessions);
        let teller = Import::new(rt.clone(), config(7), Rc::downgrade(&callbacks));
        for import in [&living, &teller] {
            import.ready(Duration::from_secs(20)).await.unwrap();
        }
        assert_eq!(teller.tell_gone(ClientId(6), &sessions).await, Err(FsError::Busy));
        assert_eq!(teller.tell_gone(ClientId(6), &SessionKey::new([4; 32])).await, Err(FsError::NotPermitted));
        assert!(server.knows("echo", ClientId(6)));
        assert_eq!(teller.tell_gone(ClientId(8), &sessions).await, Ok(()), "nobody's session is over");
        assert_eq!(living.ask::<_, u64>(Op::MdtGetattr, &()).await, Ok(8));
        assert!(living.close().await, "its goodbye was heard");
        assert_eq!(teller.tell_gone(ClientId(6), &sessions).await, Ok(()));
        teller.close().await;
    });
}

#[test]
fn a_server_without_a_key_listens_in_its_own_process_only() {
    rt::real::run(FramePool::new(1 << 20), async |rt| {
        let config = ServerConfig {
            key: ClusterKey::none(),
            recovery_window: Duration::from_secs(5),
            client_timeout: Duration::from_secs(60),
            boot: 1,
        };
        let server = Server::new(rt.clone(), config);
        let refused = server.listen(&Nid::parse("127.0.0.1:0").unwrap()).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("cluster.key_file"), "{refused}");
        server.listen(&Nid::parse("local:alone").unwrap()).unwrap();
    })
    .unwrap();
}

#[test]
fn an_id_belongs_to_whoever_opened_its_session_also_after_a_restart_of_the_server() {
    both(async |rt, nid| {
        let (store, callbacks): (Rc<Store>, Rc<dyn Callbacks>) = (Rc::default(), Rc::new(Answering));
        let (first, bound) = serve(&rt, &nid, &store, true, 1, key());
        let owner = import(&rt, bound.clone(), key(), &callbacks);
        assert_eq!(owner.ask::<_, u64>(Op::MdtSync, &1u64).await, Ok(2));
        // Every import is a client of its own, whatever id it says it has.
        let thief = import(&rt, bound, key(), &callbacks);
        assert_eq!(thief.ready(Duration::from_secs(20)).await, Err(FsError::Access));
        assert!(thief.failure().unwrap().contains("another client has a session"), "{:?}", thief.failure());
        thief.abandon();
        assert_eq!(owner.ask::<_, u64>(Op::MdtSync, &2u64).await, Ok(4));
        // Elsewhere, so that the owner does not come first.
        let elsewhere = match &nid {
            Nid::Local(name) => Nid::Local(format!("{name} again")),
            tcp => tcp.clone(),
        };
        let (_second, bound) = serve(&rt, &elsewhere, &store, true, 2, key());
        let thief = import(&rt, bound.clone(), key(), &callbacks);
        assert_eq!(thief.ready(Duration::from_secs(20)).await, Err(FsError::Access));
        thief.abandon();
        owner.move_to(bound);
        first.stop();
        assert_eq!(owner.ask::<_, u64>(Op::MdtSync, &3u64).await, Ok(6));
        assert_eq!(owner.evictions(), 0);
    });
}

#[test]
fn what_waits_when_a_target_is_given_up_is_not_asked_when_it_is_taken_back() {
    let world = simworld::TestWorld::new(1, 8 << 20);
    let (rt, store, callbacks): (_, Rc<Store>, Rc<dyn Callbacks>) = (world.rt(), Rc::default(), Rc::new(Answering));
    let nid = Nid::parse("local:echo").unwrap();
    world.run(async {
        let import = import(&rt, nid.clone(), key(), &callbacks);
        let losses = Some(import.losses());
        let ((tx, rx), waits) = (rt::sync::oneshot(), import.clone());
        rt.spawn(async move { tx.send(waits.ask::<_, u64>(Op::MdtSync, &1u64).await) });
        rt.sleep(Duration::from_millis(1)).await;
        import.deactivate();
        import.activate();
        let (_server, _) = serve(&rt, &nid, &store, true, 1, key());
        assert_eq!(rx.await.unwrap(), Err(FsError::Io));
        let under_lock = CallOptions { losses, ..CallOptions::default() };
        let late = import.call(Op::MdtSync, wire::encode(&2u64), Bulk::new(), under_lock).await;
        assert_eq!(late.unwrap_err(), FsError::NotConnected);
        assert_eq!(import.ask::<_, u64>(Op::MdtSync, &3u64).await, Ok(6));
        assert_eq!(*store.applied.borrow(), [3]);
    });
}

#[test]
fn an_id_belongs_to_whoever_proves_it_and_who_only_claims_it_gives_it_up_and_waits_for_nothing() {
    both(async |rt, nid| {
        let (store, callbacks): (Rc<Store>, Rc<dyn Callbacks>) = (Rc::default(), Rc::new(Answering));
        let (server, bound) = serve(&rt, &nid, &store, true, 1, key());
        let sessions = SessionKey::new([3; 32]);
        let id = sessions.client_id();
        let claim = || import_of(&rt, (bound.clone(), id), key(), &callbacks);
        let claims = claim();
        assert_eq!(claims.ask::<_, u64>(Op::MdtSync, &1u64).await, Ok(2), "it is nobody's so far");
        let owner = claim();
        owner.prove_id(&sessions);
        assert_eq!(owner.ask::<_, u64>(Op::MdtSync, &2u64).await, Ok(4), "whose it is gets it");
        assert_eq!(claims.ask::<_, u64>(Op::MdtSync, &3u64).await, Err(FsError::Io), "and does not wait for ever");
        assert!(claims.failure().unwrap().contains("another client has a session"), "{:?}", claims.failure());
        // Another key proves nothing, whether there is a session or not.
        let wrong = claim();
        wrong.prove_id(&SessionKey::new([4; 32]));
        assert_eq!(wrong.ready(Duration::from_secs(20)).await, Err(FsError::Access));
        assert_eq!(owner.ask::<_, u64>(Op::MdtSync, &5u64).await, Ok(10));
        assert_eq!((owner.evictions(), server.evictions(id)), (0, 1));
        claims.abandon();
        owner.close().await;
        assert_eq!(wrong.ask::<_, u64>(Op::MdtSync, &6u64).await, Err(FsError::Io));
        assert_eq!(*store.applied.borrow(), [1, 2, 5]);
    });
}

#[test]
fn a_session_that_goes_on_with_another_credential_counts_for_that_one() {
    both(async |rt, nid| {
        let (store, callbacks): (Rc<Store>, Rc<dyn Callbacks>) = (Rc::default(), Rc::new(Answering));
        let (server, nid) = serve(&rt, &nid, &store, true, 1, key());
        server.set_sessions_of_credential_max(2);
        let config = |client, key| ImportConfig {
            nid: nid.clone(),
            target: "echo".into(),
            client: ClientId(client),
            key,
            recoverable: true,
            ping_interval: Duration::from_secs(10),
            place: 0,
        };
        let open = |client: u64, key| {
            let sessions = SessionKey::new([client as u8; 32]);
            Import::with_key(rt.clone(), config(client, key), Rc::downgrade(&callbacks), sessions)
        };
        let own = [open(1, credential(1)), open(2, credential(1))];
        for import in &own {
            import.ready(Duration::from_secs(20)).await.unwrap();
        }
        let other = open(3, credential(2));
        other.ready(Duration::from_secs(20)).await.unwrap();
        other.abandon();
        let changed = open(3, credential(1));
        while server.sessions_limit_hits() == 0 {
            assert!(changed.ready(Duration::from_millis(100)).await.is_err(), "there are as many as there may be");
        }
        own[0].close().await;
        assert_eq!(changed.ask::<_, u64>(Op::MdtSync, &1u64).await, Ok(2));
    });
}

#[test]
fn a_change_under_way_is_not_made_twice_when_the_restarted_server_went_on_without_its_client() {
    for asks_before in [true, false] {
        change_under_way_at_a_server_that_goes_on(asks_before);
    }
}

/// `asks_before`: an answer has told the client that its session was noted; else what is under way is the session's first request.
fn change_under_way_at_a_server_that_goes_on(asks_before: bool) {
    let world = simworld::TestWorld::new(1, 8 << 20);
    let (rt, store, callbacks): (_, Rc<Store>, Rc<dyn Callbacks>) = (world.rt(), Rc::default(), Rc::new(Answering));
    let (nid, elsewhere) = (Nid::parse("local:echo").unwrap(), Nid::parse("local:again").unwrap());
    world.run(async {
        let (first, _) = serve(&rt, &nid, &store, true, 1, key());
        let import = import(&rt, nid.clone(), key(), &callbacks);
        let mut applied = Vec::new();
        if asks_before {
            assert_eq!(import.ask::<_, u64>(Op::MdtSetattr, &()).await, Err(FsError::NotSupported));
            assert_eq!(import.ask::<_, u64>(Op::MdtSync, &1u64).await, Ok(2));
            applied.push(1);
        }
        let ((tx, rx), asks) = (rt::sync::oneshot(), import.clone());
        rt.spawn(async move {
            let body = wire::encode(&UNANSWERED);
            tx.send(asks.call(Op::MdtCreate, body, Bulk::new(), CallOptions::default()).await.map(drop))
        });
        rt.sleep(Duration::from_secs(1)).await;
        applied.push(UNANSWERED);
        assert_eq!(*store.applied.borrow(), applied);
        first.stop();
        let (second, _) = serve(&rt, &elsewhere, &store, true, 2, key());
        while second.is_recovering() {
            rt.sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(second.evictions(ClientId(5)), 1);
        import.move_to(elsewhere);
        assert_eq!(rx.await.unwrap(), Err(FsError::Io), "{asks_before}");
        assert_eq!(import.ask::<_, u64>(Op::MdtSync, &3u64).await, Ok(6), "its next session serves it");
        applied.push(3);
        assert_eq!(*store.applied.borrow(), applied);
    });
}

/// A credential of these tests' cluster.
fn credential(id: u64) -> ClusterKey {
    let (version, name) = (CREDENTIAL_VERSION, format!("c{id}"));
    let said = Credential { version, id, cluster: 7, name: name.as_str().into(), ..Credential::default() };
    key().credential_of(Limits::new(said).unwrap()).unwrap()
}

#[test]
fn a_credential_has_so_many_sessions_and_others_do_not_notice() {
    both(async |rt, nid| {
        let (store, callbacks): (Rc<Store>, Rc<dyn Callbacks>) = (Rc::default(), Rc::new(Answering));
        let (server, bound) = serve(&rt, &nid, &store, true, 1, key());
        server.set_sessions_of_credential_max(3);
        let clients = ClusterKey::from_text(key().client_text().as_bytes()).unwrap();
        let open = |key: &ClusterKey, id, at: &Nid| import_of(&rt, (at.clone(), ClientId(id)), key.clone(), &callbacks);
        let mut all = Vec::new();
        for (n, key) in [credential(1), credential(2), clients.clone(), clients, key(), key()].iter().enumerate() {
            for id in 0..3 {
                let client = open(key, 100 * (1 + n as u64) + id, &bound);
                client.ready(Duration::from_secs(20)).await.unwrap();
                all.push(client);
            }
        }
        let fourth = open(&credential(1), 50, &bound);
        while server.sessions_limit_hits() < 2 {
            assert!(fourth.ready(Duration::from_millis(100)).await.is_err(), "it is refused, and comes again");
        }
        assert!(fourth.failure().unwrap().contains("as many sessions of credential 'c1'"), "{:?}", fourth.failure());
        // A connection that is made anew continues its session; one that ends makes room.
        all[1].move_to(bound.clone());
        assert_eq!(all[1].ask::<_, u64>(Op::MdtSync, &1u64).await, Ok(2));
        all[0].close().await;
        assert_eq!(fourth.ask::<_, u64>(Op::MdtSync, &2u64).await, Ok(4));
        // After a restart nobody knows whose the sessions are that have not come back, and all of them find their places.
        let elsewhere = match &nid {
            Nid::Local(name) => Nid::Local(format!("{name} again")),
            tcp => tcp.clone(),
        };
        let (second, again) = serve(&rt, &elsewhere, &store, true, 2, key());
        second.set_sessions_of_credential_max(3);
        let fifth = open(&credential(1), 51, &again);
        while second.sessions_limit_hits() == 0 {
            assert!(fifth.ready(Duration::from_millis(100)).await.is_err());
        }
        all.remove(0);
        all.iter().chain([&fourth]).for_each(|c| c.move_to(again.clone()));
        server.stop();
        for c in all.iter().chain([&fourth]) {
            assert!(c.ask::<_, u64>(Op::MdtSync, &3u64).await.is_ok());
            assert_eq!(c.evictions(), 0);
        }
        all[0].close().await;
        assert_eq!(fifth.ready(Duration::from_secs(20)).await, Ok(()));
    });
}

#[test]
fn whoever_has_the_key_of_all_clients_leaves_descriptors_to_others_and_administrators_always_get_in() {
    both(async |rt, nid| {
        let (store, callbacks): (Rc<Store>, Rc<dyn Callbacks>) = (Rc::default(), Rc::new(Answering));
        let (server, bound) = serve(&rt, &nid, &store, true, 1, key());
        server.set_seats(ptlrpc::Seats::of(8));
        let clients = ClusterKey::from_text(key().client_text().as_bytes()).unwrap();
        let open = |key: &ClusterKey, id| import_of(&rt, (bound.clone(), ClientId(id)), key.clone(), &callbacks);
        let mut all = Vec::new();
        for (n, (key, many)) in [(clients.clone(), 4), (credential(1), 2), (key(), 9)].into_iter().enumerate() {
            for id in 0..many {
                let client = open(&key, 100 * (1 + n as u64) + id);
                client.ready(Duration::from_secs(20)).await.unwrap();
                all.push(client);
            }
            // Clients' places are taken, in the end all of them.
            let full = open(&clients, 50 + n as u64);
            let hits = server.sessions_limit_hits();
            while server.sessions_limit_hits() == hits {
                assert!(full.ready(Duration::from_millis(100)).await.is_err(), "it is refused, and comes again");
            }
            full.abandon();
        }
        let (common, own) = (open(&clients, 60), open(&credential(2), 61));
        for waits in [&common, &own] {
            let hits = server.sessions_limit_hits();
            while server.sessions_limit_hits() == hits {
                assert!(waits.ready(Duration::from_millis(100)).await.is_err());
            }
        }
        // A connection that is made anew continues its session; sessions that end make room.
        all[0].move_to(bound.clone());
        assert_eq!(all[0].ask::<_, u64>(Op::MdtSync, &1u64).await, Ok(2));
        all[1].close().await;
        all[2].close().await;
        for waits in [&common, &own] {
            assert_eq!(waits.ready(Duration::from_secs(20)).await, Ok(()));
        }
    });
}

#[test]
fn what_changes_servers_takes_an_administrators_key() {
    both(async |rt, nid| {
        let callbacks: Rc<dyn Callbacks> = Rc::new(Answering);
        let (_server, nid) = serve(&rt, &nid, &Rc::default(), true, 1, key());
        let clients = ClusterKey::from_text(key().client_text().as_bytes()).unwrap();
        let set = ParamsRequest { pattern: "a".into(), value: Some("1".into()), ..Default::default() };
        let forget = ParamsRequest { pattern: "a".into(), lasting: Lasting::Remove, ..Default::default() };
        let read = ParamsRequest { pattern: "a".into(), ..Default::default() };
        for (key, refusal) in [(clients.clone(), FsError::NotPermitted), (key(), FsError::NotSupported)] {
            let import = import(&rt, nid.clone(), key, &callbacks);
            for op in [Op::Register, Op::OstPrecreate, Op::OstDestroy] {
                assert_eq!(import.ask::<_, ()>(op, &()).await, Err(refusal), "{op:?}");
            }
            assert_eq!(import.ask::<_, ()>(Op::Params, &set).await, Err(refusal));
            assert_eq!(import.ask::<_, ()>(Op::Params, &forget).await, Err(refusal));
            // This service knows no parameters at all.
            assert_eq!(import.ask::<_, ()>(Op::Params, &read).await, Err(FsError::NotSupported));
            import.close().await;
        }
        // And whoever has no more than that serves nobody.
        let config = ServerConfig {
            key: clients,
            recovery_window: Duration::from_secs(5),
            client_timeout: Duration::from_secs(60),
            boot: 1,
        };
        let refused = Server::new(rt.clone(), config).listen(&Nid::parse("local:client-only").unwrap()).unwrap_err();
        assert!(refused.to_string().contains("administrator's key"), "{refused}");
    });
}

#[test]
fn a_wrong_key_is_refused_by_name() {
    both(async |rt, nid| {
        let right = ClusterKey::from_text(b"0123456789abcdef").unwrap();
        let wrong = ClusterKey::from_text(b"fedcba9876543210").unwrap();
        let (_server, nid) = serve(&rt, &nid, &Rc::default(), true, 1, right.clone());
        let callbacks: Rc<dyn Callbacks> = Rc::new(Answering);
        let bad = import(&rt, nid.clone(), wrong, &callbacks);
        assert_eq!(bad.ready(Duration::from_secs(20)).await, Err(FsError::Access));
        assert!(bad.failure().unwrap().contains("cluster key"), "{:?}", bad.failure());
        bad.abandon();
        let good = import(&rt, nid, right, &callbacks);
        good.ready(Duration::from_secs(5)).await.unwrap();
    });
}

#[test]
fn a_restart_replays_what_was_lost_and_repeats_nothing_that_was_not() {
    for commit in [true, false] {
        both(async |rt, nid| {
            let store: Rc<Store> = Rc::default();
            let (first, bound) = serve(&rt, &nid, &store, commit, 1, key());
            let callbacks: Rc<dyn Callbacks> = Rc::new(Answering);
            let import = import(&rt, bound.clone(), key(), &callbacks);
            for i in 0..20u64 {
                assert_eq!(import.ask::<_, u64>(Op::MdtSync, &i).await, Ok(i * 2));
            }
            first.stop();
            drop(first);
            // The listener of the first life ends with its next accept; connect once to let it see that.
            let _ = rt.connect(&bound).await;
            let mut second = None;
            for _ in 0..200 {
                let config = ServerConfig {
                    key: key(),
                    recovery_window: Duration::from_secs(5),
                    client_timeout: Duration::from_secs(60),
                    boot: 2,
                };
                let server = Server::new(rt.clone(), config);
                let applied = RefCell::new(store.applied.borrow().clone());
                server.add(Rc::new(Echo { store: store.clone(), commit: true, applied }));
                if server.listen(&bound).is_ok() {
                    second = Some(server);
                    break;
                }
                rt.sleep(Duration::from_millis(10)).await;
            }
            assert!(second.is_some(), "the address never became free");
            assert_eq!(import.ask::<_, u64>(Op::MdtSync, &20u64).await, Ok(40));
            assert_eq!(*store.applied.borrow(), (0..=20).collect::<Vec<u64>>());
        });
    }
}

#[test]
fn an_answer_or_a_question_that_is_longer_than_a_message_fails_and_the_session_goes_on() {
    both(async |rt, nid| {
        let (server, bound) = serve(&rt, &nid, &Rc::default(), true, 1, key());
        let callbacks: Rc<dyn Callbacks> = Rc::new(Answering);
        let import = import(&rt, bound, key(), &callbacks);
        assert_eq!(import.ask::<_, u64>(Op::MdtSync, &1u64).await, Ok(2));
        assert_eq!(import.ask::<_, wire::Bytes>(Op::MdtListxattr, &()).await, Err(FsError::Overflow));
        let long = wire::Bytes(vec![7; 2 << 20]);
        assert_eq!(import.ask::<_, u64>(Op::MdtSync, &long).await, Err(FsError::Overflow));
        assert_eq!(import.ask::<_, u64>(Op::MdtSync, &2u64).await, Ok(4));
        server.stop();
    });
}

#[test]
fn a_server_that_takes_over_at_the_second_address_is_found_and_told_what_was_lost() {
    both(async |rt, nid| {
        let (store, other): (Rc<Store>, Nid) = (Rc::default(), Nid::parse("127.0.0.1:0").unwrap());
        // A place where a server listens that has not the target (any more), and one where nobody does yet.
        let elsewhere = Server::new(
            rt.clone(),
            ServerConfig {
                key: key(),
                recovery_window: Duration::from_secs(5),
                client_timeout: Duration::from_secs(60),
                boot: 9,
            },
        );
        let without = elsewhere.listen(&other).unwrap();
        let (first, bound) = serve(&rt, &nid, &store, false, 1, key());
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let third = Nid::Tcp(free);
        let callbacks: Rc<dyn Callbacks> = Rc::new(Answering);
        let import = import(&rt, Nid::OneOf(vec![without, bound, third.clone()]), key(), &callbacks);
        for i in 0..20u64 {
            assert_eq!(import.ask::<_, u64>(Op::MdtSync, &i).await, Ok(i * 2));
        }
        first.stop();
        drop(first);
        let (_second, _) = serve(&rt, &third, &store, true, 2, key());
        assert_eq!(import.ask::<_, u64>(Op::MdtSync, &20u64).await, Ok(40));
        assert_eq!(*store.applied.borrow(), (0..=20).collect::<Vec<u64>>());
        elsewhere.stop();
    });
}

#[test]
fn a_client_that_ended_with_its_server_is_not_waited_for_and_one_that_may_live_is() {
    let sim = simworld::Sim::new(simworld::SimConfig::new(3), FramePool::new(64 << 20));
    let (here, there) = (sim.host("here"), sim.host("there"));
    let (first, far, nid) = (here.boot(), there.boot(), here.nid(7));
    let store: Rc<Store> = Rc::default();
    let (near_callbacks, far_callbacks): (Rc<dyn Callbacks>, Rc<dyn Callbacks>) =
        (Rc::new(Answering), Rc::new(Answering));
    let _served = sim.run(async {
        let served = serve(&first, &nid, &store, true, 1, key());
        let near = import(&first, nid.clone(), key(), &near_callbacks);
        let config = ImportConfig {
            nid: nid.clone(),
            target: "echo".into(),
            client: ClientId(6),
            key: key(),
            recoverable: true,
            ping_interval: Duration::from_secs(10),
            place: 0,
        };
        let away = Import::new(far.clone(), config, Rc::downgrade(&far_callbacks));
        assert_eq!(near.ask::<_, u64>(Op::MdtSync, &1u64).await, Ok(2));
        assert_eq!(away.ask::<_, u64>(Op::MdtSync, &2u64).await, Ok(4));
        // Its process goes on, but does not come back.
        away.abandon();
        served
    });
    here.kill();
    let second = here.boot();
    let left = |server: &Server| server.exports("echo").iter().map(|e| e.client()).collect::<Vec<_>>();
    sim.run(async {
        let (server, _) = serve(&second, &nid, &store, true, 2, key());
        second.sleep(Duration::from_secs(2)).await;
        assert_eq!(left(&server), [ClientId(6)]);
        assert!(server.is_recovering() && server.evictions(ClientId(5)) == 1);
        second.sleep(Duration::from_secs(4)).await;
        assert!(left(&server).is_empty() && !server.is_recovering());
    });
}

/// Clients that a server on the host of its client knows 2 s after its start, and when its window is over, when the client was
/// ended by `end`; the first server was elsewhere.
fn left_after(end: impl Fn(&simworld::Host)) -> [Vec<ClientId>; 2] {
    let sim = simworld::Sim::new(simworld::SimConfig::new(3), FramePool::new(64 << 20));
    let (here, there) = (sim.host("here"), sim.host("there"));
    let (first, far) = (here.boot(), there.boot());
    let (store, callbacks): (Rc<Store>, Rc<dyn Callbacks>) = (Rc::default(), Rc::new(Answering));
    let _served = sim.run(async {
        let served = serve(&first, &here.nid(7), &store, true, 1, key());
        let client = import(&far, here.nid(7), key(), &callbacks);
        assert_eq!(client.ask::<_, u64>(Op::MdtSync, &1u64).await, Ok(2));
        (served, client)
    });
    here.kill();
    end(&there);
    let second = there.boot();
    let left = |server: &Server| server.exports("echo").iter().map(|e| e.client()).collect::<Vec<_>>();
    sim.run(async {
        let (server, _) = serve(&second, &there.nid(7), &store, true, 2, key());
        second.sleep(Duration::from_secs(2)).await;
        let early = left(&server);
        second.sleep(Duration::from_secs(4)).await;
        [early, left(&server)]
    })
}

#[test]
fn of_clients_of_an_earlier_boot_nothing_is_known_and_of_this_boot_whose_process_ended_is() {
    assert_eq!(left_after(simworld::Host::kill), [vec![], vec![]]);
    // Whoever has the number of another boot may live: on the host of which this one is a copy.
    assert_eq!(left_after(simworld::Host::lose_power), [vec![ClientId(5)], vec![]]);
}

/// A connection by hand; nobody replays or resends over it.
struct ByHand {
    sink: Rc<Sink>,
    source: Source,
    client: ClientId,
}

impl ByHand {
    async fn connect(rt: &Rt, nid: &Nid, client: ClientId) -> ByHand {
        let (sink, source) = ends(rt.connect(nid).await.unwrap());
        let mut hand = ByHand { sink, source, client };
        let nonce = [1u8; 32];
        let hello = ConnectRequest { target: "echo".into(), nonce: nonce.to_vec().into(), ..Default::default() };
        hand.send(hand.header(Op::Connect, 0), wire::encode(&hello));
        let answer: ConnectReply = wire::decode(&hand.source.recv().await.unwrap().1).unwrap();
        let proof = key().proof("client", Role::Client, [&nonce, &answer.nonce], b"echo", client).unwrap();
        hand.send(
            hand.header(Op::Auth, 0),
            wire::encode(&AuthRequest { proof: proof.to_vec().into(), ..Default::default() }),
        );
        hand.source.recv().await.unwrap();
        hand
    }
    fn header(&self, op: Op, xid: u64) -> Header {
        Header::request(op, self.client, Xid(xid))
    }
    fn send(&self, header: Header, body: Vec<u8>) {
        self.sink.send(header, body, Bulk::new());
    }
    async fn replay(&mut self, transno: u64) {
        let mut header = self.header(Op::MdtSync, transno);
        (header.flags, header.transno) = (Flags::REPLAY, Transno(transno));
        self.send(header, wire::encode(&(transno * 10)));
        assert_eq!(self.source.recv().await.unwrap().0.result(), Ok(()));
    }
}

#[test]
fn a_connection_that_breaks_during_replay_carries_nothing_out_twice() {
    rt::real::run(FramePool::new(1 << 20), async |rt| {
        let store: Rc<Store> = Rc::default();
        store.clients.borrow_mut().push((ClientId(3), None));
        let nid = Nid::parse("127.0.0.1:0").unwrap();
        let (_server, nid) = serve(&rt, &nid, &store, true, 2, key());
        for connection in 1..=2 {
            let mut hand = ByHand::connect(&rt, &nid, ClientId(3)).await;
            // All in one slot, as requests that come one after the other are.
            for transno in 1..=connection * 2 {
                hand.replay(transno).await;
            }
        }
        assert_eq!(*store.applied.borrow(), [10, 20, 30, 40]);
    })
    .unwrap();
}

#[test]
fn a_client_that_names_a_slot_beyond_the_last_loses_its_connection_and_others_are_served() {
    rt::real::run(FramePool::new(1 << 20), async |rt| {
        let store: Rc<Store> = Rc::default();
        let (server, nid) = serve(&rt, &Nid::parse("127.0.0.1:0").unwrap(), &store, true, 1, key());
        for (xid, slot) in [(1, SLOTS_MAX), (2, u16::MAX - 1)] {
            let mut hand = ByHand::connect(&rt, &nid, ClientId(3)).await;
            let mut header = hand.header(Op::MdtSync, xid);
            header.slot_or_credits = slot;
            hand.send(header, wire::encode(&xid));
            assert!(hand.source.recv().await.is_err(), "slot {slot}");
            assert_eq!(server.limit_breaches(), xid);
        }
        let mut hand = ByHand::connect(&rt, &nid, ClientId(3)).await;
        let mut header = hand.header(Op::MdtSync, 3);
        header.slot_or_credits = SLOTS_MAX - 1;
        hand.send(header, wire::encode(&3u64));
        assert_eq!(hand.source.recv().await.unwrap().0.result(), Ok(()), "the last slot is one");
        assert_eq!(*store.applied.borrow(), [3], "nothing else was carried out");
    })
    .unwrap();
}

#[test]
fn a_client_that_reads_no_answers_is_disconnected_before_they_fill_memory() {
    rt::real::run(FramePool::new(64 << 20), async |rt| {
        let (server, nid) = serve(&rt, &Nid::parse("127.0.0.1:0").unwrap(), &Rc::default(), true, 1, key());
        let hand = ByHand::connect(&rt, &nid, ClientId(3)).await;
        let export = server.exports("echo").pop().unwrap();
        assert!(export.is_connected());
        // A gigabyte of answers, none of them read.
        for xid in 1..=1000 {
            let mut header = hand.header(Op::MdtReadlink, xid);
            header.slot_or_credits = xid as u16;
            hand.send(header, Vec::new());
        }
        while export.is_connected() {
            rt.sleep(Duration::from_millis(5)).await;
        }
        let callbacks: Rc<dyn Callbacks> = Rc::new(Answering);
        let other = import(&rt, nid, key(), &callbacks);
        assert_eq!(other.ask::<_, u64>(Op::MdtSync, &4u64).await, Ok(8), "others are served");
    })
    .unwrap();
    let peak = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = peak.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB").to_string();
    assert!(peak.parse::<u64>().unwrap() < 600 << 10, "{peak} kB");
}
