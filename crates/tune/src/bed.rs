//! Measuring on the mount: sets parameters, makes files with layouts, writes and reads them, removes them, and in the end
//! puts every parameter back.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use bench::plan::{Phase, Workload as Plan};
use bench::survey::{Stop, files};
use bench::{Failed, Outcome, os};
use serde::Serialize;

use crate::cluster::Cluster;
use crate::descent::Measurer;
use crate::factor::{Choice, Factor, Place, today};
use crate::saved::Saved;
use crate::workload::Workload;

/// Bytes of the first runs, by which the others get their size.
const PILOT_BYTES: u64 = 16 << 20;
/// A run's time for each workload, seconds: shorter ones say little, longer ones no more.
const RUN_S: (f64, f64) = (0.25, 20.0);
/// A run that takes so many times as long as the ones before is ended; at least so many seconds.
const PATIENCE: (f64, f64) = (20.0, 10.0);

/// What ends runs: the user, and the run itself when it takes too long.
#[derive(Clone, Debug, Default)]
pub struct Stops {
    /// The user wants an end.
    pub user: Arc<AtomicBool>,
    /// The run at work shall end.
    pub run: Stop,
}

impl Stops {
    /// Ends everything.
    pub fn set(&self) {
        self.user.store(true, Ordering::SeqCst);
        self.run.0.store(true, Ordering::SeqCst);
    }
    fn check(&self) -> Outcome {
        if self.user.load(Ordering::SeqCst) { Err(Failed::new("interrupted", libc::EINTR)) } else { Ok(()) }
    }
}

/// What a run did with one workload.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// Its name.
    pub workload: String,
    /// Bytes written.
    pub bytes: u64,
    /// MB/s (10^6), fsync within.
    pub write_mb_per_s: f64,
    /// MB/s of all passes.
    pub read_mb_per_s: Option<f64>,
    /// MB/s of the mix that the workload is.
    pub mb_per_s: f64,
}

/// What a run did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Detail {
    /// With making and removing the files.
    pub seconds: f64,
    /// Workload by workload.
    pub parts: Vec<Part>,
}

/// The mount, as it is measured.
pub struct Bed<'a> {
    cluster: &'a dyn Cluster,
    factors: &'a [Factor],
    workloads: &'a [Workload],
    /// Bytes of a run of each workload.
    pub bytes: Vec<u64>,
    dir: PathBuf,
    stops: &'a Stops,
    begin: Instant,
    run_s: f64,
    /// What every run did, by the number of the run.
    pub details: Vec<Detail>,
    /// Values that parameters have now.
    set: Choice,
    /// Parameters that were changed, maybe in part.
    touched: Vec<&'static str>,
    saved: &'a Saved,
    restored: bool,
}

