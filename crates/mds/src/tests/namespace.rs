//! Namespace operations, to errno.
use types::{Fid, FsError, HandleId, WallTime};
use wire::Op;
use wire::mdt::{AttrFlags, CLOSES_MAX, Close, CreateRequest, EntryReply, NodeKind, OpenReply, OpenRequest, SetBits};

use super::harness::{Fs, user};
use crate::config::MdsConfig;

const ROOT: Fid = Fid::ROOT;

#[test]
fn a_new_file_has_a_layout_is_found_and_knows_its_size_after_close() {
    let fs = Fs::new();
    let o = fs.open(ROOT, "f", 0o302, 0o666).unwrap();
    assert!(o.created && o.handle.0 != 0);
    assert_eq!(o.entry.attr.mode & 0o777, 0o644);
    assert_eq!(o.entry.attr.flags & AttrFlags::SIZE_KNOWN, 0);
    let (_, layout) = layout::xattr::decode_layout(&o.entry.layout).unwrap();
    assert_eq!(layout.stripe_count(), 1);
    let dirty = SetBits::SIZE | SetBits::BLOCKS | SetBits::MTIME | SetBits::DIRTY;
    fs.close(o.handle, o.entry.attr.fid, dirty, 1000).unwrap();
    let a = fs.lookup(ROOT, "f").unwrap();
    assert_eq!((a.fid, a.size, a.blocks), (o.entry.attr.fid, 1000, 2));
    assert_ne!(a.flags & AttrFlags::SIZE_KNOWN, 0);
    assert_eq!(fs.close(o.handle, a.fid, 0, 0), Err(FsError::BadHandle));
}

#[test]
fn every_further_name_of_a_file_is_told_by_its_number_also_while_others_are_being_removed() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "n0").unwrap();
    (1..8).for_each(|i| fs.link(f, ROOT, &format!("n{i}")).unwrap());
    fs.sync();
    // Not committed yet: the store still has it.
    fs.unlink(ROOT, &fs.path(f, 1)).unwrap();
    let mut names: Vec<String> = (0..7).map(|link| fs.path(f, link)).collect();
    names.sort();
    names.dedup();
    assert_eq!((names.len(), names.iter().all(|name| fs.lookup(ROOT, name).is_ok())), (7, true), "{names:?}");
    for link in [7, u32::MAX] {
        let q = wire::mdt::Fid2pathRequest { fid: f, link };
        assert_eq!(fs.call::<_, wire::mdt::BytesReply>(Op::MdtFid2path, &q).map(drop), Err(FsError::NotFound));
    }
}

#[test]
fn a_client_opens_no_more_files_than_the_limit_and_hinders_no_other() {
    let fs = Fs::with_config(MdsConfig { opens_max: 3, ..MdsConfig::default() });
    let (mine, other) = (fs.of(1), fs.of(2));
    let open = |fs: &Fs, name: &str| fs.open(ROOT, name, 0o102, 0o644);
    let held: Vec<_> = (0..3).map(|i| open(&mine, &format!("f{i}")).unwrap()).collect();
    assert_eq!(open(&mine, "more").map(drop), Err(FsError::TooManyOpen));
    assert_eq!(mine.open(ROOT, "f0", 0, 0).map(drop), Err(FsError::TooManyOpen));
    assert_eq!(fs.lookup(ROOT, "more").map(drop), Err(FsError::NotFound), "a refused open makes no file");
    open(&other, "f0").unwrap();
    let kept = fs.mds.handles.borrow();
    assert_eq!((kept.refused(), kept.opens_of(mine.client), kept.opens_of(other.client)), (2, 3, 1));
    drop(kept);
    mine.close(held[0].handle, held[0].entry.attr.fid, 0, 0).unwrap();
    open(&mine, "more").unwrap();
    // What was open before a restart is open after it, however many these are.
    let before = types::HandleId(7);
    let again = OpenRequest { handle: before, ..mine.open_request(held[0].entry.attr.fid, "", 0, 0) };
    let again = OpenRequest { fid: held[0].entry.attr.fid, ..again };
    let (reply, _) = mine.call_as::<_, OpenReply>(Some(0), Op::MdtOpen, &again).unwrap();
    assert_eq!((reply.handle, fs.mds.handles.borrow().opens_of(mine.client)), (before, 4));
}

