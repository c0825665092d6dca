//! An OST over sessions, as clients see it: bytes, checksums, locks, grants.
#![allow(clippy::unwrap_used)]
mod node;

use node::*;

/// Random byte ranges against an array, in one of the cache's settings.
async fn bytes_equal_an_array(rt: Rt, seed: u64) {
    let c = Client::new(rt, 1).await;
    c.create(1).await;
    let (mut rng, mut model) = (Rng::new(seed), Vec::<u8>::new());
    const MAX: u64 = 300_000;
    for step in 0..400u32 {
        let at = if rng.chance(0.3) { rng.below(70) * 4096 } else { rng.below(MAX) };
        let len = 1 + if rng.chance(0.5) { rng.below(9000) } else { rng.below(90_000) };
        let end = at + len;
        match rng.below(10) {
            0..4 => {
                let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
                let reply = c.write(at, &bytes).await.unwrap();
                model.resize(model.len().max(end as usize), 0);
                model[at as usize..end as usize].copy_from_slice(&bytes);
                assert_eq!(reply.lvb.size, model.len() as u64);
            }
            4 => {
                let pieces: Vec<(u64, Vec<u8>)> = (0..3)
                    .map(|i| (at + i * 7000, vec![(u64::from(step) + i) as u8; 1 + rng.below(6999) as usize]))
                    .collect();
                let slices: Vec<(u64, &[u8])> = pieces.iter().map(|(a, b)| (*a, &b[..])).collect();
                c.write_to(object(1), &slices, 0).await.unwrap();
                for (a, b) in &pieces {
                    model.resize(model.len().max(*a as usize + b.len()), 0);
                    model[*a as usize..*a as usize + b.len()].copy_from_slice(b);
                }
            }
            5 => {
                let reply = c.punch(PunchKind::Truncate, Extent::from(at)).await.unwrap();
                model.resize(at as usize, 0);
                assert_eq!(reply.lvb.size, at);
            }
            6 => {
                let kind = if rng.chance(0.5) { PunchKind::Hole } else { PunchKind::Zero };
                c.punch(kind, Extent::new(at, end)).await.unwrap();
                let (a, b) = ((at as usize).min(model.len()), (end as usize).min(model.len()));
                model[a..b].fill(0);
            }
            _ => {
                let second = Extent::at(end + rng.below(3) * 5000, 1 + rng.below(20_000));
                let first = Extent::new(at, end);
                let (got, reply) = c.read_from(object(1), vec![first, second]).await.unwrap();
                let part = |e: Extent| &model[(e.start as usize).min(model.len())..(e.end as usize).min(model.len())];
                assert!(got == [part(first), part(second)].concat(), "step {step}: {first} {second}");
                assert_eq!(reply.lens, [part(first).len() as u32, part(second).len() as u32]);
            }
        }
    }
    let all = c.read(0, 2 * MAX).await.unwrap();
    assert!(all == model);
}

#[test]
fn bytes_through_an_ost_equal_an_array_with_every_setting_of_the_cache() {
    for (i, (read_cache, writethrough_cache)) in
        [(true, true), (true, false), (false, true), (false, false)].into_iter().enumerate()
    {
        for cache_bytes in [0, 128 << 10, 8 << 20] {
            let cache_first = i % 2 == 1;
            let config = OstConfig { read_cache, writethrough_cache, cache_bytes, cache_first, ..OstConfig::default() };
            let n = node(i as u64 + cache_bytes, 1 << 30, config);
            n.world.run(bytes_equal_an_array(n.world.rt(), i as u64 + cache_bytes));
        }
    }
}

#[test]
fn a_damaged_transfer_is_refused_and_changes_nothing() {
    let n = node(1, 1 << 30, OstConfig::default());
    let (rt, world, ost) = (n.world.rt(), n.world.clone(), n.ost.clone());
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(1).await;
        c.write(0, &[1; 10_000]).await.unwrap();
        world.damage_next_bulk();
        assert_eq!(c.write(0, &[2; 10_000]).await.unwrap_err(), FsError::Corrupt);
        assert_eq!(c.read(0, 10_000).await.unwrap(), [1; 10_000]);
        let stats = ost.get_params("obdfilter.*.stats");
        assert!(String::from_utf8_lossy(&stats[0].value).contains("bulk_checksum_errors"));
    });
    drop(n.oss);
}

