//! Promised cuts, and what whoever copies an object is told of its changes.
#![allow(clippy::unwrap_used)]
mod node;

use node::*;
use oss::store::ObjectStore;
use wire::ost::{AskCutReply, ChangedReply, ChangedRequest, PromiseRequest, REMOVED};

#[test]
fn a_promised_cut_to_a_size_that_no_object_can_have_is_refused() {
    let n = node(7, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(1).await;
        c.lock(Mode::Pw, Extent::ALL, 0).await.unwrap();
        let promise = async |number, size| {
            let ask = PromiseRequest { object: object(1), number, size, withdrawn: false };
            c.import.ask::<_, ()>(Op::OstPromise, &ask).await
        };
        assert_eq!(promise(1, 1 << 63).await, Err(FsError::FileTooBig));
        assert_eq!(promise(2, oss::store::OBJECT_BYTES_MAX + 1).await, Err(FsError::FileTooBig));
        assert_eq!(promise(3, 4096).await, Ok(()));
    });
}

/// A metadata server that says of every cut that it was decided.
struct Decides;

impl Callbacks for Decides {
    fn on_callback(self: Rc<Self>, op: Op, _body: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        let decided = Ok(wire::encode(&AskCutReply { decided: true }));
        Box::pin(std::future::ready(if op == Op::OstAskCut { decided } else { Err(FsError::NotSupported) }))
    }
}

#[test]
fn an_object_that_is_to_go_is_removed_when_that_can_be_done_however_long_it_takes() {
    let n = node(1, 1 << 30, OstConfig::default());
    let (rt, store) = (n.world.rt(), n.store.clone());
    n.world.run(async move {
        let config = ImportConfig {
            nid: nid(),
            target: "stria-OST0000".into(),
            client: ClientId(99),
            key: ClusterKey::none(),
            recoverable: false,
            ping_interval: Duration::from_secs(10),
            place: 0,
        };
        let decides: Rc<dyn Callbacks> = Rc::new(Decides);
        let mds = Import::new(rt.clone(), config, Rc::downgrade(&decides));
        mds.ready(Duration::from_secs(5)).await.unwrap();
        let make = PrecreateRequest { seq: object(1).0.seq, count: 2, ..PrecreateRequest::default() };
        mds.ask::<_, PrecreateReply>(Op::OstPrecreate, &make).await.unwrap();
        let c = Client::new(rt.clone(), 1).await;
        let lock = c.lock(Mode::Pw, Extent::ALL, 0).await.unwrap().handle;
        let leaves = PromiseRequest { object: object(1), number: 1, size: REMOVED, withdrawn: false };
        c.import.ask::<_, ()>(Op::OstPromise, &leaves).await.unwrap();
        store.set_damaged(object(1), true);
        let cancel = CancelRequest { handles: vec![lock], cookies: Vec::new() };
        c.import.ask::<_, ()>(Op::LockCancel, &cancel).await.unwrap();
        rt.sleep(Duration::from_secs(300)).await;
        store.set_damaged(object(1), false);
        let late = c.lock(Mode::Pw, Extent::ALL, 0).await.map(|reply| reply.granted);
        assert!(store.attr(object(1)).await.is_err(), "somebody got a lock on it instead: {late:?}");
    });
}

#[test]
fn objects_that_are_not_there_take_no_place_of_those_that_are_copied() {
    let n = node(2, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(1).await;
        let ask = async |oid, since| {
            let q = ChangedRequest { object: object(oid), since };
            c.import.ask::<_, ChangedReply>(Op::OstChanged, &q).await
        };
        let copied = ask(1, 0).await.unwrap();
        for oid in 1000..6000 {
            let told = ask(oid, 0).await;
            assert!(told.as_ref().err().is_none_or(|e| *e == FsError::NotFound), "{told:?}");
        }
        c.write(0, &[1; 4096]).await.unwrap();
        let changed = ask(1, copied.version).await.unwrap().extents;
        assert_eq!(changed, [Extent::new(0, 4096)]);
    });
}
