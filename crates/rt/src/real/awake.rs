//! Keeps the machine's idle CPUs from deep sleep while requests flow.
//!
//! A caller and whoever serves it take turns, and every turn wakes a CPU that became idle a moment ago. In a virtual
//! machine an idle CPU halts, which leaves the machine: each turn then costs tens of microseconds, on both sides,
//! several times what a request takes by itself. Linux takes a wish for how long a wake-up may last
//! (`/dev/cpu_dma_latency`, Documentation/power/pm_qos_interface); it holds as long as the file is open, so it goes
//! with the process however that ends. It is held while requests come to idle shards in quick succession.
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

const DEVICE: &str = "/dev/cpu_dma_latency";
/// Requests that follow each other flow when no more than this lies between two.
const APART_MAX: Duration = Duration::from_millis(1);
/// So many in succession make a flow.
const FLOW_MIN: u32 = 16;
/// The wish is withdrawn when none came for this long. Making and withdrawing it wakes every idle CPU.
const HELD_FOR: Duration = Duration::from_millis(20);

struct Keeper {
    thread: Thread,
    /// Requests of flows so far.
    flowed: AtomicU64,
    held: AtomicBool,
}

static KEEPER: OnceLock<Keeper> = OnceLock::new();

#[derive(Clone, Copy)]
struct Flow {
    idle: bool,
    last: Option<Instant>,
    count: u32,
}

thread_local! {
    static FLOW: Cell<Flow> = const { Cell::new(Flow { idle: false, last: None, count: 0 }) };
}

impl Flow {
    /// A request came to an idle shard at `now`. Whether it is one of a flow.
    fn goes_on(&mut self, now: Instant) -> bool {
        let near = self.last.is_some_and(|last| now.saturating_duration_since(last) <= APART_MAX);
        self.count = if near { (self.count + 1).min(FLOW_MIN) } else { 0 };
        self.last = Some(now);
        self.count == FLOW_MIN
    }
}

/// From now on, while requests flow to any shard of this process, idle CPUs shall wake within `latency_us`
/// microseconds; with 0 they do not halt at all. Once per process: later calls change nothing.
///
/// # Errors
/// The device is missing, or this user may not write to it (it is root's): everything works as before, only slower.
pub fn keep_awake(latency_us: u32) -> io::Result<()> {
    drop(wish(latency_us)?);
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let keeper = std::thread::Builder::new().name("awake".into()).spawn(move || {
        // The keeper is there when the sender goes.
        let _ = told.recv();
        if let Some(keeper) = KEEPER.get() {
            keep(keeper, latency_us);
        }
    })?;
    let flowed = AtomicU64::new(0);
    let _ = KEEPER.set(Keeper { thread: keeper.thread().clone(), flowed, held: AtomicBool::new(false) });
    drop(tell);
    Ok(())
}

fn wish(latency_us: u32) -> io::Result<File> {
    let mut device = OpenOptions::new().write(true).open(DEVICE)?;
    device.write_all(&latency_us.to_ne_bytes())?;
    Ok(device)
}

fn keep(keeper: &Keeper, latency_us: u32) -> ! {
    let mut seen = 0;
    loop {
        std::thread::park();
        let flowed = || keeper.flowed.load(Ordering::Relaxed);
        if flowed() == seen {
            continue;
        }
        let Ok(held) = wish(latency_us) else { continue };
        keeper.held.store(true, Ordering::Relaxed);
        while flowed() != seen {
            seen = flowed();
            std::thread::sleep(HELD_FOR);
        }
        keeper.held.store(false, Ordering::Relaxed);
        drop(held);
    }
}

/// The calling shard has nothing to do until something comes.
pub(super) fn idles() {
    if KEEPER.get().is_some() {
        FLOW.with(|f| f.set(Flow { idle: true, ..f.get() }));
    }
}

/// A request or an answer came to the calling shard.
pub(super) fn arrived() {
    let Some(keeper) = KEEPER.get() else { return };
    let mut flow = FLOW.get();
    if !std::mem::take(&mut flow.idle) {
        return;
    }
    if flow.goes_on(Instant::now()) {
        keeper.flowed.fetch_add(1, Ordering::Relaxed);
        if !keeper.held.load(Ordering::Relaxed) {
            keeper.thread.unpark();
        }
    }
    FLOW.set(flow);
}

/// Whether waking this shard is cheap just now, so that it need not stay awake itself.
pub(super) fn is_held() -> bool {
    KEEPER.get().is_some_and(|k| k.held.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_in_quick_succession_flow_and_a_pause_ends_that() {
        let mut flow = FLOW.get();
        let mut now = Instant::now();
        for _ in 0..3 {
            assert!(!flow.goes_on(now), "the first after a pause");
            for i in 1..40 {
                now += APART_MAX;
                assert_eq!(flow.goes_on(now), i >= FLOW_MIN, "request {i}");
            }
            now += APART_MAX + Duration::from_micros(1);
        }
    }
}
