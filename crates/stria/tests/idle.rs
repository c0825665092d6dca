//! Idle CPUs under a mount (`cpu.idle`). Needs root, `/dev/fuse` and `/dev/cpu_dma_latency`.
#![allow(clippy::unwrap_used)]
mod support;

use std::fs::{self, File};
use std::io::Read;
use std::time::{Duration, Instant};

use support::{can_mount, good, text};

/// What the machine's processes together wish: the longest that waking a CPU may last, in microseconds.
fn wished_us() -> Option<i32> {
    let mut value = [0; 4];
    File::open("/dev/cpu_dma_latency").ok()?.read_exact(&mut value).ok()?;
    Some(i32::from_ne_bytes(value))
}

#[test]
fn idle_cpus_stay_awake_while_requests_flow_and_rest_afterwards() {
    const SHALLOW_US: i32 = 2;
    if !can_mount() {
        return;
    }
    match wished_us() {
        None => return println!("not run: there is no /dev/cpu_dma_latency"),
        Some(us) if us <= SHALLOW_US => return println!("not run: something else wishes {us} us already"),
        Some(_) => {}
    }
    let dir = tempfile::tempdir().unwrap();
    let (cluster, at) = (dir.path().join("c"), dir.path().join("mnt"));
    fs::create_dir(&at).unwrap();
    let up = ["up", "--background", "--osts", "1", "--set", "cpu.idle=shallow"];
    good(&[&up[..], &["--dir", text(&cluster), "--mount", text(&at)]].concat());
    let awake = || wished_us().unwrap() <= SHALLOW_US;
    // What the start asked is over in a moment.
    let end = Instant::now() + Duration::from_secs(30);
    while awake() && Instant::now() < end {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let before = awake();
    let end = Instant::now() + Duration::from_secs(30);
    let mut flowing = false;
    for i in 0.. {
        // Asked of the daemon every time.
        let missing = fs::metadata(at.join(format!("missing{i}")));
        assert!(missing.is_err());
        flowing = i % 50 == 49 && awake();
        if flowing || Instant::now() > end {
            break;
        }
    }
    let end = Instant::now() + Duration::from_secs(30);
    while awake() && Instant::now() < end {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let rests = !awake();
    good(&["umount", text(&at)]);
    assert!(!before, "awake before anything was asked");
    assert!(flowing, "not awake while requests flow");
    assert!(rests, "awake although nothing is asked");
}