#[test]
fn requests_that_are_not_sensible_are_refused() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(2).await;
        assert_eq!(c.write_to(object(9), &[(0, &[1])], 0).await.unwrap_err(), FsError::NotFound);
        assert_eq!(c.write_to(object(1), &[(10, &[1; 9]), (12, &[1])], 0).await.unwrap_err(), FsError::Invalid);
        assert_eq!(c.write(i64::MAX as u64, &[1]).await.unwrap_err(), FsError::FileTooBig);
        assert_eq!(c.read(0, 65 * MIB).await.unwrap_err(), FsError::TooBig);
        assert_eq!(c.read_from(object(1), Vec::new()).await.unwrap_err(), FsError::Invalid);
        assert_eq!(c.read(0, 0).await.unwrap_err(), FsError::Invalid);
        assert_eq!(c.punch(PunchKind::Hole, Extent::at(5, 0)).await.unwrap_err(), FsError::Invalid);
        let junk = c.import.call(Op::OstWrite, vec![255; 9], Bulk::new(), CallOptions::default()).await;
        assert_eq!(junk.unwrap_err(), FsError::Protocol);
        let wrong = PrecreateRequest { seq: 5, count: 1, ..PrecreateRequest::default() };
        assert_eq!(c.import.ask::<_, PrecreateReply>(Op::OstPrecreate, &wrong).await.unwrap_err(), FsError::Invalid);
        let gone = DestroyRequest { objects: vec![object(2), object(77)] };
        c.import.ask::<_, ()>(Op::OstDestroy, &gone).await.unwrap();
        assert_eq!(n.ost.store().attr(object(2)).await.unwrap_err(), FsError::NotFound);
    });
}

#[test]
fn what_an_earlier_metadata_server_asks_for_late_removes_no_object_of_the_next_one() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let first = Client::new(rt.clone(), 1).await;
        let ask = |last_used, orphans| PrecreateRequest {
            seq: object(1).0.seq,
            last_used,
            count: 8,
            orphans,
            ..PrecreateRequest::default()
        };
        first.import.ask::<_, PrecreateReply>(Op::OstPrecreate, &ask(0, true)).await.unwrap();
        // The next one counts all of them as used, and gives the ones behind to its files.
        let next = Client::new(rt, 2).await;
        let made: PrecreateReply = next.import.ask(Op::OstPrecreate, &ask(8, true)).await.unwrap();
        assert_eq!((made.first, made.last), (9, 16));
        next.write_to(object(9), &[(0, &[7; 100])], 0).await.unwrap();
        let late = first.import.ask::<_, PrecreateReply>(Op::OstPrecreate, &ask(0, true)).await;
        assert_eq!(late.unwrap_err(), FsError::Stale);
        assert_eq!(n.ost.store().attr(object(9)).await.unwrap().size, 100);
        next.import.ask::<_, PrecreateReply>(Op::OstPrecreate, &ask(9, false)).await.unwrap();
    });
}

#[test]
fn a_request_for_objects_that_a_later_one_of_its_server_has_overtaken_removes_nothing() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let server = Client::new(rt.clone(), 1).await;
        let ask =
            PrecreateRequest { seq: object(1).0.seq, count: 8, orphans: true, epoch: 4, ..PrecreateRequest::default() };
        // It waits for the store's medium; its server's connection has broken meanwhile, and it has asked anew.
        n.store.set_time_of_next_look(Duration::from_secs(3));
        let ((tx, rx), import, again) = (rt::sync::oneshot(), server.import.clone(), ask.clone());
        rt.spawn(async move { tx.send(import.ask::<_, PrecreateReply>(Op::OstPrecreate, &again).await) });
        rt.sleep(Duration::from_secs(1)).await;
        let made: PrecreateReply = server.import.ask(Op::OstPrecreate, &ask).await.unwrap();
        server.write_to(object(made.first), &[(0, &[7; 100])], 0).await.unwrap();
        assert_eq!(rx.await.unwrap().unwrap_err(), FsError::Stale);
        assert_eq!(n.ost.store().attr(object(made.first)).await.unwrap().size, 100);
    });
}

