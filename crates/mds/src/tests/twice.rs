//! A server that dies again before the recovery from its first death is over: objects of creates that nobody has replayed.
use std::rc::Rc;

use layout::{LayoutSpec, StripeObject};
use types::{ClientId, Fid, FsError, OstIndex, WallTime};
use wire::Op as Rpc;
use wire::mdt::{OpenReply, OpenRequest};

use super::harness::Fs;
use super::model::findings;
use crate::kv::MetaKv;
use crate::repair::{Objects, Stray, repair};

/// A create that was answered, as it will be replayed.
struct Created {
    request: OpenRequest,
    transno: u64,
    object: StripeObject,
}

/// All lie on one OST.
fn created(fs: &Fs, name: &str) -> Created {
    let mut request = fs.open_request(Fid::ROOT, name, 0o302, 0o644);
    let mut spec = LayoutSpec::default();
    spec.index = Some(OstIndex(0));
    request.layout = layout::xattr::encode_spec(&spec).into();
    let (reply, transno) = fs.call_as::<_, OpenReply>(None, Rpc::MdtOpen, &request).unwrap();
    let layout = reply.entry.layout.clone();
    let object = layout::xattr::decode_layout(&layout).unwrap().1.objects()[0];
    (request.fid, request.handle, request.layout) = (reply.entry.attr.fid, reply.handle, layout);
    Created { request, transno, object }
}

/// Two clients made a file each, the server died before it committed either, one client's replay is committed, and it died again.
/// What was lost, and what was replayed.
fn died_twice() -> (Fs, Created, Created) {
    let fs = Fs::new();
    for client in [1, 2] {
        fs.world.run(fs.mds.remember_client(ClientId(client), Rpc::MdtOpen, || false)).unwrap();
    }
    let lost = created(&fs, "lost");
    let kept = created(&fs.of(2), "kept");
    let fs = fs.crash();
    assert_eq!(fs.lookup(Fid::ROOT, "lost"), Err(FsError::NotFound), "it was not committed");
    fs.of(2).call_as::<_, OpenReply>(Some(kept.transno), Rpc::MdtOpen, &kept.request).unwrap();
    fs.sync();
    (fs.crash(), lost, kept)
}

fn times_destroyed(fs: &Fs, of: &Created) -> usize {
    fs.osts.destroyed.borrow().iter().filter(|o| **o == of.object.object).count()
}

/// Nobody has anything more to replay.
fn recovered(fs: &Fs) {
    ptlrpc::Service::recovered(&*fs.mds);
    fs.sync();
    fs.pass(2);
    assert_eq!(findings(fs), Vec::<String>::new());
}

#[test]
fn objects_of_lost_creates_go_after_the_second_recovery_and_replayed_ones_stay() {
    let (fs, lost, kept) = died_twice();
    let kv: Rc<dyn MetaKv> = fs.kv.reopen();
    let report = fs.world.run(crate::check::check(&kv)).unwrap();
    assert!(report.is_left_over(lost.object.ost, lost.object.object), "no fault: the recovery will see to it");
    recovered(&fs);
    assert_eq!((times_destroyed(&fs, &lost), times_destroyed(&fs, &kept)), (1, 0));
    assert_eq!(fs.lookup(Fid::ROOT, "lost"), Err(FsError::NotFound));
    assert!(fs.lookup(Fid::ROOT, "kept").is_ok());
    for i in 0..8 {
        let new = created(&fs, &format!("new{i}")).object;
        assert!(![lost.object, kept.object].contains(&new), "{new:?} is given out twice");
    }
    fs.sync();
    let fs = fs.crash();
    recovered(&fs);
    assert_eq!((times_destroyed(&fs, &lost), times_destroyed(&fs, &kept)), (1, 0), "that was all");
}

#[test]
fn a_replay_that_comes_after_the_second_death_keeps_its_object() {
    let (fs, late, kept) = died_twice();
    fs.call_as::<_, OpenReply>(Some(late.transno), Rpc::MdtOpen, &late.request).unwrap();
    recovered(&fs);
    assert_eq!((times_destroyed(&fs, &late), times_destroyed(&fs, &kept)), (0, 0));
    assert!(fs.lookup(Fid::ROOT, "lost").is_ok());
}

#[test]
fn a_replay_that_is_refused_keeps_no_object() {
    let (fs, refused, _) = died_twice();
    let other_basis = 0xdead;
    let done = fs.replay((refused.transno, other_basis), Rpc::MdtOpen, &refused.request);
    assert_eq!(done, Err(FsError::NotRecoverable), "it rested on something else than what is there");
    recovered(&fs);
    assert_eq!(times_destroyed(&fs, &refused), 1);
}

#[test]
fn what_a_repair_between_the_deaths_saved_is_not_destroyed() {
    let (fs, lost, _) = died_twice();
    let kv = fs.kv.reopen();
    let engine: Rc<dyn MetaKv> = kv.clone();
    let report = fs.world.run(crate::check::check(&engine)).unwrap();
    let StripeObject { ost, object } = lost.object;
    let stray = Stray { ost, object, size: 7, blocks: 8, mtime: WallTime(3), uid: 7, gid: 8 };
    let objects = Objects { strays: vec![stray], ..Objects::default() };
    fs.world.run(repair(&engine, &report, &objects, WallTime(9))).unwrap();
    let fs = fs.on(kv);
    recovered(&fs);
    assert_eq!(times_destroyed(&fs, &lost), 0);
    let attr = fs.getattr(object.0).expect("it is in lost+found");
    // Migrations name that of the layout.
    assert_eq!(attr.layout_gen, 0);
}

#[test]
fn a_replay_takes_no_file_away_that_a_repair_made_of_its_object_and_that_has_another_one_since() {
    let (fs, late, kept) = died_twice();
    let kv = fs.kv.reopen();
    let engine: Rc<dyn MetaKv> = kv.clone();
    let report = fs.world.run(crate::check::check(&engine)).unwrap();
    let StripeObject { ost, object } = late.object;
    // One that no client knows of: it is put into the place of the other.
    let other = StripeObject { ost, object: types::ObjectId::new(ost, kept.object.object.0.oid + 1000) };
    let stray = Stray { ost, object, size: 7, blocks: 8, mtime: WallTime(3), uid: 7, gid: 8 };
    let objects = Objects { strays: vec![stray], ..Objects::default() };
    fs.world.run(repair(&engine, &report, &objects, WallTime(9))).unwrap();
    let mut adopted = fs.world.run(crate::check::check(&engine)).unwrap().inodes[&object.0].clone();
    let (_, of_it) = layout::xattr::decode_layout(&adopted.tail).unwrap();
    let moved = layout::Layout::new(of_it.stripe_size(), of_it.pattern(), None, vec![other]).unwrap();
    adopted.tail = layout::xattr::encode_layout(&moved, object.0, layout::xattr::Form::Stored);
    let key = crate::keys::inode(object.0);
    let mut sealed = Vec::new();
    crate::kv::seal(&key, &adopted.encode(), &mut sealed);
    kv.tamper(|map| drop(map.insert(key.to_vec(), sealed)));
    let fs = fs.on(kv);
    fs.call_as::<_, OpenReply>(Some(late.transno), Rpc::MdtOpen, &late.request).unwrap();
    ptlrpc::Service::recovered(&*fs.mds);
    fs.sync();
    assert!(fs.lookup(Fid::ROOT, "lost").is_ok());
    fs.getattr(object.0).expect("the file with another object stays");
}
