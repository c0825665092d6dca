//! The whole of it: takes its turn, looks, says what it will do, measures, puts everything back, simulates, and applies what
//! was found when it is told to.
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use bench::{Failed, Outcome, os};
use types::format_size;

use crate::bed::{Bed, Detail, Stops};
use crate::catalogue::{self, Facts};
use crate::cluster::Cluster;
use crate::descent::{Check, Course, compare, descend, runs_planned};
use crate::factor::{Factor, Place};
use crate::report::Recommendation;
use crate::saved::Saved;
use crate::scratch::{Scratch, check_space};
use crate::simulated::{Device, Setting, World};
use crate::workload::Workload;

/// Bytes of a run's workload when nobody says another number, at most.
const SIZE_DEFAULT: u64 = 1 << 30;
/// Share of the time that simulating has, when there is something to simulate.
const SIMULATED_SHARE: f64 = 0.15;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The mount point.
    pub mount: PathBuf,
    /// The directory on it that is measured in, and whose default layout is meant.
    pub dir: PathBuf,
    /// What it is tuned for.
    pub workloads: Vec<Workload>,
    /// Time in all, seconds.
    pub limit_s: f64,
    /// Most bytes that a run writes.
    pub size: Option<u64>,
    /// The device behind the OSTs, when the user knows it.
    pub device: Option<String>,
    /// Clients that are simulated.
    pub clients: u64,
    /// Settings of the servers may be changed.
    pub servers: bool,
    /// These factors only; all when it is empty.
    pub only: Vec<String>,
    /// Where old values are kept while it measures: one file for each mount.
    pub journal: PathBuf,
}

/// What was simulated.
#[derive(Debug)]
pub struct Simulated {
    /// Under what.
    pub setting: Setting,
    /// The servers' factors.
    pub factors: Vec<Factor>,
    /// What came of them.
    pub course: Course,
    /// What is recommended of them, on the cluster itself; `None`: nothing, or it may not be tried there.
    pub check: Option<Check>,
}

/// All that was found.
#[derive(Debug)]
pub struct Found {
    /// What was asked for.
    pub options: Options,
    /// Factors that were measured.
    pub factors: Vec<Factor>,
    /// What came of them.
    pub course: Course,
    /// What each run did, by its number.
    pub details: Vec<Detail>,
    /// Bytes of a run of each workload.
    pub bytes: Vec<u64>,
    /// What was simulated.
    pub simulated: Option<Simulated>,
    /// What was left out, and why; what could not be put back.
    pub notes: Vec<String>,
    /// Whether the directory has a default layout of its own.
    pub has_layout: bool,
}

/// Searches.
///
/// # Errors
/// It cannot begin, or what it changed could not be put back. An end amid the search is in [`Course::ended`].
pub fn tune(o: Options, cluster: &dyn Cluster, stops: &Stops, warn: &dyn Fn(&str)) -> Outcome<Found> {
    let _turn = Turn::take(&o.journal)?;
    mend(&o, cluster, warn)?;
    let declared = o.device.as_deref().map(Device::declared).transpose()?;
    let scratch = Scratch::make(&o.dir)?;
    if scratch.left_behind {
        warn(&format!("{} was left behind by an earlier run, and is used again", scratch.path().display()));
    }
    let (facts, has_layout) = facts(cluster, &scratch, &o.dir)?;
    let mut c = catalogue::look(cluster, &o.workloads, facts, &o.only)?;
    let device = match declared {
        _ if c.servers.is_empty() => None,
        Some(device) => Some(device),
        None => Device::told(cluster)?.map_err(|why| c.notes.push(format!("nothing is simulated: {why}"))).ok(),
    };
    let mut factors = c.here;
    if o.servers {
        // What is simulated is tried on the cluster as a whole, in the end; the rest value by value.
        let tried = c.servers.iter().cloned().map(|f| match device {
            Some(_) => Factor { candidates: Vec::new(), ..f },
            None => f,
        });
        factors.extend(tried);
    }
    let mut found = Found {
        factors,
        course: Course::default(),
        details: Vec::new(),
        bytes: Vec::new(),
        simulated: None,
        notes: c.notes,
        has_layout,
        options: o,
    };
    let plan = device.map(|device| Plan { device, facts, factors: c.servers });
    if found.factors.is_empty() {
        scratch.remove()?;
        plan.map_or(Ok(()), |plan| simulate(&mut found, cluster, plan))?;
        return Ok(found);
    }
    measure(&mut found, cluster, (scratch, plan), stops, warn)?;
    Ok(found)
}