#[test]
fn holes_are_found_and_reserved_space_reads_as_zeros() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(1).await;
        c.write(8192, &[1; 4096]).await.unwrap();
        let seek = async |offset, kind| {
            let ask = SeekRequest { object: object(1), offset, kind };
            c.import.ask::<_, SeekReply>(Op::OstSeek, &ask).await.unwrap().offset
        };
        assert_eq!(seek(5, SeekKind::Data).await, 8192);
        assert_eq!(seek(8200, SeekKind::Data).await, 8200);
        assert_eq!(seek(8200, SeekKind::Hole).await, 12288);
        assert_eq!(seek(3, SeekKind::Hole).await, 3);
        assert_eq!(seek(12288, SeekKind::Data).await, u64::MAX);
        let ask = AllocateRequest { object: object(1), extent: Extent::new(100, 50_000), ..AllocateRequest::default() };
        let reply: AttrReply = c.import.ask(Op::OstAllocate, &ask).await.unwrap();
        assert_eq!((reply.lvb.size, reply.lvb.blocks), (50_000, 13 * 8));
        assert_eq!(c.read(20_000, 4000).await.unwrap(), [0; 4000]);
        assert_eq!(c.read(8192, 10).await.unwrap(), [1; 10]);
    });
}

#[test]
fn reserved_space_takes_writes_when_there_is_no_other() {
    let n = node(5, 24 * MIB, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(2).await;
        let extent = Extent::new(0, 8 * MIB);
        let ask = AllocateRequest { object: object(1), extent, ..AllocateRequest::default() };
        c.import.ask::<_, AttrReply>(Op::OstAllocate, &ask).await.unwrap();
        let piece = vec![1; MIB as usize];
        let mut at = 0;
        while c.write_to(object(2), &[(at, &piece)], 0).await.is_ok() {
            at += MIB;
        }
        assert!(at > 0, "there is space besides what was reserved");
        let halves: [(u64, &[u8]); 2] = [(100, &piece[..5000]), (4 * MIB, &piece)];
        c.write_to(object(1), &halves, 0).await.expect("there is space for what was reserved");
        for i in 0..8 {
            c.write_to(object(1), &[(i * MIB, &piece)], 0).await.map(drop).unwrap_or_else(|e| {
                // Written twice: new bytes go elsewhere before the old ones are free.
                assert!(matches!(i, 0 | 4) && e == FsError::NoSpace, "{i}: {e}");
            });
        }
        let behind = c.write_to(object(1), &[(8 * MIB, &piece)], 0).await.map(drop);
        assert_eq!(behind, Err(FsError::NoSpace), "behind it");
    });
}

#[test]
fn a_writer_that_gave_one_lock_back_is_asked_by_its_next_one_how_long_the_object_is() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (a, b) = (Client::new(rt.clone(), 1).await, Client::new(rt.clone(), 2).await);
        a.create(1).await;
        let mut held = Vec::new();
        for page in [0, 8, 16] {
            held.push(a.lock(Mode::Pw, Extent::at(page * 4096, 4096), EnqueueFlags::NO_EXPAND).await.unwrap().handle);
        }
        a.me.size.set(3000);
        a.me.given_up.borrow_mut().extend([held[2], held[1]]);
        let size = async || b.lock(Mode::Pr, Extent::ALL, EnqueueFlags::GLIMPSE).await.unwrap().lvb.unwrap().size;
        assert_eq!(size().await, 3000, "it wrote under the first one");
        a.me.given_up.borrow_mut().push(held[0]);
        assert_eq!(size().await, 0, "it knows nothing any more: the OST has everything");
    });
}

