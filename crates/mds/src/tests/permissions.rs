//! Rights, modes, times, xattrs and layouts, row by row.
use types::{Fid, FsError, WallTime};
use wire::mdt::*;

use super::harness::{Fs, user};
use crate::record::{S_ISGID, S_ISUID};

const ROOT: Fid = Fid::ROOT;

/// A directory anybody may write to.
fn open_dir(fs: &Fs) -> Fid {
    fs.mkdir_mode(ROOT, "open", 0o777).and_then(|d| fs.chmod(d, 0o777).map(|_| d)).unwrap()
}

#[test]
fn names_that_cannot_be_are_refused_with_their_errno() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    let long = "x".repeat(256);
    assert!(fs.mkdir(ROOT, &"x".repeat(255)).is_ok());
    for (name, e) in [
        (&long[..], FsError::NameTooLong),
        ("", FsError::Invalid),
        ("a/b", FsError::Invalid),
        (".", FsError::Exists),
        ("..", FsError::Exists),
        ("f", FsError::Exists),
    ] {
        assert_eq!(fs.mkdir(ROOT, name), Err(e), "{name}");
    }
    assert_eq!(fs.lookup(ROOT, &long), Err(FsError::NameTooLong));
    assert_eq!(fs.lookup(f, "x"), Err(FsError::NotDirectory));
    assert_eq!(fs.mkdir(f, "x"), Err(FsError::NotDirectory));
    assert_eq!(fs.lookup(Fid::new(1, 1), "x"), Err(FsError::Stale));
    assert_eq!((fs.rmdir(ROOT, "."), fs.rmdir(ROOT, "..")), (Err(FsError::Invalid), Err(FsError::NotEmpty)));
    assert_eq!(fs.rename((ROOT, "."), (ROOT, "z"), 0), Err(FsError::Busy));
    assert_eq!(
        (fs.symlink(ROOT, "s", ""), fs.symlink(ROOT, "s", &"t".repeat(4096))),
        (Err(FsError::NotFound), Err(FsError::NameTooLong))
    );
    assert_eq!(fs.link(ROOT, ROOT, "l"), Err(FsError::NotPermitted));
}

#[test]
fn opens_answer_as_linux_does() {
    let fs = Fs::new();
    let d = fs.mkdir(ROOT, "d").unwrap();
    fs.create(ROOT, "f").unwrap();
    fs.symlink(ROOT, "s", "f").unwrap();
    let (creat, excl, directory, tmpfile) = (0o100, 0o200, 0o200_000, 0o20_200_000);
    for (name, flags, want) in [
        ("f", creat | excl, FsError::Exists),
        ("none", 0, FsError::NotFound),
        ("d", 1, FsError::IsDirectory),
        ("d", creat, FsError::IsDirectory),
        ("f", directory, FsError::NotDirectory),
        ("f", directory | creat, FsError::Invalid),
        ("s", 0, FsError::Loop),
        ("", tmpfile, FsError::Invalid),
    ] {
        assert_eq!(fs.open(ROOT, name, flags, 0o600).unwrap_err(), want, "{name} {flags:o}");
    }
    let t = fs.open(d, "", tmpfile | 2, 0o600).unwrap();
    let fid = t.entry.attr.fid;
    assert!(t.created && t.entry.attr.nlink == 0 && fs.names(d).is_empty());
    fs.link(fid, d, "named").unwrap();
    fs.close(t.handle, fid, 0, 0).unwrap();
    assert_eq!(fs.lookup(d, "named").unwrap().nlink, 1);
    let t = fs.open(d, "", tmpfile | excl | 2, 0o600).unwrap();
    assert_eq!(fs.link(t.entry.attr.fid, d, "no"), Err(FsError::NotFound));
    let o = fs.open(ROOT, "f", 0o1002, 0).unwrap();
    assert!(!o.created && o.entry.attr.size == 0);
}

