//! The engine on a medium that forgets what was not synced, stopped after every write and every sync.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use frames::FramePool;
use mds::kv::conformance::{self, batch};
use mds::kv::{KvError, MetaKv};
use rt::{BlockingFile, Connection, DiskFile, Listener, LocalFuture, Nid, OpenMode, Rt, World};
use store_redb::RedbKv;
use types::{Instant, WallTime};

#[derive(Clone, Default)]
struct Image {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Writes since the last sync.
    pending: Vec<(u64, Vec<u8>)>,
    steps: usize,
    stop_at: usize,
}

#[derive(Clone, Default)]
struct Medium(Arc<Mutex<Image>>);

impl Medium {
    fn from(bytes: Vec<u8>) -> Medium {
        Medium(Arc::new(Mutex::new(Image {
            live: bytes.clone(),
            durable: bytes,
            stop_at: usize::MAX,
            ..Image::default()
        })))
    }
    /// What a restarted machine may find: all that was synced, and the first `n` writes after it.
    fn after_power_loss(&self, n: usize) -> Vec<u8> {
        let image = self.0.lock().unwrap();
        let mut bytes = image.durable.clone();
        for (at, data) in image.pending.iter().take(n) {
            let end = *at as usize + data.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*at as usize..end].copy_from_slice(data);
        }
        bytes
    }
    fn step(&self) -> io::Result<std::sync::MutexGuard<'_, Image>> {
        let mut image = self.0.lock().unwrap();
        if image.steps >= image.stop_at {
            return Err(io::Error::other("power is off"));
        }
        image.steps += 1;
        Ok(image)
    }
}

impl BlockingFile for Medium {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let image = self.0.lock().unwrap();
        let at = offset as usize;
        let from = image.live.get(at..at + into.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(from);
        Ok(())
    }
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let mut image = self.step()?;
        let end = offset as usize + from.len();
        if image.live.len() < end {
            image.live.resize(end, 0);
        }
        image.live[offset as usize..end].copy_from_slice(from);
        image.pending.push((offset, from.to_vec()));
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().live.len() as u64)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut image = self.step()?;
        image.live.resize(len as usize, 0);
        // Lengths are journalled by the file system: taken as durable.
        image.durable.resize(len as usize, 0);
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        let mut image = self.step()?;
        image.durable = image.live.clone();
        image.pending.clear();
        Ok(())
    }
}

struct Inline;
impl World for Inline {
    fn now(&self) -> Instant {
        Instant::ZERO
    }
    fn wall(&self) -> WallTime {
        WallTime(0)
    }
    fn sleep_until(&self, _: Instant) -> LocalFuture<()> {
        Box::pin(async {})
    }
    fn spawn(&self, _: LocalFuture<()>) {}
    fn seed(&self) -> u64 {
        1
    }
    fn fill_secret(&self, into: &mut [u8]) {
        into.fill(1);
    }
    fn connect(&self, _: &Nid) -> LocalFuture<io::Result<Connection>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
    fn listen(&self, _: &Nid) -> io::Result<Box<dyn Listener>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn open(&self, _: &Path, _: OpenMode) -> io::Result<Rc<dyn DiskFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn open_blocking(&self, path: &Path, create: bool) -> io::Result<Box<dyn BlockingFile>> {
        let file = std::fs::File::options().read(true).write(true).create(create).truncate(false).open(path)?;
        Ok(Box::new(Plain(file)))
    }
    fn offload(&self, job: Box<dyn FnOnce() + Send>) -> LocalFuture<()> {
        job();
        Box::pin(async {})
    }
    fn probe(&self, _: &std::path::Path) -> LocalFuture<io::Result<()>> {
        Box::pin(async { Ok(()) })
    }
    fn frames(&self) -> FramePool {
        FramePool::new(1 << 18)
    }
}

struct Plain(std::fs::File);
impl BlockingFile for Plain {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, into, offset)
    }
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.0, from, offset)
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

fn rt() -> Rt {
    Rt::new(Rc::new(Inline))
}

/// Everything in these tests is ready at once.
fn now<T>(f: impl Future<Output = T>) -> T {
    match std::pin::pin!(f).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(v) => v,
        Poll::Pending => panic!("not ready at once"),
    }
}

fn open(bytes: Vec<u8>) -> (Medium, Result<Rc<RedbKv>, KvError>) {
    let medium = Medium::from(bytes);
    let kv = RedbKv::on(rt(), Box::new(medium.clone()), 1 << 20);
    (medium, kv)
}

