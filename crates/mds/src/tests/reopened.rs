//! Opens in a recovery: what their clients tell again, what they had ended, and what ends for good.
use types::{ClientId, Fid, FsError, HandleId, WallTime};
use wire::Op as Rpc;
use wire::mdt::*;

use super::harness::{Fs, user};
use super::model::findings;

const ROOT: Fid = Fid::ROOT;

/// A file system that waits for these clients after a crash.
fn remembering(clients: &[u64]) -> Fs {
    let fs = Fs::new();
    for client in clients {
        fs.world.run(fs.mds.remember_client(ClientId(*client), Rpc::MdtOpen, || false)).unwrap();
    }
    fs
}

fn unlink(name: &str) -> UnlinkRequest {
    UnlinkRequest { parent: ROOT, name: name.into(), ..UnlinkRequest::default() }
}
fn close_of(handle: HandleId, fid: Fid) -> CloseRequest {
    CloseRequest { closes: vec![Close { handle, fid, ..Close::default() }] }
}
/// An open as its client tells it again.
fn told(fs: &Fs, fid: Fid, flags: u32, handle: HandleId) -> Result<(), FsError> {
    let request = OpenRequest { fid, handle, ..fs.open_request(fid, "", flags, 0) };
    fs.call_as::<_, OpenReply>(Some(0), Rpc::MdtOpen, &request).map(drop)
}
/// An open that becomes a transaction: how it is replayed, and that transaction.
fn opened(fs: &Fs, parent: Fid, name: &str, flags: u32) -> (OpenRequest, u64) {
    let mut request = fs.open_request(parent, name, flags, 0o644);
    let (reply, transno) = fs.call_as::<_, OpenReply>(None, Rpc::MdtOpen, &request).unwrap();
    assert_ne!(transno, 0);
    (request.fid, request.handle, request.layout) = (reply.entry.attr.fid, reply.handle, reply.entry.layout);
    (request, transno)
}
fn recovered(fs: &Fs) {
    ptlrpc::Service::recovered(&*fs.mds);
    fs.sync();
    fs.world.settle();
}

#[test]
fn an_open_file_without_a_name_stays_when_another_open_of_it_ends_in_a_recovery() {
    let fs = remembering(&[1]);
    let f = fs.create(ROOT, "f").unwrap();
    fs.sync();
    let reader = fs.open(f, "", 0, 0).unwrap().handle;
    let (writer, t1) = opened(&fs, f, "", 2);
    let (_, t2) = fs.call_as::<_, EntryReply>(None, Rpc::MdtUnlink, &unlink("f")).unwrap();
    let end = close_of(writer.handle, f);
    let (_, t3) = fs.call_as::<_, CloseReply>(None, Rpc::MdtClose, &end).unwrap();
    assert_ne!(t3, 0);
    let fs = fs.crash();
    fs.call_as::<_, OpenReply>(Some(t1), Rpc::MdtOpen, &writer).unwrap();
    fs.call_as::<_, EntryReply>(Some(t2), Rpc::MdtUnlink, &unlink("f")).unwrap();
    fs.call_as::<_, CloseReply>(Some(t3), Rpc::MdtClose, &end).unwrap();
    assert_eq!(told(&fs, f, 0, reader), Ok(()));
    recovered(&fs);
    assert!(fs.getattr(f).is_ok(), "it is open");
    let destroyed = fs.osts.destroyed.borrow().clone();
    fs.close(reader, f, 0, 0).unwrap();
    assert_eq!(fs.getattr(f), Err(FsError::Stale));
    fs.sync();
    fs.world.settle();
    assert_eq!(fs.osts.destroyed.borrow().len(), destroyed.len() + 1);
    assert_eq!(findings(&fs), Vec::<String>::new());
}

#[test]
fn an_open_file_without_a_name_stays_when_one_of_its_clients_is_lost_before_another_has_told_its_open() {
    let fs = remembering(&[1, 2]);
    let f = fs.create(ROOT, "f").unwrap();
    let [a, b] = [1, 2].map(|c| fs.of(c).open(f, "", 0, 0).unwrap().handle);
    fs.unlink(ROOT, "f").unwrap();
    fs.sync();
    let fs = fs.crash();
    told(&fs, f, 0, a).unwrap();
    fs.world.run(fs.mds.forget_client(ClientId(1)));
    assert_eq!(told(&fs.of(2), f, 0, b), Ok(()));
    recovered(&fs);
    assert!(fs.getattr(f).is_ok(), "it is open");
    fs.of(2).close(b, f, 0, 0).unwrap();
    assert_eq!(fs.getattr(f), Err(FsError::Stale));
}

