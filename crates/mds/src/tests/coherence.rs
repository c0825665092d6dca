//! Locks between clients: what is granted, who waits for whom, flocks.
use std::cell::RefCell;
use std::rc::Rc;

use types::{Extent, Fid, FsError, HandleId, Transno};
use wire::lock::{CancelRequest, EnqueueFlags, EnqueueReply, EnqueueRequest, Kind, LockSpec, Mode};
use wire::mdt::*;
use wire::{Encode, Op};

use super::harness::{Fs, user};
use crate::kv::MetaKv;
use crate::mds::Caller;

const ROOT: Fid = Fid::ROOT;

fn look(fs: &Fs, parent: Fid, name: &str, cookie: u64) -> EntryReply {
    let q = LookupRequest {
        cred: user(0),
        parent,
        name: name.into(),
        lock_bits: LockBits::LOOKUP | LockBits::UPDATE,
        lock_cookie: cookie,
        parent_cookie: cookie + 1000,
    };
    fs.call(Op::MdtLookup, &q).unwrap()
}

/// Starts an operation; its outcome appears in the cell.
fn start<Q: Encode>(fs: &Fs, op: Op, q: &Q) -> Rc<RefCell<Option<Result<(), FsError>>>> {
    start_in(fs, None, op, q)
}
/// The same, as a request of a session's slot.
fn start_in<Q: Encode>(fs: &Fs, slot: Option<u16>, op: Op, q: &Q) -> Rc<RefCell<Option<Result<(), FsError>>>> {
    let (done, mds, body) = (Rc::new(RefCell::new(None)), fs.mds.clone(), wire::encode(q));
    let slot = slot.map(|slot| (slot, types::Xid(1)));
    let (out, caller) = (done.clone(), Caller { client: fs.client, replay: None, basis: 0, slot });
    fs.world.rt().spawn(async move {
        let r = mds.serve(caller, op, &body).await.map(|_| ());
        *out.borrow_mut() = Some(r);
    });
    fs.world.settle();
    done
}

fn cancel(fs: &Fs, handles: &[HandleId]) {
    fs.call::<_, ()>(Op::LockCancel, &CancelRequest { handles: handles.to_vec(), cookies: Vec::new() }).unwrap();
    fs.world.settle();
}

#[test]
fn a_change_waits_until_other_clients_gave_their_locks_back_and_nobody_gets_one_meanwhile() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    let (a, b, c) = (fs.of(1), fs.of(2), fs.of(3));
    let of_a = look(&a, ROOT, "f", 1).lock.unwrap();
    let chmod = SetattrRequest { cred: user(0), fid: f, valid: SetBits::MODE, mode: 0o600, ..Default::default() };
    let done = start(&b, Op::MdtSetattr, &chmod);
    assert!(done.borrow().is_none(), "it waits for the holder");
    assert!(look(&c, ROOT, "f", 1).lock.is_none(), "no new lock while somebody waits");
    assert_eq!(c.getattr(f).unwrap().mode & 0o777, 0o644, "nothing has changed yet");
    cancel(&a, &[of_a.handle]);
    assert_eq!(*done.borrow(), Some(Ok(())));
    assert_eq!(a.getattr(f).unwrap().mode & 0o777, 0o600);
    assert!(look(&c, ROOT, "f", 5).lock.is_some(), "locks are granted again");
}