#[test]
fn set_id_bits_go_with_a_change_of_owner_and_with_a_foreign_group() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    fs.chmod(f, 0o6755).unwrap();
    let a = fs.setattr(f, SetBits::UID | SetBits::GID, |q| (q.uid, q.gid) = (10, 20)).unwrap();
    assert_eq!((a.mode & 0o7777, a.uid, a.gid), (0o755, 10, 20));
    let bob = fs.by(user(10));
    assert_eq!(bob.chmod(f, 0o2755).unwrap().mode & S_ISGID, 0, "not in group 20");
    assert_eq!(bob.chmod(f, 0o4755).unwrap().mode & S_ISUID, S_ISUID);
    assert_eq!(bob.setattr(f, SetBits::KILL_PRIV, |_| ()).unwrap().mode & S_ISUID, 0);
    assert_eq!(bob.setattr(f, SetBits::GID, |q| q.gid = 99), Err(FsError::NotPermitted));
    assert_eq!(bob.setattr(f, SetBits::GID, |q| q.gid = 10).unwrap().gid, 10);
    // Without execution by the group it stays for who is in the group that the file had.
    for (gid, stays) in [(20, 0), (10, S_ISGID)] {
        fs.setattr(f, SetBits::GID, |q| q.gid = gid).unwrap();
        fs.chmod(f, 0o2644).unwrap();
        assert_eq!(bob.setattr(f, SetBits::GID, |q| q.gid = 10).unwrap().mode & S_ISGID, stays, "from group {gid}");
    }
    let d = open_dir(&fs);
    fs.setattr(d, SetBits::GID, |q| q.gid = 33).unwrap();
    fs.chmod(d, 0o2777).unwrap();
    let sub = bob.mkdir(d, "sub").unwrap();
    let a = fs.getattr(sub).unwrap();
    assert_eq!((a.gid, a.mode & S_ISGID), (33, S_ISGID));
    let o = bob.open(d, "x", 0o102, 0o2770).unwrap();
    assert_eq!((o.entry.attr.gid, o.entry.attr.mode & 0o7777), (33, 0o750));
}

#[test]
fn times_and_sizes_follow_who_may_set_them() {
    let fs = Fs::new();
    let d = open_dir(&fs);
    let bob = fs.by(user(10));
    let eve = fs.by(user(11));
    let f = bob.create(d, "f").unwrap();
    assert_eq!(eve.setattr(f, SetBits::MTIME, |q| q.mtime = WallTime(3)), Err(FsError::NotPermitted));
    assert_eq!(eve.setattr(f, SetBits::MTIME_NOW, |_| ()), Err(FsError::Access));
    assert_eq!(eve.setattr(f, SetBits::SIZE, |q| q.size = 3), Err(FsError::Access));
    bob.chmod(f, 0o666).unwrap();
    let before = eve.setattr(f, SetBits::MTIME_NOW | SetBits::ATIME_NOW, |_| ()).unwrap();
    let a = eve.setattr(f, SetBits::SIZE, |q| (q.size, q.blocks) = (4096, 0)).unwrap();
    assert!(a.size == 4096 && a.mtime > before.mtime && a.ctime > before.ctime);
    let o = bob.open(f, "", 1, 0).unwrap();
    bob.chmod(f, 0o400).unwrap();
    assert_eq!(bob.setattr(f, SetBits::SIZE, |q| q.size = 1), Err(FsError::Access));
    assert_eq!(bob.setattr(f, SetBits::SIZE, |q| (q.size, q.handle) = (1, o.handle)).unwrap().size, 1);
    assert_eq!(fs.setattr(d, SetBits::SIZE, |q| q.size = 1), Err(FsError::IsDirectory));
    assert_eq!(fs.setattr(f, SetBits::SIZE, |q| q.size = u64::MAX), Err(FsError::FileTooBig));
    assert_eq!(bob.setattr(f, SetBits::MTIME, |q| q.mtime = WallTime(-5)).unwrap().mtime, WallTime(-5));
}

