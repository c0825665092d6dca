//! Adaptive timeouts in simulated time: a busy server is waited for, a dead one is noticed soon.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod support;

use std::cell::Cell;
use std::rc::Rc;

use frames::FramePool;
use ptlrpc::{
    AdaptiveTimeouts, Callbacks, ClusterKey, Import, ImportConfig, ImportState, Request, Server, ServerConfig,
};
use rt::sync::Semaphore;
use rt::{LocalFuture, Nid, Rt};
use simworld::{Host, Sim, SimConfig};
use support::{Carries, Plain, Silent};
use types::{ClientId, Duration};
use wire::Op;

/// A target with one disk, which takes so long for each request.
struct Slow {
    rt: Rt,
    disk: Semaphore,
    takes: Cell<Duration>,
    carried_out: Cell<u32>,
}

impl Carries for Slow {
    const NAME: &'static str = "slow";
    fn carry_out(self: Rc<Self>, request: Request) -> LocalFuture<()> {
        Box::pin(async move {
            self.disk.acquire(1).await;
            self.rt.sleep(self.takes.get()).await;
            self.disk.add(1);
            self.carried_out.set(self.carried_out.get() + 1);
            request.reply(Ok(&()));
        })
    }
}

struct World {
    sim: Sim,
    host: Host,
    rt: Rt,
    service: Rc<Slow>,
    server: Rc<Server>,
    import: Rc<Import>,
    _callbacks: Rc<dyn Callbacks>,
}

fn world(seed: u64) -> World {
    let sim = Sim::new(SimConfig::new(seed), FramePool::new(16 << 20));
    let (host, client) = (sim.host("server"), sim.host("client"));
    let (server_rt, rt): (Rt, Rt) = (host.boot(), client.boot());
    let nid: Nid = host.nid(7);
    let key = ClusterKey::from_text(b"0123456789abcdef").unwrap();
    let window = Duration::from_secs(5);
    let config =
        ServerConfig { key: key.clone(), recovery_window: window, client_timeout: Duration::from_secs(60), boot: 1 };
    let server = Server::new(server_rt.clone(), config);
    let service = Rc::new(Slow {
        rt: server_rt,
        disk: Semaphore::new(1),
        takes: Cell::new(Duration::from_millis(1)),
        carried_out: Cell::new(0),
    });
    server.add(Rc::new(Plain(service.clone())));
    server.listen(&nid).unwrap();
    let config = ImportConfig {
        nid,
        target: "slow".into(),
        client: ClientId(1),
        key,
        recoverable: true,
        ping_interval: Duration::from_secs(10),
        place: 0,
    };
    let callbacks: Rc<dyn Callbacks> = Rc::new(Silent);
    let import = Import::new(rt.clone(), config, Rc::downgrade(&callbacks));
    sim.run(import.ready(Duration::from_secs(5))).unwrap();
    World { sim, host, rt, service, server, import, _callbacks: callbacks }
}

impl World {
    /// Sends so many requests at once and waits for their answers.
    async fn ask(&self, count: usize) {
        let one = || self.import.ask::<_, ()>(Op::MdtGetattr, &());
        for answer in rt::sync::join_all((0..count).map(|_| one()).collect()).await {
            assert_eq!(answer, Ok(()));
        }
    }
    /// How long it takes until the client has noticed that its server does not answer any more.
    async fn noticed_after(&self) -> Duration {
        let since = self.sim.now();
        self.host.stop_process();
        while self.import.state() == ImportState::Full {
            self.sim.sleep(Duration::from_millis(50)).await;
        }
        self.sim.now().since(since)
    }
}

#[test]
fn a_server_that_needs_five_times_as_long_as_is_waited_for_is_not_taken_for_dead() {
    for seed in 0..5 {
        let world = world(seed);
        let at_min = AdaptiveTimeouts::default().min;
        world.sim.run(async {
            world.ask(20).await;
            assert_eq!(world.import.patience(), at_min);
            world.service.takes.set(at_min * 5);
            // The last waits for the disk as long as all others take.
            world.ask(6).await;
        });
        let (connects, _, resent) = world.import.counters();
        assert_eq!((connects, resent, world.import.evictions()), (1, 0, 0), "seed {seed}");
        assert_eq!(world.service.carried_out.get(), 26);
        assert!(world.import.early_replies() >= 12, "{} early replies", world.import.early_replies());
        let export = world.server.exports("slow").pop().unwrap();
        assert_eq!(export.early_replies(), world.import.early_replies());
        // It is known by now how slow it is: nobody needs to be asked for time so early.
        assert!(world.import.service_time() >= at_min * 30 && world.import.patience() > at_min * 30);
    }
}

#[test]
fn a_dead_server_is_noticed_soon_also_when_it_was_slow_before() {
    for (seed, slow) in [(1, false), (2, true)] {
        let world = world(seed);
        let at = AdaptiveTimeouts::default();
        let noticed = world.sim.run(async {
            world.ask(3).await;
            if slow {
                world.service.takes.set(at.min * 5);
                world.ask(3).await;
            }
            let import = world.import.clone();
            world.rt.spawn(async move { _ = import.ask::<_, ()>(Op::MdtGetattr, &()).await });
            world.noticed_after().await
        });
        assert!(noticed <= at.min + at.min / 2, "slow {slow}: {noticed:?}");
    }
}
