//! A server whose frames are few: what comes leaves enough for requests in service to come to an end.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
use std::rc::Rc;

use frames::FramePool;
use ptlrpc::{
    CallOptions, Callbacks, ClusterKey, Export, Import, ImportConfig, Request, Server, ServerConfig, Service,
    SessionRecord,
};
use rt::sync::Semaphore;
use rt::{LocalFuture, Nid, Rt};
use types::{ClientId, Duration, FsError, Transno};
use wire::Op;

const POOL_BYTES: u64 = 16 << 20;
const BULK_BYTES: usize = 1 << 20;

/// A target that carries out one request at a time, and needs frames for each besides those that came along.
struct Tight {
    rt: Rt,
    place: Semaphore,
}

impl Service for Tight {
    fn target(&self) -> String {
        "tight".into()
    }
    fn cluster(&self) -> u64 {
        7
    }
    fn uuid(&self) -> u64 {
        9
    }
    fn handle(self: Rc<Self>, request: Request) -> LocalFuture<()> {
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
    fn last_committed(&self, _client: ClientId) -> Transno {
        Transno(0)
    }
    fn sessions(&self) -> Vec<SessionRecord> {
        Vec::new()
    }
    fn session_opened(self: Rc<Self>, _: Rc<Export>, _: bool) -> LocalFuture<Result<(), FsError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn session_closed(self: Rc<Self>, _: ClientId, _: bool) -> LocalFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

struct Silent;
impl Callbacks for Silent {
    fn on_callback(self: Rc<Self>, _: Op, _: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(std::future::ready(Err(FsError::NotSupported)))
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
        server.add(Rc::new(Tight { rt: rt.clone(), place: Semaphore::new(1) }));
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