impl<'a> Bed<'a> {
    /// Of a mount, in a directory on it; `saved` has the old values of every factor that is a parameter.
    #[must_use]
    pub fn new(
        cluster: &'a dyn Cluster,
        (factors, workloads): (&'a [Factor], &'a [Workload]),
        dir: &Path,
        (stops, saved): (&'a Stops, &'a Saved),
    ) -> Bed<'a> {
        Bed {
            cluster,
            factors,
            workloads,
            bytes: vec![PILOT_BYTES; workloads.len()],
            dir: dir.into(),
            stops,
            begin: Instant::now(),
            run_s: 0.0,
            details: Vec::new(),
            set: today(factors),
            touched: Vec::new(),
            saved,
            restored: false,
        }
    }

    /// Most bytes that any run writes at a time when workloads have at most `size` bytes.
    ///
    /// # Errors
    /// A workload that cannot be.
    pub fn bytes_max(factors: &[Factor], workloads: &[Workload], size: u64) -> Outcome<u64> {
        let values = |place: Place| -> Vec<Option<u64>> {
            let of = factors.iter().filter(|f| f.place == place).flat_map(|f| &f.candidates);
            std::iter::once(None).chain(of.map(|c| c.parse().ok())).collect()
        };
        let mut most = 0;
        for w in workloads {
            for processes in values(Place::Processes) {
                for transfer in values(Place::Transfer) {
                    let plan = w.plan(size, processes, transfer, 0).map_err(Failed::usage)?;
                    most = most.max(plan.total_bytes());
                }
            }
        }
        Ok(most)
    }

    /// Finds the size of runs by short ones with today's values: `runs` of them are to fit into `limit_s` seconds, and
    /// none has more than `size` bytes of a workload.
    ///
    /// # Errors
    /// A run fails, or the user wants an end.
    pub fn find_size(&mut self, runs: u64, limit_s: f64, size: u64) -> Outcome {
        self.bytes.fill(PILOT_BYTES.min(size));
        let now = today(self.factors);
        self.measure_all(&now, 0)?;
        let first = self.measure_all(&now, 0)?;
        let each_s = (limit_s * 0.7 / runs.max(1) as f64 / self.workloads.len() as f64).clamp(RUN_S.0, RUN_S.1);
        for (i, part) in first.parts.iter().enumerate() {
            let w = &self.workloads[i];
            let read_s = part.read_mb_per_s.map_or(0.0, |r| w.passes as f64 / r);
            let bytes = each_s * 1e6 / (1.0 / part.write_mb_per_s + read_s).max(1e-9);
            self.bytes[i] = (bytes as u64).clamp(PILOT_BYTES.min(size) / 4, size);
        }
        self.run_s = first.seconds;
        self.run_s = self.measure_all(&now, 0)?.seconds;
        Ok(())
    }

    fn measure_all(&mut self, choice: &Choice, round: u64) -> Outcome<Detail> {
        self.stops.check()?;
        self.apply(choice)?;
        let begin = Instant::now();
        let patience = (self.run_s * PATIENCE.0).max(PATIENCE.1);
        let parts = limited(&self.stops.run, patience, || {
            (0..self.workloads.len()).map(|i| self.part(i, choice, round)).collect::<Outcome<Vec<Part>>>()
        });
        let result = parts.unwrap_or_else(|| {
            Err(Failed::new(format!("it took longer than {patience:.0} s and was ended"), libc::ETIMEDOUT))
        });
        // A failed run has stopped its threads by this, and a late one was; the user's word stays.
        self.stops.run.0.store(false, Ordering::SeqCst);
        self.stops.check()?;
        Ok(Detail { seconds: begin.elapsed().as_secs_f64(), parts: result? })
    }

    /// Sets the parameters that have other values now.
    fn apply(&mut self, choice: &Choice) -> Outcome {
        for (i, f) in self.factors.iter().enumerate() {
            if matches!(f.place, Place::Mount | Place::Server) && self.set[i] != choice[i] {
                let done = self.cluster.set(f.key, &choice[i]);
                // Who may not change it has changed nothing; any other failure may have come half way.
                let is_refused = done.as_ref().is_err_and(|e| [libc::EPERM, libc::EACCES].contains(&e.errno));
                if !is_refused && !self.touched.contains(&f.key) {
                    self.touched.push(f.key);
                }
                done?;
                self.set[i].clone_from(&choice[i]);
            }
        }
        Ok(())
    }

    fn value(&self, choice: &Choice, place: Place) -> Option<i64> {
        let at = self.factors.iter().position(|f| f.place == place)?;
        choice[at].parse().ok()
    }

    fn part(&self, index: usize, choice: &Choice, round: u64) -> Outcome<Part> {
        self.stops.run.check()?;
        let w = &self.workloads[index];
        let number = |place| self.value(choice, place).and_then(|n| u64::try_from(n).ok());
        let seed = round + 1;
        let plan = w.plan(self.bytes[index], number(Place::Processes), number(Place::Transfer), seed);
        let plan = plan.map_err(Failed::usage)?;
        let base = self.dir.join(format!("run-{index}"));
        let paths: Vec<PathBuf> = (0..plan.files).map(|f| plan.path(&base, f)).collect();
        let part = self.make_and_use(w, &plan, (&base, &paths), choice);
        // Also after a failure: the next run begins with nothing.
        for path in &paths {
            match std::fs::remove_file(path) {
                Err(e) if part.is_ok() => return Err(Failed::io("removing", path, &e)),
                _ => {}
            }
        }
        part
    }

    fn make_and_use(
        &self,
        w: &Workload,
        plan: &Plan,
        (base, paths): (&Path, &[PathBuf]),
        choice: &Choice,
    ) -> Outcome<Part> {
        let count = self.value(choice, Place::StripeCount).unwrap_or(0);
        let size = self.value(choice, Place::StripeSize).and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        for path in paths {
            self.cluster.make(path, count, size)?;
        }
        let (write, _) = files::phase(plan, base, Phase::Write, &self.stops.run)?;
        let mut seconds_per_mb = 0.0;
        if w.read_share > 0.0 {
            for path in paths {
                os::forget(path).map_err(|e| Failed::io("syncing", path, &e))?;
            }
            for _ in 0..w.passes {
                let (read, _) = files::phase(plan, base, Phase::Read, &self.stops.run)?;
                seconds_per_mb += 1.0 / read / w.passes as f64;
            }
        }
        let read = (w.read_share > 0.0).then(|| 1.0 / seconds_per_mb);
        let mixed = w.read_share * seconds_per_mb + (1.0 - w.read_share) / write;
        Ok(Part {
            workload: w.name.clone(),
            bytes: plan.total_bytes(),
            write_mb_per_s: write,
            read_mb_per_s: read,
            mb_per_s: 1.0 / mixed,
        })
    }

    /// Puts every parameter back that was changed; what could not be, a sentence each.
    pub fn restore(&mut self) -> Vec<String> {
        self.restored = true;
        let mut changed = self.saved.clone();
        changed.parameters.retain(|(name, _)| self.touched.contains(&name.as_str()));
        changed.restore(self.cluster)
    }
}

