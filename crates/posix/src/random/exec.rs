//! Carries out operations on the file system and on the model, and compares.
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::model::{Errnos, Kind, Model, NodeId};
use super::op::{Op, SLOTS, Step};
use crate::cases::Map;
use crate::check::{eq, fails_any, pattern, same, yes};
use crate::sys::{self, Failed, R};

/// An open file.
struct Open {
    fd: OwnedFd,
    node: NodeId,
    append: bool,
}

/// A run: the directories, the model, what is open.
pub struct Run<'a> {
    sides: &'a [PathBuf],
    model: Model,
    slots: Vec<Option<Open>>,
    inodes: BTreeMap<NodeId, u64>,
}

/// The result of a call must be the model's: both succeed, or the errno is one of the right ones.
fn agree<T>(expected: Result<(), Errnos>, got: Result<T, Failed>) -> Result<Option<T>, String> {
    match (expected, got) {
        (Ok(()), got) => Ok(Some(got?)),
        (Err(errnos), got) => fails_any(&errnos, got).map(|()| None),
    }
}

fn put_at(data: &mut Vec<u8>, off: usize, bytes: &[u8]) {
    if data.len() < off + bytes.len() {
        data.resize(off + bytes.len(), 0);
    }
    data[off..off + bytes.len()].copy_from_slice(bytes);
}

fn zero_at(data: &mut [u8], off: u64, len: u64) {
    let n = data.len();
    data[n.min(off as usize)..n.min((off + len) as usize)].fill(0);
}