#[test]
fn a_conflicting_lock_is_called_back_and_its_waiter_completed() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (a, b) = (Client::new(rt.clone(), 1).await, Client::new(rt.clone(), 2).await);
        a.create(1).await;
        let held = a.lock(Mode::Pw, Extent::at(0, 4096), 0).await.unwrap();
        assert!(held.granted && held.lock.extent == Extent::ALL, "an uncontended lock grows");
        a.me.size.set(777);
        let glimpse = b.lock(Mode::Pr, Extent::ALL, EnqueueFlags::GLIMPSE).await.unwrap();
        assert_eq!((glimpse.handle, glimpse.granted), (HandleId(0), false));
        assert_eq!(glimpse.lvb.map(|l| (l.size, l.mtime)), Some((777, WallTime(5))));
        assert_eq!(b.lock(Mode::Pr, Extent::ALL, EnqueueFlags::NOWAIT).await.unwrap_err(), FsError::WouldBlock);
        let waiting = b.lock(Mode::Pr, Extent::at(0, 10), 0).await.unwrap();
        assert!(!waiting.granted && waiting.handle.0 != 0);
        while b.me.granted.borrow().is_empty() {
            rt.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(b.me.granted.borrow()[0].handle, waiting.handle);
        assert_eq!(a.me.blocked.borrow()[0].handle, held.handle);
        // A request without a lock waits for b's lock to go, too.
        a.write(0, &[3; 100]).await.unwrap();
        assert_eq!(b.me.blocked.borrow().len(), 1);
    });
}

#[test]
fn a_client_that_ignores_a_callback_is_evicted_and_the_others_go_on() {
    let n = node(1, 1 << 30, OstConfig::default());
    let (rt, ost) = (n.world.rt(), n.ost.clone());
    n.world.run(async move {
        let (a, b) = (Client::new(rt.clone(), 1).await, Client::new(rt.clone(), 2).await);
        a.create(1).await;
        a.lock(Mode::Pw, Extent::ALL, 0).await.unwrap();
        a.me.deaf.set(true);
        let start = rt.now();
        b.write(0, &[1; 100]).await.unwrap();
        assert!(rt.now().since(start) >= Duration::from_secs(30));
        rt.sleep(Duration::from_secs(2)).await;
        assert!(a.me.evicted.get());
        let locks = ost.get_params("ldlm.namespaces.*.lock_count");
        assert_eq!(&locks[0].value[..], b"0");
    });
}

#[test]
fn a_write_that_was_under_way_when_its_client_was_evicted_is_not_carried_out() {
    let n = node(1, 1 << 30, OstConfig::default());
    let (rt, server) = (n.world.rt(), n.server.clone());
    n.world.run(async move {
        let (a, b) = (Rc::new(Client::new(rt.clone(), 1).await), Client::new(rt.clone(), 2).await);
        a.create(1).await;
        let held = b.lock(Mode::Pw, Extent::ALL, 0).await.unwrap();
        b.me.deaf.set(true);
        let ((tx, rx), writer) = (rt::sync::oneshot(), a.clone());
        rt.spawn(async move { tx.send(writer.write(0, &[7; 100]).await.map(drop)) });
        // It waits for the lock.
        while b.me.blocked.borrow().is_empty() {
            rt.sleep(Duration::from_millis(1)).await;
        }
        server.evict("stria-OST0000", ClientId(1)).await;
        let cancel = CancelRequest { handles: vec![held.handle], cookies: Vec::new() };
        b.import.ask::<_, ()>(Op::LockCancel, &cancel).await.unwrap();
        assert_eq!(rx.await.unwrap(), Err(FsError::NotConnected));
        rt.sleep(Duration::from_secs(5)).await;
        assert_eq!(b.read(0, 100).await.unwrap(), [0; 0]);
    });
}

#[test]
fn a_write_that_waits_while_its_client_leaves_and_comes_back_is_not_carried_out_over_later_ones() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (a, b) = (Rc::new(Client::new(rt.clone(), 1).await), Client::new(rt.clone(), 2).await);
        a.create(1).await;
        let held = b.lock(Mode::Pw, Extent::ALL, 0).await.unwrap();
        b.me.deaf.set(true);
        let ((tx, rx), writer) = (rt::sync::oneshot(), a.clone());
        rt.spawn(async move { tx.send(writer.write(0, &[7; 100]).await.map(drop)) });
        while b.me.blocked.borrow().is_empty() {
            rt.sleep(Duration::from_millis(1)).await;
        }
        // It gives the OST up, and is back at once.
        a.import.deactivate();
        a.import.activate();
        assert_eq!(rx.await.unwrap(), Err(FsError::Io));
        a.import.ready(Duration::from_secs(5)).await.unwrap();
        b.write_under(held.handle, &[9; 100]).await.unwrap();
        b.me.deaf.set(false);
        let cancel = CancelRequest { handles: vec![held.handle], cookies: Vec::new() };
        b.import.ask::<_, ()>(Op::LockCancel, &cancel).await.unwrap();
        rt.sleep(Duration::from_secs(5)).await;
        assert_eq!(b.read(0, 100).await.unwrap(), [9; 100]);
        a.write(0, &[8; 100]).await.expect("its new session writes");
        assert_eq!(b.read(0, 100).await.unwrap(), [8; 100]);
    });
}