#[test]
fn what_others_believe_of_lost_changes_is_given_up_before_anybody_is_answered() {
    let fs = Fs::new();
    fs.create(ROOT, "f").unwrap();
    fs.mkdir(ROOT, "d").unwrap();
    let other = fs.walk("d").unwrap();
    let (a, b, c) = (fs.of(1), fs.of(2), fs.of(3));
    let held = [&a, &b].map(|fs| {
        let seen = look(fs, ROOT, "f", 1);
        [seen.lock.unwrap().handle, seen.parent_lock.unwrap().handle]
    });
    fs.mds.call_everything_back();
    let (there, gone) =
        (|name: &str| LookupRequest { cred: user(0), parent: ROOT, name: name.into(), ..Default::default() }, "no");
    let waiting = [there("f"), there(gone)].map(|q| start_in(&c, Some(1), Op::MdtLookup, &q));
    // Who is called back itself may have to be answered first, and what nobody believes anything of is told at once.
    assert_eq!(*start_in(&a, Some(1), Op::MdtLookup, &there("f")).borrow(), Some(Ok(())));
    let elsewhere = GetattrRequest { fid: other, ..Default::default() };
    assert_eq!(*start_in(&c, Some(2), Op::MdtGetattr, &elsewhere).borrow(), Some(Ok(())));
    cancel(&a, &held[0]);
    assert!(waiting.iter().all(|done| done.borrow().is_none()), "one of them may still believe in it");
    cancel(&b, &held[1]);
    let ends = waiting.map(|done| *done.borrow());
    assert_eq!(ends, [Some(Ok(())), Some(Err(FsError::NotFound))]);
    assert_eq!(*start_in(&c, Some(3), Op::MdtLookup, &there("f")).borrow(), Some(Ok(())));
}

#[test]
fn a_part_of_a_lock_that_is_kept_is_waited_for_like_all_of_it_when_what_it_covers_may_be_lost() {
    let fs = Fs::new();
    fs.create(ROOT, "f").unwrap();
    let (a, c) = (fs.of(1), fs.of(2));
    let seen = look(&a, ROOT, "f", 1);
    let (lock, parent) = (seen.lock.unwrap(), seen.parent_lock.unwrap());
    fs.mds.call_everything_back();
    // As whoever has not heard of the callback yet, or heard of an earlier one that wanted less.
    let q = wire::lock::ConvertRequest { handle: lock.handle, bits: LockBits::LOOKUP, mode: None };
    a.call::<_, EnqueueReply>(Op::LockConvert, &q).unwrap();
    let there = LookupRequest { cred: user(0), parent: ROOT, name: "f".into(), ..Default::default() };
    let waiting = start_in(&c, Some(1), Op::MdtLookup, &there);
    cancel(&a, &[parent.handle]);
    assert!(waiting.borrow().is_none(), "the name may still be believed");
    cancel(&a, &[lock.handle]);
    assert_eq!(*waiting.borrow(), Some(Ok(())));
}

/// Other clients hold a lock on a file that client 9 wants to change; what becomes of that.
fn changed_under(fs: &Fs, holders: &[u64]) -> Rc<RefCell<Option<Result<(), FsError>>>> {
    let f = fs.create(ROOT, "f").unwrap();
    for holder in holders {
        assert!(look(&fs.of(*holder), ROOT, "f", 1).lock.is_some());
    }
    let chmod = SetattrRequest { cred: user(0), fid: f, valid: SetBits::MODE, mode: 0o600, ..Default::default() };
    start(&fs.of(9), Op::MdtSetattr, &chmod)
}

#[test]
fn nobody_is_late_with_a_lock_while_the_server_is_unsure_of_its_store_and_hears_no_answers() {
    let fs = Fs::new();
    let done = changed_under(&fs, &[1]);
    fs.kv.set_sure(false, false);
    fs.pass(100);
    assert!(done.borrow().is_none());
    fs.kv.set_sure(true, true);
    fs.pass(25);
    assert!(done.borrow().is_none(), "it has its time from now on");
    fs.pass(10);
    assert_eq!(*done.borrow(), Some(Ok(())));
}

#[test]
fn nobody_is_late_with_a_lock_for_what_the_end_of_anothers_session_takes_without_the_store() {
    let fs = Fs::new();
    let (evicted, kv, rt, mds) = (Rc::<RefCell<Vec<u64>>>::default(), fs.kv.clone(), fs.world.rt(), fs.mds.clone());
    let seen = evicted.clone();
    fs.mds.set_evictor(Rc::new(move |client| {
        let (seen, kv, rt, mds) = (seen.clone(), kv.clone(), rt.clone(), mds.clone());
        Box::pin(async move {
            seen.borrow_mut().push(client.0);
            mds.drop_locks(client);
            while !kv.is_sure() {
                rt.sleep(types::Duration::from_secs(1)).await;
            }
        })
    }));
    let done = changed_under(&fs, &[1, 3]);
    fs.pass(29);
    fs.kv.set_sure(false, false);
    fs.pass(100);
    assert_eq!(*evicted.borrow(), [1]);
    fs.kv.set_sure(true, true);
    fs.pass(25);
    assert_eq!(*evicted.borrow(), [1]);
    fs.pass(10);
    assert_eq!(*evicted.borrow(), [1, 3]);
    assert_eq!(*done.borrow(), Some(Ok(())));
}

