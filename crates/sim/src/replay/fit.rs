//! A disk's parameters from a trace ([`devices::fit`]): what a record says of a request, and where its bytes lie.
use super::config::{Overrides, TargetConfig};
use super::world::asked;
use devices::{AllocKind, Fit, Observation, Places, Served};
use trace::{Flags, Record, Target, Trace};

/// Fits one disk to all targets of a trace.
///
/// # Errors
/// A sentence: too few requests, or such that costs cannot be told apart.
pub fn fit(trace: &Trace) -> Result<Fit, String> {
    let mut all = Vec::new();
    for (i, target) in (0..).zip(&trace.targets) {
        all.extend(observations(target, i)?);
    }
    devices::fit(&all)
}

/// The disk requests of a target.
fn observations(target: &Target, index: u32) -> Result<Vec<Observation>, String> {
    let mut device = Overrides::default();
    device.set("disk.profile", "disk9ms")?;
    let alloc = TargetConfig::of(target, &device, index).map_or(AllocKind::Contiguous, |c| c.alloc);
    let to_store =
        |r: &&Record| r.stored > 0 && r.errno == 0 && !r.flags.has(Flags::CANCELLED) && !r.flags.has(Flags::PAST_QUEUE);
    let mut records: Vec<&Record> = target.records.iter().filter(to_store).collect();
    records.sort_by_key(|r| (r.dispatched, r.number));
    let mut places = Places::new(alloc, records.iter().copied().map(asked));
    let mut served: Vec<Served> = Vec::with_capacity(records.len());
    for r in records {
        let mut pieces = Vec::new();
        places.pieces(&asked(r), |lba, len| pieces.push((lba, len)));
        let (dispatched, finished) = (r.dispatched.0, r.finished.0);
        served.push(Served { dispatched, finished, bytes: r.stored.into(), pieces });
    }
    served.sort_by_key(|p| p.finished);
    Ok(devices::observations(&served))
}