#[test]
fn the_locks_of_a_client_that_is_evicted_twice_wait_for_what_it_has_in_the_store() {
    let n = node(1, 1 << 30, OstConfig::default());
    let (rt, server, store) = (n.world.rt(), n.server.clone(), n.store.clone());
    n.world.run(async move {
        let (a, b) = (Rc::new(Client::new(rt.clone(), 1).await), Client::new(rt.clone(), 2).await);
        a.create(1).await;
        let held = a.lock(Mode::Pw, Extent::ALL, 0).await.unwrap();
        a.me.deaf.set(true);
        assert!(!b.lock(Mode::Pr, Extent::ALL, 0).await.unwrap().granted);
        rt.sleep(Duration::from_secs(20)).await;
        store.set_time_of_next_update(Duration::from_secs(60));
        let writer = a.clone();
        rt.spawn(async move { drop(writer.write_under(held.handle, &[7; 100]).await) });
        rt.sleep(Duration::from_secs(1)).await;
        // An administrator evicts it, which waits for the write; its time to answer the callback is over meanwhile.
        rt.spawn(async move { server.evict("stria-OST0000", ClientId(1)).await });
        while b.me.granted.borrow().is_empty() {
            rt.sleep(Duration::from_millis(100)).await;
        }
        let then = b.read(0, 100).await.unwrap();
        rt.sleep(Duration::from_secs(100)).await;
        assert_eq!(b.read(0, 100).await.unwrap(), then, "under its lock nobody else changes anything");
        assert_eq!(then, [7; 100]);
    });
}

#[test]
fn a_read_brings_its_lock_along_and_waits_for_nobody() {
    let n = node(1, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (a, b) = (Client::new(rt.clone(), 1).await, Client::new(rt.clone(), 2).await);
        a.create(1).await;
        a.write(0, &[9; 5000]).await.unwrap();
        let lock = LockSpec { fid: object(1).0, mode: Mode::Pr, extent: Extent::at(0, 4096), ..LockSpec::default() };
        let enqueue = Some(EnqueueRequest { lock, cookie: 50, ..EnqueueRequest::default() });
        let ask = ReadRequest { object: object(1), extents: vec![Extent::at(0, 4096)], enqueue, ..Default::default() };
        let reply = a.import.call(Op::OstRead, wire::encode(&ask), Bulk::new(), CallOptions::default()).await.unwrap();
        let body: ReadReply = reply.decode().unwrap();
        let lock = body.enqueue.unwrap();
        assert!(lock.granted && lock.handle.0 != 0 && lock.lvb.is_some_and(|v| v.size == 5000));
        assert_eq!((body.lens, reply.bulk.to_vec()), (vec![4096], vec![9; 4096]));
        // Sent again, it gets the same lock and the bytes once more.
        let reply = a.import.call(Op::OstRead, wire::encode(&ask), Bulk::new(), CallOptions::default()).await.unwrap();
        let body: ReadReply = reply.decode().unwrap();
        assert_eq!((body.enqueue.unwrap().handle, reply.bulk.len()), (lock.handle, 4096));
        assert_eq!(&n.ost.get_params("ldlm.namespaces.*.lock_count")[0].value[..], b"1");
        // With a writer in the way it is a wish for a lock like any other, and nothing is read.
        b.lock(Mode::Pw, Extent::ALL, 0).await.unwrap();
        let mut again = ask.clone();
        again.enqueue.as_mut().unwrap().cookie = 51;
        let reply =
            a.import.call(Op::OstRead, wire::encode(&again), Bulk::new(), CallOptions::default()).await.unwrap();
        let body: ReadReply = reply.decode().unwrap();
        assert!(body.enqueue.is_some_and(|e| !e.granted && e.handle.0 != 0));
        assert_eq!((body.lens.len(), reply.bulk.len(), b.me.blocked.borrow().len()), (0, 0, 1));
    });
}

