//! How fast a store is with records of each size at random places: the table that deadlines estimate by
//! (`nrs_bw_mb_per_s`), measured on the store itself.
//!
//! Source: paper 001 section 4, the bandwidths bw_i of the record-size windows, benchmarked at setup. Reads, because a
//! write-back cache would answer for its disk; as many at a time as the dispatch window lets through and 16 MiB hold.
use std::cell::Cell;
use std::rc::Rc;

use frames::{Bulk, FRAME_BYTES, Segment};
use nrs::BW_WINDOWS;
use rt::Rt;
use types::{Duration, Fid, FsError, KIB, MIB, ObjectId, Rng};
use wire::crc32c;

use crate::store::{BLOCK_BYTES, BlockRange, BlockRun, ObjectStore, SizeRule, Update, pattern_page};

/// Sequence of the object that is read; no file's objects have it.
const SEQ: u64 = 0x5363_7261_7463_6800;
/// Bytes of that object, if the store has four times as many free.
const SPAN: u64 = 128 * MIB;
/// How long each size is read, and how much at most.
const SPAN_OF_TIME: Duration = Duration::from_millis(400);
const BYTES_MAX: u64 = 256 * MIB;
/// Bytes of memory that the records under way may take.
const MEMORY_MAX: u64 = 16 * MIB;
/// Bytes written at a time.
const FILL: u64 = MIB;

/// Bytes per second by record-size window ([`nrs::NrsConfig::window`]): records of up to 64 KiB, 128 KiB .. 4 MiB, and
/// larger ones. Takes about three seconds, during which the store serves others more slowly.
///
/// # Errors
/// The store's; `NoSpace` when it has less than 64 MiB free.
pub async fn measure(rt: &Rt, store: &Rc<dyn ObjectStore>, window: u32) -> Result<[u64; BW_WINDOWS], FsError> {
    let span = SPAN.min(store.space().free / 4 / (16 * MIB) * (16 * MIB));
    if span == 0 {
        return Err(FsError::NoSpace);
    }
    let last = store.last_object(SEQ);
    // What a measurement left that did not come to its end.
    store.destroy(vec![ObjectId(Fid::new(SEQ, last))], None).await?;
    store.create(SEQ, last + 1).await?;
    let object = ObjectId(Fid::new(SEQ, last + 1));
    let measured = async {
        fill(rt, store, object, span).await?;
        let mut table = [0; BW_WINDOWS];
        for (i, bytes_per_s) in table.iter_mut().enumerate() {
            *bytes_per_s = read_at_random(rt, store, object, span, (64 * KIB) << i, window).await?;
        }
        Ok(table)
    }
    .await;
    store.destroy(vec![object], None).await?;
    measured
}

/// The table as the parameter takes it, in MB/s, within its range.
#[must_use]
pub fn text(table: &[u64; BW_WINDOWS]) -> String {
    table.map(|b| format!("{:.3}", b.clamp(1_000, 1_000_000_000_000) as f64 / 1e6)).join(",")
}

async fn fill(rt: &Rt, store: &Rc<dyn ObjectStore>, object: ObjectId, span: u64) -> Result<(), FsError> {
    for at in (0..span).step_by(FILL as usize) {
        let runs = rt.frames().alloc(FILL as usize / FRAME_BYTES).ok_or(FsError::NoMemory)?;
        let (mut bulk, mut crcs, first) = (Bulk::new(), Vec::new(), at / BLOCK_BYTES);
        for mut run in runs {
            let bytes = run.bytes_mut().expect("a fresh run has one owner");
            for page in bytes.chunks_exact_mut(FRAME_BYTES) {
                pattern_page(object, first + crcs.len() as u64, page);
                crcs.push(crc32c(page));
            }
            let len = bytes.len() as u32;
            bulk.push(Segment { run, offset: 0, len });
        }
        let put = BlockRun { first, bulk, crcs };
        let update = Update { puts: vec![put], size: SizeRule::AtLeast(at + FILL), ..Update::default() };
        store.update(object, update).await?;
    }
    store.sync().await
}

async fn read_at_random(
    rt: &Rt,
    store: &Rc<dyn ObjectStore>,
    object: ObjectId,
    span: u64,
    record: u64,
    window: u32,
) -> Result<u64, FsError> {
    let begin = rt.now();
    let until = begin + SPAN_OF_TIME;
    let window = window.min((MEMORY_MAX / record) as u32).max(1);
    let records_max = BYTES_MAX / record / u64::from(window);
    let (places, last) = ((span / record).max(1), &Cell::new(u64::MAX - 1));
    // Never right behind the last one: that would be streaming.
    let next = |rng: &mut Rng| loop {
        let place = rng.below(places);
        if place != last.get() + 1 || places < 3 {
            last.set(place);
            break place;
        }
    };
    let worker = |i: u32| async move {
        let mut rng = Rng::named(u64::from(i), "bandwidth");
        let mut records = 0;
        while rt.now() < until && records < records_max || records == 0 {
            let first = next(&mut rng) * (record / BLOCK_BYTES);
            store.read(object, BlockRange { first, count: record / BLOCK_BYTES }).await?;
            records += 1;
        }
        Ok::<u64, FsError>(records)
    };
    let mut records = 0;
    for done in rt::sync::join_all((0..window).map(worker).collect()).await {
        records += done?;
    }
    let took = (rt.now() - begin).as_secs_f64().max(1e-9);
    Ok(((records * record) as f64 / took) as u64)
}
