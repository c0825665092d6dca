//! Few frames: what comes to a server leaves enough for requests in service to come to an end, and what comes to a client hinders nothing
//! that comes behind it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use frames::{Bulk, FramePool};
use ptlrpc::{CallOptions, Callbacks, ClusterKey, Import, ImportConfig, Request, Server, ServerConfig};
use rt::sync::{Event, Semaphore};
use rt::{LocalFuture, Nid, Rt};
use simworld::{Sim, SimConfig};
use support::{Carries, Plain, Silent};
use types::{ClientId, Duration, FsError, Transno};
use wire::Op;

const POOL_BYTES: u64 = 16 << 20;
const BULK_BYTES: usize = 1 << 20;

/// A target that carries out one request at a time, and needs frames for each besides those that came along.
struct Tight {
    rt: Rt,
    place: Semaphore,
}

impl Carries for Tight {
    const NAME: &'static str = "tight";
    fn carry_out(self: Rc<Self>, request: Request) -> LocalFuture<()> {
        Box::pin(async move {
            self.place.acquire(1).await;
            let needed = self.rt.bulk(BULK_BYTES).await;
            self.rt.sleep(Duration::from_millis(10)).await;
            drop(needed);
            // Meanwhile others find these frames free.
            self.rt.sleep(Duration::from_millis(10)).await;
            self.place.add(1);
            request.reply(Ok(&()));
        })
    }
}

/// Sends far more than there are frames for at once: whether all is answered within `patience`, and how often a client was evicted.
fn all_are_answered(bug: Option<&'static str>, patience: Duration) -> (bool, u64) {
    types::planted::plant(bug);
    let outcome = rt::real::run(FramePool::new(POOL_BYTES), async |rt: Rt| {
        let key = ClusterKey::from_text(b"0123456789abcdef").unwrap();
        let window = Duration::from_secs(5);
        let limit = Duration::from_secs(60);
        let config = ServerConfig { key: key.clone(), recovery_window: window, client_timeout: limit, boot: 1 };
        let server = Server::new(rt.clone(), config);
        server.add(Rc::new(Plain(Rc::new(Tight { rt: rt.clone(), place: Semaphore::new(1) }))));
        let nid = server.listen(&Nid::parse("127.0.0.1:0").unwrap()).unwrap();
        let callbacks: Rc<dyn Callbacks> = Rc::new(Silent);
        let import = |id| {
            let config = ImportConfig {
                nid: nid.clone(),
                target: "tight".into(),
                client: ClientId(id),
                key: key.clone(),
                recoverable: true,
                ping_interval: Duration::from_secs(10),
                place: 0,
            };
            Import::new(rt.clone(), config, Rc::downgrade(&callbacks))
        };
        let imports: Vec<Rc<Import>> = (1..=8).map(import).collect();
        for import in &imports {
            import.ready(Duration::from_secs(20)).await.unwrap();
        }
        // The sender has its bytes once.
        let bulk = rt.bulk(BULK_BYTES).await;
        let one = |i: usize| {
            let (import, bulk) = (imports[i % imports.len()].clone(), bulk.clone());
            async move { import.call(Op::OstWrite, Vec::new(), bulk, CallOptions::default()).await.map(drop) }
        };
        let all = rt::sync::join_all((0..64).map(one).collect());
        let all: Option<Vec<Result<(), FsError>>> = rt.timeout(patience, all).await;
        let answered = all.is_some_and(|all| all.into_iter().all(|r| r == Ok(())));
        (answered, imports.iter().map(|i| i.evictions()).sum())
    });
    types::planted::plant(None);
    outcome.unwrap()
}

#[test]
fn requests_in_service_find_frames_however_many_wait_behind_them() {
    assert_eq!(all_are_answered(None, Duration::from_secs(300)), (true, 0));
    // Which of those that want frames are faster is up to the machine: mostly it stands still the first time.
    let stands_still = |_| !all_are_answered(Some("frames-for-all"), Duration::from_secs(15)).0;
    assert!((0..5).any(stands_still), "the planted bug is found");
}

/// A target that keeps what is written, and has it on stable storage when the test says so.
#[derive(Default)]
struct Lazy {
    written: RefCell<Bulk>,
    committed: Cell<u64>,
}

