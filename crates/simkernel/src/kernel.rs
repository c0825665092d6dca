//! One kernel with one mount: its tables of inodes and names, notifications, and what happens by itself.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use fuse::abi::{
    self, Attr, EntryOut, ForgetIn, NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut, NotifyPruneOut,
    OutHeader, ROOT_ID, opcode,
};
use fuse::{Message, Pipe};
use rt::Rt;
use rt::sync::Semaphore;
use types::{Duration, Instant, Rng};
use zerocopy::{FromBytes, IntoBytes};

use crate::conn::{Connection, Delays, parse};
use crate::file::END;
use crate::inode::Inode;

/// How a kernel behaves.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// Seed of its choices.
    pub seed: u64,
    /// Threads.
    pub delays: Delays,
    /// Pages read along with one that is missing, at most.
    pub read_around_pages: u64,
    /// How many times what INIT agreed on is read ahead at most (a program that announces sequential reads doubles it).
    pub window_factor: u64,
    /// How often dirty pages are looked for.
    pub flush_interval: Duration,
    /// How old dirty pages get before they are written back by themselves.
    pub dirty_age_max: Duration,
    /// How often something unused is dropped for want of memory.
    pub shrink_interval: Duration,
}

/// A name as the kernel knows it.
#[derive(Clone)]
pub(crate) struct Dentry {
    /// `None`: there is no such name.
    pub inode: Option<Rc<Inode>>,
    pub valid_until: Instant,
    pub epoch: u64,
}

/// See the module's head.
pub struct Kernel {
    pub(crate) rt: Rt,
    pub(crate) config: KernelConfig,
    /// The connection.
    pub conn: Rc<Connection>,
    pub(crate) inodes: RefCell<BTreeMap<u64, Rc<Inode>>>,
    pub(crate) names: RefCell<BTreeMap<(u64, Vec<u8>), Dentry>>,
    pub(crate) version: Cell<u64>,
    pub(crate) epoch: Cell<u64>,
}

impl Kernel {
    /// A kernel on a machine of its own whose tasks `rt` runs. INIT waits in the pipe.
    #[must_use]
    pub fn boot(rt: Rt, config: KernelConfig) -> Rc<Kernel> {
        let conn = Connection::new(rt.clone(), Rng::new(config.seed), config.delays.clone());
        let root = Inode::new(ROOT_ID);
        let attr = Attr { mode: libc::S_IFDIR | 0o755, nlink: 2, ..Attr::default() };
        root.attr.set(attr);
        Rc::new(Kernel {
            rt,
            config,
            conn,
            inodes: RefCell::new(BTreeMap::from([(ROOT_ID, root)])),
            names: RefCell::default(),
            version: Cell::new(1),
            epoch: Cell::new(0),
        })
    }

    /// The daemon's end of the connection.
    #[must_use]
    pub fn pipe(&self) -> Arc<Pipe> {
        self.conn.pipe.clone()
    }

    /// Begins to work: INIT is in the pipe when this returns. The future completes when it was answered.
    pub fn start(self: &Rc<Self>) -> impl Future<Output = Result<(), i32>> + use<> {
        let started = self.conn.send_init();
        self.run();
        let conn = self.conn.clone();
        async move { conn.take_init(started).await }
    }

    /// Takes messages of the daemon, writes back, forgets: until the connection is over.
    fn run(self: &Rc<Self>) {
        let me = self.clone();
        self.rt.spawn(async move { me.take_messages().await });
        let me = self.clone();
        self.rt.spawn(async move {
            while !me.conn.pipe.is_closed() {
                me.rt.sleep(me.config.flush_interval).await;
                me.flush_old().await;
            }
        });
        let me = self.clone();
        self.rt.spawn(async move {
            while !me.conn.pipe.is_closed() {
                me.rt.sleep(me.config.shrink_interval).await;
                me.shrink();
            }
        });
    }

    /// The directory at the top.
    #[must_use]
    pub fn root(&self) -> Rc<Inode> {
        self.inodes.borrow()[&ROOT_ID].clone()
    }

    pub(crate) fn next_version(&self) -> u64 {
        self.version.set(self.version.get() + 1);
        self.version.get()
    }

