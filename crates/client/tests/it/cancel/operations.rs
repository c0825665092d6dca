//! What is dropped: every operation that a client offers, in the place that [`Place`] is.
use std::future::Future;

use client::{FlockMode, Hint, LockCall, Migrate, NewNode};
use wire::mdt::{NodeKind, SetBits, SetattrRequest};

use super::place::{LEN, Node, Place, SMALL, striped};
use crate::world::*;

type Steps = Box<dyn Fn(Rc<Place>) -> rt::LocalFuture<Result<(), FsError>>>;

/// What becomes of an operation that is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// Nothing happened, or all of it.
    Whole,
    /// Each byte of its range is as it was or as it was to be.
    Bytes,
    /// It asks, and changes nothing.
    Nothing,
}

pub struct Operation {
    pub name: &'static str,
    pub promise: Promise,
    pub before: Steps,
    pub run: Steps,
}

fn steps<F: Future<Output = Result<(), FsError>> + 'static>(run: impl Fn(Rc<Place>) -> F + 'static) -> Steps {
    Box::new(move |place| Box::pin(run(place)))
}

fn op<F>(name: &'static str, promise: Promise, run: impl Fn(Rc<Place>) -> F + 'static) -> Operation
where
    F: Future<Output = Result<(), FsError>> + 'static,
{
    Operation { name, promise, before: steps(|_| async { Ok(()) }), run: steps(run) }
}

impl Operation {
    /// Is to come after that.
    fn after<F>(self, before: impl Fn(Rc<Place>) -> F + 'static) -> Operation
    where
        F: Future<Output = Result<(), FsError>> + 'static,
    {
        Operation { before: steps(before), ..self }
    }
}

const O_WRONLY: u32 = 1;
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;
const O_DSYNC: u32 = 0o10000;
const O_TMPFILE: u32 = 0o20_200_000;

fn directory() -> NewNode {
    NewNode { kind: NodeKind::Directory, mode: 0o040_755, ..NewNode::default() }
}
fn symlink() -> NewNode {
    NewNode { kind: NodeKind::Symlink, mode: 0o120_777, target: b"f".to_vec(), ..NewNode::default() }
}
fn new_file(flags: u32) -> NewFile<'static> {
    NewFile { flags: flags | O_CREAT, mode: 0o644, ..NewFile::default() }
}

async fn opens(p: Rc<Place>, fid: Fid, flags: u32) -> Result<(), FsError> {
    let file = p.one.open(&root(), fid, flags).await?;
    p.take(file);
    Ok(())
}
async fn creates(p: Rc<Place>, name: &'static [u8], flags: u32) -> Result<(), FsError> {
    let (_, file) = p.one.create_open(&root(), p.dir, name, new_file(flags)).await?;
    p.take(file);
    Ok(())
}
/// Writes through the open of `f`, or through one with these flags.
async fn opens_to_write(p: Rc<Place>, flags: u32) -> Result<(), FsError> {
    let file = p.one.open(&root(), p.file.fid(), O_RDWR | flags).await?;
    p.take(file);
    Ok(())
}
fn last(p: &Place) -> Rc<OpenFile> {
    p.opened.borrow().last().unwrap().clone()
}
/// Nothing is cached.
async fn cold(p: Rc<Place>) -> Result<(), FsError> {
    p.one.drop_caches().await;
    Ok(())
}
/// The owner of locks that operations are about.
pub const OWNER: u64 = 7;
async fn sets(p: Rc<Place>, request: SetattrRequest, through: bool) -> Result<(), FsError> {
    let file = through.then_some(&p.file);
    p.one.setattr(&root(), p.file.inode(), request, file).await
}
fn size(size: u64) -> SetattrRequest {
    SetattrRequest { valid: SetBits::SIZE | SetBits::MTIME_NOW, size, ..SetattrRequest::default() }
}
/// A lock of a program; who it is of.
pub fn lock_call(p: &Place, whole: bool, mode: FlockMode, owner: u64) -> LockCall {
    let extent = if whole { Extent::ALL } else { Extent::new(100, 200) };
    LockCall { fid: p.file.fid(), whole, mode, extent, owner, pid: owner as u32 }
}
async fn locks(p: Rc<Place>, whole: bool, mode: FlockMode, wait: bool) -> Result<(), FsError> {
    p.one.flocks().set_lock(lock_call(&p, whole, mode, OWNER), wait, std::future::pending()).await
}
/// The other client has the lock, and gives it back a while later.
async fn two_locks(p: Rc<Place>, whole: bool) -> Result<(), FsError> {
    let call = lock_call(&p, whole, FlockMode::Exclusive, 9);
    p.two.flocks().set_lock(call, false, std::future::pending()).await?;
    let rt = p.two.rt().clone();
    rt.clone().spawn(async move {
        rt.sleep(Duration::from_millis(300)).await;
        let call = LockCall { mode: FlockMode::Unlock, ..call };
        p.two.flocks().set_lock(call, false, std::future::pending()).await.unwrap();
    });
    Ok(())
}
fn wish(count: u16) -> Vec<u8> {
    striped(layout::StripeCount::Exactly(count), 1)
}