impl Carries for Lazy {
    const NAME: &'static str = "lazy";
    fn carry_out(self: Rc<Self>, request: Request) -> LocalFuture<()> {
        match request.header.op {
            Op::OstWrite => {
                *self.written.borrow_mut() = request.bulk.clone();
                request.reply_transno(Transno(1), Ok(Vec::new()));
            }
            Op::OstRead => request.reply_bulk(&(), self.written.borrow().clone(), None),
            _ => request.reply(Ok(&())),
        }
        Box::pin(std::future::ready(()))
    }
    fn committed(&self) -> Transno {
        Transno(self.committed.get())
    }
}

/// A client whose frames are all kept for the replay of a write.
async fn with_all_frames_kept(rt: &Rt, import: &Import) {
    import.ready(Duration::from_secs(20)).await.unwrap();
    let mut all = rt.bulk(BULK_BYTES).await;
    all.copy_in(0, &[7; BULK_BYTES]);
    import.call(Op::OstWrite, Vec::new(), all, CallOptions::default()).await.unwrap();
    assert_eq!(rt.frames().free(), 0);
}

/// It reads what it wrote: whether the server's other answers come meanwhile, and whether that of the read does once the write is stable.
async fn reads(rt: Rt, import: Rc<Import>, lazy: Rc<Lazy>) -> (bool, bool) {
    with_all_frames_kept(&rt, &import).await;
    let (reader, got) = (import.clone(), Rc::new(RefCell::new(None)));
    let read = got.clone();
    rt.spawn(async move {
        let answer = reader.call(Op::OstRead, Vec::new(), Bulk::new(), CallOptions::default()).await;
        *read.borrow_mut() = Some(answer.unwrap().bulk);
    });
    // Its answer is on the way before anything else is asked.
    rt.sleep(Duration::from_millis(500)).await;
    let other = rt.timeout(Duration::from_secs(2), import.ask::<_, ()>(Op::OstSync, &())).await;
    assert!(got.borrow().is_none(), "there are no frames for it");
    lazy.committed.set(1);
    rt.sleep(Duration::from_secs(10)).await;
    let is_read = got.borrow().as_ref().is_some_and(|bulk| bulk.to_vec() == [7; BULK_BYTES]);
    (other == Some(Ok(())), is_read)
}

/// What comes of `test` with a client that has [`BULK_BYTES`] of frames.
fn in_small_memory<T: 'static, F: Future<Output = T> + 'static>(test: impl FnOnce(Rt, Rc<Import>, Rc<Lazy>) -> F) -> T {
    let sim = Sim::new(SimConfig::new(1), FramePool::new(POOL_BYTES));
    let (there, here) = (sim.host("server"), sim.host("client"));
    here.set_memory(Some(BULK_BYTES as u64));
    let (server_rt, rt) = (there.boot(), here.boot());
    let key = ClusterKey::from_text(b"0123456789abcdef").unwrap();
    let (window, limit) = (Duration::from_secs(5), Duration::from_secs(600));
    let config = ServerConfig { key: key.clone(), recovery_window: window, client_timeout: limit, boot: 1 };
    let (server, lazy) = (Server::new(server_rt, config), Rc::new(Lazy::default()));
    server.add(Rc::new(Plain(lazy.clone())));
    server.listen(&there.nid(7)).unwrap();
    let callbacks: Rc<dyn Callbacks> = Rc::new(Silent);
    let config = ImportConfig {
        nid: there.nid(7),
        target: "lazy".into(),
        client: ClientId(1),
        key,
        recoverable: true,
        ping_interval: Duration::from_secs(300),
        place: 0,
    };
    let import = Import::new(rt.clone(), config, Rc::downgrade(&callbacks));
    let outcome = sim.run(test(rt, import.clone(), lazy));
    import.abandon();
    drop(server);
    outcome
}

#[test]
fn an_answer_without_frames_lets_those_behind_it_come_and_comes_again() {
    assert_eq!(in_small_memory(reads), (true, true));
    types::planted::plant(Some("answers-wait-for-frames"));
    let outcome = in_small_memory(reads);
    types::planted::plant(None);
    assert_eq!(outcome, (false, false));
}