#[test]
fn a_write_with_grant_never_fails_and_a_full_target_says_so_at_once() {
    let config = OstConfig { grant_initial_bytes: MIB, grant_max_bytes: 4 * MIB, ..OstConfig::default() };
    let n = node(4, 24 * MIB, config);
    let (rt, ost) = (n.world.rt(), n.ost.clone());
    n.world.run(async move {
        let clients = [Client::new(rt.clone(), 1).await, Client::new(rt.clone(), 2).await];
        clients[0].create(2).await;
        let mut grants = clients.each_ref().map(|c| c.import.session().grant);
        assert_eq!(grants, [MIB; 2]);
        let (mut rng, mut full, mut at) = (Rng::new(3), 0, [0u64; 2]);
        while full < 10 {
            let i = rng.below(2) as usize;
            let len = 4096 * (1 + rng.below(30));
            let charge = if grants[i] >= len { len } else { 0 };
            let ask = WriteRequest {
                object: object(1 + i as u32),
                extents: vec![Extent::at(at[i], len)],
                grant_used: charge,
                grant_wanted: 2 * MIB,
                ..WriteRequest::default()
            };
            let bulk = Bulk::alloc(rt.frames(), len as usize).unwrap();
            let call = clients[i].import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default());
            match call.await {
                Ok(reply) => {
                    grants[i] = grants[i] + reply.decode::<WriteReply>().unwrap().grant - charge;
                    at[i] += len;
                }
                Err(e) => {
                    assert_eq!((e, charge), (FsError::NoSpace, 0), "a granted write failed");
                    full += 1;
                    grants[i] -= charge;
                }
            }
            let s: StatfsReply = ost.statfs();
            assert!(s.available <= s.free && s.free >= grants.iter().sum::<u64>(), "{s:?} {grants:?}");
        }
        assert!(at.iter().sum::<u64>() > 18 * MIB, "{at:?}");
        // What is punched can be written again.
        clients[0].punch(PunchKind::Truncate, Extent::from(0)).await.unwrap();
        clients[0].write(0, &[1; 40_960]).await.unwrap();
    });
}

#[test]
fn space_is_reserved_under_the_clients_own_lock_or_under_one_of_the_server() {
    let n = node(3, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (a, b) = (Client::new(rt.clone(), 1).await, Client::new(rt.clone(), 2).await);
        a.create(1).await;
        let reserve = async |c: &Client, lock: HandleId, at: u64| {
            let extent = Extent::at(at, 8192);
            let ask = AllocateRequest { object: object(1), extent, lock, ..AllocateRequest::default() };
            c.import.ask::<_, AttrReply>(Op::OstAllocate, &ask).await.unwrap().lvb.size
        };
        let lock = a.lock(Mode::Pw, Extent::ALL, 0).await.unwrap();
        assert_eq!((reserve(&a, lock.handle, 0).await, reserve(&a, HandleId(0), 8192).await), (8192, 16384));
        assert_eq!(a.me.blocked.borrow().len(), 0, "its own lock is in nobody's way");
        // Whoever has none, or names another's, waits until those who have one are asked for it.
        assert_eq!(reserve(&b, HandleId(0), 16384).await, 24576);
        assert_eq!(a.me.blocked.borrow().len(), 1);
        let lock = a.lock(Mode::Pw, Extent::ALL, 0).await.unwrap();
        assert_eq!(reserve(&b, lock.handle, 24576).await, 32768);
        assert_eq!(a.me.blocked.borrow().len(), 2);
    });
}