#[test]
fn what_nobody_tells_of_a_file_without_a_name_goes_with_the_end_of_the_recovery() {
    let fs = remembering(&[1, 2]);
    let f = fs.create(ROOT, "f").unwrap();
    let handle = fs.open(f, "", 0, 0).unwrap().handle;
    fs.unlink(ROOT, "f").unwrap();
    fs.sync();
    let fs = fs.crash();
    told(&fs, f, 0, handle).unwrap();
    fs.world.run(fs.mds.forget_client(ClientId(1)));
    recovered(&fs);
    assert_eq!(fs.getattr(f), Err(FsError::Stale));
    assert!(fs.mds.handles.borrow().keeps_none());
}

#[test]
fn an_open_that_had_ended_ends_again_when_its_client_has_told_all_that_it_has() {
    let fs = remembering(&[1]);
    let (ended, t1) = opened(&fs, ROOT, "ended", 0o100);
    let (kept, t2) = opened(&fs, ROOT, "kept", 0o100);
    let end = close_of(ended.handle, ended.fid);
    let (_, t3) = fs.call_as::<_, CloseReply>(None, Rpc::MdtClose, &end).unwrap();
    assert_eq!(t3, 0, "it is not replayed");
    let fs = fs.crash();
    for (request, transno) in [(&ended, t1), (&kept, t2)] {
        fs.call_as::<_, OpenReply>(Some(transno), Rpc::MdtOpen, request).unwrap();
    }
    told(&fs, kept.fid, 0, kept.handle).unwrap();
    assert_eq!(fs.mds.opens_of(ClientId(1)), 2);
    ptlrpc::Service::told_everything(&*fs.mds, ClientId(1));
    assert_eq!(fs.mds.opens_of(ClientId(1)), 1);
    recovered(&fs);
    for (name, left) in [("ended", false), ("kept", true)] {
        fs.unlink(ROOT, name).unwrap();
        let fid = if left { kept.fid } else { ended.fid };
        assert_eq!(fs.getattr(fid).is_ok(), left, "{name}");
    }
    fs.close(kept.handle, kept.fid, 0, 0).unwrap();
    assert_eq!(fs.getattr(kept.fid), Err(FsError::Stale));
    assert!(fs.mds.handles.borrow().keeps_none());
}

#[test]
fn set_id_bits_that_a_truncation_took_away_are_not_there_after_its_replay() {
    let fs = remembering(&[1]);
    let f = fs.create(ROOT, "f").unwrap();
    let other = fs.by(user(1000));
    fs.chmod(f, 0o4777).unwrap();
    fs.sync();
    let (request, t1) = opened(&other, f, "", 0o1001);
    assert_eq!(fs.getattr(f).unwrap().mode & 0o7777, 0o777);
    let fs = fs.crash();
    assert_eq!(fs.getattr(f).unwrap().mode & 0o7777, 0o4777, "it was not committed");
    fs.call_as::<_, OpenReply>(Some(t1), Rpc::MdtOpen, &request).unwrap();
    assert_eq!(fs.getattr(f).unwrap().mode & 0o7777, 0o777);
}

#[test]
fn a_chmod_that_was_answered_without_setgid_does_not_get_it_by_its_replay() {
    let fs = remembering(&[1]);
    let f = fs.create(ROOT, "f").unwrap();
    fs.setattr(f, SetBits::UID | SetBits::GID, |q| (q.uid, q.gid) = (1000, 5)).unwrap();
    fs.sync();
    let (cred, valid, mode) = (user(1000), SetBits::MODE, 0o2755);
    let chmod = SetattrRequest { cred, fid: f, valid, mode, ..SetattrRequest::default() };
    let (reply, t1) = fs.call_as::<_, EntryReply>(None, Rpc::MdtSetattr, &chmod).unwrap();
    assert_eq!(reply.attr.mode & 0o7777, 0o755);
    let fs = fs.crash();
    let (reply, _) = fs.call_as::<_, EntryReply>(Some(t1), Rpc::MdtSetattr, &chmod).unwrap();
    assert_eq!(reply.attr.mode & 0o7777, 0o755);
}

#[test]
fn a_client_that_is_lost_while_the_store_is_full_has_nothing_open_and_its_nameless_file_goes_later() {
    let fs = Fs::new();
    let handle = fs.open(ROOT, "f", 0o302, 0o644).unwrap();
    let f = handle.entry.attr.fid;
    fs.unlink(ROOT, "f").unwrap();
    fs.sync();
    assert!(fs.getattr(f).is_ok());
    fs.mds.store().stalled.set(true);
    fs.world.run(fs.mds.forget_client(ClientId(1)));
    assert_eq!(fs.mds.opens_of(ClientId(1)), 0);
    fs.mds.store().stalled.set(false);
    fs.pass(11);
    assert_eq!(fs.getattr(f), Err(FsError::Stale));
    assert!(fs.mds.handles.borrow().keeps_none());
    fs.sync();
    assert_eq!(findings(&fs), Vec::<String>::new());
}