/// What is simulated.
struct Plan {
    device: Device,
    facts: Facts,
    factors: Vec<Factor>,
}

/// One search at a time on a mount and a host: whoever has the name; it ends with the process.
struct Turn {
    _name: UnixListener,
}

impl Turn {
    fn take(journal: &Path) -> Outcome<Turn> {
        let mut name = b"stria-tune:".to_vec();
        // Names of sockets are short, paths need not be.
        let path = journal.as_os_str().as_bytes();
        name.extend(&path[path.len().saturating_sub(80)..]);
        let bound = SocketAddr::from_abstract_name(name).and_then(|a| UnixListener::bind_addr(&a));
        match bound {
            Ok(name) => Ok(Turn { _name: name }),
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {
                Err(Failed::new("another tune is at work on this mount: wait for it", libc::EBUSY))
            }
            Err(e) => Err(Failed::io("taking the turn of", journal, &e)),
        }
    }
}

/// Puts back what a search changed that was killed.
fn mend(o: &Options, cluster: &dyn Cluster, warn: &dyn Fn(&str)) -> Outcome {
    if !o.journal.exists() {
        return Ok(());
    }
    let saved = Saved::read(&o.journal)?;
    warn(&format!(
        "an earlier run was killed: the {} parameters that it changed are put back first",
        saved.parameters.len()
    ));
    for left in saved.restore(cluster) {
        warn(&format!("could not be put back: {left}"));
    }
    fs::remove_file(&o.journal).map_err(|e| Failed::io("removing", &o.journal, &e))
}

/// How a new file of the directory is striped, and whether the directory says so itself.
fn facts(cluster: &dyn Cluster, scratch: &Scratch, dir: &Path) -> Outcome<(Facts, bool)> {
    let own = cluster.default_layout(dir)?;
    if own.is_some() {
        cluster.set_default_layout(scratch.path(), own.as_deref())?;
    }
    let probe = scratch.path().join("run-probe");
    fs::write(&probe, b"x").map_err(|e| Failed::io("writing", &probe, &e))?;
    let now = cluster.stripes(&probe)?;
    fs::remove_file(&probe).map_err(|e| Failed::io("removing", &probe, &e))?;
    Ok((Facts { osts: cluster.osts()?.len() as u64, now }, own.is_some()))
}

/// Bytes that a workload may have, and what its largest run writes.
fn size(o: &Options, cluster: &dyn Cluster, factors: &[Factor]) -> Outcome<(u64, u64)> {
    let avail = cluster.params("obdfilter.*.kbytesavail")?;
    let least = avail.iter().filter_map(|p| p.value.trim().parse::<u64>().ok()).min();
    let free = match least {
        Some(kib) => kib.saturating_mul(1024),
        None => os::free_bytes(&o.dir).map_err(|e| Failed::io("looking at", &o.dir, &e))?,
    };
    let size = o.size.unwrap_or(SIZE_DEFAULT.min(free / 2));
    let most = Bed::bytes_max(factors, &o.workloads, size)?;
    check_space(&o.dir, most, free)?;
    Ok((size, most))
}

/// Old values of everything that will be changed.
fn saved(mount: &Path, cluster: &dyn Cluster, factors: &[Factor]) -> Outcome<Saved> {
    let mut saved = Saved::new(mount);
    for f in factors.iter().filter(|f| matches!(f.place, Place::Mount | Place::Server)) {
        saved.remember(cluster, f.key)?;
    }
    Ok(saved)
}

