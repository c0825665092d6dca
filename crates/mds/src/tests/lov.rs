//! Layouts that files are given after they were made, and what an OST says of its objects.
use layout::{Layout, LayoutSpec};
use types::{Duration, Fid, FsError, HandleId, ObjectId, OstIndex};
use wire::Op;
use wire::mdt::*;

use super::harness::{Fs, user};

const ROOT: Fid = Fid::ROOT;

fn spec(stripe_size: u64, count: i64) -> Vec<u8> {
    layout::xattr::encode_spec(&LayoutSpec::from_raw(stripe_size, count, -1).unwrap())
}
fn layout_of(fs: &Fs, f: Fid) -> Layout {
    layout::xattr::decode_layout(&fs.getxattr(f, "lustre.lov.stored").unwrap()).unwrap().1
}
fn objects(l: &Layout) -> Vec<ObjectId> {
    l.objects().iter().map(|o| o.object).collect()
}
/// A file as mknod(2) makes it.
fn mknod(fs: &Fs, name: &str) -> Fid {
    let (cred, parent, kind, mode) = (user(0), ROOT, NodeKind::Node, 0o100_644);
    let q = CreateRequest { cred, parent, name: name.into(), kind, mode, ..CreateRequest::default() };
    fs.call::<_, EntryReply>(Op::MdtCreate, &q).unwrap().attr.fid
}
fn set_request(fid: Fid, name: &str, value: &[u8]) -> SetxattrRequest {
    let (cred, name, value) = (user(0), name.into(), Some(value.into()));
    SetxattrRequest { cred, fid, name, value, flags: 0, ..Default::default() }
}

#[test]
fn a_file_made_by_mknod_gets_the_layout_set_before_its_first_writer_or_the_default_with_it() {
    let fs = Fs::new();
    let (f, g) = (mknod(&fs, "f"), mknod(&fs, "g"));
    for fid in [f, g] {
        assert_eq!(fs.getxattr(fid, "lustre.lov"), Err(FsError::NoData));
        assert_eq!(fs.setxattr(fid, "lustre.lov", None, 0), Err(FsError::NoData));
        assert_eq!(fs.getattr(fid).unwrap().flags & AttrFlags::HAS_LAYOUT, 0);
        let o = fs.open(fid, "", 0, 0).unwrap();
        assert!(o.entry.layout.is_empty(), "a reader gives it none");
        fs.close(o.handle, fid, 0, 0).unwrap();
    }
    fs.setxattr(f, "lustre.lov", Some(&spec(1 << 20, 2)), 1).unwrap();
    assert_eq!(fs.setxattr(f, "lustre.lov", Some(&spec(1 << 20, 1)), 1), Err(FsError::Exists), "XATTR_CREATE");
    let l = layout_of(&fs, f);
    assert_eq!((l.objects().len(), l.geometry().stripe_size(), l.generation()), (2, 1 << 20, 0));
    fs.setxattr(f, "lustre.lov", None, 0).unwrap();
    assert_eq!(layout_of(&fs, f), l, "rsync -X takes away what its source lacks; a layout stays");
    let o = fs.open(g, "", 1, 0).unwrap();
    assert_eq!(layout::xattr::decode_layout(&o.entry.layout).unwrap().1.objects().len(), 1);
    assert_ne!(o.entry.attr.flags & AttrFlags::HAS_LAYOUT, 0);
}

#[test]
fn the_layout_of_a_file_without_data_is_replaced_and_its_objects_go() {
    let fs = Fs::new();
    let o = fs.open(ROOT, "f", 0o102, 0o644).unwrap();
    let f = o.entry.attr.fid;
    let old = layout_of(&fs, f);
    // The creator has it open and says that it wrote nothing.
    fs.setxattr(f, "lustre.lov", Some(&spec(1 << 20, 2)), 0).unwrap();
    let new = layout_of(&fs, f);
    assert_eq!((new.objects().len(), new.generation()), (2, 1));
    assert_eq!(fs.getattr(f).unwrap().layout_gen, 1);
    assert!(objects(&new).iter().all(|n| !objects(&old).contains(n)));
    fs.sync();
    fs.world.settle();
    assert_eq!(*fs.osts.destroyed.borrow(), objects(&old));
    let shown = layout::xattr::decode_layout(&fs.getxattr(f, "lustre.lov").unwrap()).unwrap().1;
    assert_eq!(shown.generation(), u16::MAX, "what tools restore has none");
}

#[test]
fn a_file_with_data_or_open_elsewhere_keeps_its_layout_and_nobody_is_told() {
    let fs = Fs::new();
    let give = |f: Fid| fs.setxattr(f, "lustre.lov", Some(&spec(1 << 20, 2)), 0);
    let keeps = |f: Fid| {
        let before = layout_of(&fs, f);
        assert_eq!(give(f), Ok(()));
        assert_eq!(layout_of(&fs, f), before);
    };
    let o = fs.open(ROOT, "data", 0o102, 0o644).unwrap();
    fs.close(o.handle, o.entry.attr.fid, SetBits::SIZE | SetBits::DIRTY, 5).unwrap();
    keeps(o.entry.attr.fid);
    let shared = fs.create(ROOT, "shared").unwrap();
    let theirs = fs.of(2).open(shared, "", 0, 0).unwrap();
    keeps(shared);
    fs.of(2).close(theirs.handle, shared, 0, 0).unwrap();
    give(shared).unwrap();
    assert_eq!(layout_of(&fs, shared).objects().len(), 2);
    // A client that may have written is lost: the size is not known.
    let o = fs.of(3).open(ROOT, "lost", 0o102, 0o644).unwrap();
    fs.world.run(fs.mds.forget_client(types::ClientId(3)));
    keeps(o.entry.attr.fid);
}