#[test]
fn who_is_late_is_evicted_while_the_end_of_another_late_ones_session_waits_for_what_it_has() {
    let fs = Fs::new();
    let (evicted, rt, mds) = (Rc::<RefCell<Vec<u64>>>::default(), fs.world.rt(), fs.mds.clone());
    let seen = evicted.clone();
    fs.mds.set_evictor(Rc::new(move |client| {
        let (seen, rt, mds) = (seen.clone(), rt.clone(), mds.clone());
        Box::pin(async move {
            seen.borrow_mut().push(client.0);
            let other = types::ClientId(4 - client.0);
            while client.0 == 1 && mds.locks.namespace.borrow().locks_of(other).next().is_some() {
                rt.sleep(types::Duration::from_secs(1)).await;
            }
        })
    }));
    let done = changed_under(&fs, &[1, 3]);
    fs.pass(40);
    assert_eq!(*evicted.borrow(), [1, 3]);
    assert_eq!(*done.borrow(), Some(Ok(())));
}

#[test]
fn a_lock_is_not_made_larger_by_its_conversion() {
    let fs = Fs::new();
    fs.create(ROOT, "f").unwrap();
    let lock = look(&fs, ROOT, "f", 1).lock.unwrap();
    let convert = |bits| {
        let q = wire::lock::ConvertRequest { handle: lock.handle, bits, mode: None };
        fs.call::<_, EnqueueReply>(Op::LockConvert, &q).map(|reply| reply.lock.bits)
    };
    assert_eq!(convert(LockBits::LOOKUP), Ok(LockBits::LOOKUP));
    assert_eq!(convert(LockBits::LOOKUP | LockBits::UPDATE), Err(FsError::Invalid));
    assert_eq!(convert(LockBits::OPEN), Err(FsError::Invalid));
    assert_eq!(convert(LockBits::LOOKUP), Ok(LockBits::LOOKUP), "it is as it was");
}

#[test]
fn a_clients_own_locks_never_stand_in_its_way() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    assert!(look(&fs, ROOT, "f", 1).lock.is_some());
    fs.chmod(f, 0o600).unwrap();
    fs.rename((ROOT, "f"), (ROOT, "g"), 0).unwrap();
    fs.unlink(ROOT, "g").unwrap();
}

/// A look-up that also asks that the file may be opened by its id.
fn look_to_open(fs: &Fs, name: &str, cookie: u64) -> EntryReply {
    let lock_bits = LockBits::LOOKUP | LockBits::UPDATE | LockBits::OPEN;
    let (cred, parent, name) = (user(0), ROOT, name.into());
    let q = LookupRequest { cred, parent, name, lock_bits, lock_cookie: cookie, parent_cookie: 0 };
    fs.call(Op::MdtLookup, &q).unwrap()
}
/// The client keeps only that the file may be opened.
fn keep_open_bit(fs: &Fs, handle: HandleId) {
    let q = wire::lock::ConvertRequest { handle, bits: LockBits::OPEN, mode: None };
    fs.call::<_, EnqueueReply>(Op::LockConvert, &q).unwrap();
    fs.world.settle();
}