impl<'a> Run<'a> {
    /// Begins in an empty directory, known by these paths.
    pub fn new(sides: &'a [PathBuf]) -> Run<'a> {
        let slots = (0..SLOTS).map(|_| None).collect();
        Run { sides, model: Model::default(), slots, inodes: BTreeMap::new() }
    }

    fn at(&self, side: usize, names: &[u8]) -> PathBuf {
        names.iter().fold(self.sides[side].clone(), |p, n| p.join(char::from(b'a' + n).to_string()))
    }

    /// One operation on both.
    ///
    /// # Errors
    /// The results differ.
    pub fn step(&mut self, step: &Step) -> R {
        let side = step.side;
        match &step.op {
            Op::Open { .. }
            | Op::Mkdir { .. }
            | Op::Rmdir { .. }
            | Op::Unlink { .. }
            | Op::Link { .. }
            | Op::Rename { .. }
            | Op::Chmod { .. } => self.name(side, &step.op),
            Op::Stat { path } => self.stat(side, path),
            Op::List { path } => self.list(side, path),
            Op::TruncatePath { path, len } => self.truncate_path(side, path, *len),
            Op::Close { slot } => {
                self.slots[usize::from(*slot)] = None;
                Ok(())
            }
            Op::Copy { from, to, from_off, to_off, len } => self.copy(*from, *to, *from_off, *to_off, *len),
            Op::Write { slot, .. }
            | Op::Read { slot, .. }
            | Op::Truncate { slot, .. }
            | Op::Punch { slot, .. }
            | Op::Zero { slot, .. }
            | Op::Reserve { slot, .. }
            | Op::MapRead { slot, .. }
            | Op::MapWrite { slot, .. }
            | Op::Sync { slot }
            | Op::DataEnd { slot }
            | Op::StatSlot { slot } => {
                let Some(open) = self.slots[usize::from(*slot)].take() else { return Ok(()) };
                let result = self.data(&open, &step.op);
                self.slots[usize::from(*slot)] = Some(open);
                result
            }
        }
    }

    fn name(&mut self, side: usize, op: &Op) -> R {
        match op {
            Op::Open { path, create, excl, trunc, append, slot } => {
                let mut flags = libc::O_RDWR;
                for (on, flag) in
                    [(create, libc::O_CREAT), (excl, libc::O_EXCL), (trunc, libc::O_TRUNC), (append, libc::O_APPEND)]
                {
                    if *on && (flag != libc::O_EXCL || *create) {
                        flags |= flag;
                    }
                }
                let expected = self.model.open(path, *create, *excl, *trunc);
                let got = sys::open(&self.at(side, path), flags, 0o644);
                if let Some(fd) = agree(expected.clone().map(|_| ()), got)? {
                    let node = expected.map_err(|e| format!("{e:?}"))?;
                    self.slots[usize::from(*slot)] = Some(Open { fd, node, append: *append });
                }
            }
            Op::Mkdir { path } => {
                agree(self.model.mkdir(path), sys::mkdir(&self.at(side, path), 0o755))?;
            }
            Op::Rmdir { path } => {
                agree(self.model.rmdir(path), sys::rmdir(&self.at(side, path)))?;
            }
            Op::Unlink { path } => {
                agree(self.model.unlink(path), sys::unlink(&self.at(side, path)))?;
            }
            Op::Chmod { path, mode } => {
                agree(self.model.chmod(path, *mode), sys::chmod(&self.at(side, path), *mode))?;
            }
            Op::Link { old, new } => {
                let got = sys::link(&self.at(side, old), &self.at(side, new));
                agree(self.model.link(old, new), got)?;
            }
            Op::Rename { old, new, flags } => {
                let got = sys::rename2(&self.at(side, old), &self.at(side, new), *flags);
                agree(self.model.rename(old, new, *flags), got)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn same_node(&mut self, node: NodeId, st: &libc::stat) -> R {
        let expected = self.model.node(node);
        eq("mode", st.st_mode & 0o7777, expected.mode)?;
        match &expected.kind {
            Kind::File(data) => {
                eq("type", st.st_mode & libc::S_IFMT, libc::S_IFREG)?;
                eq("size", st.st_size as usize, data.len())?;
                eq("links", st.st_nlink, expected.links)?;
            }
            Kind::Dir(_) => eq("type", st.st_mode & libc::S_IFMT, libc::S_IFDIR)?,
        }
        eq("inode", st.st_ino, *self.inodes.entry(node).or_insert(st.st_ino))
    }

    fn stat(&mut self, side: usize, path: &[u8]) -> R {
        let found = self.model.find(path);
        let got = agree(found.map(|_| ()).map_err(|e| vec![e]), sys::lstat(&self.at(side, path)))?;
        match (found, got) {
            (Ok(node), Some(st)) => self.same_node(node, &st).map_err(|e| format!("stat of {path:?}: {e}")),
            _ => Ok(()),
        }
    }

    fn list(&mut self, side: usize, path: &[u8]) -> R {
        let expected = self.model.list(path);
        match (std::fs::read_dir(self.at(side, path)), expected) {
            (Ok(entries), Ok(names)) => {
                let mut got: Vec<u8> = entries.flatten().map(|e| e.file_name().as_encoded_bytes()[0] - b'a').collect();
                got.sort_unstable();
                eq("names in the directory", got, names)
            }
            (Err(e), Err(errnos)) => {
                yes(&format!("{e} among {errnos:?}"), e.raw_os_error().is_some_and(|e| errnos.contains(&e)))
            }
            (got, expected) => Err(format!("readdir of {path:?}: {:?}, not {expected:?}", got.map(|_| ()))),
        }
    }

    fn truncate_path(&mut self, side: usize, path: &[u8], len: u64) -> R {
        let expected = match self.model.find(path) {
            Ok(id) if matches!(self.model.node(id).kind, Kind::Dir(_)) => Err(vec![libc::EISDIR]),
            Ok(id) => {
                self.model.data_mut(id).resize(len as usize, 0);
                Ok(())
            }
            Err(e) => Err(vec![e]),
        };
        agree(expected, sys::truncate(&self.at(side, path), len as i64)).map(|_| ())
    }

    fn data(&mut self, open: &Open, op: &Op) -> R {
        let (fd, node) = (&open.fd, open.node);
        match op {
            Op::Write { off, len, tag, .. } => {
                let bytes = pattern(*tag, *len);
                let data = self.model.data_mut(node);
                let off = if open.append { data.len() } else { *off as usize };
                put_at(data, off, &bytes);
                let n = if open.append { sys::write(fd, &bytes)? } else { sys::pwrite(fd, &bytes, off as i64)? };
                eq("written", n as usize, *len)?;
            }
            Op::Read { off, len, .. } => {
                let data = self.model.data(node);
                let want = &data[data.len().min(*off as usize)..data.len().min(*off as usize + len)];
                same("what is read", &sys::pread(fd, *len, *off as i64)?, want)?;
            }
            Op::Truncate { len, .. } => {
                self.model.data_mut(node).resize(*len as usize, 0);
                sys::ftruncate(fd, *len as i64)?;
            }
            Op::Punch { off, len, .. } => {
                sys::fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, *off as i64, *len as i64)?;
                zero_at(self.model.data_mut(node), *off, *len);
            }
            Op::Zero { off, len, .. } => match sys::fallocate(fd, libc::FALLOC_FL_ZERO_RANGE, *off as i64, *len as i64)
            {
                Err(e) if e.errno == libc::EOPNOTSUPP => {}
                result => {
                    result?;
                    put_at(self.model.data_mut(node), *off as usize, &vec![0; *len as usize]);
                }
            },
            Op::Reserve { off, len, .. } => {
                sys::fallocate(fd, 0, *off as i64, *len as i64)?;
                let data = self.model.data_mut(node);
                data.resize(data.len().max((off + len) as usize), 0);
            }
            Op::MapRead { off, len, .. } => self.map_read(fd, node, *off, *len)?,
            Op::MapWrite { off, len, tag, .. } => self.map_write(fd, node, *off, *len, *tag)?,
            Op::Sync { .. } => {
                sys::fsync(fd)?;
            }
            Op::DataEnd { .. } => self.data_end(fd, node)?,
            Op::StatSlot { .. } => self.same_node(node, &sys::fstat(fd)?)?,
            _ => {}
        }
        Ok(())
    }

    /// The part of a file that a mapping from the page of `off` may touch: page start, and bytes from there.
    fn mapped(&self, node: NodeId, off: u64, len: usize) -> Option<(i64, usize, usize)> {
        let size = self.model.data(node).len();
        let off = off as usize;
        if off >= size {
            return None;
        }
        let start = off / 4096 * 4096;
        Some((start as i64, off - start, len.min(size - off)))
    }

    fn map_read(&self, fd: &OwnedFd, node: NodeId, off: u64, len: usize) -> R {
        let Some((start, skip, len)) = self.mapped(node, off, len) else { return Ok(()) };
        // A kernel asks for a file's size before programs map it only when it is asked for it.
        sys::fstat(fd)?;
        let map = Map::new(fd, start, skip + len, libc::PROT_READ, libc::MAP_SHARED)?;
        same("what a mapping shows", &map.get(skip, len), &self.model.data(node)[off as usize..off as usize + len])
    }

    fn map_write(&mut self, fd: &OwnedFd, node: NodeId, off: u64, len: usize, tag: u64) -> R {
        let Some((start, skip, len)) = self.mapped(node, off, len) else { return Ok(()) };
        let bytes = pattern(tag, len);
        sys::fstat(fd)?;
        let map = Map::new(fd, start, skip + len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)?;
        map.set(skip, &bytes);
        map.sync()?;
        put_at(self.model.data_mut(node), off as usize, &bytes);
        Ok(())
    }

    /// No byte that is not zero may lie in a hole.
    fn data_end(&self, fd: &OwnedFd, node: NodeId) -> R {
        let data = self.model.data(node);
        let mut at = 0;
        while at < data.len() {
            let next = match sys::lseek(fd, at as i64, libc::SEEK_DATA) {
                Ok(next) => next as usize,
                Err(e) if e.errno == libc::ENXIO => data.len(),
                Err(e) => return Err(e.into()),
            };
            yes("a hole holds zeros only", data[at..next.min(data.len())].iter().all(|b| *b == 0))?;
            if next >= data.len() {
                break;
            }
            at = sys::lseek(fd, next as i64, libc::SEEK_HOLE)? as usize;
            yes("a run of data is not empty", at > next)?;
        }
        eq("the end", sys::lseek(fd, 0, libc::SEEK_END)? as usize, data.len())
    }

    fn copy(&mut self, from: u8, to: u8, from_off: u64, to_off: u64, len: usize) -> R {
        let (Some(a), Some(b)) = (&self.slots[usize::from(from)], &self.slots[usize::from(to)]) else { return Ok(()) };
        let size = self.model.data(a.node).len();
        let len = len.min(size.saturating_sub(from_off as usize));
        sys::fstat(&a.fd)?;
        let crossing = self.sides.len() > 1 && a.node == b.node;
        if crossing && from_off < to_off + len as u64 && to_off < from_off + len as u64 {
            // Two mounts are two file systems to a kernel: it cannot know that the ranges overlap.
            return Ok(());
        }
        let got = sys::copy_range(&a.fd, from_off as i64, &b.fd, to_off as i64, len);
        let overlaps = a.node == b.node && from_off < to_off + len as u64 && to_off < from_off + len as u64;
        if b.append {
            return fails_any(&[libc::EBADF], got);
        }
        if len > 0 && overlaps {
            return fails_any(&[libc::EINVAL], got);
        }
        let n = match got {
            Err(e) if e.errno == libc::EXDEV && self.sides.len() > 1 => return Ok(()),
            got => got? as usize,
        };
        yes("something is copied", n <= len && (n > 0) == (len > 0))?;
        if n > 0 {
            let (part, node) = (self.model.data(a.node)[from_off as usize..][..n].to_vec(), b.node);
            put_at(self.model.data_mut(node), to_off as usize, &part);
        }
        Ok(())
    }

    /// Compares the whole tree, through every side.
    ///
    /// # Errors
    /// The first difference.
    pub fn finish(&mut self) -> R {
        let mut todo = vec![Vec::new()];
        while let Some(path) = todo.pop() {
            for side in 0..self.sides.len() {
                self.list(side, &path)?;
            }
            for name in self.model.list(&path).map_err(|e| format!("{e:?}"))? {
                let mut below = path.clone();
                below.push(name);
                for side in 0..self.sides.len() {
                    self.stat(side, &below)?;
                }
                let node = self.model.find(&below).map_err(|e| format!("{e}"))?;
                match &self.model.node(node).kind {
                    Kind::Dir(_) => todo.push(below),
                    Kind::File(data) => {
                        for side in 0..self.sides.len() {
                            same("content at the end", &sys::get(&self.at(side, &below))?, data)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