#[test]
fn a_replay_gives_the_layout_that_was_answered() {
    let fs = Fs::new();
    fs.world.run(fs.mds.remember_client(fs.client, Op::MdtSetxattr, || false)).unwrap();
    let (f, g) = (mknod(&fs, "f"), mknod(&fs, "g"));
    fs.sync();
    let set = set_request(f, "lustre.lov", &spec(1 << 20, 2));
    let (set_reply, t1) = fs.call_as::<_, BytesReply>(None, Op::MdtSetxattr, &set).unwrap();
    let mut open = fs.open_request(g, "", 1, 0);
    let (opened, t2) = fs.call_as::<_, OpenReply>(None, Op::MdtOpen, &open).unwrap();
    let fs = fs.crash();
    let again = set_request(f, "lustre.lov.stored", &set_reply.value);
    (open.fid, open.handle, open.layout) = (g, opened.handle, opened.entry.layout.clone());
    for _twice in 0..2 {
        fs.call_as::<_, BytesReply>(Some(t1), Op::MdtSetxattr, &again).unwrap();
        fs.call_as::<_, OpenReply>(Some(t2), Op::MdtOpen, &open).unwrap();
    }
    assert_eq!(fs.getxattr(f, "lustre.lov.stored").unwrap(), set_reply.value.0);
    assert_eq!(fs.getxattr(g, "lustre.lov.stored").unwrap(), opened.entry.layout.0);
    ptlrpc::Service::recovered(&*fs.mds);
    fs.sync();
    fs.world.settle();
    assert!(fs.osts.destroyed.borrow().iter().all(|o| !objects(&layout_of(&fs, f)).contains(o)));
    let outside = set_request(f, "lustre.lov.stored", &set_reply.value);
    assert_eq!(fs.call::<_, BytesReply>(Op::MdtSetxattr, &outside).unwrap_err(), FsError::NotSupported);
    assert_ne!(opened.handle, HandleId(0));
}

#[test]
fn ids_of_orphans_are_never_given_out_again() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    let used = objects(&layout_of(&fs, f))[0];
    fs.sync();
    // Objects that were made and never given out are behind the last one of each OST.
    let ready: u32 = fs.osts.last.borrow().values().copied().max().unwrap();
    let fs = fs.crash();
    fs.pass(2);
    let new = objects(&layout_of(&fs, fs.create(ROOT, "g").unwrap()))[0];
    assert!(new.0.oid > ready && used.0.oid <= ready, "{new:?} after {ready}");
    let wanted = fs.osts.precreates.borrow();
    assert!(wanted.iter().any(|q| q.orphans && q.last_used >= used.0.oid));
}

/// An OST of a running file system whose server is being started again: its pool is out of step until there is a session.
fn lose_session(fs: &Fs, ost: OstIndex) {
    *fs.osts.down.borrow_mut() = true;
    fs.mds.pools.borrow_mut().update(ost, |p| p.in_sync = false);
}
/// There is a session with it again five seconds later.
fn comes_back_soon(fs: &Fs, ost: OstIndex) {
    let (mds, osts, rt) = (fs.mds.clone(), fs.osts.clone(), fs.world.rt());
    fs.world.rt().spawn(async move {
        rt.sleep(Duration::from_secs(5)).await;
        *osts.down.borrow_mut() = false;
        mds.osts.all().iter().find(|l| l.ost == ost).unwrap().on_session();
    });
}

#[test]
fn a_file_for_one_ost_waits_while_that_one_is_away_and_its_client_comes_again() {
    let fs = Fs::new();
    let on = OstIndex(1);
    let layout = layout::xattr::encode_spec(&LayoutSpec::from_raw(1 << 20, 1, 1).unwrap());
    let (f, g, h) = (mknod(&fs, "f"), mknod(&fs, "g"), mknod(&fs, "h"));
    lose_session(&fs, on);
    // Nobody comes.
    let before = fs.world.rt().now();
    assert_eq!(fs.setxattr(f, "lustre.lov", Some(&layout), 0), Err(FsError::Overloaded), "the client comes again");
    assert!(fs.world.rt().now().since(before) >= Duration::from_secs(30), "not at once");
    fs.mds.pools.borrow_mut().update(OstIndex(0), |p| p.in_sync = false);
    assert_eq!(fs.open(ROOT, "k", 0o102, 0o644).err(), Some(FsError::Overloaded), "no OST is there");
    fs.mds.pools.borrow_mut().update(OstIndex(0), |p| p.in_sync = true);
    // It comes while one waits.
    comes_back_soon(&fs, on);
    fs.setxattr(g, "lustre.lov", Some(&layout), 0).unwrap();
    assert_eq!(layout_of(&fs, g).objects()[0].ost, on);
    // It says itself that it takes none: its store failed.
    fs.mds.pools.borrow_mut().update(on, |p| p.state = 1 << 1);
    let before = fs.world.rt().now();
    assert_eq!(fs.setxattr(h, "lustre.lov", Some(&layout), 0), Err(FsError::NoTarget));
    assert_eq!(fs.world.rt().now(), before, "at once");
    // It said so before its server went: the next one may have another disk.
    *fs.osts.down.borrow_mut() = true;
    comes_back_soon(&fs, on);
    fs.setxattr(h, "lustre.lov", Some(&layout), 0).unwrap();
}