#[test]
fn a_file_that_was_looked_up_can_be_opened_after_it_was_replaced_until_its_lock_goes() {
    let fs = Fs::new();
    let (a, b) = (fs.of(1), fs.of(2));
    let f = fs.create(ROOT, "f").unwrap();
    fs.create(ROOT, "g").unwrap();
    let inodes = fs.count();
    let lock = look_to_open(&a, "f", 1).lock.unwrap();
    let (from_name, to_name) = ("g".into(), "f".into());
    let rename = RenameRequest { from: ROOT, from_name, to: ROOT, to_name, ..RenameRequest::default() };
    let done = start(&b, Op::MdtRename, &rename);
    assert!(done.borrow().is_none(), "it waits for the name's lock");
    // Whoever looks it up meanwhile gets no lock on the name, but may open it.
    let c = fs.of(3);
    let seen = look_to_open(&c, "f", 1);
    assert_eq!((seen.attr.fid, seen.lock.as_ref().unwrap().lock.bits), (f, LockBits::OPEN));
    keep_open_bit(&a, lock.handle);
    assert_eq!(*done.borrow(), Some(Ok(())));
    for client in [&a, &c] {
        let o = client.open(f, "", 0, 0).unwrap();
        assert_eq!(o.entry.attr.nlink, 0);
        client.close(o.handle, f, 0, 0).unwrap();
        assert_eq!(client.getattr(f).unwrap().fid, f, "its last close is not the end");
    }
    cancel(&a, &[lock.handle]);
    assert_eq!(fs.count(), inodes, "the other one may still open it");
    cancel(&c, &[seen.lock.unwrap().handle]);
    assert_eq!(fs.count(), inodes - 1);
    assert_eq!(a.getattr(f).unwrap_err(), FsError::Stale);
}

#[test]
fn a_removed_file_that_may_be_opened_stays_until_that_ends_however_it_ends() {
    let fs = Fs::new();
    let (a, b) = (fs.of(1), fs.of(2));
    let unlink = |name: &str| UnlinkRequest { cred: user(0), parent: ROOT, name: name.into(), directory: false };
    let inodes = fs.count();
    for end in 0..3 {
        let f = fs.create(ROOT, "f").unwrap();
        let lock = look_to_open(&a, "f", 1 + end).lock.unwrap();
        let reply: EntryReply = a.call(Op::MdtUnlink, &unlink("f")).unwrap();
        assert!(reply.attr.nlink == 0 && reply.attr.flags & (AttrFlags::ORPHAN | AttrFlags::ALONE) != 0);
        assert_eq!(fs.count(), inodes + 1);
        match end {
            0 => cancel(&a, &[lock.handle]),
            1 => {
                // The lock goes while it is open: the last close is the end.
                let o = a.open(f, "", 2, 0).unwrap();
                cancel(&a, &[lock.handle]);
                assert_eq!(fs.count(), inodes + 1);
                a.close(o.handle, f, 0, 0).unwrap();
            }
            _ => fs.world.run(fs.mds.forget_client(a.client)),
        }
        fs.world.settle();
        assert_eq!(fs.count(), inodes, "end {end}");
    }
    let f = fs.create(ROOT, "f").unwrap();
    let mine = look_to_open(&a, "f", 10).lock.unwrap();
    let theirs = look_to_open(&b, "f", 10).lock.unwrap();
    keep_open_bit(&b, theirs.handle);
    let reply: EntryReply = a.call(Op::MdtUnlink, &unlink("f")).unwrap();
    assert!(reply.attr.flags & AttrFlags::ALONE == 0, "another client may open it");
    cancel(&a, &[mine.handle]);
    assert_eq!(b.getattr(f).unwrap().nlink, 0);
}

#[test]
fn nameless_files_that_a_full_store_cannot_remove_go_when_there_is_space_and_it_is_said_once() {
    let fs = Fs::new();
    let (a, b) = (fs.of(1), fs.of(2));
    let before = fs.count();
    let names = ["f", "g", "h"];
    let locks: Vec<HandleId> = (1..)
        .zip(names)
        .map(|(cookie, name)| {
            fs.create(ROOT, name).unwrap();
            let handle = look_to_open(&a, name, cookie).lock.unwrap().handle;
            keep_open_bit(&a, handle);
            b.unlink(ROOT, name).unwrap();
            handle
        })
        .collect();
    fs.sync();
    assert_eq!(fs.count(), before + 3, "they may still be opened");
    let said = crate::tests::log::Said::begin();
    // The first refusal is one of many: of a lock at a time, and of what is tried again.
    fs.mds.store.stalled.set(true);
    for handle in locks {
        a.call::<_, ()>(Op::LockCancel, &CancelRequest { handles: vec![handle], cookies: Vec::new() }).unwrap();
        fs.pass(7);
    }
    assert_eq!(fs.count(), before + 3);
    fs.mds.store.stalled.set(false);
    fs.pass(7);
    assert_eq!(fs.count(), before, "nothing was left for the next start");
    let lines = said.lines();
    assert_eq!(lines.iter().filter(|l| l.contains("nameless inodes stay")).count(), 1, "{lines:?}");
    assert_eq!(lines.iter().filter(|l| l.contains("nameless inodes are removed")).count(), 1, "{lines:?}");
}

