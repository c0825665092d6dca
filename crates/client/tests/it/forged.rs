//! Requests that a client makes by hand, as no client of this program does.
use crate::world::*;
use ptlrpc::stream::{Sink, Source, ends};
use types::{ClientId, ObjectId, Transno, Xid};
use wire::connect::{AuthRequest, ConnectReply, ConnectRequest, Role};
use wire::ost::SetattrRequest;
use wire::{Flags, Header, Op};

const FORGER: ClientId = ClientId(77);

/// A session with an OST over one connection.
struct ByHand {
    sink: Rc<Sink>,
    source: Source,
}

impl ByHand {
    async fn connect(world: &World, rt: &Rt, ost: usize) -> ByHand {
        let (sink, mut source) = ends(rt.connect(&world.oss[ost].host.nid(7989)).await.unwrap());
        let ask = ConnectRequest {
            target: format!("stria-OST{ost:04x}").as_str().into(),
            nonce: vec![1; 32].into(),
            recoverable: true,
            ..ConnectRequest::default()
        };
        sink.send(Header::request(Op::Connect, FORGER, Xid(0)), wire::encode(&ask), Bulk::new());
        let answer: ConnectReply = wire::decode(&source.recv().await.unwrap().1).unwrap();
        let said = ptlrpc::meant(&ask, &answer, None);
        let proof = world.key().proof("client", Role::Client, [&ask.nonce, &answer.nonce], &said, FORGER).unwrap();
        let identity = wire::Bytes(vec![5; 32]);
        let auth = AuthRequest {
            proof: proof.to_vec().into(),
            identity: identity.clone(),
            next: identity,
            ..AuthRequest::default()
        };
        sink.send(Header::request(Op::Auth, FORGER, Xid(0)), wire::encode(&auth), Bulk::new());
        assert_eq!(source.recv().await.unwrap().0.result(), Ok(()));
        ByHand { sink, source }
    }
    async fn ask(&mut self, header: Header, body: Vec<u8>) -> Result<(), FsError> {
        self.sink.send(header, body, Bulk::new());
        loop {
            let (answer, _) = self.source.recv().await.unwrap();
            if answer.op == header.op && answer.xid == header.xid && !answer.flags.has(Flags::EARLY) {
                return answer.result();
            }
        }
    }
}

#[test]
fn a_replay_of_what_no_server_of_an_ost_can_have_answered_is_refused() {
    for (seed, transno) in [(0, u64::MAX), (1, u64::MAX - 1), (2, 1 << 50)] {
        let world = World::new(seed, 1, OstConfig::default());
        let (c, _) = world.client(|_| {});
        let rt = world.sim.host("forger").boot();
        world.run(Duration::from_secs(600), async {
            let file = create(&c, "f").await;
            c.data().write(&file, 0, &[1; 100_000]).await.unwrap();
            c.data().fsync(&file, false).await.unwrap();
            drop(ByHand::connect(&world, &rt, 0).await);
            world.lose_power(0);
            // Nothing is on stable storage by itself before it is asked for.
            world.set_ost_commits(Duration::from_secs(5));
            world.restart_oss(0).await;
            let mut hand = ByHand::connect(&world, &rt, 0).await;
            let mut header = Header::request(Op::OstSetattr, FORGER, Xid(5));
            (header.flags, header.transno) = (Flags::REPLAY, Transno(transno));
            (header.slot_or_credits, header.patience) = (0, 60_000);
            let set = SetattrRequest { object: ObjectId::new(OstIndex(0), 1), valid: 2, ..SetattrRequest::default() };
            assert_eq!(hand.ask(header, wire::encode(&set)).await, Err(FsError::Invalid), "{transno:x}");
            let mut done = Header::request(Op::Ping, FORGER, Xid(0));
            (done.flags, done.slot_or_credits) = (Flags::REPLAY_DONE, u16::MAX);
            assert_eq!(hand.ask(done, Vec::new()).await, Ok(()));
            // What others change is numbered, kept for a replay, and on stable storage when they ask for it.
            let import = c.osts().all()[0].import().unwrap();
            for round in 2..5 {
                let (before, syncs) = (import.last_transno(), asked(&world, 0, "sync"));
                c.data().write(&file, 0, &[round; 100_000]).await.unwrap();
                c.data().fsync(&file, false).await.unwrap();
                let now = import.last_transno();
                assert!(now > before && now.0 < 1 << 40, "{transno:x}: {before} and {now}");
                assert!(asked(&world, 0, "sync") > syncs, "{transno:x}: the OST was not asked");
            }
            world.lose_power(0);
            world.restart_oss(0).await;
            assert!(read_all(&c, &file, MIB).await == [4; 100_000], "{transno:x}");
        });
    }
}
