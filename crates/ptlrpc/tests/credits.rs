//! Requests that a target lets a client have in flight: however their number changes, a slot carries one request at a time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ptlrpc::{Callbacks, ClusterKey, Import, ImportConfig, Request, Server, ServerConfig};
use rt::{LocalFuture, Nid, Rt};
use simworld::TestWorld;
use types::{ClientId, Duration, FsError};
use wire::Op;

mod support;
use support::{Carries, Plain, Silent};

/// A target that answers when it is told to.
#[derive(Default)]
struct Patient {
    held: RefCell<BTreeMap<u64, Request>>,
}

impl Carries for Patient {
    const NAME: &'static str = "patient";
    fn carry_out(self: Rc<Self>, request: Request) -> LocalFuture<()> {
        let before = self.held.borrow_mut().insert(request.decode().unwrap(), request);
        assert!(before.is_none(), "each request comes once");
        Box::pin(std::future::ready(()))
    }
}

impl Patient {
    /// Answers a request, with which its client has so many credits.
    fn answer(&self, value: u64, credits: u16) {
        let request = self.held.borrow_mut().remove(&value).unwrap();
        request.export.set_credits(credits);
        request.reply(Ok(&()));
    }
    /// The slot of each request that it has, none of which two have.
    fn slots(&self) -> Vec<u16> {
        let slots: Vec<u16> = self.held.borrow().values().map(|r| r.header.slot_or_credits).collect();
        let distinct: BTreeSet<u16> = slots.iter().copied().collect();
        assert_eq!(distinct.len(), slots.len(), "two requests in one slot: {slots:?}");
        slots
    }
}

struct World {
    rt: Rt,
    target: Rc<Patient>,
    import: Rc<Import>,
    answers: Rc<RefCell<Vec<Result<(), FsError>>>>,
    _server: Rc<Server>,
    _callbacks: Rc<dyn Callbacks>,
}

impl World {
    async fn new(rt: Rt) -> World {
        let key = ClusterKey::from_text(b"0123456789abcdef").unwrap();
        let (recovery_window, client_timeout) = (Duration::from_secs(5), Duration::from_secs(600));
        let server =
            Server::new(rt.clone(), ServerConfig { key: key.clone(), recovery_window, client_timeout, boot: 1 });
        let (target, callbacks): (Rc<Patient>, Rc<dyn Callbacks>) = (Rc::default(), Rc::new(Silent));
        server.add(Rc::new(Plain(target.clone())));
        let nid = server.listen(&Nid::parse("local:patient").unwrap()).unwrap();
        let (target_name, client, ping_interval) = (Patient::NAME.into(), ClientId(5), Duration::from_secs(10));
        let config = ImportConfig { nid, target: target_name, client, key, recoverable: true, ping_interval, place: 0 };
        let import = Import::new(rt.clone(), config, Rc::downgrade(&callbacks));
        import.ready(Duration::from_secs(5)).await.unwrap();
        World { rt, target, import, answers: Rc::default(), _server: server, _callbacks: callbacks }
    }
    async fn settle(&self) {
        self.rt.sleep(Duration::from_millis(100)).await;
    }
    async fn ask(&self, values: std::ops::Range<u64>) {
        for value in values {
            let (import, answers) = (self.import.clone(), self.answers.clone());
            self.rt.spawn(async move {
                let answer = import.ask::<_, ()>(Op::MdtGetattr, &value).await;
                answers.borrow_mut().push(answer);
            });
        }
        self.settle().await;
    }
    /// Everything is answered, with so many credits, and that many requests fit again; two are left to urgent ones.
    async fn finishes_with(&self, credits: u16) {
        loop {
            let Some(value) = self.target.held.borrow().keys().next().copied() else { break };
            self.target.answer(value, credits);
            self.settle().await;
            self.target.slots();
        }
        let before = self.answers.borrow().len();
        assert!(self.answers.borrow().iter().all(|a| a.is_ok()) && self.import.in_flight() == 0);
        self.ask(1000..1100).await;
        let slots: BTreeSet<u16> = self.target.slots().into_iter().collect();
        assert_eq!((slots.len(), self.import.in_flight()), (usize::from(credits) - 2, usize::from(credits) - 2));
        assert!(slots.iter().all(|s| *s < credits), "{slots:?}");
        loop {
            let Some(value) = self.target.held.borrow().keys().next().copied() else { break };
            self.target.answer(value, credits);
            self.settle().await;
        }
        assert_eq!(self.answers.borrow().len(), before + 100);
    }
}

fn run<F: Future<Output = ()>>(test: impl FnOnce(Rt) -> F) {
    let world = TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(test(rt));
}

#[test]
fn credits_that_go_down_and_up_again_give_no_slot_to_two_requests() {
    run(async |rt| {
        let w = World::new(rt).await;
        w.ask(0..62).await;
        assert_eq!(w.target.slots().len(), 62);
        w.target.answer(0, 32);
        w.settle().await;
        w.target.answer(1, 64);
        w.settle().await;
        w.ask(100..140).await;
        assert_eq!(w.target.slots().len(), 62, "as many as before");
        w.finishes_with(64).await;
        w.ask(200..300).await;
        w.target.answer(200, 48);
        w.settle().await;
        w.finishes_with(40).await;
    });
}

#[test]
fn who_had_its_turn_when_credits_went_down_waits_for_the_next_slot() {
    run(async |rt| {
        let w = World::new(rt).await;
        w.ask(0..80).await;
        assert_eq!(w.target.slots().len(), 62);
        // The turn of the next one comes with a slot that goes with the same answer.
        w.target.answer(50, 16);
        w.settle().await;
        assert_eq!(w.target.slots().len(), 61);
        w.finishes_with(16).await;
    });
}