#[test]
fn a_user_leaves_opens_to_others_of_its_client_and_root_has_what_is_left() {
    let fs = Fs::with_config(MdsConfig { opens_max: 8, ..MdsConfig::default() });
    let f = fs.create(ROOT, "f").unwrap();
    let held: Vec<_> = (0..6).map(|_| fs.by(user(1000)).open(f, "", 0, 0).unwrap().handle).collect();
    assert_eq!(fs.by(user(1000)).open(f, "", 0, 0).map(drop), Err(FsError::TooManyOpen));
    fs.by(user(1001)).open(f, "", 0, 0).unwrap();
    fs.open(f, "", 2, 0).unwrap();
    assert_eq!(fs.open(f, "", 2, 0).map(drop), Err(FsError::TooManyOpen));
    fs.close(held[0], f, 0, 0).unwrap();
    fs.by(user(1000)).open(f, "", 0, 0).unwrap();
}

#[test]
fn names_of_xattrs_that_may_be_set_can_be_listed() {
    let fs = Fs::new();
    for fid in [fs.create(ROOT, "f").unwrap(), fs.mkdir(ROOT, "d").unwrap()] {
        let long = |n: usize| format!("user.{n:0250}");
        let set = (0..300).find_map(|n| fs.setxattr(fid, &long(n), Some(b""), 0).err());
        let filled = (0..300).find_map(|n| fs.setxattr(fid, &format!("user.{n}"), Some(b""), 0).err());
        assert_eq!((set, filled), (Some(FsError::NoSpace), Some(FsError::NoSpace)));
        let listed: usize = fs.listxattr(fid).iter().map(|name| name.len() + 1).sum();
        // XATTR_LIST_MAX of linux/limits.h.
        assert!((65_000..=65_536).contains(&listed), "{listed}");
    }
}

#[test]
fn who_would_make_a_name_that_has_become_no_regular_file_meanwhile_looks_again() {
    let fs = Fs::new();
    let fifo = CreateRequest {
        parent: ROOT,
        name: "fifo".into(),
        kind: NodeKind::Node,
        mode: 0o010_644,
        ..Default::default()
    };
    fs.call::<_, EntryReply>(Op::MdtCreate, &fifo).unwrap();
    fs.symlink(ROOT, "link", "nowhere").unwrap();
    fs.mkdir(ROOT, "dir").unwrap();
    let made = |name: &str| fs.open(ROOT, name, 0o102, 0o644).map(drop);
    assert_eq!(
        [made("fifo"), made("link"), made("dir")],
        [FsError::Stale, FsError::Stale, FsError::IsDirectory].map(Err)
    );
    assert_eq!(fs.open(ROOT, "fifo", 0o302, 0o644).map(drop), Err(FsError::Exists));
    assert!(fs.mds.handles.borrow().is_empty());
}

#[test]
fn directories_count_their_subdirectories_and_refuse_removal_while_full() {
    let fs = Fs::new();
    let d = fs.mkdir(ROOT, "d").unwrap();
    fs.mkdir(d, "e").unwrap();
    assert_eq!(fs.getattr(d).unwrap().nlink, 3);
    assert_eq!(fs.getattr(ROOT).unwrap().nlink, 3);
    assert_eq!(fs.rmdir(ROOT, "d"), Err(FsError::NotEmpty));
    fs.rmdir(d, "e").unwrap();
    fs.rmdir(ROOT, "d").unwrap();
    assert_eq!(fs.getattr(ROOT).unwrap().nlink, 2);
    assert_eq!(fs.lookup(ROOT, "d"), Err(FsError::NotFound));
    assert_eq!(fs.getattr(d), Err(FsError::Stale));
}

