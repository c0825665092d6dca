//! What an OST's trace tells of requests that wait for locks and commits: how long, and whose lock that was.
#![allow(clippy::unwrap_used)]
mod node;

use node::*;
use trace::{Flags, Record};
use wire::ost::{TraceReply, TraceRequest};

/// What the OST has kept, as a client is told.
async fn kept(c: &Client) -> Vec<Record> {
    let ask = TraceRequest { from: 0, version: trace::VERSION };
    let reply: TraceReply = c.import.ask(Op::OstTrace, &ask).await.unwrap();
    trace::told::records(&reply.records, reply.version).unwrap()
}

fn of(records: &[Record], client: u64, op: Op) -> Vec<Record> {
    records.iter().filter(|r| r.client == ClientId(client) && r.op == op).copied().collect()
}

#[test]
fn a_lock_that_is_waited_for_is_a_request_with_its_holder() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (a, b) = (Client::new(rt.clone(), 1).await, Client::new(rt.clone(), 2).await);
        a.create(1).await;
        a.me.deaf.set(true);
        let held = a.lock(Mode::Pw, Extent::ALL, 0).await.unwrap();
        let granted_at_once = kept(&a).await;
        assert!(of(&granted_at_once, 1, Op::LockEnqueue).is_empty(), "{granted_at_once:?}");
        assert!(!b.lock(Mode::Pr, Extent::new(0, 4096), 0).await.unwrap().granted);
        rt.sleep(Duration::from_millis(70)).await;
        assert!(of(&kept(&b).await, 2, Op::LockEnqueue).is_empty(), "it is not over");
        let ask = CancelRequest { handles: vec![held.handle], cookies: Vec::new() };
        a.import.ask::<_, ()>(Op::LockCancel, &ask).await.unwrap();
        let waited = of(&kept(&b).await, 2, Op::LockEnqueue);
        assert_eq!((waited.len(), waited[0].holder, waited[0].object), (1, ClientId(1), object(1)));
        assert!((70_000..1_000_000).contains(&waited[0].locked_us), "{waited:?}");
        assert_eq!(u128::from(waited[0].locked_us), waited[0].response().as_micros());
        assert!(waited[0].xid.0 > 0 && waited[0].flags.has(Flags::UNSCHEDULED));

        // Withdrawn: by its name, and by the end of its client.
        a.lock(Mode::Pw, Extent::new(1 << 20, 2 << 20), 0).await.unwrap();
        assert!(!b.lock(Mode::Pw, Extent::ALL, 0).await.unwrap().granted);
        let ask = CancelRequest { handles: Vec::new(), cookies: vec![b.cookies.get() - 1] };
        b.import.ask::<_, ()>(Op::LockCancel, &ask).await.unwrap();
        let withdrawn = of(&kept(&b).await, 2, Op::LockEnqueue);
        assert!(withdrawn.len() == 2 && withdrawn[1].flags.has(Flags::CANCELLED), "{withdrawn:?}");
        assert!(!b.lock(Mode::Pw, Extent::ALL, 0).await.unwrap().granted);
        b.import.close().await;
        let gone = of(&kept(&a).await, 2, Op::LockEnqueue);
        assert!(gone.len() == 3 && gone[2].flags.has(Flags::CANCELLED), "{gone:?}");
    });
}

#[test]
fn a_request_without_a_lock_waits_for_one_before_it_is_queued() {
    let n = node(2, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (a, b) = (Client::new(rt.clone(), 1).await, Rc::new(Client::new(rt.clone(), 2).await));
        a.create(1).await;
        a.me.deaf.set(true);
        let held = a.lock(Mode::Pw, Extent::ALL, 0).await.unwrap();
        let (read, done) = (b.clone(), Rc::new(Cell::new(false)));
        let told = done.clone();
        rt.spawn(async move {
            read.read(0, 4096).await.unwrap();
            told.set(true);
        });
        rt.sleep(Duration::from_millis(50)).await;
        assert!(!done.get());
        let ask = CancelRequest { handles: vec![held.handle], cookies: Vec::new() };
        a.import.ask::<_, ()>(Op::LockCancel, &ask).await.unwrap();
        while !done.get() {
            rt.sleep(Duration::from_millis(1)).await;
        }
        let reads = of(&kept(&b).await, 2, Op::OstRead);
        assert_eq!((reads.len(), reads[0].holder), (1, ClientId(1)), "{reads:?}");
        assert!(reads[0].locked_us > 40_000 && reads[0].before_us >= reads[0].locked_us, "{reads:?}");
        assert!(reads[0].at_target() > Duration::from_millis(40) && reads[0].queued() < Duration::from_millis(1));
    });
}

#[test]
fn a_synchronous_write_tells_how_long_it_was_committed_and_an_fsync_is_all_commit() {
    let n = node(3, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt.clone(), 1).await;
        c.create(1).await;
        c.write(0, &[1; 4096]).await.unwrap();
        let mut bulk = Bulk::alloc(rt.frames(), 4096).unwrap();
        bulk.copy_in(0, &[2; 4096]);
        let extents = vec![Extent::at(4096, 4096)];
        let ask = WriteRequest { object: object(1), extents, sync: true, ..WriteRequest::default() };
        c.import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await.unwrap();
        c.write(8192, &[3; 4096]).await.unwrap();
        c.import.ask::<_, ()>(Op::OstSync, &wire::ost::SyncRequest::default()).await.unwrap();
        let records = kept(&c).await;
        let writes = of(&records, 1, Op::OstWrite);
        assert_eq!(writes.iter().map(|r| r.offset).collect::<Vec<_>>(), [0, 4096, 8192], "each once: {records:?}");
        assert_eq!((writes[0].committed_us, writes[0].after_us, writes[2].committed_us), (0, 0, 0));
        assert_eq!(writes[1].committed_us, writes[1].after_us);
        let syncs = of(&records, 1, Op::OstSync);
        assert_eq!((syncs.len(), syncs[0].flags), (1, Flags::UNSCHEDULED));
        assert_eq!(u128::from(syncs[0].committed_us), syncs[0].response().as_micros());
        // A tool that knows shorter records is told so.
        let old: Result<TraceReply, FsError> = c.import.ask(Op::OstTrace, &TraceRequest::default()).await;
        assert_eq!(old, Err(FsError::NotSupported));
    });
}