fn measure(
    found: &mut Found,
    cluster: &dyn Cluster,
    (scratch, plan): (Scratch, Option<Plan>),
    stops: &Stops,
    warn: &dyn Fn(&str),
) -> Outcome {
    let (o, factors) = (found.options.clone(), found.factors.clone());
    let (size, most) = size(&o, cluster, &factors)?;
    let saved = saved(&o.mount, cluster, &factors)?;
    let changed: Vec<&str> =
        factors.iter().filter(|f| matches!(f.place, Place::Mount | Place::Server)).map(|f| f.key).collect();
    let put_back = match changed.is_empty() {
        true => String::new(),
        false => format!("; meanwhile {} change, and are put back", changed.join(", ")),
    };
    warn(&format!(
        "measuring for up to {:.1} minutes: runs write up to {} at a time into {}, which is removed at the end{put_back}",
        o.limit_s / 60.0,
        format_size(most),
        scratch.path().display()
    ));
    saved.write_new(&o.journal)?;
    let mut bed = Bed::new(cluster, (&factors, &o.workloads), scratch.path(), (stops, &saved));
    let done = search(found, cluster, (&mut bed, size), plan, warn);
    let left = bed.restore();
    found.bytes.clone_from(&bed.bytes);
    found.details = std::mem::take(&mut bed.details);
    drop(bed);
    if left.is_empty() {
        fs::remove_file(&o.journal).map_err(|e| Failed::io("removing", &o.journal, &e))?;
    } else {
        let said = format!("'stria tune --revert {}' tries again to put back {}", o.journal.display(), left.join("; "));
        found.course.ended.get_or_insert(Failed::new(&said, libc::EIO));
        found.notes.push(said);
    }
    if let Err(e) = done {
        found.course.ended.get_or_insert(e);
    }
    scratch.remove()
}