/// A client of which the OST stores a write is evicted amid that: what another one reads under its lock, then and later.
fn evicted_amid(bug: Option<&'static str>) -> [Vec<u8>; 2] {
    types::planted::plant(bug);
    let n = node(1, 1 << 30, OstConfig::default());
    let (rt, server, store) = (n.world.rt(), n.server.clone(), n.store.clone());
    let seen = n.world.run(async move {
        let (a, b) = (Rc::new(Client::new(rt.clone(), 1).await), Client::new(rt.clone(), 2).await);
        a.create(1).await;
        a.write(0, &[1; 4096]).await.unwrap();
        let lock = a.lock(Mode::Pw, Extent::ALL, 0).await.unwrap().handle;
        store.set_time_of_next_update(Duration::from_secs(5));
        let (writer, bulk) = (a.clone(), Bulk::alloc(rt.frames(), 4096).unwrap());
        rt.spawn(async move {
            let mut bulk = bulk;
            bulk.copy_in(0, &[2; 4096]);
            let ask =
                WriteRequest { object: object(1), extents: vec![Extent::at(0, 4096)], lock, ..Default::default() };
            drop(writer.import.call(Op::OstWrite, wire::encode(&ask), bulk, CallOptions::default()).await);
        });
        rt.sleep(Duration::from_secs(1)).await;
        server.evict("stria-OST0000", ClientId(1)).await;
        b.lock(Mode::Pr, Extent::ALL, 0).await.unwrap();
        let first = b.read(0, 4096).await.unwrap();
        rt.sleep(Duration::from_secs(10)).await;
        [first, b.read(0, 4096).await.unwrap()]
    });
    types::planted::plant(None);
    seen
}

#[test]
fn what_is_read_under_a_lock_stays_so_whoever_was_evicted_amid_a_write() {
    let [first, later] = evicted_amid(None);
    assert_eq!(first, later);
    let [first, later] = evicted_amid(Some("evicted-amid"));
    assert_ne!(first, later, "with the planted bug it changes");
}

#[test]
fn space_that_an_object_has_is_reserved_again_on_a_target_that_is_nearly_full() {
    let n = node(6, 24 * MIB, OstConfig { grant_initial_bytes: MIB, grant_max_bytes: MIB, ..OstConfig::default() });
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(1).await;
        let reserve = async |bytes| {
            let ask = AllocateRequest { object: object(1), extent: Extent::new(0, bytes), ..Default::default() };
            c.import.ask::<_, AttrReply>(Op::OstAllocate, &ask).await.map(drop)
        };
        assert_eq!(reserve(16 * MIB).await, Ok(()));
        assert_eq!(reserve(16 * MIB).await, Ok(()), "all of it is there");
        assert_eq!(reserve(40 * MIB).await, Err(FsError::NoSpace));
        c.write(0, &vec![1; MIB as usize]).await.unwrap();
        c.punch(PunchKind::Zero, Extent::new(0, MIB)).await.unwrap();
    });
}

#[test]
fn several_pieces_of_a_write_in_one_block_find_no_space_for_other_blocks() {
    let n = node(9, 24 * MIB, OstConfig { grant_initial_bytes: 0, grant_max_bytes: 0, ..OstConfig::default() });
    let rt = n.world.rt();
    n.world.run(async move {
        let c = Client::new(rt, 1).await;
        c.create(2).await;
        let (mut at, piece) = (0, vec![1; 64 << 10]);
        for len in [64 << 10, 4096] {
            while c.write_to(object(2), &[(at, &piece[..len])], 0).await.is_ok() {
                at += len as u64;
            }
        }
        assert!(at > 0 && n.ost.store().space().free > 16 * 4096, "what is kept back for the OST itself");
        let mut pieces: Vec<(u64, &[u8])> = (0..17).map(|i| (16 * i, &piece[..8])).collect();
        c.write_to(object(2), &pieces, 0).await.expect("they are there");
        pieces.push((at, &piece[..16 * 4096]));
        assert_eq!(c.write_to(object(2), &pieces, 0).await.map(drop), Err(FsError::NoSpace));
    });
}

#[test]
fn a_lock_that_a_client_says_it_held_before_is_one_like_others_when_no_recovery_asks_for_it() {
    let n = node(8, 1 << 30, OstConfig::default());
    let rt = n.world.rt();
    n.world.run(async move {
        let (a, b) = (Client::new(rt.clone(), 1).await, Client::new(rt.clone(), 2).await);
        a.create(1).await;
        a.lock(Mode::Pw, Extent::ALL, 0).await.unwrap();
        a.me.deaf.set(true);
        let reply = b.lock(Mode::Pw, Extent::ALL, EnqueueFlags::REPLAY).await.unwrap();
        assert!(!reply.granted, "it waits for the lock that there is");
        while a.me.blocked.borrow().is_empty() {
            rt.sleep(Duration::from_millis(1)).await;
        }
    });
}