#[test]
fn after_a_restart_a_removed_file_stays_for_whoever_tells_its_lock_again() {
    let fs = Fs::new();
    let a = fs.of(1);
    let (f, g) = (fs.create(ROOT, "f").unwrap(), fs.create(ROOT, "g").unwrap());
    for (name, cookie) in [("f", 1), ("g", 2)] {
        look_to_open(&a, name, cookie);
        a.unlink(ROOT, name).unwrap();
    }
    fs.world.run(fs.mds.remember_client(a.client, Op::MdtUnlink, || false)).unwrap();
    fs.sync();
    let fs = fs.crash();
    let a = fs.of(1);
    let lock = LockSpec { fid: f, kind: Kind::Inodebits, mode: Mode::Pr, bits: LockBits::OPEN, ..LockSpec::default() };
    let replay = EnqueueRequest { lock, flags: EnqueueFlags::REPLAY, cookie: 1, cancels: Vec::new() };
    a.call::<_, EnqueueReply>(Op::LockEnqueue, &replay).unwrap();
    fs.mds.end_recovery();
    fs.world.settle();
    assert_eq!(a.open(f, "", 0, 0).map(|o| o.entry.attr.nlink), Ok(0));
    assert_eq!(a.getattr(g).unwrap_err(), FsError::Stale, "nobody wants the other one");
    fs.world.run(fs.mds.forget_client(a.client));
    fs.world.settle();
    assert_eq!(fs.getattr(f).unwrap_err(), FsError::Stale);
}

#[test]
fn a_negative_answer_comes_under_a_lock_that_a_create_takes_back() {
    let fs = Fs::new();
    let (a, b) = (fs.of(1), fs.of(2));
    let no = look(&a, ROOT, "f", 1);
    assert!(no.attr.fid.is_zero() && no.parent_lock.is_some());
    let open = b.open_request(ROOT, "f", 0o102, 0o644);
    let done = start(&b, Op::MdtOpen, &open);
    assert!(done.borrow().is_none());
    cancel(&a, &[no.parent_lock.unwrap().handle]);
    assert_eq!(*done.borrow(), Some(Ok(())));
    let q = LookupRequest { cred: user(0), parent: ROOT, name: "none".into(), ..Default::default() };
    assert_eq!(a.call::<_, EntryReply>(Op::MdtLookup, &q).unwrap_err(), FsError::NotFound, "without a lock: ENOENT");
}

#[test]
fn a_holder_that_does_not_answer_is_evicted_and_the_change_goes_on() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    let (a, b) = (fs.of(1), fs.of(2));
    assert!(look(&a, ROOT, "f", 1).lock.is_some());
    let o = a.open(f, "", 0, 0).unwrap();
    let done =
        start(&b, Op::MdtUnlink, &UnlinkRequest { cred: user(0), parent: ROOT, name: "f".into(), directory: false });
    fs.pass(29);
    assert!(done.borrow().is_none());
    fs.pass(2);
    assert_eq!(*done.borrow(), Some(Ok(())));
    assert_eq!(a.close(o.handle, f, 0, 0), Err(FsError::BadHandle), "its opens went too");
}

#[test]
fn renames_that_cross_each_other_finish() {
    let fs = Fs::new();
    let d = fs.mkdir(ROOT, "d").unwrap();
    let e = fs.mkdir(ROOT, "e").unwrap();
    fs.create(d, "x").unwrap();
    fs.create(e, "y").unwrap();
    let holder = fs.of(9);
    let held = [look(&holder, d, "x", 1), look(&holder, e, "y", 2)];
    let (a, b) = (fs.of(1), fs.of(2));
    let rename = |from, n: &str, to, m: &str| RenameRequest {
        cred: user(0),
        from,
        from_name: n.into(),
        to,
        to_name: m.into(),
        ..RenameRequest::default()
    };
    let one = start(&a, Op::MdtRename, &rename(d, "x", e, "x2"));
    let two = start(&b, Op::MdtRename, &rename(e, "y", d, "y2"));
    assert!(one.borrow().is_none() && two.borrow().is_none());
    let handles: Vec<HandleId> =
        held.iter().flat_map(|r| [&r.lock, &r.parent_lock]).flatten().map(|l| l.handle).collect();
    cancel(&holder, &handles);
    assert_eq!((*one.borrow(), *two.borrow()), (Some(Ok(())), Some(Ok(()))));
    assert_eq!((fs.names(d), fs.names(e)), (vec!["y2".to_string()], vec!["x2".to_string()]));
    assert!(fs.mds.locks.namespace.borrow().is_empty(), "every server-side lock was given back");
}

