//! A disk's parameters from what requests took, by least squares: what a jump costs, what a request that continues the last one
//! costs, what a byte costs.
//!
//! The model is a disk that does one thing at a time: a request takes it from the end of the one before, or from its dispatch when
//! the disk was idle, to its own end. Requests that end together were merged and are one. Where bytes lie is the allocator's
//! guess. What the store does besides (its index, its commits) is part of what is fitted; a device that works on many
//! requests at once does not fit, and R² says so.
use crate::DeviceProfile;
use alloc::{
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::fmt::Write as _;

/// A request that the store carried out, and where its bytes lie.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Served {
    /// When the store got it, ns.
    pub dispatched: u64,
    /// When it was done, ns.
    pub finished: u64,
    /// Bytes that the store moved.
    pub bytes: u64,
    /// First byte on the medium and bytes, of each part.
    pub pieces: Vec<(u64, u64)>,
}

/// A disk request: how long it took, and of what.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Observation {
    took_ns: f64,
    /// Jumps, continuations, bytes.
    of: [f64; 3],
}

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

/// Requests that are the least a fit is made of.
const OBSERVATIONS_MIN: usize = 20;
/// Requests that end nearer to each other than this part of what their bytes take were one for the disk.
const TOGETHER: f64 = 0.15;
/// Residuals beyond so many medians are something else's doing.
const FAR: f64 = 8.0;
/// The profile that gives what a fit does not show; it has neither rotation nor distance.
const BASE: &str = "disk9ms";

impl Fit {
    /// The keys that make this disk, one `KEY=VALUE` a line, each below `disk.`, as simulations take them.
    #[must_use]
    pub fn keys(&self) -> String {
        let mut text = format!("disk.profile={BASE}\n");
        for (key, value) in self.changes() {
            let _ = writeln!(text, "disk.{key}={value}");
        }
        text
    }

    fn changes(&self) -> Vec<(&'static str, String)> {
        let seek = self.seek_ms.map(|ms| ("seek_ms", format!("{ms:.6}")));
        let rate = Some(("mb_per_s", format!("{:.6}", self.mb_per_s)));
        let request = self.request_us.map(|us| ("request_us", format!("{us:.3}")));
        [seek, rate, request].into_iter().flatten().collect()
    }

    /// The disk.
    ///
    /// # Errors
    /// A sentence: a cost is none that a device may have.
    pub fn profile(&self) -> Result<DeviceProfile, String> {
        let mut profile = DeviceProfile::named(BASE)?;
        self.changes().iter().try_for_each(|(key, value)| profile.set(key, value))?;
        Ok(profile)
    }
}

/// Fits one disk to what was observed.
///
/// # Errors
/// A sentence: too few requests, or such that costs cannot be told apart.
pub fn fit(all: &[Observation]) -> Result<Fit, String> {
    by(all, |used| solve(used, &[0, 1, 2]))
}

/// As [`fit`], with nothing for a request but its jump and its bytes: requests of one size will do, if some jump and some do
/// not, and the fit then holds for that size.
///
/// # Errors
/// A sentence: too few requests, or none that jumped, or none that did not.
pub fn fit_jumps(all: &[Observation]) -> Result<Fit, String> {
    if all.len() >= OBSERVATIONS_MIN && all.iter().all(|o| o.of[0] == 0.0) {
        return Err("no request jumped: what a jump costs is not known".to_string());
    }
    by(all, |used| solve(used, &[0, 2]))
}

