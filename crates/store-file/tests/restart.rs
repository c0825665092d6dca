//! An OST over a file store that crashes under its clients: they wait, replay, and lose nothing.
#![allow(clippy::unwrap_used)]
mod support;

use std::cell::RefCell;
use std::rc::Rc;

use frames::Bulk;
use oss::store::ObjectStore;
use ptlrpc::{CallOptions, Callbacks, Import};
use rt::{LocalFuture, Rt};
use simworld::DiskFault;
use support::*;
use types::{ClientId, Duration, Extent, FsError, MIB, ObjectId, OstIndex, Rng};
use wire::Op;
use wire::lock::{EnqueueFlags, EnqueueReply, EnqueueRequest, LockSpec, Mode};
use wire::ost::{PrecreateReply, PrecreateRequest, PunchKind, PunchRequest, ReadReply, ReadRequest, WriteRequest};

/// Remembers the lock it holds and tells a restarted server of it.
#[derive(Default)]
struct Holder {
    lock: RefCell<Option<EnqueueRequest>>,
    replayed: RefCell<Vec<EnqueueReply>>,
}
impl Callbacks for Holder {
    fn on_callback(self: Rc<Self>, _: Op, _: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
    fn state_replays(&self) -> Vec<(Op, Vec<u8>)> {
        let lock = self.lock.borrow();
        lock.iter().map(|l| (Op::LockEnqueue, wire::encode(l))).collect()
    }
    fn on_state_replayed(&self, _: Op, _: &[u8], answer: Result<Vec<u8>, FsError>) {
        self.replayed.borrow_mut().push(wire::decode(&answer.unwrap()).unwrap());
    }
}

async fn connect(rt: &Rt) -> (Rc<Import>, Rc<Holder>) {
    let holder = Rc::new(Holder::default());
    let import = join(rt, ClientId(5), holder.clone()).await;
    (import, holder)
}

async fn write(rt: &Rt, import: &Import, at: u64, bytes: &[u8]) {
    let mut bulk = Bulk::alloc(rt.frames(), bytes.len()).unwrap();
    bulk.copy_in(0, bytes);
    let extents = vec![Extent::at(at, bytes.len() as u64)];
    let ask = WriteRequest { object: object(), extents, ..WriteRequest::default() };
    import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await.unwrap();
}

async fn read_all(import: &Import) -> Vec<u8> {
    let ask = ReadRequest { object: object(), extents: vec![Extent::at(0, 2 * MIB)], ..ReadRequest::default() };
    let reply = import.call(Op::OstRead, wire::encode(&ask), Bulk::new(), CallOptions::default()).await.unwrap();
    assert_eq!(reply.decode::<ReadReply>().unwrap().lens, [reply.bulk.len() as u32]);
    reply.bulk.to_vec()
}

#[test]
fn writes_that_were_answered_and_not_committed_survive_a_crash_of_the_server() {
    for seed in 1..12 {
        let world = made(seed);
        let (rt, outer) = (world.rt(), world.clone());
        world.run(async move {
            // Alternately commits never come by themselves, and come all the time.
            let interval = if seed % 2 == 0 { 1_000_000 } else { 1 };
            let mut running = start(&rt, 1, Duration::from_millis(interval)).await;
            let (import, _) = connect(&rt).await;
            let ask = PrecreateRequest { seq: object().0.seq, count: 1, ..PrecreateRequest::default() };
            import.ask::<_, PrecreateReply>(Op::OstPrecreate, &ask).await.unwrap();
            let (mut rng, mut model) = (Rng::new(seed), Vec::<u8>::new());
            for life in 2..5 {
                for step in 0..20u64 {
                    let (at, len) = (rng.below(200_000), 1 + rng.below(30_000));
                    if step % 7 == 6 {
                        let extent = Extent::from(at);
                        let kind = PunchKind::Truncate;
                        let cut = PunchRequest { object: object(), kind, extent, ..PunchRequest::default() };
                        import.ask::<_, wire::ost::AttrReply>(Op::OstPunch, &cut).await.unwrap();
                        model.resize(at as usize, 0);
                        continue;
                    }
                    let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
                    write(&rt, &import, at, &bytes).await;
                    model.resize(model.len().max((at + len) as usize), 0);
                    model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
                }
                outer.close_listener(&nid());
                running.server.stop();
                running.store.abandon();
                rt.sleep(Duration::from_millis(rng.below(300))).await;
                running = start(&rt, life, Duration::from_millis(interval)).await;
                assert!(read_all(&import).await == model, "seed {seed}, life {life}");
            }
            let boots = running.store.boot();
            assert_eq!(boots, 4);
        });
    }
}

#[test]
fn the_mark_of_an_opening_outlives_a_crash_from_when_the_metadata_server_may_be_told_of_it() {
    let world = made(78);
    let (rt, outer) = (world.rt(), world.clone());
    world.run(async move {
        let mut told = Vec::new();
        for life in 1..=6 {
            let running = start(&rt, life, Duration::from_secs(1_000_000)).await;
            let openings = running.store.openings();
            let marks: Vec<u64> = openings.iter().map(|o| o.mark).collect();
            let (now, before) = marks.split_last().unwrap();
            assert_eq!((before, openings.last().unwrap().boot), (told.as_slice(), life));
            if life == 1 || life % 2 == 0 {
                running.store.keep_mark().await.unwrap();
                told.push(*now);
            }
            outer.close_listener(&nid());
            running.server.stop();
            running.store.abandon();
            // Its lock goes with its tasks.
            rt.sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn a_lock_that_is_told_again_after_a_restart_protects_as_before() {
    let world = made(77);
    let (rt, outer) = (world.rt(), world.clone());
    world.run(async move {
        let first = start(&rt, 1, Duration::from_millis(50)).await;
        let (import, holder) = connect(&rt).await;
        let ask = PrecreateRequest { seq: object().0.seq, count: 1, ..PrecreateRequest::default() };
        import.ask::<_, PrecreateReply>(Op::OstPrecreate, &ask).await.unwrap();
        let lock = LockSpec { fid: object().0, mode: Mode::Pw, extent: Extent::ALL, ..LockSpec::default() };
        let wish = EnqueueRequest { lock, cookie: 3, ..EnqueueRequest::default() };
        let granted: EnqueueReply = import.ask(Op::LockEnqueue, &wish).await.unwrap();
        assert!(granted.granted);
        *holder.lock.borrow_mut() = Some(EnqueueRequest { flags: EnqueueFlags::REPLAY, ..wish });
        outer.close_listener(&nid());
        first.server.stop();
        first.store.close().await.unwrap();
        let _second = start(&rt, 2, Duration::from_millis(50)).await;
        // Under its lock the client writes with the old handle; it is known by what it covers.
        let ask = WriteRequest {
            object: object(),
            extents: vec![Extent::at(0, 4096)],
            lock: granted.handle,
            ..WriteRequest::default()
        };
        let bulk = Bulk::alloc(rt.frames(), 4096).unwrap();
        import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await.unwrap();
        let replayed = holder.replayed.borrow();
        assert!(replayed.len() == 1 && replayed[0].granted && replayed[0].handle > granted.handle);
    });
}

/// What a client holds of the target's grant, as it says when it connects.
struct Saver {
    held: std::cell::Cell<u64>,
    told: std::cell::Cell<u64>,
}
impl Callbacks for Saver {
    fn on_callback(self: Rc<Self>, _: Op, _: Vec<u8>) -> LocalFuture<Result<Vec<u8>, FsError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
    fn granted(&self) -> u64 {
        self.held.get()
    }
    fn on_connected(&self, session: &wire::connect::AuthReply) {
        self.told.set(session.grant);
    }
}

#[test]
fn a_restarted_target_begins_its_book_of_grants_with_what_clients_hold() {
    let world = made(31);
    let (rt, outer) = (world.rt(), world.clone());
    world.run(async move {
        let mut running = start(&rt, 1, Duration::from_millis(1)).await;
        let saver = Rc::new(Saver { held: std::cell::Cell::new(0), told: std::cell::Cell::new(0) });
        let import = join(&rt, ClientId(5), saver.clone()).await;
        for (life, held) in [(2, 40 << 10), (3, 8192), (4, 0)] {
            saver.held.set(held);
            outer.close_listener(&nid());
            running.server.stop();
            running.store.close().await.unwrap();
            running = start(&rt, life, Duration::from_millis(1)).await;
            while import.session().boot != life || import.state() != ptlrpc::ImportState::Full {
                rt.sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(saver.told.get(), held, "life {life}");
        }
    });
}

#[test]
fn a_sync_write_and_what_came_before_it_survive_everything_at_once() {
    let world = made(5);
    let (rt, kept) = (world.rt(), Rc::new(RefCell::new(Vec::new())));
    let out = kept.clone();
    world.run(async move {
        let _running = start(&rt, 1, Duration::from_millis(1_000_000)).await;
        let (import, _) = connect(&rt).await;
        let ask = PrecreateRequest { seq: object().0.seq, count: 1, ..PrecreateRequest::default() };
        import.ask::<_, PrecreateReply>(Op::OstPrecreate, &ask).await.unwrap();
        write(&rt, &import, 0, &[1; 9000]).await;
        let mut bulk = Bulk::alloc(rt.frames(), 100).unwrap();
        bulk.copy_in(0, &[2; 100]);
        let extents = vec![Extent::at(50, 100)];
        let ask = WriteRequest { object: object(), extents, sync: true, ..WriteRequest::default() };
        import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await.unwrap();
        *out.borrow_mut() = read_all(&import).await;
        write(&rt, &import, 0, &[3; 5]).await;
        assert!(import.last_committed().0 >= 2);
    });
    let next = world.power_cycle(9);
    let rt = next.rt();
    next.run(async move {
        let running = start(&rt, 2, Duration::from_millis(1)).await;
        let blocks = running.store.read(object(), oss::store::BlockRange::new(0, 3)).await.unwrap();
        let attr = running.store.attr(object()).await.unwrap();
        assert_eq!((attr.size, &blocks.bulk.to_vec()[..9000]), (9000, &kept.borrow()[..]));
        assert_eq!(kept.borrow()[49..51], [1, 2]);
    });
}

#[test]
fn orphans_go_for_good_and_objects_in_use_do_not() {
    let world = made(6);
    let rt = world.rt();
    world.run(async move {
        let running = start(&rt, 1, Duration::from_millis(1)).await;
        let (import, _) = connect(&rt).await;
        let seq = object().0.seq;
        let ask = PrecreateRequest { seq, count: 4, ..PrecreateRequest::default() };
        import.ask::<_, PrecreateReply>(Op::OstPrecreate, &ask).await.unwrap();
        for oid in 1..=3 {
            let bulk = Bulk::alloc(rt.frames(), 4096).unwrap();
            let object = ObjectId::new(OstIndex(0), oid);
            let ask = WriteRequest { object, extents: vec![Extent::at(0, 4096)], ..WriteRequest::default() };
            import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await.unwrap();
        }
        let ask = PrecreateRequest { seq, last_used: 2, count: 8, orphans: true, ..PrecreateRequest::default() };
        let reply: PrecreateReply = import.ask(Op::OstPrecreate, &ask).await.unwrap();
        assert_eq!((reply.first, reply.last, reply.statfs.files), (5, 12, 10));
        let listed = running.store.objects(ObjectId::default(), 99).await.unwrap();
        let sizes: Vec<(u32, u64)> = listed.iter().map(|o| (o.object.0.oid, o.attr.size)).collect();
        let fresh = (5..=12).map(|oid| (oid, 0));
        assert_eq!(sizes, [(1, 4096), (2, 4096)].into_iter().chain(fresh).collect::<Vec<_>>());
    });
}

/// Objects up to the ninth were given out of a store that has made four: what is answered to who has `lost` given up and asks for more, and
/// then to a read of the seventh.
fn asked_for_more_than_was_made(
    lost: u32,
    bug: Option<&'static str>,
) -> (Result<(u32, u32), FsError>, Option<FsError>) {
    types::planted::plant(bug);
    let world = made(7);
    let rt = world.rt();
    let answers = world.run(async move {
        let _running = start(&rt, 1, Duration::from_millis(1)).await;
        let (import, _) = connect(&rt).await;
        let seq = object().0.seq;
        let ask = PrecreateRequest { seq, count: 4, ..PrecreateRequest::default() };
        import.ask::<_, PrecreateReply>(Op::OstPrecreate, &ask).await.unwrap();
        let ask = PrecreateRequest { seq, last_used: 9, count: 8, lost, ..PrecreateRequest::default() };
        let more = import.ask::<_, PrecreateReply>(Op::OstPrecreate, &ask).await.map(|r| (r.first, r.last));
        let object = ObjectId::new(OstIndex(0), 7);
        let ask = ReadRequest { object, extents: vec![Extent::at(0, 4096)], ..ReadRequest::default() };
        let read = import.call(Op::OstRead, wire::encode(&ask), Bulk::new(), CallOptions::default()).await;
        (more, read.err())
    });
    types::planted::plant(None);
    answers
}

#[test]
fn objects_that_were_given_out_and_never_made_are_not_made_anew() {
    assert_eq!(asked_for_more_than_was_made(0, None), (Err(FsError::Stale), Some(FsError::NotFound)));
    assert_eq!(asked_for_more_than_was_made(9, None), (Ok((10, 17)), Some(FsError::Io)));
    let (more, read) = asked_for_more_than_was_made(0, Some("older-copy-made-anew"));
    assert!(more.is_ok() && read.is_none(), "the planted bug is found: {more:?} {read:?}");
}

/// Objects are asked for twice where the commit of the first ones fails: whether the second answer tells of any that the store has not kept.
fn tells_of_objects_that_are_not_kept(bug: Option<&'static str>) -> bool {
    types::planted::plant(bug);
    let world = made(8);
    let (rt, outer) = (world.rt(), world.clone());
    let told = world.run(async move {
        let _running = start(&rt, 1, Duration::from_millis(1)).await;
        let (import, _) = connect(&rt).await;
        let ask = PrecreateRequest { seq: object().0.seq, count: 4, ..PrecreateRequest::default() };
        outer.host().set_disk_fault(DiskFault { syncs: true, times: 1, ..DiskFault::default() });
        let first = import.ask::<_, PrecreateReply>(Op::OstPrecreate, &ask).await;
        assert_eq!(first.err(), Some(FsError::Io));
        import.ask::<_, PrecreateReply>(Op::OstPrecreate, &ask).await.map_or(0, |reply| reply.last)
    });
    types::planted::plant(None);
    let next = world.power_cycle(8);
    let rt = next.rt();
    let kept = next.run(async move { start(&rt, 2, Duration::from_millis(1)).await.store.last_object(object().0.seq) });
    told > kept
}

#[test]
fn objects_whose_commit_failed_are_told_to_nobody() {
    assert!(!tells_of_objects_that_are_not_kept(None));
    assert!(tells_of_objects_that_are_not_kept(Some("objects-told-early")), "the planted bug is found");
}