#[test]
fn a_content_lease_is_not_given_while_another_writes_and_goes_when_another_opens_for_writing() {
    let fs = Fs::new();
    fs.create(ROOT, "f").unwrap();
    let (a, b) = (fs.of(1), fs.of(2));
    let lease = |fs: &Fs, cookie| {
        let q = OpenRequest { lock_bits: LockBits::DATA, lock_cookie: cookie, ..fs.open_request(ROOT, "f", 0, 0) };
        fs.call::<_, OpenReply>(Op::MdtOpen, &q).unwrap()
    };
    let held = lease(&a, 1).entry.lock.unwrap();
    let done = start(&b, Op::MdtOpen, &b.open_request(ROOT, "f", 1, 0));
    assert!(done.borrow().is_none());
    cancel(&a, &[held.handle]);
    assert_eq!(*done.borrow(), Some(Ok(())));
    assert!(lease(&a, 2).entry.lock.is_none());
}

fn flock(owner: u64, mode: Mode, extent: Extent, flags: u32, cookie: u64, fid: Fid) -> EnqueueRequest {
    let lock = LockSpec { fid, kind: Kind::Posix, mode, extent, bits: 0, owner, pid: owner as u32 };
    EnqueueRequest { lock, flags, cookie, cancels: Vec::new() }
}

#[test]
fn byte_range_locks_wait_test_deadlock_and_withdraw_across_clients() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    let (a, b) = (fs.of(1), fs.of(2));
    let ask = |fs: &Fs, q: &EnqueueRequest| fs.call::<_, EnqueueReply>(Op::LockEnqueue, q);
    let (low, high) = (Extent::new(0, 10), Extent::new(10, 20));
    assert!(ask(&a, &flock(1, Mode::Pw, low, 0, 1, f)).unwrap().granted);
    assert!(ask(&b, &flock(2, Mode::Pw, high, 0, 1, f)).unwrap().granted);
    assert_eq!(ask(&b, &flock(2, Mode::Pr, low, EnqueueFlags::NOWAIT, 2, f)).unwrap_err(), FsError::WouldBlock);
    let test = ask(&b, &flock(2, Mode::Pw, Extent::ALL, EnqueueFlags::TEST, 3, f)).unwrap();
    assert!(!test.granted && test.lock.pid == 1 && test.lock.extent == low);
    assert!(!ask(&b, &flock(2, Mode::Pw, low, 0, 4, f)).unwrap().granted, "it waits");
    assert_eq!(ask(&a, &flock(1, Mode::Pw, high, 0, 5, f)).unwrap_err(), FsError::Deadlock);
    fs.of(2).call::<_, ()>(Op::LockCancel, &CancelRequest { handles: Vec::new(), cookies: vec![4] }).unwrap();
    assert!(!ask(&a, &flock(1, Mode::Pw, high, 0, 6, f)).unwrap().granted, "no cycle any more: it waits");
    assert!(ask(&b, &flock(2, Mode::Pw, Extent::ALL, EnqueueFlags::UNLOCK, 7, f)).unwrap().granted);
    assert_eq!(ask(&b, &flock(2, Mode::Pr, high, EnqueueFlags::NOWAIT, 8, f)).unwrap_err(), FsError::WouldBlock);
    fs.world.run(fs.mds.forget_client(a.client));
    assert!(ask(&b, &flock(2, Mode::Pr, Extent::ALL, EnqueueFlags::NOWAIT, 9, f)).unwrap().granted);
    let gone = Fid::new(9, 9);
    assert_eq!(ask(&b, &flock(2, Mode::Pr, low, 0, 10, gone)).unwrap_err(), FsError::Stale);
}