/// Twice: without what lay far off the first time.
fn by(all: &[Observation], solve: impl Fn(&[Observation]) -> Result<[f64; 3], String>) -> Result<Fit, String> {
    if all.len() < OBSERVATIONS_MIN {
        return Err(format!(
            "{} disk requests are too few for a fit: it takes {OBSERVATIONS_MIN} that went to the store and did not fail",
            all.len()
        ));
    }
    let first = solve(all)?;
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
    let square = |x: f64| x * x;
    let n = used.len() as f64;
    let mean = used.iter().map(|o| o.took_ns).sum::<f64>() / n;
    let total: f64 = used.iter().map(|o| square(o.took_ns - mean)).sum();
    let left: f64 = used.iter().map(|o| square(off(o, costs))).sum();
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

/// Least squares over `columns`; a cost that would be negative is 0.
fn solve(all: &[Observation], columns: &[usize]) -> Result<[f64; 3], String> {
    let seen = |i: &usize| all.iter().any(|o| o.of[*i] > 0.0);
    let mut columns: Vec<usize> = columns.iter().copied().filter(seen).collect();
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
    let size = |c: usize| all.iter().map(|o| o.of[c]).sum::<f64>();
    let scale: Vec<f64> = columns.iter().map(|c| size(*c)).collect();
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
    let largest = (0..k).map(|i| m[i][i]).fold(0.0, f64::max);
    for i in 0..k {
        let pivot = (i..k).max_by(|a, b| m[*a][i].abs().total_cmp(&m[*b][i].abs()))?;
        m.swap(i, pivot);
        let row = m[i].clone();
        if row[i].abs() < 1e-6 * largest {
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

/// The disk requests that a store's requests, in the order in which they were done, came to: those that end together become one;
/// each takes the disk from the end of the one before.
#[must_use]
pub fn observations(served: &[Served]) -> Vec<Observation> {
    let gap = |w: &[Served]| w[1].finished.saturating_sub(w[0].finished.max(w[1].dispatched)) as f64;
    let mut per_byte: Vec<f64> = served.windows(2).map(|w| gap(w) / w[1].bytes as f64).filter(|x| *x > 0.0).collect();
    per_byte.sort_unstable_by(f64::total_cmp);
    let streaming = per_byte.get(per_byte.len() / 10).copied().unwrap_or(0.0);
    let mut out = Vec::new();
    let (mut head, mut free_at, mut rest) = (None, 0, served);
    while !rest.is_empty() {
        let apart = |w: &[Served]| (w[1].finished - w[0].finished) as f64 > TOGETHER * streaming * w[1].bytes as f64;
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

#[cfg(test)]
mod tests {
    use super::*;
    use types::Rng;

    /// Requests of `sizes` MiB on a disk of 4 ms a jump and 100 MB/s, one after the other; every third continues.
    fn served(sizes: &[u64]) -> Vec<Served> {
        let (mut rng, mut now, mut lba) = (Rng::new(3), 0, 0);
        let request = |i: u64| {
            let bytes = sizes[rng.below(sizes.len() as u64) as usize] << 20;
            let jump = !i.is_multiple_of(3);
            lba += if jump { 1 << 30 } else { 0 };
            let dispatched = now;
            now += u64::from(jump) * 4_000_000 + bytes * 10 + 50_000 + rng.below(20_000);
            let pieces = vec![(lba, bytes)];
            lba += bytes;
            Served { dispatched, finished: now, bytes, pieces }
        };
        (1..400).map(request).collect()
    }

    #[test]
    fn a_disk_is_found_again_from_requests_of_several_sizes_and_not_told_from_one() {
        let several = fit(&observations(&served(&[1, 2, 4]))).unwrap();
        let (seek, request) = (several.seek_ms.unwrap(), several.request_us.unwrap());
        assert!((seek - 4.06).abs() < 0.02 && (several.mb_per_s - 100.0).abs() < 0.5, "{several:?}");
        assert!((request - 60.0).abs() < 10.0 && several.r_squared > 0.999, "{several:?}");
        let one = observations(&served(&[1]));
        assert!(fit(&one).unwrap_err().contains("several sizes"));
        let one = fit_jumps(&one).unwrap();
        assert!((one.seek_ms.unwrap() - 4.0).abs() < 0.02 && (one.mb_per_s - 99.4).abs() < 0.5, "{one:?}");
        let p = one.profile().unwrap();
        assert!((p.jump_read_ns - 4e6).abs() < 2e4, "{p:?}");
    }

    #[test]
    fn what_was_not_seen_cannot_be_fitted() {
        let jumps: Vec<Served> =
            served(&[1]).into_iter().enumerate().filter(|(i, _)| i % 3 != 2).map(|(_, s)| s).collect();
        let jumps: Vec<Served> =
            jumps.chunks(1).map(|s| Served { dispatched: s[0].finished - 14_536_000, ..s[0].clone() }).collect();
        assert!(fit_jumps(&observations(&jumps)).unwrap_err().contains("cannot be told apart"));
        let streams: Vec<Served> =
            served(&[1]).into_iter().filter(|s| s.finished - s.dispatched < 12_000_000).collect();
        let stream = |(i, s): (usize, Served)| Served { pieces: vec![((i as u64) << 20, 1 << 20)], ..s };
        let streams: Vec<Served> = streams.into_iter().enumerate().map(stream).collect();
        assert!(fit_jumps(&observations(&streams)[1..]).unwrap_err().starts_with("no request jumped"));
        assert!(fit(&observations(&served(&[1])[..10])).unwrap_err().contains("too few"));
    }
}
