//! A file system without storage: a file `/data` of any size, and files of one directory that can be created, written, cut and
//! unlinked. Reads answer a pattern, written bytes are dropped, sizes are kept. Measures what the session layer itself costs
//! (`bench/price.py`).
//!
//! `null_fs MOUNTPOINT [uring|dev|auto] [THREADS] [pin|nopin] [max_write_bytes]`
use fuse::abi::{Attr, ROOT_ID, fopen};
use fuse::mount::{MountOptions, mount};
use fuse::{Entry, FileSystem, Op, Replied, Request, RuntimeConfig, SessionConfig, TransportChoice, runtime};
use std::collections::HashMap;
use std::io::IoSlice;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const FILE: u64 = 2;
const TTL: Duration = Duration::from_secs(3600);

/// Names of the root directory, and what is known of their files. All threads share one.
#[derive(Default)]
struct Names {
    by_name: HashMap<Vec<u8>, u64>,
    /// Size and mode of each inode.
    files: HashMap<u64, (u64, u32)>,
    created: u64,
}

impl Names {
    fn create(&mut self, name: &[u8], mode: u32) -> u64 {
        self.created += 1;
        let ino = FILE + self.created;
        self.by_name.insert(name.to_vec(), ino);
        self.files.insert(ino, (0, mode));
        ino
    }

    fn attr(&self, ino: u64) -> Attr {
        let (size, mode, nlink) = match (ino, self.files.get(&ino)) {
            (ROOT_ID, _) => (4096, libc::S_IFDIR | 0o755, 2),
            (FILE, _) => (1 << 40, libc::S_IFREG | 0o666, 1),
            (_, Some((size, mode))) => (*size, *mode, 1),
            (_, None) => (0, libc::S_IFREG, 0),
        };
        Attr { ino, size, mode, nlink, blksize: 4096, ..Default::default() }
    }

    fn entry(&self, ino: u64) -> Entry {
        Entry { nodeid: ino, generation: 0, entry_ttl: TTL, attr_ttl: TTL, attr: self.attr(ino) }
    }
}

struct NullFs {
    pattern: Vec<u8>,
    names: Arc<Mutex<Names>>,
}

impl NullFs {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that a read finds.
    fn readable(&self, ino: u64, offset: u64, size: u32) -> usize {
        let end = self.names().attr(ino).size;
        end.saturating_sub(offset).min(u64::from(size)) as usize
    }

    fn change_names(&self, req: Request<'_>) -> Replied {
        const FLAGS: u32 = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES | fopen::NOFLUSH;
        match req.op() {
            Op::Create { arg, name, .. } => {
                let entry = {
                    let mut names = self.names();
                    let ino = names.create(name, arg.mode);
                    names.entry(ino)
                };
                req.into_reply().create(&entry, 1, FLAGS)
            }
            Op::Unlink { name } => {
                let gone = {
                    let mut names = self.names();
                    let gone = names.by_name.remove(name);
                    gone.map(|ino| names.files.remove(&ino))
                };
                if gone.is_some() { req.into_reply().ok() } else { req.err(libc::ENOENT) }
            }
            Op::Setattr { arg } => {
                let attr = {
                    let mut names = self.names();
                    if arg.valid & fuse::abi::fattr::SIZE != 0
                        && let Some(file) = names.files.get_mut(&req.nodeid())
                    {
                        file.0 = arg.size;
                    }
                    names.attr(req.nodeid())
                };
                req.into_reply().attr(&attr, TTL)
            }
            _ => req.into_reply().open(1, FLAGS),
        }
    }
}

impl FileSystem for NullFs {
    async fn handle(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let node = req.nodeid();
        match req.op() {
            Op::Read { arg } => {
                let len = self.readable(node, arg.offset, arg.size);
                let half = len / 2;
                req.into_reply().slices(&[IoSlice::new(&self.pattern[..half]), IoSlice::new(&self.pattern[half..len])])
            }
            Op::Write { arg, data } => {
                let len = data.len() as u32;
                if let Some(file) = self.names().files.get_mut(&node) {
                    file.0 = file.0.max(arg.offset + u64::from(len));
                }
                req.into_reply().write(len)
            }
            Op::Lookup { name } => {
                let entry = {
                    let names = self.names();
                    let ino = if name == b"data" { Some(FILE) } else { names.by_name.get(name).copied() };
                    ino.map(|ino| names.entry(ino))
                };
                match entry {
                    Some(entry) => req.into_reply().entry(&entry),
                    None => req.err(libc::ENOENT),
                }
            }
            Op::Getattr { .. } => {
                let attr = self.names().attr(node);
                req.into_reply().attr(&attr, TTL)
            }
            Op::Create { .. } | Op::Unlink { .. } | Op::Setattr { .. } | Op::Open { .. } => self.change_names(req),
            Op::Opendir { .. } => req.into_reply().open(1, 0),
            Op::Readdir { arg } => {
                let mut entries = req.into_reply().dirents(arg.size);
                if arg.offset == 0 {
                    entries.push(FILE, 1, libc::DT_REG, b"data");
                }
                entries.finish()
            }
            Op::Flush { .. } | Op::Release { .. } | Op::Releasedir { .. } | Op::Fsync { .. } => req.into_reply().ok(),
            _ => req.err(libc::ENOSYS),
        }
    }

    fn forget(self: &Rc<Self>, _: u64, _: u64) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let at = args.get(1).ok_or("usage: null_fs MOUNTPOINT [uring|dev|auto] [THREADS] [pin|nopin] [max_write_bytes]")?;
    let choice = match args.get(2).map(String::as_str) {
        Some("uring") => TransportChoice::Uring,
        Some("dev") => TransportChoice::Dev,
        _ => TransportChoice::Auto,
    };
    let threads: usize = args.get(3).map_or(Ok(1), |t| t.parse())?;
    let pin = args.get(4).is_none_or(|p| p == "pin");
    let mut config = SessionConfig { readdirplus: fuse::ReaddirPlus::Off, ..Default::default() };
    if let Some(bytes) = args.get(5) {
        config.max_write_bytes = bytes.parse()?;
    }
    let options = MountOptions { fsname: "null".into(), clean_stale: true, ..Default::default() };
    let (session, mut mounted) = mount(Path::new(at), &options, config, choice)?;
    mounted.supervise(false)?;
    let names = Arc::new(Mutex::new(Names::default()));
    println!("{:?} on {threads} threads, {:?}", session.transport(), session.negotiated());
    std::thread::scope(|scope| {
        let serving: Vec<_> = session
            .workers(threads)
            .into_iter()
            .enumerate()
            .map(|(i, worker)| {
                let names = names.clone();
                scope.spawn(move || {
                    let config = RuntimeConfig { cpu: pin.then_some(i), ..Default::default() };
                    let pattern = (0..1usize << 20).map(|i| (i * 7) as u8).collect();
                    let runtime = runtime(&config).map_err(|e| e.to_string())?;
                    runtime.block_on(worker.serve(Rc::new(NullFs { pattern, names }))).map_err(|e| e.to_string())
                })
            })
            .collect();
        for thread in serving {
            if let Err(e) = thread.join().expect("serving thread") {
                eprintln!("{e}");
            }
        }
    });
    println!("{:?}", session.counters());
    mounted.unmount(true)?;
    Ok(())
}
