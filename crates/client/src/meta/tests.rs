//! What is believed and done without the metadata server.
use types::{Duration, HandleId};
use wire::mdt::AttrFlags;

use super::*;
use crate::parts::{Parts, fid};

const SECOND: Duration = Duration::from_secs(1);

fn file_attr(number: u32) -> Attr {
    Attr { fid: fid(number), mode: 0o100_644, nlink: 1, flags: AttrFlags::SIZE_KNOWN, ..Attr::default() }
}

/// A file whose attributes and name, in directory 1, are known under a lock.
fn known_file(parts: &Parts, number: u32) -> Rc<Inode> {
    parts.bits_granted(fid(number), ATTR_BITS);
    let inode = parts.meta.inode(fid(number));
    let now = parts.common.clock.next();
    assert!(inode.take_answer(now, &file_attr(number)) && inode.attr_valid());
    parts.meta.learn_name(fid(1), b"name", &inode);
    inode
}

#[test]
fn a_name_is_believed_as_long_as_a_lock_covers_it() {
    let world = simworld::TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let parts = Parts::new(&rt, 0);
        let cred = Cred::default();
        let unlocked = parts.meta.inode(fid(3));
        parts.meta.learn_name(fid(1), b"other", &unlocked);
        assert_eq!(parts.meta.remembered()[1], 0, "nothing covers it");
        let inode = known_file(&parts, 2);
        let found = rt.timeout(SECOND, parts.meta.look_up(&cred, fid(1), b"name")).await.expect("nobody is asked");
        assert!(found.unwrap().is_ok_and(|f| Rc::ptr_eq(&f.inode, &inode) && inode.front.is_known()));
        assert!(!inode.front.is_known(), "the answer is over");
        parts.common.locks.on_evicted();
        assert!(!inode.attr_valid() && parts.meta.remembered()[1] == 0);
        assert!(rt.timeout(SECOND, parts.meta.look_up(&cred, fid(1), b"name")).await.is_none(), "the server is asked");
    });
}

#[test]
fn names_that_come_and_go_leave_nothing_at_their_inodes() {
    let world = simworld::TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let parts = Parts::new(&rt, 0);
        let (one, other) = (known_file(&parts, 2), known_file(&parts, 3));
        assert_eq!((one.names.borrow().len(), other.names.borrow().len()), (0, 1), "the name went over to the other");
        parts.meta.learn_name(fid(1), b"other", &one);
        for i in 0..10_000 {
            assert!(
                parts.meta.unlearn_name(fid(1), b"name").is_some()
                    && parts.meta.unlearn_name(fid(1), b"other").is_some()
            );
            let (first, second) = if i % 2 == 0 { (&one, &other) } else { (&other, &one) };
            parts.meta.learn_name(fid(1), b"name", first);
            parts.meta.learn_name(fid(1), b"other", second);
        }
        assert_eq!((one.names.borrow().len(), other.names.borrow().len(), parts.meta.remembered()[1]), (1, 1, 2));
        parts.meta.forget_all_names();
        assert_eq!((one.names.borrow().len(), other.names.borrow().len(), parts.meta.remembered()[1]), (0, 0, 0));
    });
}

#[test]
fn an_answer_whose_lock_covers_no_attributes_tells_nothing_over_those_under_a_lock() {
    use wire::lock::{EnqueueReply, Kind, LockSpec, Mode};
    let world = simworld::TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let parts = Parts::new(&rt, 0);
        let sent = parts.common.clock.next();
        // Of a later question, whose answer came first.
        let inode = known_file(&parts, 2);
        let told = async |bits, mode| {
            let (cookie, _reserved) = parts.common.locks.reserve_one();
            let lock = LockSpec { fid: fid(2), kind: Kind::Inodebits, mode: Mode::Pr, bits, ..LockSpec::default() };
            let lock = EnqueueReply { handle: HandleId(cookie + 100), granted: true, lock, lvb: None };
            let reply = EntryReply { attr: Attr { mode, ..file_attr(2) }, lock: Some(lock), ..EntryReply::default() };
            parts.meta.take_entry(&reply, cookie, 0, Told::Asked(sent)).await.unwrap();
            inode.attr().mode
        };
        assert_eq!(told(LockBits::OPEN, 0o100_600).await, 0o100_644, "the inode was kept, and may have been changed");
        assert!(inode.attr_valid());
        assert_eq!(told(ATTR_BITS, 0o100_640).await, 0o100_640, "nobody can have changed it since");
    });
}

#[test]
fn a_reader_opens_under_a_lock_without_the_server_and_a_writer_does_not() {
    let world = simworld::TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let parts = Parts::new(&rt, 0);
        let inode = known_file(&parts, 2);
        let cred = Cred { caps: 3, ..Cred::default() };
        let file = rt.timeout(SECOND, parts.meta.open(&cred, fid(2), 0)).await.expect("nobody is asked").unwrap();
        assert!(file.is_untold() && file.handle.get() == HandleId(0) && inode.is_known_outside());
        assert_eq!((parts.meta.opens().len(), inode.opens.get(), inode.untold.get()), (1, 1, 1));
        assert!(parts.meta.file(file.id()).is_some() && parts.meta.open_replays().is_empty());
        const O_RDWR: u32 = 2;
        assert!(rt.timeout(SECOND, parts.meta.open(&cred, fid(2), O_RDWR)).await.is_none());
    });
}

#[test]
fn of_too_many_inodes_the_least_recently_used_leave_unless_the_kernel_remembers_them() {
    let world = simworld::TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let parts = Parts::new(&rt, 0);
        parts.meta.set_inodes_max(16);
        parts.meta.remember(fid(1));
        let open = parts.meta.inode(fid(2));
        (3..=16).for_each(|i| drop(parts.meta.inode(fid(i))));
        drop(parts.meta.inode(fid(3)));
        (17..=24).for_each(|i| drop(parts.meta.inode(fid(i))));
        rt.sleep(SECOND).await;
        assert!(parts.meta.remembered()[0] <= 16 && parts.meta.inodes_reclaimed() >= 8);
        let is_known = |i: u32| parts.meta.known_inode(fid(i)).is_some();
        assert_eq!([1, 2, 3, 4, 5, 24].map(is_known), [true, true, true, false, false, true]);
        parts.meta.forget(fid(1), 1);
        rt.sleep(SECOND).await;
        assert!(!is_known(1), "no lock is held on it, and nobody knows it any more");
        drop(open);
    });
}