/// How many batches it has, whole.
fn check(kv: &RedbKv) -> u64 {
    now(conformance::count(kv))
}

#[test]
fn a_commit_that_was_answered_survives_power_loss_after_any_write_or_sync() {
    const BATCHES: u64 = 4;
    let (medium, kv) = open(Vec::new());
    let kv = kv.unwrap();
    let formatted = medium.0.lock().unwrap().steps;
    let start = medium.after_power_loss(usize::MAX);
    for n in 1..=BATCHES {
        now(kv.commit(batch(n))).unwrap();
    }
    let total = medium.0.lock().unwrap().steps - formatted;
    drop(kv);
    let mut seen = Vec::new();
    for stop in 0..=total {
        let (medium, kv) = open(start.clone());
        let kv = kv.unwrap();
        let at = medium.0.lock().unwrap().steps;
        medium.0.lock().unwrap().stop_at = at + stop;
        let answered = (1..=BATCHES).take_while(|n| now(kv.commit(batch(*n))).is_ok()).count() as u64;
        let pending = medium.0.lock().unwrap().pending.len();
        for kept in [0, pending / 2, pending] {
            let (_, again) = open(medium.after_power_loss(kept));
            let n = check(&again.unwrap());
            assert!(n == answered || n == answered + 1, "{answered} answered, {n} there");
        }
        seen.push(answered);
        std::mem::forget(kv); // its destructor would write on a machine without power
    }
    assert_eq!((seen[0], seen.last().copied()), (0, Some(BATCHES)));
}

#[test]
fn after_a_failed_write_no_commit_succeeds_until_the_store_is_opened_again() {
    let (medium, kv) = open(Vec::new());
    let kv = kv.unwrap();
    now(kv.commit(batch(1))).unwrap();
    let steps = medium.0.lock().unwrap().steps;
    medium.0.lock().unwrap().stop_at = steps;
    assert!(now(kv.commit(batch(2))).is_err());
    medium.0.lock().unwrap().stop_at = usize::MAX;
    assert!(matches!(now(kv.commit(batch(2))), Err(KvError::Latched(_))));
    assert_eq!(check(&kv), 1);
}

#[test]
fn it_does_what_every_engine_must() {
    let fresh = || open(Vec::new()).1.unwrap();
    now(conformance::failed_expectations_change_nothing(&*fresh()));
    now(conformance::snapshots_hold_still(&*fresh()));
    now(conformance::holds_what_its_limits_say(&*fresh()));
    for seed in 0..4 {
        now(conformance::agrees_with_a_model(&*fresh(), seed, 40));
    }
}

#[test]
fn a_directory_is_formatted_once_opened_by_one_and_refused_with_reasons() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mdt");
    let options = mds::MkfsOptions {
        fsname: "fs".into(),
        cluster: 0x77,
        uuid: 1,
        hash_keys: [1, 2],
        hash_mask: u64::MAX,
        root_uid: 0,
        root_gid: 0,
        root_mode: 0o755,
        now: WallTime(1),
    };
    let missing = store_redb::open(rt(), &path, 1 << 20).map(|_| ()).unwrap_err().to_string();
    assert!(missing.contains("holds no metadata store"), "{missing}");
    now(store_redb::mkfs(rt(), &path, &options)).unwrap();
    let again = now(store_redb::mkfs(rt(), &path, &options)).unwrap_err().to_string();
    assert!(again.contains("holds file system 'fs' of cluster 0000000000000077 already"), "{again}");
    let held = store_redb::open(rt(), &path, 1 << 20).unwrap();
    let busy = store_redb::open(rt(), &path, 1 << 20).map(|_| ()).unwrap_err().to_string();
    assert!(busy.contains("in use by another process"), "{busy}");
    drop(held);
    let bad = mds::MkfsOptions { fsname: "much too long".into(), ..options };
    let other = dir.path().join("other");
    let name = now(store_redb::mkfs(rt(), &other, &bad)).unwrap_err().to_string();
    assert!(name.contains("'much too long' is not a file system name"), "{name}");
    // Cut to nothing, which must not become an empty database.
    let file = path.join(store_redb::STORE_FILE);
    std::fs::write(&file, b"").unwrap();
    for empty in [
        store_redb::open(rt(), &path, 1 << 20).map(|_| ()),
        now(store_redb::open_checked(rt(), &path, 1 << 20, 1 << 30)).map(|_| ()),
    ] {
        let said = empty.unwrap_err().to_string();
        assert!(said.contains("is empty (0 bytes)") && said.contains("'stria mdt restore'"), "{said}");
    }
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 0);
}