/// Operations on names.
fn names() -> Vec<Operation> {
    use Promise::{Nothing, Whole};
    let replace = |p: Rc<Place>, to: &'static [u8], flags| async move {
        p.one.meta().rename(&root(), (p.dir, b"f"), (p.dir, to), flags).await
    };
    vec![
        op("lookup", Nothing, |p| async move { p.one.lookup(&root(), p.dir, b"f").await.map(drop) }),
        op("lookup, cold", Nothing, |p| async move { p.one.lookup(&root(), p.dir, b"f").await.map(drop) }).after(cold),
        op("lookup of nothing", Nothing, |p| async move { p.one.lookup(&root(), p.dir, b"no").await.map(drop) }),
        op("getattr, cold", Nothing, |p| async move { p.one.getattr(&root(), p.small, None).await.map(drop) })
            .after(cold),
        op("readdir", Nothing, |p| async move { p.one.meta().readdir(&root(), p.dir, 0, 4096, false).await.map(drop) }),
        op("readdir plus, cold", Nothing, |p| async move {
            p.one.meta().readdir(&root(), p.dir, 0, 4096, true).await.map(drop)
        })
        .after(cold),
        op("readlink", Nothing, |p| async move {
            let link = p.one.lookup(&root(), p.dir, b"l").await?.attr.fid;
            p.one.meta().readlink(&root(), link).await.map(drop)
        })
        .after(|p| async move { p.one.create(&root(), p.dir, b"l", symlink()).await.map(drop) }),
        op("mkdir", Whole, |p| async move { p.one.create(&root(), p.dir, b"n", directory()).await.map(drop) }),
        op("symlink", Whole, |p| async move { p.one.create(&root(), p.dir, b"n", symlink()).await.map(drop) }),
        op("link", Whole, |p| async move { p.one.link(&root(), p.small, p.dir, b"n").await.map(drop) }),
        op("unlink", Whole, |p| async move { p.one.meta().unlink(&root(), p.dir, b"g", false).await }),
        op("unlink of an open file", Whole, |p| async move { p.one.meta().unlink(&root(), p.dir, b"f", false).await }),
        op("rmdir", Whole, |p| async move { p.one.meta().unlink(&root(), p.dir, b"s", true).await }),
        op("rename", Whole, move |p| replace(p, b"n", 0)),
        op("rename over a name", Whole, move |p| replace(p, b"g", 0)),
        op("rename, exchanging", Whole, move |p| replace(p, b"g", 2)),
        op("rename into a directory", Whole, |p| async move {
            let sub = p.one.lookup(&root(), p.dir, b"s").await?.attr.fid;
            p.one.meta().rename(&root(), (p.dir, b"g"), (sub, b"n"), 0).await
        }),
    ]
}