#[test]
fn what_is_stable_by_now_is_let_go_when_the_target_is_asked() {
    let free = in_small_memory(async |rt, import, lazy| {
        with_all_frames_kept(&rt, &import).await;
        lazy.committed.set(1);
        rt.sleep(Duration::from_secs(1)).await;
        let before = rt.frames().free();
        import.ask_committed();
        rt.sleep(Duration::from_secs(1)).await;
        (before, rt.frames().free())
    });
    assert_eq!(free, (0, BULK_BYTES / frames::FRAME_BYTES));
}

/// A target whose syncs wait for a write, as one does that calls back a lock over what another client has to write.
#[derive(Default)]
struct Meets {
    written: Cell<bool>,
    came: Event,
}

impl Carries for Meets {
    const NAME: &'static str = "meets";
    fn carry_out(self: Rc<Self>, request: Request) -> LocalFuture<()> {
        Box::pin(async move {
            if request.header.op == Op::OstWrite {
                self.written.set(true);
                self.came.notify();
            }
            loop {
                let comes = self.came.wait();
                if self.written.get() {
                    break;
                }
                comes.await;
            }
            request.reply(Ok(&()));
        })
    }
}

/// How long the write of one client takes for which the sync of another waits, where frames are few; `None`: it does not come in.
fn met(with_another: bool) -> Option<Duration> {
    let sim = Sim::new(SimConfig::new(1), FramePool::new(POOL_BYTES));
    let (there, here) = (sim.host("server"), sim.host("client"));
    there.set_memory(Some(2 * BULK_BYTES as u64));
    let (server_rt, rt) = (there.boot(), here.boot());
    let key = ClusterKey::from_text(b"0123456789abcdef").unwrap();
    let (window, limit) = (Duration::from_secs(5), Duration::from_secs(600));
    let config = ServerConfig { key: key.clone(), recovery_window: window, client_timeout: limit, boot: 1 };
    let server = Server::new(server_rt.clone(), config);
    server.add(Rc::new(Plain(Rc::new(Meets::default()))));
    server.listen(&there.nid(7)).unwrap();
    let callbacks: Rc<dyn Callbacks> = Rc::new(Silent);
    let import = |client| {
        let config = ImportConfig {
            nid: there.nid(7),
            target: "meets".into(),
            client: ClientId(client),
            key: key.clone(),
            recoverable: true,
            ping_interval: Duration::from_secs(300),
            place: 0,
        };
        Import::new(rt.clone(), config, Rc::downgrade(&callbacks))
    };
    let imports = [import(1), import(2)];
    let [syncs, writes] = imports.clone();
    let here = rt.clone();
    let took = sim.run(async move {
        syncs.ready(Duration::from_secs(20)).await.unwrap();
        writes.ready(Duration::from_secs(20)).await.unwrap();
        // The write fits into what is left, but leaves nothing to what is in service.
        let _held = server_rt.bulk(BULK_BYTES).await;
        let (told, synced) = rt::sync::oneshot();
        here.spawn(async move { told.send(syncs.ask::<_, ()>(Op::OstSync, &()).await) });
        here.sleep(Duration::from_millis(100)).await;
        let (begun, bulk) = (here.now(), here.bulk(BULK_BYTES).await);
        // What comes behind it is not read, and not told of.
        let (told, behind) = rt::sync::oneshot();
        let (other, soon) = (writes.clone(), here.clone());
        here.spawn(async move {
            soon.sleep(Duration::from_millis(100)).await;
            told.send(if with_another { other.ask::<_, ()>(Op::OstSync, &()).await } else { Ok(()) });
        });
        let written = writes.call(Op::OstWrite, Vec::new(), bulk, CallOptions::default());
        let written = here.timeout(Duration::from_secs(120), written).await?;
        assert!(written.is_ok() && synced.await == Some(Ok(())) && behind.await == Some(Ok(())));
        assert!(writes.early_replies() > 0, "it was told that the server is alive");
        Some(here.now().since(begun))
    });
    imports.iter().for_each(|i| i.abandon());
    drop(server);
    took
}

#[test]
fn a_request_that_waits_for_frames_gets_them_whatever_its_client_takes_for_overdue_meanwhile() {
    for with_another in [false, true] {
        let took = met(with_another).expect("its client gives each connection up before the server takes the write");
        assert!(took < Duration::from_secs(15), "{took:?}");
    }
}