impl Drop for Bed<'_> {
    fn drop(&mut self) {
        if !self.restored {
            for left in self.restore() {
                eprintln!("stria tune: could not be put back: {left}");
            }
        }
    }
}

impl Measurer for Bed<'_> {
    fn measure(&mut self, choice: &Choice, round: u64) -> Outcome<f64> {
        let run = self.measure_all(choice, round);
        let detail = run.as_ref().cloned().unwrap_or_default();
        self.details.push(detail);
        let detail = run?;
        // What is expected of the next ones follows slowly.
        self.run_s = 0.8 * self.run_s + 0.2 * detail.seconds;
        Ok(score(self.workloads, &detail.parts))
    }
    fn spent_s(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }
    fn run_s(&self) -> f64 {
        self.run_s
    }
}

/// MB/s over all workloads: their geometric mean, by their weights.
fn score(workloads: &[Workload], parts: &[Part]) -> f64 {
    mean(workloads.iter().zip(parts).map(|(w, p)| (w.weight, p.mb_per_s)))
}

/// The weighted geometric mean; 0 of nothing.
pub(crate) fn mean(all: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (sum, weights) = all.fold((0.0, 0.0), |(s, w), (weight, x)| (s + weight * x.ln(), w + weight));
    if weights > 0.0 { (sum / weights).exp() } else { 0.0 }
}