/// Operations on what inodes have besides bytes.
fn attributes() -> Vec<Operation> {
    use Promise::{Nothing, Whole};
    vec![
        op(
            "setxattr",
            Whole,
            |p| async move { p.one.setxattr(&root(), p.small, b"user.a", Some(b"1"), 0, false).await },
        ),
        op("getxattr", Nothing, |p| async move { p.one.getxattr(&root(), p.small, b"user.a").await.map(drop) })
            .after(|p| async move { p.one.setxattr(&root(), p.small, b"user.a", Some(b"1"), 0, false).await }),
        op("listxattr", Nothing, |p| async move { p.one.meta().listxattr(&root(), p.small).await.map(drop) }),
        op("removexattr", Whole, |p| async move { p.one.setxattr(&root(), p.small, b"user.a", None, 0, false).await })
            .after(|p| async move { p.one.setxattr(&root(), p.small, b"user.a", Some(b"1"), 0, false).await }),
        op("setting an ACL", Whole, |p| async move {
            // Version 2: owner rw, user 5 r, group r, mask r, others none.
            let mut acl = 2u32.to_le_bytes().to_vec();
            for (tag, perm, id) in
                [(1u16, 6u16, u32::MAX), (2, 4, 5), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
            {
                acl.extend(tag.to_le_bytes());
                acl.extend(perm.to_le_bytes());
                acl.extend(id.to_le_bytes());
            }
            p.one.setxattr(&root(), p.small, b"system.posix_acl_access", Some(&acl), 0, false).await
        }),
        op("setting a layout", Whole, |p| async move {
            let fid = last(&p).fid();
            p.one.setxattr(&root(), fid, b"lustre.lov", Some(&wish(2)), 0, false).await
        })
        .after(|p| async move {
            // Without objects yet.
            const O_LOV_DELAY_CREATE: u32 = 0o100_000_000;
            creates(p, b"n", O_RDWR | O_LOV_DELAY_CREATE).await
        }),
        op("chmod", Whole, |p| async move {
            let request = SetattrRequest { valid: SetBits::MODE, mode: 0o100_600, ..SetattrRequest::default() };
            sets(p, request, false).await
        }),
        op("utimens", Whole, |p| async move {
            let mtime = types::WallTime(1_000_000_000);
            sets(p, SetattrRequest { valid: SetBits::MTIME, mtime, ..SetattrRequest::default() }, false).await
        }),
        op("sync of a directory", Nothing, |p| async move {
            let dir = p.one.meta().inode(p.dir);
            p.one.meta().sync_dir(&dir, &Cell::new(p.one.meta().losses_of(&dir))).await
        }),
        op("sync of an inode", Nothing, |p| async move { p.one.meta().sync_meta(p.dir).await }),
        op("statfs", Nothing, |p| async move { p.one.statfs().await.map(drop) }),
    ]
}

/// Opens and their ends.
fn open_files() -> Vec<Operation> {
    use Promise::{Nothing, Whole};
    let end = |p: Rc<Place>| async move {
        let file = p.opened.borrow_mut().pop().unwrap();
        p.one.release(&file).await
    };
    vec![
        op("open to read", Nothing, |p| async move { opens(p.clone(), p.small, 0).await }),
        op("open to read, cold", Nothing, |p| async move { opens(p.clone(), p.small, 0).await }).after(cold),
        op("open to write", Nothing, |p| async move { opens(p.clone(), p.small, O_WRONLY).await }),
        op("open that cuts", Whole, |p| async move { opens(p.clone(), p.small, O_RDWR | O_TRUNC).await }),
        op("open that cuts a striped file", Whole, |p| async move {
            opens(p.clone(), p.file.fid(), O_WRONLY | O_TRUNC).await
        }),
        op("create", Whole, |p| creates(p, b"n", O_RDWR)),
        op("create of what is there, cutting", Whole, |p| creates(p, b"g", O_RDWR | O_TRUNC)),
        op("create of a nameless file", Nothing, |p| creates(p, b"", O_RDWR | O_TMPFILE)),
        op("close", Nothing, end).after(|p| async move { opens(p.clone(), p.small, 0).await }),
        op("close of what was written", Nothing, end).after(|p| async move {
            opens(p.clone(), p.small, O_RDWR).await?;
            p.one.data().write(&last(&p), 20, b"twenty").await.map(drop)
        }),
        op("close, soon", Nothing, |p| async move {
            let file = p.opened.borrow_mut().pop().unwrap();
            p.one.release_soon(&file).await;
            Ok(())
        })
        .after(|p| async move {
            opens(p.clone(), p.file.fid(), O_RDWR).await?;
            p.one.data().write(&last(&p), 20, b"twenty").await.map(drop)
        }),
        op("fsync", Nothing, |p| async move { p.one.data().fsync(&p.file, false).await })
            .after(|p| async move { p.one.data().write(&p.file, 20, &[7; 70_000]).await.map(drop) }),
        op("sync of own bytes", Nothing, |p| async move { p.one.data().sync_own(&p.file).await })
            .after(|p| async move { p.one.data().write(&p.file, 20, &[7; 70_000]).await.map(drop) }),
        op("fsync past a kernel", Nothing, |p| async move { p.one.fsync_aside(&p.file, true).await })
            .after(|p| async move { p.one.data().write(&p.file, 20, &[7; 70_000]).await.map(drop) }),
        op("sync of everything", Nothing, |p| async move { p.one.sync_all().await })
            .after(|p| async move { p.one.data().write(&p.file, 20, &[7; 70_000]).await.map(drop) }),
        op("write-out", Nothing, |p| async move {
            p.one.data().write_out(p.file.inode()).await;
            Ok(())
        })
        .after(|p| async move { p.one.data().write(&p.file, 20, &[7; 70_000]).await.map(drop) }),
        op("giving caches up", Nothing, cold),
    ]
}

/// Reads, and advice about them.
fn reads() -> Vec<Operation> {
    use Promise::Nothing;
    vec![
        op("read", Nothing, |p| async move { p.one.data().read(&p.file, 100, 100_000).await.map(drop) }),
        op("read, cold", Nothing, |p| async move { p.one.data().read(&p.file, 100, 100_000).await.map(drop) })
            .after(cold),
        op("read of pages, cold", Nothing, |p| async move {
            p.one.data().read_pages(&p.file, 4096, 100_000).await.map(drop)
        })
        .after(cold),
        op("read past a kernel, cold", Nothing, |p| async move { p.one.read_aside(&p.file, 0, 100).await.map(drop) })
            .after(cold),
        op("read past the cache", Nothing, |p| async move {
            let file = last(&p);
            p.one.data().read(&file, 0, 150_000).await.map(drop)
        })
        .after(|p| opens_to_write(p, O_DIRECT)),
        op("advised readahead", Nothing, |p| async move {
            p.one.drop_caches().await;
            p.one.data().advise(&p.file, Hint::WillNeed, Extent::new(0, LEN)).await
        }),
        op(
            "advice to drop",
            Nothing,
            |p| async move { p.one.data().advise(&p.file, Hint::DontNeed, Extent::ALL).await },
        ),
        op("advice to servers", Nothing, |p| async move {
            p.one.advise_servers(&root(), p.file.inode(), (wire::ost::Advice::High, true), Extent::ALL).await
        }),
        op("lock ahead", Nothing, |p| async move {
            p.one.data().lock_ahead(&p.file, true, Extent::new(0, 2 * STRIPE)).await
        }),
    ]
}

/// Writes.
fn writes() -> Vec<Operation> {
    use Promise::{Bytes, Nothing};
    let writes = |p: Rc<Place>, at: u64, len: usize| async move {
        let file = p.opened.borrow().last().cloned().unwrap_or(p.file.clone());
        p.one.data().write(&file, at, &vec![9; len]).await.map(drop)
    };
    vec![
        op("write, small", Bytes, move |p| writes(p, 5, 20)),
        op("write, small, cold", Bytes, move |p| writes(p, 5, 20)).after(cold),
        op("write, large", Bytes, move |p| writes(p, 1000, 150_000)).after(cold),
        op("write behind the end", Bytes, move |p| writes(p, LEN + 5000, 1000)).after(cold),
        op(
            "write with nothing in hand",
            Nothing,
            |p| async move { p.one.data().ready_to_write(&p.file, 0, 150_000).await },
        )
        .after(cold),
        op("append", Bytes, move |p| writes(p, 0, 70_000)).after(|p| opens_to_write(p, O_APPEND)),
        op("append, synced", Bytes, move |p| writes(p, 0, 70_000)).after(|p| opens_to_write(p, O_APPEND | O_DSYNC)),
        op("append in pieces", Bytes, |p| async move {
            let (file, keep) = (last(&p), Some(Duration::from_millis(50)));
            let first = p.one.data().write_part(&file, LEN, &[8; 4096], keep).await?;
            p.one.data().write_part(&file, first.at + 4096, &[9; 100], None).await.map(drop)
        })
        .after(|p| opens_to_write(p, O_APPEND)),
        op("write, synced", Bytes, move |p| writes(p, 5, 9000)).after(|p| opens_to_write(p, O_DSYNC)),
        op("write past the cache", Bytes, move |p| writes(p, 8192, 131_072)).after(|p| opens_to_write(p, O_DIRECT)),
        op("write past a kernel", Bytes, |p| async move { p.one.write_aside(&p.file, 3, &[9; 6000]).await.map(drop) }),
        op("write through a mapping", Bytes, |p| async move {
            let _ = p.one.data().read_pages(&p.file, 0, 8192).await?;
            match p.one.data().write_mapped(&p.file, 0, &[9; 8192]).await {
                // Its leases went before the kernel, which is none here, dropped the pages.
                Err(FsError::Io) => Ok(()),
                done => done,
            }
        }),
        op("copy within the cluster", Bytes, |p| async move {
            let to = last(&p);
            p.one.data().copy_range(&p.file, 0, &to, SMALL, 100_000).await.map(drop)
        })
        .after(|p| async move { opens(p.clone(), p.small, O_RDWR).await }),
    ]
}

/// Changes of sizes and of space.
fn sizes() -> Vec<Operation> {
    use Promise::{Bytes, Nothing, Whole};
    let allocates = |p: Rc<Place>, mode: u32, at: u64, len: u64| async move {
        p.one.data().fallocate(&p.file, mode, at, len).await
    };
    vec![
        op("cut", Whole, |p| sets(p, size(1000), true)),
        op("cut, cold", Whole, |p| sets(p, size(STRIPE + 77), false)).after(cold),
        op("cut of dirty bytes", Whole, |p| sets(p, size(1000), true))
            .after(|p| async move { p.one.data().write(&p.file, 500, &[7; 70_000]).await.map(drop) }),
        op("cut of one object", Whole, |p| async move {
            let inode = p.one.meta().inode(p.small);
            p.one.setattr(&root(), &inode, size(100), None).await
        }),
        op("cut to nothing of one object, open", Whole, |p| async move {
            let file = last(&p);
            p.one.setattr(&root(), file.inode(), size(100), Some(&file)).await
        })
        .after(|p| async move {
            opens(p.clone(), p.small, O_RDWR).await?;
            p.one.data().write(&last(&p), 50, &[7; 9000]).await?;
            p.one.data().fsync(&last(&p), false).await
        }),
        op("growth", Whole, |p| sets(p, size(2 * LEN), true)),
        op("punch", Bytes, move |p| allocates(p, 3, 1000, 100_000)),
        op("zeros", Bytes, move |p| allocates(p, 16, 1000, 100_000)),
        op("zeros behind the end", Bytes, move |p| allocates(p, 16, LEN - 100, 100_000)),
        op("reservation", Bytes, move |p| allocates(p, 0, 1000, LEN + 100_000)),
        op("reservation that keeps the size", Nothing, move |p| allocates(p, 1, LEN, 100_000)),
        op("seek", Nothing, |p| async move { p.one.data().seek(p.file.inode(), 100, true).await.map(drop) }),
        op("loss of privileges", Whole, |p| async move { p.one.drop_privileges(&p.file, p.file.cred(), true).await })
            .after(|p| async move {
                let request = SetattrRequest { valid: SetBits::MODE, mode: 0o104_755, ..SetattrRequest::default() };
                sets(p, request, false).await
            }),
        op("migration", Nothing, |p| async move {
            let how = Migrate { layout: wish(1), ..Migrate::default() };
            p.one.migrate(&root(), p.file.inode(), &how, &|| false).await.map(drop)
        }),
    ]
}

/// Locks of programs.
fn program_locks() -> Vec<Operation> {
    use FlockMode::{Exclusive, Shared, Unlock};
    use Promise::Nothing;
    vec![
        op("flock", Nothing, |p| locks(p, true, Exclusive, false)),
        op("fcntl lock", Nothing, |p| locks(p, false, Shared, false)),
        op("unlock", Nothing, |p| locks(p, false, Unlock, false)).after(|p| locks(p, false, Exclusive, false)),
        op("wait for a flock", Nothing, |p| locks(p, true, Exclusive, true)).after(|p| two_locks(p, true)),
        op("wait for a fcntl lock", Nothing, |p| locks(p, false, Exclusive, true)).after(|p| two_locks(p, false)),
        op("test of a lock", Nothing, |p| async move {
            p.one.flocks().test_lock(lock_call(&p, false, Exclusive, OWNER)).await.map(drop)
        }),
        op(
            "giving locks back",
            Nothing,
            |p| async move { p.one.flocks().drop_locks(p.file.fid(), OWNER, false).await },
        )
        .after(|p| locks(p, false, Exclusive, false)),
    ]
}

pub fn all() -> Vec<Operation> {
    let mut all = names();
    for more in [attributes, open_files, reads, writes, sizes, program_locks] {
        all.extend(more());
    }
    all
}

/// Whether `now` is what an operation that was dropped may have left of `before`, when all of it would have made `done`.
pub fn keeps(promise: Promise, before: &Node, done: &Node, now: &Node) -> bool {
    match promise {
        Promise::Nothing => now == done,
        Promise::Whole => now == before || now == done,
        Promise::Bytes => part_of(before, done, now),
    }
}

/// Each byte of each file is old or new, and everything else is as it was.
fn part_of(before: &Node, done: &Node, now: &Node) -> bool {
    let sizes = [before.size, done.size];
    let long = *sizes.iter().min().unwrap()..=*sizes.iter().max().unwrap();
    let byte = |of: &Node, at: usize| of.bytes.get(at).copied();
    let old_or_new = |at: usize| {
        let is = byte(now, at);
        is == byte(before, at) || is == byte(done, at) || is == Some(0) && at as u64 >= before.size
    };
    let same = |f: fn(&Node) -> u32| f(now) == f(before) || f(now) == f(done);
    let names = now.names.len() == before.names.len()
        && now.names.iter().all(|(name, node)| match (before.names.get(name), done.names.get(name)) {
            (Some(before), Some(done)) => part_of(before, done, node),
            _ => false,
        });
    let bytes = long.contains(&now.size) && (0..now.bytes.len()).all(old_or_new);
    bytes && names && same(|n| n.mode) && same(|n| n.nlink) && now.xattrs == before.xattrs
}
