//! Answers to requests that changed objects outlive the OST: it dies between the commit of a change and the arrival of its
//! answer, the request comes again, and is not carried out again.
#![allow(clippy::unwrap_used)]
mod support;

use std::cell::Cell;
use std::rc::Rc;

use frames::Bulk;
use oss::store::{BlockRange, ObjectStore};
use ptlrpc::{CallOptions, Callbacks, ClusterKey, Import, ImportConfig};
use rt::{LocalFuture, Rt};
use simworld::TestWorld;
use store_file::FileStore;
use support::*;
use types::{ClientId, Duration, Extent, FsError, Transno, WallTime};
use wire::Op;
use wire::ost::{
    AllocateRequest, AttrReply, PrecreateReply, PrecreateRequest, PunchKind, PunchRequest, SetattrRequest, WriteReply,
    WriteRequest,
};

/// Between two commits.
const INTERVAL: Duration = Duration::from_millis(1);
const FIRST: ClientId = ClientId(5);
const OTHER: ClientId = ClientId(6);
/// Bytes of the object when it begins.
const LEN: u64 = 20_000;

struct Plain;
impl Callbacks for Plain {
    fn on_callback(self: Rc<Self>, _: Op, _: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

async fn connect(rt: &Rt, client: ClientId) -> (Rc<Import>, Rc<Plain>) {
    let plain = Rc::new(Plain);
    let import = join(rt, client, plain.clone()).await;
    (import, plain)
}

/// Every request that changes an object, each about the bytes 4,000 to 9,000.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Write,
    SyncWrite,
    Truncate,
    Hole,
    Zero,
    Allocate,
    Setattr,
}

const KINDS: [Kind; 7] =
    [Kind::Write, Kind::SyncWrite, Kind::Truncate, Kind::Hole, Kind::Zero, Kind::Allocate, Kind::Setattr];
const ABOUT: Extent = Extent { start: 4000, end: 9000 };

async fn ask(rt: &Rt, import: &Import, kind: Kind) -> Result<Vec<u8>, FsError> {
    let (object, extent) = (object(), ABOUT);
    let punch = |kind| (Op::OstPunch, wire::encode(&PunchRequest { object, kind, extent, ..PunchRequest::default() }));
    let mut bulk = Bulk::new();
    let (op, body) = match kind {
        Kind::Truncate => punch(PunchKind::Truncate),
        Kind::Hole => punch(PunchKind::Hole),
        Kind::Zero => punch(PunchKind::Zero),
        Kind::Allocate => {
            (Op::OstAllocate, wire::encode(&AllocateRequest { object, extent, ..AllocateRequest::default() }))
        }
        Kind::Setattr => {
            let ask = SetattrRequest { object, valid: 2, mtime: WallTime(77), ..SetattrRequest::default() };
            (Op::OstSetattr, wire::encode(&ask))
        }
        Kind::Write | Kind::SyncWrite => {
            bulk = filled(rt, 1, extent.len() as usize);
            let (extents, sync) = (vec![extent], kind == Kind::SyncWrite);
            (Op::OstWrite, wire::encode(&WriteRequest { object, extents, sync, ..WriteRequest::default() }))
        }
    };
    import.call(op, body, bulk, CallOptions::default()).await.map(|r| r.body)
}

fn filled(rt: &Rt, byte: u8, len: usize) -> Bulk {
    let mut bulk = Bulk::alloc(rt.frames(), len).unwrap();
    bulk.copy_in(0, &vec![byte; len]);
    bulk
}

async fn write(rt: &Rt, import: &Import, at: u64, byte: u8, len: u64) {
    let ask = WriteRequest { object: object(), extents: vec![Extent::at(at, len)], ..WriteRequest::default() };
    let bulk = filled(rt, byte, len as usize);
    import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await.unwrap();
}

async fn content(store: &FileStore) -> Vec<u8> {
    let size = store.attr(object()).await.unwrap().size;
    let blocks = store.read(object(), BlockRange::new(0, size.div_ceil(4096))).await.unwrap();
    blocks.bulk.to_vec()[..size as usize].to_vec()
}

/// Ends the server so that the request under way is carried out and committed, but never answered.
async fn die_after_commit(rt: &Rt, world: &TestWorld, running: &Running, until: Transno, answered: &Cell<bool>) {
    let heard = || running.server.exports(TARGET).iter().find(|e| e.client() == FIRST).map(|e| e.last_heard());
    let before = heard();
    while heard() == before {
        rt.sleep(Duration::from_micros(1)).await;
    }
    world.close_listener(&nid());
    world.reset_connections();
    running.server.stop();
    while running.store.last_committed() < until {
        rt.sleep(Duration::from_micros(100)).await;
    }
    assert!(!answered.get(), "the answer is to be lost");
    running.store.abandon();
}

/// The first client asks, the OST dies after the commit, the other client writes before or after the request comes again.
/// What is in the object at the end, how many transactions there were, and what the first client was answered.
async fn asked_again(rt: Rt, world: TestWorld, kind: Kind) -> (Vec<u8>, Transno, Vec<u8>) {
    let running = start(&rt, 1, INTERVAL).await;
    let ((first, _a), (other, _b)) = (connect(&rt, FIRST).await, connect(&rt, OTHER).await);
    let make = PrecreateRequest { seq: object().0.seq, count: 1, ..PrecreateRequest::default() };
    first.ask::<_, PrecreateReply>(Op::OstPrecreate, &make).await.unwrap();
    write(&rt, &first, 0, 9, LEN).await;
    let (answered, out) = (Rc::new(Cell::new(false)), rt::sync::oneshot());
    let (ours, tell, import, sleeper) = (answered.clone(), out.0, first.clone(), rt.clone());
    rt.spawn(async move {
        let answer = ask(&sleeper, &import, kind).await;
        ours.set(true);
        tell.send(answer);
    });
    die_after_commit(&rt, &world, &running, Transno(2), &answered).await;
    let running = start(&rt, 2, INTERVAL).await;
    // It waits for the end of recovery at the server, as what the first client asks again does.
    write(&rt, &other, ABOUT.start, 2, ABOUT.len()).await;
    let answer = out.1.await.unwrap().unwrap();
    assert!(first.counters().2 > 0, "the request came again");
    running.store.sync().await.unwrap();
    let found = (content(&running.store).await, running.store.last_committed(), answer);
    // Who leaves is forgotten, with all answers.
    first.close().await;
    world.close_listener(&nid());
    running.server.stop();
    running.store.close().await.unwrap();
    let store = open(&rt, INTERVAL).await;
    assert!(store.answers_of(FIRST).is_empty());
    assert_eq!(store.answers_of(OTHER).len(), 1);
    found
}

#[test]
fn a_request_that_was_committed_and_not_answered_is_answered_by_the_next_life_and_not_carried_out_again() {
    for kind in KINDS {
        for seed in 1..6 {
            let world = made(seed);
            let (found, transnos, answer) = world.run(asked_again(world.rt(), world.clone(), kind));
            let mut want = vec![9; LEN as usize];
            if kind == Kind::Truncate {
                want.truncate(ABOUT.end as usize);
            }
            want[ABOUT.start as usize..ABOUT.end as usize].fill(2);
            assert!(found == want, "{kind:?}, seed {seed}: the other client's write is not what is there");
            assert_eq!(transnos, Transno(3), "{kind:?}, seed {seed}: a request was carried out twice");
            let lvb = match kind {
                Kind::Write | Kind::SyncWrite => wire::decode::<WriteReply>(&answer).unwrap().lvb,
                _ => wire::decode::<AttrReply>(&answer).unwrap().lvb,
            };
            let size = if kind == Kind::Truncate { ABOUT.start } else { LEN };
            assert_eq!(lvb.size, size, "{kind:?}: the answer is of the moment of the change");
        }
    }
}

#[test]
fn a_slot_keeps_its_last_answer_only_and_a_client_that_is_not_waited_for_has_none() {
    let world = made(1);
    let rt = world.rt();
    world.run(async move {
        let running = start(&rt, 1, INTERVAL).await;
        let (first, _a) = connect(&rt, FIRST).await;
        let make = PrecreateRequest { seq: object().0.seq, count: 1, ..PrecreateRequest::default() };
        first.ask::<_, PrecreateReply>(Op::OstPrecreate, &make).await.unwrap();
        for i in 0..200 {
            write(&rt, &first, i * 10, 1, 10).await;
        }
        let config = ImportConfig {
            nid: nid(),
            target: TARGET.into(),
            client: OTHER,
            key: ClusterKey::none(),
            recoverable: false,
            ping_interval: Duration::from_secs(1),
            place: 0,
        };
        let weak: std::rc::Weak<Plain> = std::rc::Weak::new();
        let passing = Import::new(rt.clone(), config, weak);
        passing.ready(Duration::from_secs(5)).await.unwrap();
        write(&rt, &passing, 0, 2, 10).await;
        running.server.stop();
        running.store.close().await.unwrap();
        let store = open(&rt, INTERVAL).await;
        let kept = store.answers_of(FIRST);
        assert!(!kept.is_empty() && kept.len() <= 64, "{} answers", kept.len());
        assert_eq!(kept.iter().map(|r| r.transno).max(), Some(Transno(200)));
        assert!(store.answers_of(OTHER).is_empty());
    });
}