#[test]
fn xattr_spaces_flags_and_limits() {
    let fs = Fs::new();
    let d = open_dir(&fs);
    let (bob, eve) = (fs.by(user(10)), fs.by(user(11)));
    let f = bob.create(d, "f").unwrap();
    let v = Some(&b"v"[..]);
    bob.setxattr(f, "user.a", v, 0).unwrap();
    let big = vec![1; 65_537];
    for (who, name, value, flags, want) in [
        (&bob, "user.a", v, 1, FsError::Exists),
        (&bob, "user.b", v, 2, FsError::NoData),
        (&bob, "user.b", None, 0, FsError::NoData),
        (&bob, "user.", v, 0, FsError::Invalid),
        (&bob, "odd.x", v, 0, FsError::NotSupported),
        (&bob, "trusted.x", v, 0, FsError::NotPermitted),
        (&bob, "security.capability", v, 0, FsError::NotPermitted),
        (&eve, "user.a", v, 0, FsError::Access),
        (&bob, "user.big", Some(&big[..]), 0, FsError::TooBig),
        (&bob, "lustre.lov.add", v, 0, FsError::NotSupported),
    ] {
        assert_eq!(who.setxattr(f, name, value, flags), Err(want), "{name}");
    }
    bob.setxattr(f, "user.big", Some(&big[..65_536]), 0).unwrap();
    assert_eq!(bob.getxattr(f, "user.big").unwrap().len(), 65_536);
    fs.setxattr(f, "trusted.t", v, 0).unwrap();
    assert_eq!(bob.getxattr(f, "trusted.t"), Err(FsError::NoData));
    assert_eq!(bob.listxattr(f), ["user.a", "user.big", "lustre.lov"]);
    assert_eq!(fs.listxattr(f), ["trusted.t", "user.a", "user.big", "lustre.lov"]);
    assert_ne!(fs.getattr(f).unwrap().flags & AttrFlags::HAS_XATTRS, 0);
    for n in ["user.a", "user.big", "trusted.t"] {
        fs.setxattr(f, n, None, 0).unwrap();
    }
    assert_eq!(fs.getattr(f).unwrap().flags & AttrFlags::HAS_XATTRS, 0);
    let s = fs.symlink(ROOT, "s", "x").unwrap();
    assert_eq!(fs.setxattr(s, "user.a", v, 0), Err(FsError::NotPermitted));
    assert_eq!(bob.getxattr(f, "user.none"), Err(FsError::NoData));
}

/// user::rw- user:11:rw- group::--- mask::rw- other::---
#[test]
fn attributes_of_one_inode_have_room_for_so_many_bytes_together() {
    let fs = Fs::new();
    let f = fs.create(ROOT, "f").unwrap();
    let value = vec![7; 65_536];
    let set = |i: usize, value: Option<&[u8]>| fs.setxattr(f, &format!("user.{i}"), value, 0);
    let held = (0..100).take_while(|i| set(*i, Some(&value)).is_ok()).count();
    assert_eq!(held, 63, "4 MiB, with the names");
    assert_eq!(set(held, Some(&value)), Err(FsError::NoSpace));
    set(0, Some(&value)).unwrap();
    set(0, Some(&value[..100])).unwrap();
    set(held, Some(&value)).unwrap();
    assert_eq!(set(0, Some(&value)), Err(FsError::NoSpace), "a value that grows counts, too");
    set(1, None).unwrap();
    set(0, Some(&value)).unwrap();
    assert_eq!(fs.listxattr(f).len(), 64, "63 and the layout");
}

fn acl() -> Vec<u8> {
    let mut v = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in [(1u16, 6u16, u32::MAX), (2, 6, 11), (4, 0, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)]
    {
        v.extend(tag.to_le_bytes());
        v.extend(perm.to_le_bytes());
        v.extend(id.to_le_bytes());
    }
    v
}

