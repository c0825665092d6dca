//! The in-memory tree behind the test file system: nodes, names, locks.
use fuse::abi::{Attr, FileLock, ROOT_ID};
use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

pub type Name = Vec<u8>;

#[derive(Clone)]
pub enum Body {
    File(Vec<u8>),
    Dir(BTreeMap<Name, u64>),
    Link(Vec<u8>),
    Special,
}

#[derive(Clone)]
pub struct Node {
    pub attr: Attr,
    pub body: Body,
    pub xattrs: BTreeMap<Name, Vec<u8>>,
    pub lookups: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub node: u64,
    pub owner: u64,
    pub flock: bool,
    pub lk: FileLock,
}

pub struct State {
    pub nodes: HashMap<u64, Node>,
    next: u64,
    pub locks: Vec<Held>,
    pub lock_waiters: Vec<Waker>,
    pub poll_handles: Vec<u64>,
    pub ready: bool,
    pub forgotten: u64,
    pub waiting_locks: usize,
    /// How often STATFS came.
    pub statfs_asked: u64,
}

impl State {
    pub fn new() -> State {
        let mut s = State {
            nodes: HashMap::new(),
            next: ROOT_ID,
            locks: Vec::new(),
            lock_waiters: Vec::new(),
            poll_handles: Vec::new(),
            ready: false,
            forgotten: 0,
            waiting_locks: 0,
            statfs_asked: 0,
        };
        s.add(libc::S_IFDIR | 0o755, 0, 0, Body::Dir(BTreeMap::new()));
        s
    }

    pub fn add(&mut self, mode: u32, uid: u32, gid: u32, body: Body) -> u64 {
        let ino = self.next;
        self.next += 1;
        let nlink = if matches!(body, Body::Dir(_)) { 2 } else { 1 };
        let size = match &body {
            Body::Link(t) => t.len() as u64,
            _ => 0,
        };
        let attr = Attr { ino, mode, uid, gid, nlink, size, blksize: 4096, ..Default::default() };
        self.nodes.insert(ino, Node { attr, body, xattrs: BTreeMap::new(), lookups: 0 });
        ino
    }

    pub fn node(&mut self, ino: u64) -> Result<&mut Node, i32> {
        self.nodes.get_mut(&ino).ok_or(libc::ESTALE)
    }

    pub fn dir(&mut self, ino: u64) -> Result<&mut BTreeMap<Name, u64>, i32> {
        match &mut self.node(ino)?.body {
            Body::Dir(d) => Ok(d),
            _ => Err(libc::ENOTDIR),
        }
    }

    pub fn data(&mut self, ino: u64) -> Result<&mut Vec<u8>, i32> {
        match &mut self.node(ino)?.body {
            Body::File(d) => Ok(d),
            _ => Err(libc::EINVAL),
        }
    }

    pub fn find(&mut self, dir: u64, name: &[u8]) -> Result<u64, i32> {
        self.dir(dir)?.get(name).copied().ok_or(libc::ENOENT)
    }

    pub fn link(&mut self, dir: u64, name: &[u8], node: u64) -> Result<(), i32> {
        if self.dir(dir)?.contains_key(name) {
            return Err(libc::EEXIST);
        }
        self.dir(dir)?.insert(name.to_vec(), node);
        Ok(())
    }

    pub fn make(&mut self, dir: u64, name: &[u8], mode: u32, ids: (u32, u32), body: Body) -> Result<u64, i32> {
        if self.dir(dir)?.contains_key(name) {
            return Err(libc::EEXIST);
        }
        let node = self.add(mode, ids.0, ids.1, body);
        self.link(dir, name, node)?;
        Ok(node)
    }

    pub fn unlink(&mut self, dir: u64, name: &[u8], want_dir: bool) -> Result<(), i32> {
        let node = self.find(dir, name)?;
        match &self.node(node)?.body {
            Body::Dir(d) if want_dir && !d.is_empty() => return Err(libc::ENOTEMPTY),
            Body::Dir(_) if !want_dir => return Err(libc::EISDIR),
            Body::Dir(_) => {}
            _ if want_dir => return Err(libc::ENOTDIR),
            _ => {}
        }
        self.dir(dir)?.remove(name);
        self.node(node)?.attr.nlink -= if want_dir { 2 } else { 1 };
        Ok(())
    }

    pub fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<(), i32> {
        let node = self.find(from.0, from.1)?;
        let target = self.find(to.0, to.1).ok();
        match (flags, target) {
            (libc::RENAME_EXCHANGE, None) => return Err(libc::ENOENT),
            (libc::RENAME_EXCHANGE, Some(other)) => {
                self.dir(from.0)?.insert(from.1.to_vec(), other);
                self.dir(to.0)?.insert(to.1.to_vec(), node);
                return Ok(());
            }
            (libc::RENAME_NOREPLACE, Some(_)) => return Err(libc::EEXIST),
            (0, Some(other)) => {
                let is_dir = matches!(self.node(other)?.body, Body::Dir(_));
                self.unlink(to.0, to.1, is_dir)?;
            }
            (0 | libc::RENAME_NOREPLACE, None) => {}
            _ => return Err(libc::EINVAL),
        }
        self.dir(from.0)?.remove(from.1);
        self.dir(to.0)?.insert(to.1.to_vec(), node);
        Ok(())
    }

    pub fn resize(&mut self, ino: u64, size: u64) -> Result<(), i32> {
        self.data(ino)?.resize(size as usize, 0);
        self.node(ino)?.attr.size = size;
        Ok(())
    }

    pub fn write(&mut self, ino: u64, at: usize, bytes: &[u8]) -> Result<(), i32> {
        let data = self.data(ino)?;
        if data.len() < at + bytes.len() {
            data.resize(at + bytes.len(), 0);
        }
        data[at..at + bytes.len()].copy_from_slice(bytes);
        let size = data.len() as u64;
        self.node(ino)?.attr.size = size;
        Ok(())
    }

    /// A lock of another owner that conflicts.
    pub fn conflict(&self, want: &Held) -> Option<FileLock> {
        let write = |l: &FileLock| l.typ == libc::F_WRLCK as u32;
        self.locks
            .iter()
            .find(|h| {
                h.node == want.node
                    && h.flock == want.flock
                    && h.owner != want.owner
                    && h.lk.start <= want.lk.end
                    && want.lk.start <= h.lk.end
                    && (write(&h.lk) || write(&want.lk))
            })
            .map(|h| h.lk)
    }

    /// Takes or drops a lock (whole ranges only) and wakes waiters.
    pub fn set_lock(&mut self, want: Held) {
        self.locks.retain(|h| {
            let same = h.node == want.node && h.flock == want.flock && h.owner == want.owner;
            !(same && want.lk.start <= h.lk.start && h.lk.end <= want.lk.end)
        });
        if want.lk.typ != libc::F_UNLCK as u32 {
            self.locks.push(want);
        }
        self.lock_waiters.drain(..).for_each(Waker::wake);
    }
}