/// Measures, simulates, and tries what was simulated when it may.
fn search(
    found: &mut Found,
    cluster: &dyn Cluster,
    (bed, size): (&mut Bed<'_>, u64),
    plan: Option<Plan>,
    warn: &dyn Fn(&str),
) -> Outcome {
    let (limit_s, factors) = (found.options.limit_s, found.factors.clone());
    let share = if plan.is_some() { 1.0 - SIMULATED_SHARE } else { 1.0 };
    let runs = runs_planned(&factors);
    bed.find_size(runs, limit_s * share, size)?;
    let all: u64 = bed.bytes.iter().sum();
    warn(&format!("a run has {}; up to {runs} runs, about {} in all", format_size(all), format_size(all * runs)));
    found.course = descend(&factors, bed, limit_s * share);
    let Some(plan) = plan.filter(|_| found.course.ended.is_none()) else { return Ok(()) };
    simulate(found, cluster, plan)?;
    let recommended: Vec<Recommendation> = found.recommendations().into_iter().filter(|r| r.is_simulated).collect();
    let predicted =
        found.simulated.as_ref().and_then(|s| s.course.check.as_ref()).map(|c| c.measured.unwrap_or(c.predicted));
    if let Some(predicted) = predicted.filter(|_| found.options.servers) {
        let base = found.course.choice.clone();
        let mut other = base.clone();
        for (i, f) in factors.iter().enumerate() {
            if let Some(r) = recommended.iter().find(|r| r.factor.name == f.name) {
                other[i].clone_from(&r.value);
            }
        }
        let check = compare(&factors, bed, limit_s, (&base, &other), (predicted, &mut found.course))?;
        found.simulated.as_mut().expect("something was simulated").check = Some(check);
    }
    Ok(())
}

fn simulate(found: &mut Found, cluster: &dyn Cluster, plan: Plan) -> Outcome {
    let Plan { device, facts, factors } = plan;
    let o = &found.options;
    let chosen = |name: &str| {
        let at = found.factors.iter().position(|f| f.name == name)?;
        found.course.choice.get(at)?.parse::<i64>().ok()
    };
    let today = |pattern: &str| -> Outcome<Option<i64>> {
        Ok(catalogue::one_value(cluster, pattern)?.ok().and_then(|v| v.parse().ok()))
    };
    let or_now = |name: &str, pattern: &str, default: i64| -> Outcome<u64> {
        let value = chosen(name).map_or_else(|| today(pattern), |v| Ok(Some(v)))?;
        Ok(value.unwrap_or(default).max(1) as u64)
    };
    let stripes = match chosen("stripe_count") {
        Some(count) if count < 0 => facts.osts,
        Some(count) => count as u64,
        None => u64::from(facts.now.count),
    };
    let stripe_size = chosen("stripe_size").map_or(facts.now.size, |s| s.max(1) as u64);
    let setting = Setting {
        clients: o.clients,
        osts: facts.osts,
        stripes,
        rpc_bytes: (or_now("pages_per_rpc", "osc.*.max_pages_per_rpc", 1024)? * 4096).min(stripe_size),
        rpcs_in_flight: or_now("rpcs_in_flight", "osc.*.max_rpcs_in_flight", 8)?,
        device,
    };
    let mut world = World::new(&factors, &o.workloads, &setting);
    let course = descend(&factors, &mut world, o.limit_s * SIMULATED_SHARE);
    found.simulated = Some(Simulated { setting, factors, course, check: None });
    Ok(())
}

/// What was applied.
#[derive(Debug)]
pub struct Applied {
    /// In words.
    pub set: Vec<String>,
    /// What was not, and why.
    pub left: Vec<String>,
    /// The file with the old values; none when nothing was set.
    pub file: Option<PathBuf>,
}

/// Sets what is recommended, after its old values were written to `file`. A setting that is refused takes all back.
///
/// # Errors
/// A value is refused, or the file cannot be written.
pub fn apply(found: &Found, cluster: &dyn Cluster, file: &Path) -> Outcome<Applied> {
    let mut applied = Applied { set: Vec::new(), left: Vec::new(), file: None };
    let mut chosen: Vec<Recommendation> = Vec::new();
    for r in found.recommendations() {
        match found.why_not(&r) {
            Some(why) => applied.left.push(format!("{}: {why}", r.factor.name)),
            None => chosen.push(r),
        }
    }
    if chosen.is_empty() {
        return Ok(applied);
    }
    let o = &found.options;
    let of = |place: Place| chosen.iter().find(|r| r.factor.place == place);
    let is_layout = chosen.iter().any(|r| r.factor.place.is_layout());
    let factors: Vec<Factor> = chosen.iter().map(|r| r.factor.clone()).collect();
    let mut saved = saved(&o.mount, cluster, &factors)?;
    let own = cluster.default_layout(&o.dir)?;
    if is_layout {
        saved.remember_layout(&o.dir, own.as_deref());
    }
    saved.write_new(file)?;
    let set = || -> Outcome {
        for r in chosen.iter().filter(|r| matches!(r.factor.place, Place::Mount | Place::Server)) {
            cluster.set(r.factor.key, &r.value)?;
        }
        if is_layout {
            let count = of(Place::StripeCount).and_then(|r| r.value.parse().ok());
            let size = of(Place::StripeSize).and_then(|r| r.value.parse().ok());
            let bytes = cluster.with_stripes(own.as_deref(), count, size)?;
            cluster.set_default_layout(&o.dir, Some(&bytes))?;
        }
        Ok(())
    };
    if let Err(e) = set() {
        let left = saved.restore(cluster);
        if left.is_empty() {
            fs::remove_file(file).map_err(|e| Failed::io("removing", file, &e))?;
            return Err(e.by("nothing was applied"));
        }
        return Err(e.by(&format!("'stria tune --revert {}' puts back the rest", file.display())));
    }
    applied.set = chosen.iter().map(|r| format!("{} = {}", r.factor.name, r.value)).collect();
    applied.file = Some(file.into());
    Ok(applied)
}