#[test]
fn acls_decide_follow_chmod_and_are_inherited() {
    let fs = Fs::new();
    let d = open_dir(&fs);
    let (bob, eve, joe) = (fs.by(user(10)), fs.by(user(11)), fs.by(user(12)));
    let f = bob.create(d, "f").unwrap();
    assert_eq!(eve.setxattr(f, "system.posix_acl_access", Some(&acl()), 0), Err(FsError::NotPermitted));
    bob.setxattr(f, "system.posix_acl_access", Some(&acl()), 0).unwrap();
    assert_eq!(fs.getattr(f).unwrap().mode & 0o777, 0o660);
    assert!(eve.open(f, "", 2, 0).is_ok());
    assert_eq!(joe.open(f, "", 0, 0).unwrap_err(), FsError::Access);
    bob.chmod(f, 0o640).unwrap();
    assert_eq!(eve.open(f, "", 2, 0).unwrap_err(), FsError::Access, "chmod cut the mask");
    assert_eq!(bob.setxattr(f, "system.posix_acl_access", Some(b"junk"), 0), Err(FsError::Invalid));
    fs.setxattr(d, "system.posix_acl_default", Some(&acl()), 0).unwrap();
    assert_eq!(bob.setxattr(f, "system.posix_acl_default", Some(&acl()), 0), Err(FsError::Access));
    let o = bob.open(d, "g", 0o102, 0o666).unwrap();
    assert_eq!(o.entry.attr.mode & 0o777, 0o660, "the umask has no say");
    assert!(!o.entry.acl.is_empty() && o.entry.attr.flags & AttrFlags::HAS_ACL != 0);
    let sub = bob.mkdir_mode(d, "sub", 0o777).unwrap();
    assert_eq!(fs.getxattr(sub, "system.posix_acl_default").unwrap(), acl());
    bob.setxattr(f, "system.posix_acl_access", None, 0).unwrap();
    assert_eq!(fs.getattr(f).unwrap().flags & AttrFlags::HAS_ACL, 0);
}

fn spec(size: u64, count: i64, index: i64) -> Vec<u8> {
    layout::xattr::encode_spec(&layout::LayoutSpec::from_raw(size, count, index).unwrap())
}
fn layout_of(fs: &Fs, f: Fid) -> layout::Layout {
    layout::xattr::decode_layout(&fs.getxattr(f, "lustre.lov").unwrap()).unwrap().1
}

#[test]
fn default_layouts_are_set_inherited_and_deleted() {
    let fs = Fs::new();
    let d = fs.mkdir(ROOT, "d").unwrap();
    assert_eq!(fs.getxattr(d, "lustre.lov"), Err(FsError::NoData));
    fs.setxattr(d, "lustre.lov", Some(&spec(1 << 20, 2, -1)), 0).unwrap();
    let sub = fs.mkdir(d, "sub").unwrap();
    let f = fs.create(sub, "f").unwrap();
    let l = layout_of(&fs, f);
    assert_eq!((l.stripe_count(), l.stripe_size().bytes(), l.generation()), (2, 1 << 20, u16::MAX));
    assert_eq!(fs.getxattr(sub, "lustre.lov").unwrap(), spec(1 << 20, 2, -1));
    fs.setxattr(sub, "lustre.lov", Some(b""), 0).unwrap();
    assert_eq!(layout_of(&fs, fs.create(sub, "g").unwrap()).stripe_count(), 1);
    fs.setxattr(ROOT, "lustre.lov", Some(&spec(0, -1, -1)), 0).unwrap();
    assert_eq!(layout_of(&fs, fs.create(sub, "h").unwrap()).stripe_count(), 2, "the root's default");
    fs.setxattr(ROOT, "lustre.lov", None, 0).unwrap();
    let q = OpenRequest { layout: spec(65_536, 1, 1).into(), ..fs.open_request(sub, "i", 0o102, 0o644) };
    let o: OpenReply = fs.call(wire::Op::MdtOpen, &q).unwrap();
    let l = layout_of(&fs, o.entry.attr.fid);
    assert_eq!((l.first_ost().0, l.stripe_size().bytes()), (1, 65_536));
    let mut bad = spec(65_536, 1, -1);
    bad[24..28].copy_from_slice(&64_512u32.to_le_bytes());
    assert_eq!(fs.setxattr(d, "lustre.lov", Some(&bad), 0), Err(FsError::Invalid));
    let q = OpenRequest { layout: spec(65_536, 1, 9).into(), ..fs.open_request(sub, "j", 0o102, 0o644) };
    assert_eq!(fs.call::<_, OpenReply>(wire::Op::MdtOpen, &q).unwrap_err(), FsError::Invalid, "OST 9 does not exist");
}