    async fn take_messages(self: Rc<Self>) {
        // As many as the daemon has threads that wait in the kernel for the end of a notification.
        let threads = Rc::new(Semaphore::new(fuse::notify::THREADS_MAX));
        while let Some(message) = self.conn.pipe.receive().await {
            let Ok((header, _)) = OutHeader::read_from_prefix(message.bytes()) else {
                self.conn.fault("a message without a header".into());
                continue;
            };
            if header.len as usize != message.bytes().len() {
                self.conn.fault(format!("a message of {} bytes says {}", message.bytes().len(), header.len));
                continue;
            }
            let me = self.clone();
            if header.unique == 0 {
                let threads = threads.clone();
                self.rt.spawn(async move {
                    threads.acquire(1).await;
                    me.conn.pause().await;
                    let body = message.bytes()[size_of::<OutHeader>()..].to_vec();
                    let result = me.on_notification(header.error, &body).await;
                    threads.add(1);
                    message.answer(result.map_err(std::io::Error::from_raw_os_error));
                });
            } else if self.conn.delays.loose {
                self.rt.spawn(async move {
                    me.conn.pause().await;
                    me.on_reply(&header, &message);
                });
            } else {
                self.on_reply(&header, &message);
            }
        }
        self.conn.abort();
    }

    fn on_reply(&self, header: &OutHeader, message: &Message) {
        self.conn.on_reply(header, &message.bytes()[size_of::<OutHeader>()..]);
    }

    async fn on_notification(self: &Rc<Self>, code: i32, body: &[u8]) -> Result<(), i32> {
        tracing::trace!(code, "notification {body:?}");
        match code {
            abi::notify::INVAL_INODE => {
                let arg: NotifyInvalInodeOut = parse(body)?;
                let inode = self.inodes.borrow().get(&arg.ino).cloned().ok_or(libc::ENOENT)?;
                inode.version.set(self.next_version());
                inode.expire();
                if arg.off >= 0 {
                    let from = arg.off as u64;
                    let to = if arg.len <= 0 { END } else { from + arg.len as u64 };
                    inode.drop_listing();
                    self.invalidate(&inode, from, to).await;
                }
                Ok(())
            }
            abi::notify::INC_EPOCH => {
                self.epoch.set(self.epoch.get() + 1);
                Ok(())
            }
            abi::notify::PRUNE => {
                let arg: NotifyPruneOut = parse(body)?;
                let ids = &body[size_of::<NotifyPruneOut>()..];
                if ids.len() != arg.count as usize * 8 {
                    self.conn.fault(format!("PRUNE of {} nodes with {} bytes", arg.count, ids.len()));
                    return Err(libc::EINVAL);
                }
                for id in ids.chunks_exact(8) {
                    let id = u64::from_ne_bytes(id.try_into().expect("eight bytes"));
                    let inode = self.inodes.borrow().get(&id).cloned();
                    if let Some(inode) = inode {
                        self.let_go(&inode);
                    }
                }
                Ok(())
            }
            abi::notify::INVAL_ENTRY => {
                let arg: NotifyInvalEntryOut = parse(body)?;
                let name = &body[size_of::<NotifyInvalEntryOut>()..];
                self.on_name_gone(arg.parent, name, arg.namelen).await
            }
            abi::notify::DELETE => {
                let arg: NotifyDeleteOut = parse(body)?;
                let name = &body[size_of::<NotifyDeleteOut>()..];
                self.on_name_gone(arg.parent, name, arg.namelen).await
            }
            other => {
                self.conn.fault(format!("notification {other} is not part of this model"));
                Err(libc::EINVAL)
            }
        }
    }

    async fn on_name_gone(self: &Rc<Self>, parent: u64, name: &[u8], len: u32) -> Result<(), i32> {
        let dir = self.inodes.borrow().get(&parent).cloned().ok_or(libc::ENOENT)?;
        let name = name.get(..len as usize).ok_or(libc::EINVAL)?.to_vec();
        let _guard = dir.lock.exclusive().await;
        dir.names_changed();
        self.names.borrow_mut().remove(&(parent, name)).map(drop).ok_or(libc::ENOENT)
    }

    /// How long what an answer says may be believed from now on.
    pub(crate) fn until(&self, valid: (u64, u32)) -> Instant {
        Instant(self.rt.now().0.saturating_add(valid.0.saturating_mul(1_000_000_000)).saturating_add(valid.1.into()))
    }

    /// Takes attributes over, but for the size.
    pub(crate) fn take_attributes(&self, inode: &Inode, attr: &Attr, valid: (u64, u32)) {
        inode.version.set(self.next_version());
        inode.attr.set(*attr);
        inode.valid_until.set(self.until(valid));
    }

