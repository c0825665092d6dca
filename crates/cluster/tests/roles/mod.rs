//! Roles as processes of their own: the test binary starts itself again, told by the environment which role to be.
//! Killing such a process is what a crash of that role looks like to the others.
#![allow(dead_code, reason = "every test binary uses its part")]
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::ClientConfig;
use cluster::{
    MakeOss, MountSpec, OssNode, OssPlace, RoleError, format_mdt, format_ost, join, make_oss, open_ost, start_mds,
    start_mount,
};
use frames::FramePool;
use fuse::TransportChoice;
use fuse::mount::MountOptions;
use oss::OstConfig;
use ptlrpc::ClusterKey;
use rt::{Nid, Rt};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use types::OstIndex;

/// Names the role and its arguments, separated by newlines, to a copy of the test binary.
const ROLE: &str = "STRIA_TEST_ROLE";
/// Names a file in which a role says at its end how many bytes its shard and its movers moved.
const MOVED: &str = "STRIA_TEST_MOVED";
const CLUSTER: u64 = 0x57a1;
const WINDOW: types::Duration = types::Duration::from_secs(10);
const PATIENCE: types::Duration = types::Duration::from_secs(60);

type Any = Box<dyn std::error::Error>;

/// Serves as the role named by the environment, if any, until it ends; the process ends with it.
pub fn serve_if_told() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let filter: Targets =
        std::env::var("RUST_LOG").unwrap_or_else(|_| "error".into()).parse().expect("RUST_LOG says levels");
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    let words: Vec<String> = role.split('\n').map(String::from).collect();
    let pool = FramePool::new(512 << 20);
    let movers = words.iter().find_map(|w| Some(wide(w)?.1)).unwrap_or(1);
    let ended = rt::real::run_with_movers(pool, if movers < 2 { 0 } else { movers }, async |rt| {
        let ended = serve(&rt, &words).await;
        if let Ok(at) = std::env::var(MOVED) {
            let moved = rt::real::movers().map_or(0, |m| m.moved_bytes());
            std::fs::write(at, format!("{} {moved}", rt::real::moved_here_bytes()))?;
        }
        ended
    });
    let code = match ended {
        Ok(Ok(())) => 0,
        Ok(Err(e)) => {
            eprintln!("role {words:?}: {e}");
            1
        }
        Err(e) => {
            eprintln!("role {words:?}: no runtime: {e}");
            1
        }
    };
    std::process::exit(code);
}

async fn serve(rt: &Rt, words: &[String]) -> Result<(), Any> {
    match words {
        [r, dir, nid] if r == "mds" => mds(rt, Path::new(dir), &Nid::parse(nid)?).await,
        [r, dir, nid, mds, osts] if r == "oss" => oss(rt, Path::new(dir), nid, mds, osts).await,
        [r, mds, osts, transport, at @ ..] if r == "mount" => {
            mounts(rt, &Nid::parse(mds)?, osts.parse()?, transport, at).await
        }
        [r, dir, osts, transport, at @ ..] if r == "up" => up(rt, Path::new(dir), osts.parse()?, transport, at).await,
        other => Err(format!("no such role: {other:?}").into()),
    }
}

/// `dev+2` is the transport `dev` with two threads that move bytes; `0,1,2+3` are three OSTs on three threads. `up` has both.
fn wide(word: &str) -> Option<(&str, usize)> {
    let (word, count) = word.rsplit_once('+')?;
    Some((word, count.parse().ok()?))
}

/// Opens the OSTs in a directory, made before if need be.
fn make(dir: &Path) -> MakeOss<RoleError> {
    let dir = dir.to_path_buf();
    Arc::new(move |rt, osts| {
        let dir = dir.clone();
        Box::pin(async move {
            let mut stores = Vec::new();
            for index in osts {
                let at = dir.join(format!("ost{index}"));
                if !at.exists() {
                    format_ost(&rt, &at, "stria", CLUSTER, OstIndex(index), 0).await?;
                }
                let opened = open_ost(&rt, &at, CLUSTER, store_file::FileStoreConfig::default()).await;
                stores.push(opened.map_err(|e| RoleError(e.to_string()))?);
            }
            make_oss(&rt, stores, &secret(), WINDOW, &OstConfig::default())
        })
    })
}