#[test]
fn an_unlinked_open_file_lives_until_its_last_close_and_then_its_objects_go() {
    let fs = Fs::new();
    let o = fs.open(ROOT, "f", 0o302, 0o644).unwrap();
    let fid = o.entry.attr.fid;
    let other = fs.of(2);
    let p = other.open(fid, "", 0, 0).unwrap();
    fs.unlink(ROOT, "f").unwrap();
    assert_eq!(fs.getattr(fid).unwrap().nlink, 0);
    fs.close(o.handle, fid, 0, 0).unwrap();
    assert!(other.getattr(fid).is_ok());
    fs.sync();
    fs.world.settle();
    assert!(fs.osts.destroyed.borrow().is_empty());
    other.close(p.handle, fid, 0, 0).unwrap();
    assert_eq!(fs.getattr(fid), Err(FsError::Stale));
    fs.sync();
    fs.world.settle();
    let (_, layout) = layout::xattr::decode_layout(&o.entry.layout).unwrap();
    assert_eq!(*fs.osts.destroyed.borrow(), [layout.objects()[0].object]);
}

#[test]
fn rename_replaces_exchanges_and_refuses_what_posix_refuses() {
    let fs = Fs::new();
    let d = fs.mkdir(ROOT, "d").unwrap();
    let e = fs.mkdir(d, "e").unwrap();
    let f = fs.create(ROOT, "f").unwrap();
    let g = fs.create(d, "g").unwrap();
    assert_eq!(fs.rename((ROOT, "d"), (e, "x"), 0), Err(FsError::Invalid));
    assert_eq!(fs.rename((d, "e"), (ROOT, "d"), 0), Err(FsError::NotEmpty));
    assert_eq!(fs.rename((ROOT, "f"), (d, "e"), 0), Err(FsError::IsDirectory));
    assert_eq!(fs.rename((d, "e"), (ROOT, "f"), 0), Err(FsError::NotDirectory));
    assert_eq!(fs.rename((ROOT, "f"), (d, "g"), 1), Err(FsError::Exists));
    assert_eq!(fs.rename((ROOT, "f"), (d, "no"), 2), Err(FsError::NotFound));
    assert_eq!(fs.rename((ROOT, "f"), (d, "g"), 3), Err(FsError::Invalid));
    fs.rename((ROOT, "f"), (d, "g"), 2).unwrap();
    assert_eq!((fs.lookup(ROOT, "f").unwrap().fid, fs.lookup(d, "g").unwrap().fid), (g, f));
    fs.rename((ROOT, "f"), (d, "g"), 0).unwrap();
    assert_eq!(fs.lookup(ROOT, "f"), Err(FsError::NotFound));
    assert_eq!((fs.lookup(d, "g").unwrap().fid, fs.getattr(f)), (g, Err(FsError::Stale)));
    fs.rename((d, "e"), (ROOT, "e2"), 0).unwrap();
    assert_eq!((fs.getattr(d).unwrap().nlink, fs.getattr(ROOT).unwrap().nlink), (2, 4));
    assert_eq!(fs.lookup(e, "..").unwrap().fid, ROOT);
    assert_eq!(fs.rename((d, "g"), (ROOT, "h"), 6), Err(FsError::Invalid));
    fs.rename((d, "g"), (ROOT, "h"), 4).unwrap();
    let gone = fs.lookup(d, "g").unwrap();
    assert_eq!((gone.mode & 0o170_000, gone.rdev, gone.nlink), (0o020_000, 0, 1), "a whiteout is in its place");
    assert_eq!((fs.lookup(ROOT, "h").unwrap().fid, fs.names(d)), (g, vec!["g".to_string()]));
    fs.unlink(d, "g").unwrap();
    fs.rmdir(ROOT, "d").unwrap();
}

