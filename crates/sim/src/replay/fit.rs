//! A disk's parameters from a trace, by least squares: what a jump costs, what a request that continues the last one costs,
//! what a byte costs.
//!
//! The model is a disk that does one thing at a time: a request takes it from the end of the one before, or from its dispatch when
//! the disk was idle, to its own end. Requests that end together were merged and are one. Where bytes lie is the allocator's
//! guess. What the store does besides (its index, its commits) is part of what is fitted; a device that works on many
//! requests at once does not fit, and R² says so.
use super::config::Overrides;
use super::config::TargetConfig;
use super::places::Places;
use devices::AllocKind;
use std::fmt::Write as _;
use trace::{Flags, Record, Target, Trace};

/// What a fit gives.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Fit {
    /// Milliseconds of a request that does not continue the one before; `None`: there was none.
    pub seek_ms: Option<f64>,
    /// MB/s (10^6).
    pub mb_per_s: f64,
    /// Microseconds of a request that does; `None`: there was none.
    pub request_us: Option<f64>,
    /// Disk requests that the fit is from.
    pub used: usize,
    /// Disk requests that lay far off it and were left out.
    pub left_out: usize,
    /// Share of the variance of their times that the model explains.
    pub r_squared: f64,
    /// Mean distance of a time from the model, milliseconds.
    pub residual_mean_ms: f64,
    /// 95 of 100 lie nearer than this, milliseconds.
    pub residual_p95_ms: f64,
}

/// A disk request: how long it took, and of what.
#[derive(Clone, Copy, Debug)]
struct Observation {
    took_ns: f64,
    /// Jumps, continuations, bytes.
    of: [f64; 3],
}

/// Requests that are the least a fit is made of.
const OBSERVATIONS_MIN: usize = 20;
/// Requests that end nearer to each other than this part of what their bytes take were one for the disk.
const TOGETHER: f64 = 0.15;
/// Residuals beyond so many medians are something else's doing.
const FAR: f64 = 8.0;

impl Fit {
    /// The keys that make this disk, one `KEY=VALUE` a line: for `--device FILE` and `--set`.
    #[must_use]
    pub fn keys(&self) -> String {
        // Profiles give what the trace did not show; this one has neither rotation nor distance.
        let mut text = "disk.profile=disk9ms\n".to_string();
        if let Some(ms) = self.seek_ms {
            let _ = writeln!(text, "disk.seek_ms={ms:.6}");
        }
        let _ = writeln!(text, "disk.mb_per_s={:.6}", self.mb_per_s);
        if let Some(us) = self.request_us {
            let _ = writeln!(text, "disk.request_us={us:.3}");
        }
        text
    }
}

/// Fits one disk to all targets of a trace.
///
/// # Errors
/// A sentence: too few requests, or such that costs cannot be told apart.
pub fn fit(trace: &Trace) -> Result<Fit, String> {
    let mut all = Vec::new();
    for (i, target) in (0..).zip(&trace.targets) {
        all.extend(observations(target, i)?);
    }
    if all.len() < OBSERVATIONS_MIN {
        return Err(format!(
            "{} disk requests are too few for a fit: it takes {OBSERVATIONS_MIN} that went to the store and did not fail",
            all.len()
        ));
    }
    let first = solve(&all)?;
    let mut residuals: Vec<f64> = all.iter().map(|o| off(o, &first).abs()).collect();
    residuals.sort_unstable_by(f64::total_cmp);
    let far = residuals[residuals.len() / 2] * FAR + 1.0;
    let used: Vec<Observation> = all.iter().filter(|o| off(o, &first).abs() <= far).copied().collect();
    let costs = solve(&used)?;
    judge(&used, &costs, all.len() - used.len())
}

/// How far an observation lies from what `costs` say, ns.
fn off(o: &Observation, costs: &[f64; 3]) -> f64 {
    o.took_ns - (0..3).map(|i| o.of[i] * costs[i]).sum::<f64>()
}

fn judge(used: &[Observation], costs: &[f64; 3], left_out: usize) -> Result<Fit, String> {
    if costs[2] <= 0.0 {
        return Err("more bytes did not take longer: this is no disk that streams".to_string());
    }
    let n = used.len() as f64;
    let mean = used.iter().map(|o| o.took_ns).sum::<f64>() / n;
    let total: f64 = used.iter().map(|o| (o.took_ns - mean).powi(2)).sum();
    let left: f64 = used.iter().map(|o| off(o, costs).powi(2)).sum();
    let mut residuals: Vec<f64> = used.iter().map(|o| off(o, costs).abs()).collect();
    residuals.sort_unstable_by(f64::total_cmp);
    let seen = |i: usize| used.iter().any(|o| o.of[i] > 0.0);
    Ok(Fit {
        seek_ms: seen(0).then_some(costs[0] / 1e6),
        mb_per_s: 1e3 / costs[2],
        request_us: seen(1).then_some(costs[1] / 1e3),
        used: used.len(),
        left_out,
        r_squared: if total > 0.0 { 1.0 - left / total } else { 1.0 },
        residual_mean_ms: residuals.iter().sum::<f64>() / n / 1e6,
        residual_p95_ms: residuals[(residuals.len() * 95 / 100).min(residuals.len() - 1)] / 1e6,
    })
}