/// Tells the parent that the role serves, and where.
fn ready(at: &str) {
    println!("\nready {at}");
}

async fn mds(rt: &Rt, dir: &Path, nid: &Nid) -> Result<(), Any> {
    if !dir.exists() {
        format_mdt(rt, dir, None, "stria", CLUSTER, (0, 0)).await?;
    }
    let role = start_mds(rt, dir, nid, &secret(), WINDOW, mds::MdsConfig::default()).await?;
    ready(&role.nid.to_string());
    std::future::pending::<()>().await;
    Ok(())
}

async fn oss(rt: &Rt, dir: &Path, nid: &str, mds: &str, osts: &str) -> Result<(), Any> {
    let (osts, shards) = wide(osts).unwrap_or((osts, 1));
    let osts: Vec<u16> = osts.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let place = OssPlace { nid: Nid::parse(nid)?, mds: Nid::parse(mds)?, key: secret() };
    let oss = OssNode::start(rt, &osts, shards, &place, make(dir)).await?;
    ready(&oss.nid().to_string());
    std::future::pending::<()>().await;
    Ok(())
}

/// How the tests mount: everyone may enter, devices and set-id programs work, over the transport named.
fn spec(transport: &str, at: &Path) -> MountSpec {
    let transport = if transport.starts_with("uring") { TransportChoice::Uring } else { TransportChoice::Dev };
    MountSpec {
        options: MountOptions { allow_other: true, ..MountOptions::default() },
        transport,
        native: at.parent().map(Path::to_path_buf),
        ..MountSpec::default()
    }
}

async fn mounts(rt: &Rt, mds: &Nid, osts: usize, transport: &str, at: &[String]) -> Result<(), Any> {
    let mut ends: Vec<rt::LocalFuture<Result<(), cluster::RoleError>>> = Vec::new();
    for at in at {
        let client = join(rt, ClientConfig { key: secret(), ..ClientConfig::new(mds.clone()) }, osts, PATIENCE).await?;
        let (role, until_unmounted) = start_mount(client, Path::new(at), &spec(transport, Path::new(at)))?;
        ends.push(Box::pin(async move {
            // All of it: a part of it would leave the mount itself behind, to be dropped now.
            let role = role;
            let ended = until_unmounted.await;
            role.client.leave().await;
            ended
        }));
    }
    ready("mounted");
    // All of them are served at once, until the last is unmounted.
    std::future::poll_fn(move |cx| {
        let mut at = 0;
        while at < ends.len() {
            match ends[at].as_mut().poll(cx) {
                std::task::Poll::Ready(Ok(())) => drop(ends.swap_remove(at)),
                std::task::Poll::Ready(Err(e)) => return std::task::Poll::Ready(Err(e.into())),
                std::task::Poll::Pending => at += 1,
            }
        }
        if ends.is_empty() { std::task::Poll::Ready(Ok(())) } else { std::task::Poll::Pending }
    })
    .await
}

async fn up(rt: &Rt, dir: &Path, osts: u16, transport: &str, at: &[String]) -> Result<(), Any> {
    let key = secret();
    let (mds_nid, oss_nid) = (Nid::Local("mds".into()), Nid::Local("oss".into()));
    let mdt = dir.join("mdt0");
    if !mdt.exists() {
        format_mdt(rt, &mdt, None, "stria", CLUSTER, (0, 0)).await?;
    }
    let mds = start_mds(rt, &mdt, &mds_nid, &key, WINDOW, mds::MdsConfig::default()).await?;
    let place = OssPlace { nid: oss_nid, mds: mds_nid.clone(), key };
    let shards = wide(transport).map_or(1, |(_, shards)| shards);
    let oss = OssNode::start(rt, &(0..osts).collect::<Vec<_>>(), shards, &place, make(dir)).await?;
    mounts(rt, &mds_nid, usize::from(osts), transport, at).await?;
    oss.close().await?;
    mds.stop().await?;
    Ok(())
}

/// A role in a process of its own; killed when dropped.
pub struct RoleProcess {
    child: Child,
    /// Where it serves (`mounted` for mounts).
    pub at: String,
}