/// What `work` gives, unless it takes longer than `seconds`: then `stop` is set, and when that ends it there is nothing.
fn limited<T>(stop: &Stop, seconds: f64, work: impl FnOnce() -> T) -> Option<T> {
    let (done, over) = channel::<()>();
    let late = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let late = &late;
        scope.spawn(move || {
            if over.recv_timeout(Duration::from_secs_f64(seconds)) == Err(RecvTimeoutError::Timeout) {
                late.store(true, Ordering::SeqCst);
                stop.0.store(true, Ordering::SeqCst);
            }
        });
        let result = work();
        drop(done);
        result
    });
    (!late.load(Ordering::SeqCst)).then_some(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::tests::Pretended;

    fn strings(all: &[&str]) -> Vec<String> {
        all.iter().map(|s| (*s).to_string()).collect()
    }
    fn factors() -> Vec<Factor> {
        vec![
            Factor::new("stripe_count", Place::StripeCount, "-c", "1".into(), &strings(&["2"])),
            Factor::new("rpcs", Place::Mount, "osc.*.rpcs", "8".into(), &strings(&["16", "99"])),
            Factor::new("processes", Place::Processes, "processes", "4".into(), &strings(&["2", "8"])),
        ]
    }
    fn workloads() -> Vec<Workload> {
        let reads =
            Workload { name: "r".into(), read_share: 0.5, passes: 2, transfer_bytes: 4096, ..Workload::default() };
        vec![reads.clone(), Workload { name: "w".into(), read_share: 0.0, passes: 1, shared: true, ..reads }]
    }

    #[test]
    fn a_run_sets_what_differs_and_leaves_no_file_and_the_end_puts_all_back() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Pretended::with(&[("osc.a.rpcs", "8"), ("osc.b.rpcs", "8")]);
        let (factors, workloads, stops) = (factors(), workloads(), Stops::default());
        let mut saved = Saved::new(Path::new("/m"));
        saved.remember(&cluster, "osc.*.rpcs").unwrap();
        let mut bed = Bed::new(&cluster, (&factors, &workloads), dir.path(), (&stops, &saved));
        bed.bytes.fill(1 << 18);
        assert!(bed.measure(&strings(&["2", "16", "8"]), 0).unwrap() > 0.0);
        assert_eq!((cluster.value("osc.a.rpcs"), cluster.value("osc.b.rpcs")), ("16".into(), "16".into()));
        let parts = &bed.details[0].parts;
        assert_eq!((parts[0].bytes, parts[1].bytes), (1 << 18, 1 << 18));
        assert!(parts[0].read_mb_per_s.unwrap() > 0.0 && parts[1].read_mb_per_s.is_none());
        assert!((parts[1].mb_per_s / parts[1].write_mb_per_s - 1.0).abs() < 1e-9);
        // A file for each of eight processes, and one shared.
        assert_eq!(cluster.made.borrow().len(), 9);
        assert!(cluster.made.borrow().iter().all(|m| *m == (2, 0)));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        drop(bed);
        assert_eq!(cluster.value("osc.a.rpcs"), "8");
    }

    #[test]
    fn a_run_that_fails_says_why_and_the_next_one_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Pretended { refused: Some("99"), ..Pretended::with(&[("osc.a.rpcs", "8")]) };
        let (factors, workloads, stops) = (factors(), workloads(), Stops::default());
        let mut saved = Saved::new(Path::new("/m"));
        saved.remember(&cluster, "osc.*.rpcs").unwrap();
        let mut bed = Bed::new(&cluster, (&factors, &workloads), dir.path(), (&stops, &saved));
        bed.bytes.fill(1 << 16);
        let e = bed.measure(&strings(&["1", "99", "4"]), 0).unwrap_err();
        assert!(e.text.contains("osc.*.rpcs = 99: refused"), "{e}");
        // A file in the way: the threads end, what was made goes, and it does not count as the user's word.
        std::fs::create_dir(dir.path().join("run-1")).unwrap();
        assert_eq!(bed.measure(&today(&factors), 0).unwrap_err().errno, libc::EEXIST);
        std::fs::remove_dir(dir.path().join("run-1")).unwrap();
        assert!(bed.measure(&today(&factors), 0).is_ok());
        assert_eq!(bed.details.len(), 3);
        cluster.set("osc.a.rpcs", "77").unwrap();
        assert!(bed.restore().is_empty() && cluster.value("osc.a.rpcs") == "77", "what was refused is not put back");
        stops.set();
        assert_eq!(bed.measure(&today(&factors), 0).unwrap_err().errno, libc::EINTR);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_takes_too_long_is_ended() {
        let stop = Stop::default();
        let ended = limited(&stop, 0.001, || {
            while !stop.0.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
        assert!(ended.is_none());
        assert_eq!(limited(&Stop::default(), 3600.0, || 7), Some(7));
    }

    #[test]
    fn the_largest_run_is_known_beforehand() {
        let most = |size| Bed::bytes_max(&factors(), &workloads(), size).unwrap();
        assert_eq!((most(1 << 20), most(1)), (1 << 20, 8 * 4096));
        assert!((mean([(1.0, 2.0), (1.0, 8.0)].into_iter()) - 4.0).abs() < 1e-12);
        assert!((mean([(3.0, 2.0), (1.0, 32.0)].into_iter()) - 4.0).abs() < 1e-12);
    }
}
