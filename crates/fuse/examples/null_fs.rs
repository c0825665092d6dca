//! A file system without storage: one file `/data` of any size whose reads answer a pattern and whose writes are
//! dropped. Measures what the session layer itself costs.
//!
//! `null_fs MOUNTPOINT [uring|dev|auto] [THREADS] [pin|nopin] [max_write_bytes]`
use fuse::abi::{Attr, ROOT_ID, fopen};
use fuse::mount::{MountOptions, mount};
use fuse::{Entry, FileSystem, Op, Replied, Request, RuntimeConfig, SessionConfig, TransportChoice, runtime};
use std::io::IoSlice;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

const FILE: u64 = 2;
const TTL: Duration = Duration::from_secs(3600);

struct NullFs {
    pattern: Vec<u8>,
}

fn attr(ino: u64) -> Attr {
    let dir = ino == ROOT_ID;
    Attr {
        ino,
        size: if dir { 4096 } else { 1 << 40 },
        mode: if dir { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o666 },
        nlink: if dir { 2 } else { 1 },
        blksize: 4096,
        ..Default::default()
    }
}

impl FileSystem for NullFs {
    async fn handle(self: &Rc<Self>, req: Request<'_>) -> Replied {
        let node = req.nodeid();
        match req.op() {
            Op::Read { arg } => {
                let len = arg.size as usize;
                let half = len / 2;
                req.into_reply().slices(&[IoSlice::new(&self.pattern[..half]), IoSlice::new(&self.pattern[half..len])])
            }
            Op::Write { data, .. } => {
                let len = data.len() as u32;
                req.into_reply().write(len)
            }
            Op::Lookup { name: b"data" } => {
                let entry = Entry { nodeid: FILE, generation: 0, entry_ttl: TTL, attr_ttl: TTL, attr: attr(FILE) };
                req.into_reply().entry(&entry)
            }
            Op::Lookup { .. } => req.err(libc::ENOENT),
            Op::Getattr { .. } | Op::Setattr { .. } => req.into_reply().attr(&attr(node), TTL),
            Op::Open { .. } => {
                req.into_reply().open(1, fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES | fopen::NOFLUSH)
            }
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
    println!("{:?} on {threads} threads, {:?}", session.transport(), session.negotiated());
    std::thread::scope(|scope| {
        let serving: Vec<_> = session
            .workers(threads)
            .into_iter()
            .enumerate()
            .map(|(i, worker)| {
                scope.spawn(move || {
                    let config = RuntimeConfig { cpu: pin.then_some(i), ..Default::default() };
                    let pattern = (0..1usize << 20).map(|i| (i * 7) as u8).collect();
                    let runtime = runtime(&config).map_err(|e| e.to_string())?;
                    runtime.block_on(worker.serve(Rc::new(NullFs { pattern }))).map_err(|e| e.to_string())
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