impl RoleProcess {
    /// Starts it and waits until it serves.
    pub fn start(words: &[&str]) -> RoleProcess {
        Self::start_telling(words, None)
    }
    /// One that writes what it moved to a file at its end (`MOVED`).
    pub fn start_telling(words: &[&str], moved: Option<&Path>) -> RoleProcess {
        Self::try_start(words, moved).unwrap_or_else(|ended| panic!("role {words:?} ended before it served: {ended}"))
    }

    fn try_start(words: &[&str], moved: Option<&Path>) -> Result<RoleProcess, String> {
        let mut child = Command::new(std::env::current_exe().expect("the path of the test binary"))
            .args(["--exact", "a_role_serves_in_a_process_of_its_own", "--nocapture"])
            .env(ROLE, words.join("\n"))
            .envs(moved.map(|at| (MOVED, at)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test binary starts again");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let at = loop {
            match lines.next() {
                Some(Ok(line)) if line.starts_with("ready ") => break line["ready ".len()..].to_string(),
                Some(Ok(_)) => {}
                _ => return Err(format!("{:?}", child.wait())),
            }
        };
        // Whatever the harness of the child still prints has a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(RoleProcess { child, at })
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, as a crash would end it.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its own end, at most `limit`.
    pub fn ends_within(&mut self, limit: Duration) -> Option<i32> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().expect("our own child") {
                return Some(status.code().unwrap_or(-1));
            }
            if Instant::now() > end {
                return None;
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}

impl Drop for RoleProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Directories of a test: stores on memory if there is such a file system, and mount points; all gone at the end.
pub struct World {
    /// Stores and mount points are below.
    pub dir: tempfile::TempDir,
    points: Vec<PathBuf>,
}

impl World {
    /// A fresh directory.
    pub fn new() -> World {
        let shm = Path::new("/dev/shm");
        let dir = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
        let dir = dir.expect("a directory for the stores");
        // Other users must get to the mount points.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
        World { dir, points: Vec::new() }
    }
    /// A path below, as text.
    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("a plain path").to_string()
    }
    /// A new mount point.
    pub fn point(&mut self, name: &str) -> PathBuf {
        let at = self.dir.path().join(name);
        std::fs::create_dir(&at).expect("a mount point");
        self.points.push(at.clone());
        at
    }
}

/// Ends the connections of mounts with their kernel: whoever waits for an answer there gets an error.
pub fn abort(mounts: &[PathBuf]) {
    for at in mounts {
        let at = std::ffi::CString::new(at.to_str().expect("a plain path")).expect("no zero byte");
        // SAFETY: the path lives through the call. A forced unmount of FUSE aborts first, and may well fail then.
        unsafe { libc::umount2(at.as_ptr(), libc::MNT_FORCE) };
    }
}

/// Detaches whatever is mounted there.
pub fn unmount(at: &Path) -> bool {
    let at = std::ffi::CString::new(at.to_str().expect("a plain path")).expect("no zero byte");
    // SAFETY: the path lives through the call.
    unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) == 0 }
}

impl Drop for World {
    fn drop(&mut self) {
        for at in &self.points {
            unmount(at);
        }
    }
}

/// Whether mounts can be made here. Without it, a test prints why it did not run; under CI it fails.
pub fn can_mount() -> bool {
    // SAFETY: cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if root && device {
        return true;
    }
    let why = format!("needs root ({root}) and /dev/fuse ({device})");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
    println!("not run: {why}");
    false
}

/// The transports this kernel offers.
pub fn transports() -> Vec<&'static str> {
    // Each with one thread for everything, and with threads that move bytes and OSTs on threads of their own.
    let uring = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    if uring.is_ok_and(|v| v.starts_with('Y')) {
        vec!["uring", "uring+2", "dev", "dev+2"]
    } else {
        println!("FUSE over io_uring is not enabled in this kernel: /dev/fuse only");
        vec!["dev", "dev+2"]
    }
}

/// The key that the processes of these tests share.
fn secret() -> ClusterKey {
    ClusterKey::from_text(b"a secret of the tests").expect("it is long enough")
}