#[test]
fn permissions_are_checked_for_every_caller() {
    let fs = Fs::new();
    let d = fs.mkdir_mode(ROOT, "d", 0o777).unwrap();
    let bob = fs.by(user(10));
    let eve = fs.by(user(11));
    assert_eq!(bob.create(ROOT, "x"), Err(FsError::Access));
    fs.chmod(d, 0o1777).unwrap();
    let f = bob.create(d, "f").unwrap();
    assert_eq!(eve.unlink(d, "f"), Err(FsError::NotPermitted));
    assert_eq!(eve.chmod(f, 0o777), Err(FsError::NotPermitted));
    assert_eq!(eve.open(f, "", 1, 0).unwrap_err(), FsError::Access);
    assert!(eve.open(f, "", 0, 0).is_ok());
    assert_eq!(bob.setattr(f, SetBits::UID, |q| q.uid = 11), Err(FsError::NotPermitted));
    bob.unlink(d, "f").unwrap();
}

#[test]
fn a_removed_directory_that_is_open_is_empty_and_has_no_parent() {
    let fs = Fs::new();
    let d = fs.mkdir(ROOT, "d").unwrap();
    let o = fs.open(d, "", 0o200_000, 0).unwrap();
    fs.rmdir(ROOT, "d").unwrap();
    assert_eq!(fs.getattr(d).unwrap().nlink, 0);
    assert_eq!(fs.names(d), Vec::<String>::new());
    assert_eq!(fs.lookup(d, ".."), Err(FsError::NotFound));
    assert_eq!(fs.lookup(d, ".").unwrap().fid, d);
    assert_eq!((fs.mkdir(d, "x"), fs.create(d, "y")), (Err(FsError::NotFound), Err(FsError::NotFound)));
    fs.close(o.handle, d, 0, 0).unwrap();
    assert_eq!(fs.getattr(d), Err(FsError::Stale));
}

#[test]
fn a_readers_access_time_comes_home_and_goes_only_forward() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    let at = |t: i64| {
        let o = fs.open(f, "", 0, 0).unwrap();
        let (handle, atime) = (o.handle, WallTime(t));
        fs.end(Close { handle, fid: f, valid: SetBits::ATIME, atime, ..Close::default() }).unwrap().atime
    };
    let born = fs.getattr(f).unwrap().atime;
    assert_eq!(at(5), born);
    assert_eq!(at(born.0 + 9), WallTime(born.0 + 9));
}

#[test]
fn several_opens_end_in_one_request_each_as_if_by_itself() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    let g = fs.create(ROOT, "g").unwrap();
    let end = |handle, fid, valid, size| Close { handle, fid, valid, size, ..Close::default() };
    let open = |fid| fs.open(fid, "", 1, 0).unwrap().handle;
    let known = |fid| fs.getattr(fid).unwrap().flags & AttrFlags::SIZE_KNOWN != 0;

    // The last writer of a file tells its size; who says that it wrote and not how much leaves it unknown.
    let (a, b, c, d) = (open(f), open(f), open(g), open(g));
    let hides = end(c, g, SetBits::DIRTY, 0);
    let told = SetBits::DIRTY | SetBits::SIZE;
    let ends = fs.end_all(vec![end(a, f, 0, 0), end(b, f, told, 7), hides, end(d, g, 0, 0)]).unwrap();
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    assert_eq!((fs.getattr(f).unwrap().size, known(f), known(g)), (7, true, false));

    // What is no open, or ended a moment ago, keeps nobody from its end.
    let (a, b) = (open(f), open(f));
    fs.unlink(ROOT, "f").unwrap();
    let ends = fs.end_all(vec![end(a, f, 0, 0), end(a, f, 0, 0), end(HandleId(77), g, 0, 0), end(b, f, 0, 0)]).unwrap();
    assert_eq!(ends[0].as_ref().map(|attr| attr.fid), Ok(f));
    assert_eq!(ends[1..3], [Err(FsError::BadHandle), Err(FsError::BadHandle)]);
    assert_eq!(ends[3].as_ref().map(|attr| attr.fid), Ok(Fid::ZERO), "gone with its last open");
    assert_eq!(fs.getattr(f), Err(FsError::Stale));

    let many = vec![end(HandleId(77), g, 0, 0); CLOSES_MAX + 1];
    assert_eq!(fs.end_all(many), Err(FsError::Invalid));
}