#[test]
fn when_every_ost_is_full_a_create_gets_enospc_and_others_go_on() {
    let fs = Fs::new();
    *fs.osts.full.borrow_mut() = true;
    fs.pass(11);
    assert_eq!(fs.create(ROOT, "f"), Err(FsError::NoSpace));
    assert!(fs.mkdir(ROOT, "d").is_ok());
    *fs.osts.full.borrow_mut() = false;
    fs.pass(11);
    assert!(fs.create(ROOT, "f").is_ok());
}

#[test]
fn a_directory_gives_its_level_of_advice_to_what_is_made_in_it() {
    let fs = Fs::new();
    let (user_name, root_name) = ("user.stria.advice", "trusted.stria.advice");
    let level = |fid| AttrFlags::advice(fs.getattr(fid).unwrap().flags);
    let d = open_dir(&fs);
    let before = fs.create(d, "before").unwrap();
    assert_eq!(fs.getxattr(d, user_name), Err(FsError::NoData));
    fs.setxattr(d, user_name, Some(b"high"), 0).unwrap();
    assert_eq!((fs.getxattr(d, user_name), fs.getxattr(d, root_name)), (Ok(b"high".to_vec()), Ok(b"high".to_vec())));
    assert_eq!(fs.listxattr(d), [user_name]);
    let (file, below) = (fs.create(d, "new").unwrap(), fs.mkdir(d, "below").unwrap());
    let deeper = fs.create(below, "new").unwrap();
    let link = fs.symlink(d, "link", "x").unwrap();
    assert_eq!([file, below, deeper, before, link].map(level), [4, 4, 4, 0, 0]);
    // Of a file the metadata server says nothing: its objects' servers know.
    assert_eq!(fs.getxattr(file, user_name), Err(FsError::NoData));
    assert!(!fs.listxattr(file).contains(&user_name.to_string()));
    assert_eq!(fs.setxattr(file, user_name, Some(b"low"), 0), Err(FsError::NotSupported));
    for wrong in ["", "highest", "high 0-5"] {
        assert_eq!(fs.setxattr(d, user_name, Some(wrong.as_bytes()), 0), Err(FsError::Invalid), "{wrong}");
    }
    assert_eq!(fs.setxattr(d, user_name, Some(b"low"), 1), Err(FsError::Exists), "XATTR_CREATE");
    let other = fs.by(user(7));
    assert_eq!(other.setxattr(d, user_name, Some(b"low"), 0), Err(FsError::NotPermitted));
    assert_eq!(other.setxattr(d, root_name, Some(b"low"), 0), Err(FsError::NotPermitted));
    assert_eq!(
        (other.getxattr(d, root_name), other.getxattr(d, user_name)),
        (Err(FsError::NoData), Ok(b"high".to_vec()))
    );
    fs.setxattr(d, user_name, None, 0).unwrap();
    assert_eq!((level(d), fs.setxattr(d, user_name, None, 0)), (0, Err(FsError::NoData)));
    let after = fs.create(d, "after").unwrap();
    assert_eq!((level(after), level(below)), (0, 4));
}