/// Least squares; a cost that would be negative is 0.
fn solve(all: &[Observation]) -> Result<[f64; 3], String> {
    let mut columns: Vec<usize> = (0..3).filter(|i| all.iter().any(|o| o.of[*i] > 0.0)).collect();
    loop {
        let costs = normal_equations(all, &columns).ok_or(
            "what a request costs and what its bytes cost cannot be told apart: the trace needs requests of several sizes",
        )?;
        match columns.iter().position(|i| *i < 2 && costs[*i] < 0.0) {
            Some(at) => drop(columns.remove(at)),
            None => return Ok(costs),
        }
    }
}

/// Solves for the costs of `columns`; `None` when they depend on each other.
fn normal_equations(all: &[Observation], columns: &[usize]) -> Option<[f64; 3]> {
    let k = columns.len();
    // Columns are brought to the same size, or bytes would drown the others.
    let scale: Vec<f64> = columns.iter().map(|c| all.iter().map(|o| o.of[*c].powi(2)).sum::<f64>().sqrt()).collect();
    let mut m = vec![vec![0.0; k + 1]; k];
    for o in all {
        for i in 0..k {
            let x = o.of[columns[i]] / scale[i];
            for j in 0..k {
                m[i][j] += x * o.of[columns[j]] / scale[j];
            }
            m[i][k] += x * o.took_ns;
        }
    }
    for i in 0..k {
        let pivot = (i..k).max_by(|a, b| m[*a][i].abs().total_cmp(&m[*b][i].abs()))?;
        m.swap(i, pivot);
        let row = m[i].clone();
        if row[i].abs() < 1e-6 {
            return None;
        }
        for other in m.iter_mut().enumerate().filter(|(j, _)| *j != i).map(|(_, other)| other) {
            let factor = other[i] / row[i];
            other.iter_mut().zip(&row).for_each(|(x, y)| *x -= factor * y);
        }
    }
    let mut costs = [0.0; 3];
    for i in 0..k {
        costs[columns[i]] = m[i][k] / m[i][i] / scale[i];
    }
    Some(costs)
}

/// A request with its places.
struct Placed {
    dispatched: u64,
    finished: u64,
    bytes: u64,
    pieces: Vec<(u64, u64)>,
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
    let mut places = Places::new(alloc, records.iter().copied());
    let mut placed: Vec<Placed> = Vec::with_capacity(records.len());
    for r in records {
        let mut pieces = Vec::new();
        places.pieces(r, |lba, len| pieces.push((lba, len)));
        let (dispatched, finished) = (r.dispatched.0, r.finished.0);
        placed.push(Placed { dispatched, finished, bytes: r.stored.into(), pieces });
    }
    placed.sort_by_key(|p| p.finished);
    Ok(together(&placed))
}

/// Requests that end together become one; each takes the disk from the end of the one before.
fn together(placed: &[Placed]) -> Vec<Observation> {
    let gap = |w: &[Placed]| w[1].finished.saturating_sub(w[0].finished.max(w[1].dispatched)) as f64;
    let mut per_byte: Vec<f64> = placed.windows(2).map(|w| gap(w) / w[1].bytes as f64).filter(|x| *x > 0.0).collect();
    per_byte.sort_unstable_by(f64::total_cmp);
    let streaming = per_byte.get(per_byte.len() / 10).copied().unwrap_or(0.0);
    let mut out = Vec::new();
    let (mut head, mut free_at, mut rest) = (None, 0, placed);
    while !rest.is_empty() {
        let apart = |w: &[Placed]| (w[1].finished - w[0].finished) as f64 > TOGETHER * streaming * w[1].bytes as f64;
        let n = rest.windows(2).position(apart).map_or(rest.len(), |i| i + 1);
        let (batch, others) = rest.split_at(n);
        let start = batch.iter().map(|p| p.dispatched).min().unwrap_or(0).max(free_at);
        free_at = batch[n - 1].finished;
        let mut pieces: Vec<(u64, u64)> = batch.iter().flat_map(|p| p.pieces.iter().copied()).collect();
        pieces.sort_unstable();
        let mut of = [0.0; 3];
        for (i, (lba, len)) in pieces.iter().enumerate() {
            match head.replace(lba + len) {
                // Merged with the piece before.
                Some(at) if at == *lba && i > 0 => {}
                Some(at) if at == *lba => of[1] += 1.0,
                _ => of[0] += 1.0,
            }
            of[2] += *len as f64;
        }
        out.push(Observation { took_ns: free_at.saturating_sub(start) as f64, of });
        rest = others;
    }
    out
}
