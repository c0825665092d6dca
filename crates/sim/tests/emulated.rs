//! An emulated OST and the simulator's disk are one device: the same load takes the same time on both, for every profile.
#![allow(clippy::unwrap_used)]
use devices::{Access, AllocKind, Allocator, Device, DeviceProfile, ElevatorConfig, ElevatorKind, RegionMap};
use frames::{Bulk, FRAME_BYTES, Segment};
use oss::store::{BLOCK_BYTES, BlockRange, BlockRun, EmulatedStore, MemoryStore, ObjectStore, StoreIdentity, Update};
use simworld::TestWorld;
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use types::{ObjectId, OstIndex, Rng};

const SPAN: u64 = 64 << 20;
const WINDOW: usize = 8;

/// Requests of one load, in the order in which a closed loop of [`WINDOW`] asks for them: offset, bytes, writes.
fn load(kind: &str, record: u64) -> Vec<(u64, u64, bool)> {
    let mut rng = Rng::new(record);
    let places = SPAN / record;
    let count = places.min(800);
    let of = |i: u64| match kind {
        "sequential" => (i * record, record, false),
        "random" => (rng.below(places) * record, record, false),
        _ => (rng.below(places) * record, record, rng.chance(0.5)),
    };
    (0..count).map(of).collect()
}

/// Nanoseconds on the simulator's device, driven by an event loop of its own. The object was written from its begin to its end.
fn simulated(profile: DeviceProfile, kind: ElevatorKind, requests: &[(u64, u64, bool)]) -> u64 {
    let mut device = Device::new(profile, ElevatorConfig { kind, ..ElevatorConfig::default() }, Rng::new(1));
    let (mut allocator, mut map) = (Allocator::new(AllocKind::Mballoc), RegionMap::default());
    allocator.write(&mut map, 0, SPAN, |_, _| {});
    let mut waiting: VecDeque<(u64, u64, bool)> = requests.iter().copied().collect();
    let (mut left, mut timers, mut ends) = (vec![0; requests.len()], BTreeSet::new(), BTreeSet::new());
    let (mut now, mut next, mut busy) = (0, 0, 0);
    let begin = |device: &mut Device, now, ends: &mut BTreeSet<(u64, u32)>| {
        while let Some((slot, at)) = device.start_next(now) {
            ends.insert((at, slot));
        }
    };
    loop {
        // As in the light world: the disk goes on before the next request comes.
        begin(&mut device, now, &mut ends);
        while busy < WINDOW
            && let Some((start, len, write)) = waiting.pop_front()
        {
            let mut pieces = Vec::new();
            map.lookup(start, len, |lba, len| pieces.push((lba, len)));
            left[next as usize] = pieces.len();
            for (lba, len) in pieces {
                timers.extend(device.submit(now, next, Access { lba, len, write }));
            }
            begin(&mut device, now, &mut ends);
            (next, busy) = (next + 1, busy + 1);
        }
        let timer = timers.first().copied();
        match ends.first().copied() {
            Some((at, slot)) if timer.is_none_or(|t| t > at) => {
                ends.pop_first();
                now = at;
                device.finish(slot, |owner| {
                    left[owner as usize] -= 1;
                    busy -= usize::from(left[owner as usize] == 0);
                });
            }
            _ => {
                let Some(at) = timers.pop_first().filter(|_| busy > 0 || !waiting.is_empty()) else { return now };
                now = now.max(at);
                device.on_timer(now);
            }
        }
    }
}

fn page_of_zeros(rt: &rt::Rt, pages: u64) -> (Bulk, Vec<u32>) {
    let (mut bulk, mut crcs) = (Bulk::new(), Vec::new());
    for mut run in rt.frames().alloc(pages as usize).unwrap() {
        let bytes = run.bytes_mut().unwrap();
        bytes.fill(0);
        crcs.extend(bytes.chunks_exact(FRAME_BYTES).map(wire::crc32c));
        let len = bytes.len() as u32;
        bulk.push(Segment { run, offset: 0, len });
    }
    (bulk, crcs)
}

/// Nanoseconds of virtual time on an emulated store.
fn emulated(profile: DeviceProfile, kind: ElevatorKind, requests: &[(u64, u64, bool)]) -> u64 {
    let world = TestWorld::new(3, 128 << 20);
    let rt = world.rt();
    let identity = StoreIdentity { cluster: 7, fsname: "stria".into(), ost: OstIndex(0), uuid: 9 };
    let inner = MemoryStore::new(&rt, identity, 1 << 30);
    let object = ObjectId::new(OstIndex(0), 5);
    let waiting = Rc::new(RefCell::new(requests.iter().copied().collect::<VecDeque<_>>()));
    world.run(async move {
        // Written before the device stands in front of it: it lies in one piece.
        inner.create(object.0.seq, 5).await.unwrap();
        let end = Update { size: oss::store::SizeRule::AtLeast(SPAN), ..Update::default() };
        inner.update(object, end).await.unwrap();
        let store = EmulatedStore::behind(rt.clone(), inner, profile, kind);
        let begun = rt.now();
        let worker = |_| {
            let (rt, store, waiting) = (rt.clone(), store.clone(), waiting.clone());
            async move {
                loop {
                    let next = waiting.borrow_mut().pop_front();
                    let Some((start, len, write)) = next else { return };
                    let range = BlockRange { first: start / BLOCK_BYTES, count: len / BLOCK_BYTES };
                    if write {
                        let (bulk, crcs) = page_of_zeros(&rt, range.count);
                        let put = BlockRun { first: range.first, bulk, crcs };
                        store.update(object, Update { puts: vec![put], ..Update::default() }).await.unwrap();
                    } else {
                        store.read(object, range).await.unwrap();
                    }
                }
            }
        };
        rt::sync::join_all((0..WINDOW).map(worker).collect()).await;
        rt.now().since(begun).as_nanos() as u64
    })
}

#[test]
fn every_device_of_the_table_takes_the_same_time_emulated_and_simulated() {
    for name in devices::profile_names() {
        // Of an array the slowest of several disks counts, and chance with it: its disks do nothing by chance here.
        let keys = if DeviceProfile::named(name).unwrap().array.is_some() { "seek_ms=8 request_us=20" } else { "" };
        let profile = DeviceProfile::parse(name, keys).unwrap();
        for kind in ["sequential", "random", "mixed"] {
            for record in [64 << 10, 1 << 20] {
                let requests = load(kind, record);
                let (a, b) = (
                    emulated(profile, ElevatorKind::Noop, &requests),
                    simulated(profile, ElevatorKind::Noop, &requests),
                );
                let off = a as f64 / b as f64 - 1.0;
                // What turns waits for a part of a revolution that chance says: 800 of them agree to some percent.
                let most = if profile.revolution_ns > 0.0 { 0.05 } else { 0.005 };
                assert!(off.abs() < most, "{name}, {kind}, {record}: {a} ns emulated, {b} simulated");
            }
        }
    }
}

#[test]
fn an_elevator_that_plugs_does_so_before_an_emulated_disk_too() {
    let profile = DeviceProfile::named("paper001").unwrap();
    for kind in ["paper001", "deadline", "cscan"] {
        let kind = ElevatorKind::named(kind).unwrap();
        let requests = load("mixed", 1 << 20);
        let (a, b) = (emulated(profile, kind, &requests), simulated(profile, kind, &requests));
        let off = a as f64 / b as f64 - 1.0;
        assert!(off.abs() < 0.01, "{kind:?}: {a} ns emulated, {b} simulated");
    }
}