    /// Takes over what an answer says, unless something changed since the question was asked.
    pub(crate) async fn believe(self: &Rc<Self>, inode: &Rc<Inode>, attr: &Attr, valid: (u64, u32), seen: u64) {
        if inode.version.get() > seen || inode.unstable.get() {
            return;
        }
        self.take_attributes(inode, attr, valid);
        let old = inode.size.replace(attr.size);
        if inode.is_file() && old != attr.size {
            self.truncate_pages(inode, attr.size).await;
        }
    }

    /// The inode of an entry that the daemon told; it counts a lookup.
    pub(crate) async fn inode_of(self: &Rc<Self>, entry: &EntryOut, seen: u64) -> Result<Rc<Inode>, i32> {
        if entry.nodeid == 0 || entry.attr.mode & libc::S_IFMT == 0 {
            self.conn.fault(format!("an entry of node {:x} with mode {:o}", entry.nodeid, entry.attr.mode));
            return Err(libc::EIO);
        }
        let known = self.inodes.borrow().get(&entry.nodeid).cloned();
        let fresh = known.is_none();
        let inode = known.unwrap_or_else(|| Inode::new(entry.nodeid));
        self.inodes.borrow_mut().insert(entry.nodeid, inode.clone());
        inode.lookups.set(inode.lookups.get() + 1);
        let valid = (entry.attr_valid, entry.attr_valid_nsec);
        if fresh {
            self.take_attributes(&inode, &entry.attr, valid);
            inode.size.set(entry.attr.size);
        } else {
            self.believe(&inode, &entry.attr, valid, seen).await;
        }
        Ok(inode)
    }

    async fn flush_old(self: &Rc<Self>) {
        let inodes: Vec<Rc<Inode>> = self.inodes.borrow().values().cloned().collect();
        let limit = self.config.dirty_age_max;
        for inode in inodes {
            let now = self.rt.now();
            let is_old = inode.pages.borrow().values().any(|p| p.dirty.get() && now.since(p.dirtied.get()) >= limit);
            if is_old {
                // A flusher of its own, as a slow file must not hold up others.
                let (me, inode) = (self.clone(), inode.clone());
                self.rt.spawn(async move { me.write_back(&inode, 0, END, false).await });
            }
        }
    }

    /// Memory is short: some name or inode that nobody uses goes.
    fn shrink(&self) {
        let inode = {
            let inodes = self.inodes.borrow();
            let at = self.conn.rng.borrow_mut().below(inodes.len() as u64) as usize;
            inodes.values().nth(at).cloned()
        };
        if let Some(inode) = inode {
            self.let_go(&inode);
        }
    }

    /// Drops the names of an inode, and the inode, if nobody uses them.
    pub(crate) fn let_go(&self, inode: &Rc<Inode>) {
        if inode.nodeid == ROOT_ID || inode.opens.get() > 0 {
            return;
        }
        let has_children = self.names.borrow().keys().any(|(parent, _)| *parent == inode.nodeid);
        if has_children {
            return;
        }
        self.names.borrow_mut().retain(|_, d| !d.inode.as_ref().is_some_and(|i| Rc::ptr_eq(i, inode)));
        self.evict_unused(inode);
    }

    /// Forgets an inode that no name, no open file and no running call refers to.
    pub(crate) fn evict_unused(&self, inode: &Rc<Inode>) {
        let is_named = self.names.borrow().values().any(|d| d.inode.as_ref().is_some_and(|i| Rc::ptr_eq(i, inode)));
        // The table's reference and the caller's.
        let is_used = is_named || inode.opens.get() > 0 || Rc::strong_count(inode) > 2;
        if inode.nodeid == ROOT_ID || is_used {
            return;
        }
        self.inodes.borrow_mut().remove(&inode.nodeid);
        let arg = ForgetIn { nlookup: inode.lookups.get() };
        self.conn.tell(opcode::FORGET, inode.nodeid, arg.as_bytes());
    }

    /// What everyone waits for, for reports of hangs.
    #[must_use]
    pub fn state(&self) -> Vec<String> {
        let mut all = self.conn.unanswered();
        let busy = |i: &&Rc<Inode>| !i.pages.borrow().is_empty() || i.nowrite.get();
        all.extend(self.inodes.borrow().values().filter(busy).map(|i| i.state()));
        all
    }
}