#[test]
fn a_refused_change_of_times_takes_no_time_of_another_client_away() {
    let fs = Fs::new();
    let o = fs.open(ROOT, "f", 0o302, 0o644).unwrap();
    let f = o.entry.attr.fid;
    fs.sync();
    fs.mds.store().stalled.set(true);
    let refused = fs.of(2).setattr(f, SetBits::MTIME, |q| q.mtime = WallTime(77));
    assert_eq!(refused.unwrap_err(), FsError::NoSpace);
    fs.mds.store().stalled.set(false);
    let (valid, mtime) = (SetBits::DIRTY | SetBits::SIZE | SetBits::MTIME, WallTime(5));
    fs.end(Close { handle: o.handle, fid: f, valid, size: 4, mtime, ..Close::default() }).unwrap();
    assert_eq!(fs.getattr(f).unwrap().mtime, mtime);
}

/// A writer's open ends, on stable storage, and the server dies before the answer is sent; the client tells the open and sends its end
/// again. Opens that are left.
fn ended_unanswered(bug: Option<&'static str>) -> usize {
    types::planted::plant(bug);
    let fs = remembering(&[1]);
    let f = fs.create(ROOT, "f").unwrap();
    let handle = fs.open(f, "", 2, 0).unwrap().handle;
    let end = close_of(handle, f);
    let (reply, transno) = fs.call_as::<_, CloseReply>(None, Rpc::MdtClose, &end).unwrap();
    fs.sync();
    let fs = fs.crash();
    told(&fs, f, 2, handle).unwrap();
    ptlrpc::Service::told_everything(&*fs.mds, ClientId(1));
    let (client, slot, xid) = (ClientId(1), 3, types::Xid(9));
    let (transno, body) = (types::Transno(transno), wire::encode(&reply));
    let mut record = ptlrpc::ReplyRecord { client, slot, xid, transno, status: 0, body, basis: 0 };
    let header = wire::Header::request(Rpc::MdtClose, client, xid);
    ptlrpc::Service::answering_again(&*fs.mds, &header, &wire::encode(&end), &mut record);
    recovered(&fs);
    let left = fs.mds.opens_of(ClientId(1));
    types::planted::plant(None);
    left
}

#[test]
fn an_open_whose_end_was_kept_and_not_answered_ends_when_its_client_asks_again() {
    assert_eq!(ended_unanswered(Some("ended-and-told")), 1);
    assert_eq!(ended_unanswered(None), 0);
}

#[test]
fn an_open_whose_answer_did_not_arrive_is_answered_again_where_its_file_is_there_and_else_carried_out_anew() {
    let fs = remembering(&[1]);
    let open = |name, flags| {
        let request = fs.open_request(ROOT, name, flags, 0o600);
        let (reply, transno) = fs.call_as::<_, OpenReply>(None, Rpc::MdtOpen, &request).unwrap();
        assert_ne!(transno, 0);
        (request, reply, transno)
    };
    let opens = [open("", 0o20_200_002), open("f", 0o102)];
    fs.sync();
    let fs = fs.crash();
    ptlrpc::Service::told_everything(&*fs.mds, ClientId(1));
    recovered(&fs);
    assert_eq!(fs.getattr(opens[0].1.entry.attr.fid), Err(FsError::Stale), "nobody told that it has it open");
    let answers = opens.map(|(request, reply, transno)| {
        let (client, slot, xid) = (ClientId(1), 3, types::Xid(9));
        let (transno, body) = (types::Transno(transno), wire::encode(&reply));
        let mut record = ptlrpc::ReplyRecord { client, slot, xid, transno, status: 0, body, basis: 0 };
        let header = wire::Header::request(Rpc::MdtOpen, client, xid);
        let look = |record: &_| ptlrpc::Service::look_before_answering(fs.mds.clone(), &header, record);
        let answers = fs.world.run(look(&record).unwrap());
        if answers {
            ptlrpc::Service::answering_again(&*fs.mds, &header, &wire::encode(&request), &mut record);
            assert!(look(&record).is_none(), "it is open");
            fs.close(reply.handle, reply.entry.attr.fid, 0, 0).unwrap();
        }
        answers
    });
    assert_eq!(answers, [false, true]);
    assert_eq!(fs.mds.opens_of(ClientId(1)), 0);
}