#[test]
fn answers_that_carry_no_change_have_no_transaction() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    let (_, t) = fs
        .call_as::<_, EntryReply>(None, Op::MdtGetattr, &GetattrRequest { cred: user(0), fid: f, ..Default::default() })
        .unwrap();
    assert_eq!(t, 0);
    let (o, t) = fs.call_as::<_, OpenReply>(None, Op::MdtOpen, &fs.open_request(f, "", 0, 0)).unwrap();
    assert!(t == 0 && o.handle.0 != 0);
    let (_, t) = fs.call_as::<_, OpenReply>(None, Op::MdtOpen, &fs.open_request(f, "", 2, 0)).unwrap();
    assert!(Transno(t) > Transno(0), "the first writer makes the size unknown");
}

#[test]
fn a_first_writer_takes_the_size_from_those_who_have_it_of_a_close_that_was_forgotten() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    let o = fs.open(f, "", 1, 0).unwrap();
    fs.sync();
    let close = CloseRequest { closes: vec![Close { handle: o.handle, fid: f, ..Close::default() }] };
    let (ends, transno) = fs.call_as::<_, CloseReply>(None, Op::MdtClose, &close).unwrap();
    assert_ne!(ends.closes[0].attr.flags & AttrFlags::SIZE_KNOWN, 0);
    let held = look(&fs, ROOT, "f", 1).lock.unwrap();
    let fs = fs.crash();
    // The open that this close ended is told no more.
    fs.call_as::<_, CloseReply>(Some(transno), Op::MdtClose, &close).unwrap();
    let again = EnqueueRequest { lock: held.lock, flags: EnqueueFlags::REPLAY, cookie: 1, cancels: Vec::new() };
    let held: EnqueueReply = fs.call(Op::LockEnqueue, &again).unwrap();
    let other = fs.of(2);
    let writes = start(&other, Op::MdtOpen, &other.open_request(f, "", 1, 0));
    assert!(writes.borrow().is_none(), "it waits for the holder, who believes to know the size");
    cancel(&fs, &[held.handle]);
    assert_eq!(*writes.borrow(), Some(Ok(())));
}

#[test]
fn the_size_of_a_file_that_two_clients_wrote_is_not_known_by_the_order_of_their_closes() {
    const TOLD: u32 = SetBits::DIRTY | SetBits::SIZE;
    let known = |attr: &Attr| attr.flags & AttrFlags::SIZE_KNOWN != 0;
    for crashes in [false, true] {
        let mut fs = Fs::new();
        let f = fs.create(ROOT, "f").unwrap();
        let a = fs.open(f, "", 1, 0).unwrap().handle;
        let b = fs.of(2).open(f, "", 1, 0).unwrap().handle;
        fs.close(a, f, TOLD, 200).unwrap();
        if crashes {
            fs.sync();
            fs = fs.crash();
            let again = OpenRequest { fid: f, handle: b, ..fs.open_request(f, "", 1, 0) };
            fs.of(2).call_as::<_, OpenReply>(Some(0), Op::MdtOpen, &again).unwrap();
        }
        let other = fs.of(2);
        // Found before the other one's last write, it arrives after that one's close.
        let end = Close { handle: b, fid: f, valid: TOLD, size: 100, ..Close::default() };
        let answer = other.end(end).unwrap();
        assert!(!known(&answer) && answer.flags & AttrFlags::UNSETTLED != 0, "crash: {crashes}");
        assert!(!known(&fs.getattr(f).unwrap()));
        // Who is alone again, knows.
        let c = fs.open(f, "", 1, 0).unwrap().handle;
        fs.close(c, f, TOLD, 300).unwrap();
        let attr = fs.getattr(f).unwrap();
        assert!(known(&attr) && attr.size == 300);
        // A second writer that wrote nothing hides nothing.
        let (c, d) = (fs.open(f, "", 1, 0).unwrap().handle, other.open(f, "", 1, 0).unwrap().handle);
        fs.close(c, f, TOLD, 400).unwrap();
        other.close(d, f, 0, 0).unwrap();
        let attr = fs.getattr(f).unwrap();
        assert!(known(&attr) && attr.size == 400);
    }
}

