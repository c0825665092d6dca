//! What is read and written without any server.
use cache::PageAccess;
use ldlm::LockMode;
use types::{Duration, FsError, HandleId, Transno};
use wire::mdt::{Attr, AttrFlags, LockBits, OpenRequest};

use super::*;
use crate::inode::Inode;
use crate::open_file::{O_DIRECT, OpenFile};
use crate::pages::NewFrames;
use crate::parts::{Parts, STRIPE, fid, layout_of};

const SECOND: Duration = Duration::from_secs(1);
const O_RDWR: u32 = 2;
const O_WRONLY: u32 = 1;

/// A file on two OSTs that nobody else writes, open with these flags.
fn file(parts: &Parts, flags: u32) -> (Rc<Inode>, Rc<OpenFile>) {
    parts.bits_granted(fid(1), LockBits::LOOKUP | LockBits::UPDATE | LockBits::PERM);
    let inode = parts.meta.inode(fid(1));
    let attr = Attr { fid: fid(1), mode: 0o100_644, flags: AttrFlags::HAS_LAYOUT, ..Attr::default() };
    inode.take_answer(parts.common.clock.next(), &attr);
    parts.osts.take_layout(&inode, &layout_of(fid(1), &[0, 1]), &[]).unwrap();
    inode.ours_alone.set(true);
    let request = OpenRequest { parent: fid(1), flags, ..OpenRequest::default() };
    let file = parts.meta.opened(&inode, &request, 5, HandleId(5), Transno(1));
    (inode, file)
}

#[test]
fn holes_and_what_lies_behind_the_end_are_read_without_any_server() {
    let world = simworld::TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let parts = Parts::new(&rt, 2);
        let (inode, file) = file(&parts, O_RDWR);
        parts.bytes_granted(&inode, LockMode::Pw);
        // The second object has bytes, of which none is asked for; the first none: its stripe is a hole.
        inode.striping().unwrap().objects[1].set_size(100);
        assert_eq!(parts.data.file_size(&inode).await.unwrap().size, STRIPE + 100);
        let read = |at, len| rt.timeout(SECOND, parts.data.read(&file, at, len));
        let hole = read(10, 5000).await.expect("nobody is asked").unwrap();
        assert_eq!(hole.to_vec(), [0; 5000]);
        assert!(read(2 * STRIPE, 100).await.expect("nobody is asked").unwrap().is_empty());
        assert!(read(STRIPE, 100).await.is_none(), "these bytes are the server's");
        assert_eq!(parts.data.calls().each(|[reads, _]| reads.bytes.sum), 5000);
    });
}

#[test]
fn a_write_waits_for_nobody_only_where_locks_and_pages_are_at_hand() {
    let world = simworld::TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let parts = Parts::new(&rt, 2);
        let (inode, file) = file(&parts, O_RDWR);
        let at_once = |at, len| parts.data.writes_at_once(&file, at, len);
        assert!(!at_once(0, 4096), "there is no lock");
        parts.bytes_granted(&inode, LockMode::Pw);
        assert!(at_once(0, 4096) && at_once(100, 5));
        inode.striping().unwrap().objects[0].set_size(8192);
        assert!(
            at_once(4096, 4096) && at_once(100, 5),
            "the page's other bytes are the server's, and nobody asks for them"
        );
        let object = &inode.striping().unwrap().objects[0];
        let mut frames = NewFrames::new(frames::FramePool::new(1 << 20), 1);
        assert_eq!(object.write_page(0, 100, b"there", PageAccess::fine(0), &mut frames), Ok(Some(true)));
        assert!(at_once(105, 5) && at_once(98, 3) && !at_once(106, 5), "what is between them is the server's");
        assert!(at_once(0, 4096) && !at_once(106, 4096 - 106));
        file.follow(O_RDWR | O_DIRECT);
        assert!(!at_once(4096, 4096));
    });
}

#[test]
fn an_open_reads_and_writes_what_it_was_made_for() {
    let world = simworld::TestWorld::new(1, 16 << 20);
    let rt = world.rt();
    world.run(async move {
        let parts = Parts::new(&rt, 2);
        let (_, writer) = file(&parts, O_WRONLY);
        assert_eq!(parts.data.read(&writer, 0, 1).await.map(drop), Err(FsError::BadHandle));
        let (_, reader) = file(&parts, 0);
        assert_eq!(parts.data.write(&reader, 0, b"x").await, Err(FsError::BadHandle));
        assert_eq!(parts.data.fallocate(&reader, 0, 0, 1).await, Err(FsError::BadHandle));
    });
}