#[test]
fn a_size_that_was_not_taken_is_not_taken_in_a_replay_either() {
    const TOLD: u32 = SetBits::DIRTY | SetBits::SIZE;
    for outdated in [false, true] {
        let fs = Fs::new();
        let f = fs.create(ROOT, "f").unwrap();
        let o = fs.open(f, "", 1, 0).unwrap();
        fs.sync();
        let valid = TOLD | if outdated { SetBits::OUTDATED } else { 0 };
        let close =
            CloseRequest { closes: vec![Close { handle: o.handle, fid: f, valid, size: 9, ..Close::default() }] };
        let (_, transno) = fs.call_as::<_, CloseReply>(None, Op::MdtClose, &close).unwrap();
        let fs = fs.crash();
        fs.call_as::<_, CloseReply>(Some(transno), Op::MdtClose, &close).unwrap();
        let attr = fs.getattr(f).unwrap();
        assert_eq!(attr.flags & AttrFlags::SIZE_KNOWN == 0, outdated);
        assert_eq!(attr.size, 9);
    }
}

/// Whom of those that look at a file amid the exchange of its objects the answer reaches before that is on stable storage: its client with
/// the exchange itself, another one's getattr, look-up, open and getxattr, and the first one's getattr.
fn answered_amid_an_exchange() -> Vec<bool> {
    let fs = Fs::new();
    let (a, b) = (fs.of(1), fs.of(2));
    let file = a.open(ROOT, "f", 0o102, 0o644).unwrap().entry;
    let (fid, elsewhere) = (file.attr.fid, a.create(ROOT, "g").unwrap());
    let other = a.open(ROOT, "", 0o20_200_002, 0o600).unwrap().entry.attr.fid;
    let (_, layout) = layout::xattr::decode_layout(&file.layout).unwrap();
    let generation = layout.generation().into();
    let swap = SwapRequest { cred: user(0), fid, generation, other, number: 1, unfinished: 1, ..Default::default() };
    fs.sync();
    fs.kv.hold_commits(true);
    let swapped = start_in(&a, Some(1), Op::MdtSwap, &swap);
    let look = |parent, name: &str| LookupRequest { cred: user(0), parent, name: name.into(), ..Default::default() };
    let getattr = |fid| GetattrRequest { cred: user(0), fid, ..Default::default() };
    let stored = XattrRequest { cred: user(0), fid, name: "lustre.lov.stored".into() };
    assert_eq!(*start_in(&b, Some(1), Op::MdtGetattr, &getattr(elsewhere)).borrow(), Some(Ok(())), "another file");
    let waiting = [
        swapped,
        start_in(&b, Some(2), Op::MdtGetattr, &getattr(fid)),
        start_in(&b, Some(3), Op::MdtLookup, &look(ROOT, "f")),
        start_in(&b, Some(4), Op::MdtOpen, &b.open_request(ROOT, "f", 0, 0)),
        start_in(&b, Some(5), Op::MdtGetxattr, &stored),
        // Its own commit may fail, and it lives on.
        start_in(&a, Some(6), Op::MdtGetattr, &getattr(fid)),
    ];
    let answered = waiting.iter().map(|done| done.borrow().is_some()).collect();
    fs.kv.hold_commits(false);
    fs.world.settle();
    assert!(waiting.iter().all(|done| *done.borrow() == Some(Ok(()))), "{waiting:?}");
    fs.sync();
    fs.kv.hold_commits(true);
    assert_eq!(*start_in(&b, Some(7), Op::MdtGetattr, &getattr(fid)).borrow(), Some(Ok(())), "nobody waits since");
    fs.kv.hold_commits(false);
    answered
}

#[test]
fn nobody_is_shown_a_files_other_objects_before_their_exchange_is_on_stable_storage() {
    assert_eq!(answered_amid_an_exchange(), [false; 6]);
    types::planted::plant(Some("exchange-told-early"));
    let answered = answered_amid_an_exchange();
    types::planted::plant(None);
    assert_eq!(answered, [false, true, true, false, true, true], "an open waits in any case");
}
