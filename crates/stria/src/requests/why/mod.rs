//! `stria why`: where the time of slow requests went, from the rings of servers and mount, or from a trace.
//!
//! What is meant is a file, a job or one request; `rules` says by which rule of the scheduler others went first, `names` which
//! file an object is of, `said` puts it on a page.
mod names;
mod rules;
mod said;

use std::path::{Path, PathBuf};

use trace::why::{Ahead, Sent, Split, Stage, place_of};
use trace::{JobId, Record, Target, Trace};
use types::{ClientId, Fid, ObjectId};

use super::rings::{Keeper, whole};
use crate::cli::Why;
use crate::control;
use crate::failure::{Failure, Outcome};

/// What is asked about.
enum Meant {
    File { path: PathBuf, fid: Fid, objects: Vec<(u32, ObjectId)> },
    Job { name: String, id: JobId },
    Rpc { target: String, client: ClientId, xid: u64 },
}

impl Meant {
    /// A request's name: TARGET:CLIENT:XID.
    fn rpc(text: &str) -> Option<Meant> {
        let mut parts = text.rsplitn(3, ':');
        let (xid, client, target) = (parts.next()?, parts.next()?, parts.next()?);
        let client = ClientId(u64::from_str_radix(client, 16).ok()?);
        let xid = xid.parse().ok().filter(|xid| *xid > 0)?;
        (!target.is_empty()).then(|| Meant::Rpc { target: target.into(), client, xid })
    }

    /// A file with its objects.
    fn file(path: &Path) -> Outcome<Meant> {
        let meta = std::fs::symlink_metadata(path).map_err(|e| Failure::io("looking at", path, &e))?;
        let objects = if meta.is_file() { names::objects_of(path)? } else { Vec::new() };
        let ino = std::os::unix::fs::MetadataExt::ino(&meta);
        Ok(Meant::File { path: path.into(), fid: Fid::from_ino(ino), objects })
    }

    fn job(name: &str) -> Meant {
        Meant::Job { name: name.into(), id: JobId(types::job_id(name.as_bytes())) }
    }

    fn is_of(&self, target: &Target, r: &Record) -> bool {
        match self {
            Meant::File { fid, .. } if !target.has_scheduler() => r.object.0 == *fid,
            Meant::File { objects, .. } => objects.contains(&(place_of(target.name()), r.object)),
            Meant::Job { id, .. } => r.job == *id,
            Meant::Rpc { target: name, client, xid } => {
                let is_named = target.name() == name || target.name().ends_with(&format!("-{name}"));
                is_named && (r.client, r.xid.0) == (*client, *xid)
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Meant::File { path, .. } => path.display().to_string(),
            Meant::Job { name, .. } => format!("job {name}"),
            Meant::Rpc { target, client, xid } => format!("request {target}:{:016x}:{xid}", client.0),
        }
    }
}

/// How far back a ring reaches.
struct Reach {
    target: String,
    /// Nanoseconds since 1970 of the oldest request, if there is one, and how long ago that is.
    oldest: Option<(i64, u64)>,
    overwritten: u64,
}

impl Reach {
    fn of(target: &Target, overwritten: u64) -> Reach {
        let first = target.records.iter().map(|r| r.arrived.0).min();
        let ago =
            |at: u64| u64::try_from(target.number("clock_ns").unwrap_or_default()).unwrap_or(0).saturating_sub(at);
        let oldest = first.map(|at| (wall_of(target, at), ago(at)));
        Reach { target: target.name().into(), oldest, overwritten }
    }
    /// When the oldest request that it has came, if older ones were overwritten: nanoseconds since 1970.
    fn since(&self) -> Option<i64> {
        self.oldest.filter(|_| self.overwritten > 0).map(|(wall, _)| wall)
    }
    fn text(&self) -> Option<String> {
        let (wall, ago) = self.oldest.filter(|_| self.overwritten > 0)?;
        let since = crate::lfs::time_text(wall.div_euclid(1_000_000_000));
        let (seconds, lost) = (ago as f64 / 1e9, self.overwritten);
        let target = &self.target;
        Some(format!(
            "the ring of {target} reaches back to {since} ({seconds:.1} s): {lost} older ones were overwritten"
        ))
    }
}

/// A moment on a target's clock in nanoseconds since 1970.
fn wall_of(target: &Target, at: u64) -> i64 {
    let (clock, wall) = (target.number("clock_ns").unwrap_or(0), target.number("wall_ns").unwrap_or(0));
    let ns = i128::from(wall) - (i128::from(clock) - i128::from(at));
    i64::try_from(ns).unwrap_or(0)
}

/// What rings hold.
struct Rings {
    /// Servers', each in the order in which the store got its requests.
    targets: Vec<Target>,
    sent: Sent,
    /// What clients say.
    clients: Vec<Target>,
    reach: Vec<Reach>,
}

impl Rings {
    fn of(rings: Vec<(Target, u64)>) -> Rings {
        let reach = rings.iter().map(|(target, lost)| Reach::of(target, *lost)).collect();
        let is_client = |t: &Target| t.setting("source") == Some("client");
        let (clients, mut targets): (Vec<Target>, Vec<Target>) = rings.into_iter().map(|(t, _)| t).partition(is_client);
        targets.iter_mut().for_each(|t| t.records.sort_by_key(|r| r.dispatched));
        let sent = Sent::of(clients.iter().flat_map(|t| &t.records));
        Rings { targets, sent, clients, reach }
    }

    /// Asks everybody; who does not answer is left out, and told of.
    fn ask(connection: u32) -> Outcome<Rings> {
        let osts = control::ask_osts(connection)?.into_iter().map(Keeper::Ost);
        let mut rings = Vec::new();
        let mut refused = None;
        for keeper in osts.chain([Keeper::Mdt, Keeper::Client]) {
            match whole(connection, keeper) {
                Ok(ring) => rings.push((ring.target, ring.lost)),
                // Who may not ask one of them may ask none.
                Err(e) if i32::from(e.code()) == libc::EPERM => return Err(e),
                Err(e) => {
                    note!("{e}: it is left out");
                    refused = Some(e);
                }
            }
        }
        match refused {
            Some(e) if rings.is_empty() => Err(e),
            _ => Ok(Rings::of(rings)),
        }
    }

    /// What is known of what is meant, the slowest first.
    fn find(&self, meant: &Meant) -> Vec<Found<'_>> {
        let of = |t: &'_ Target, r: &Record| meant.is_of(t, r);
        let mut found: Vec<Found<'_>> = Vec::new();
        for target in &self.targets {
            for record in target.records.iter().filter(|r| of(target, r)) {
                let sent = self.sent.find(target.name(), record);
                found.push(Found { target, record, split: Split::of(record, sent), at_client: false });
            }
        }
        if let (Meant::Rpc { target: name, client, xid }, true) = (meant, found.is_empty()) {
            found.extend(self.told_by_client(name, *client, *xid));
        }
        found.sort_by_key(|f| (std::cmp::Reverse(f.split.total_ns()), f.record.arrived));
        found
    }

    /// A request that its target kept nothing of: it waited for nothing there. Of one from before the oldest that the target
    /// still has nobody knows that.
    fn told_by_client(&self, name: &str, client: ClientId, xid: u64) -> Option<Found<'_>> {
        let target = self.targets.iter().find(|t| t.name() == name || t.name().ends_with(&format!("-{name}")))?;
        let place = trace::why::place(place_of(target.name()));
        let told = self.clients.iter().flat_map(|t| t.records.iter().map(move |r| (t, r)));
        let mut same = told.filter(|(_, r)| (r.client, r.xid.0, r.object) == (client, xid, place));
        let (teller, record) = same.next()?;
        let oldest = self.reach.iter().find(|r| r.target == target.name()).and_then(Reach::since);
        if oldest.is_some_and(|oldest| wall_of(teller, record.arrived.0) < oldest) {
            return None;
        }
        let nothing = Record { dispatched: record.arrived, finished: record.arrived, ..*record };
        Some(Found { target, record, split: Split::of(&nothing, Some(record)), at_client: true })
    }
}

/// A request with where its time went.
struct Found<'a> {
    target: &'a Target,
    record: &'a Record,
    split: Split,
    /// Only its client knows of it.
    at_client: bool,
}

impl Found<'_> {
    fn id(&self) -> String {
        format!("{}:{:016x}:{}", self.target.name(), self.record.client.0, self.record.xid.0)
    }
    /// What went before it; `None`: it waited in no queue.
    fn ahead(&self) -> Option<Ahead> {
        (self.split.ns(Stage::Queue) > 0).then(|| Ahead::of(self.record, &self.target.records))
    }
}

/// The verb.
///
/// # Errors
/// No such file; a mount that is none, or does not answer; who asks may not; nothing is known of what is meant.
pub fn why(a: &Why) -> Outcome {
    let (meant, rings, connection) = match &a.trace {
        Some(file) => {
            if a.what.contains('/') {
                let why = format!("{}: a trace knows objects and no files: name a job or a request", a.what);
                return Err(Failure::usage(why));
            }
            let Trace { targets } = super::load(file)?;
            let meant = Meant::rpc(&a.what).unwrap_or_else(|| Meant::job(&a.what));
            (meant, Rings::of(targets.into_iter().map(|t| (t, 0)).collect()), None)
        }
        None => {
            let (meant, connection) = asked(a)?;
            (meant, Rings::ask(connection)?, Some(connection))
        }
    };
    let found = rings.find(&meant);
    if found.is_empty() {
        return Err(nothing_of(&meant, &rings));
    }
    let shown = &found[..found.len().min(usize::from(a.top))];
    let names = names::Names::of(&meant, shown, &rings.targets, connection);
    let page = said::Page { meant: &meant, found: &found, shown, names: &names, reach: &rings.reach };
    match a.json {
        true => say!("{}", page.json()),
        false => crate::out::print(format_args!("{}", page.text())),
    }
    Ok(())
}

/// What the words mean, and through which mount it is asked.
fn asked(a: &Why) -> Outcome<(Meant, u32)> {
    let path = Path::new(&a.what);
    let connection = |path: &Path| crate::lfs::connection_at(path).map(|(connection, _)| connection);
    let other = || -> Outcome<u32> {
        if let Some(mount) = &a.mount {
            return connection(mount);
        }
        if let Ok(here) = connection(Path::new(".")) {
            return Ok(here);
        }
        match &crate::lfs::mounts()?[..] {
            [only] => Ok(only.minor),
            several => {
                let list: Vec<String> = several.iter().map(|m| m.at.display().to_string()).collect();
                Err(Failure::usage(format!("several mounts are here ({}): say which", list.join(", "))))
            }
        }
    };
    // A file is meant where there is one on a mount, or where only a file can be.
    match connection(path) {
        Ok(own) => Ok((Meant::file(path)?, a.mount.as_deref().map_or(Ok(own), connection)?)),
        Err(e) if a.what.contains('/') => Err(e),
        Err(_) => Ok((Meant::rpc(&a.what).unwrap_or_else(|| Meant::job(&a.what)), other()?)),
    }
}

/// Nothing is known of it: how far back that would go.
fn nothing_of(meant: &Meant, rings: &Rings) -> Failure {
    let reach: Vec<String> = rings.reach.iter().filter_map(Reach::text).collect();
    let reach = match reach.is_empty() {
        true => "the rings hold everything since their servers were started, and were given memory".into(),
        false => reach.join("; "),
    };
    let (errno, hint) = match meant {
        Meant::Job { name, .. } => {
            (libc::ENODATA, format!(" ('{name}' is no file on a mount, and no request: TARGET:CLIENT:XID)"))
        }
        Meant::File { .. } => (libc::ENODATA, String::new()),
        Meant::Rpc { .. } => (libc::ENOENT, String::new()),
    };
    let what = match meant {
        Meant::Rpc { .. } => format!("{} is in no ring", meant.text()),
        _ => format!("{} has no requests in the rings{hint}", meant.text()),
    };
    Failure::with_errno(format!("{what}: {reach}"), errno)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::Came;
    use types::{Instant, Xid};
    use wire::Op;

    fn target(text: &str, records: Vec<Record>) -> Target {
        Target { records, ..Target::from_text(text).unwrap() }
    }
    fn record(op: Op, xid: u64, ms: [u64; 2]) -> Record {
        let came = Came { xid: Xid(xid), at: Instant(ms[0] * 1_000_000), ..Came::default() };
        Record { client: ClientId(0xc1), job: JobId(9), ..Record::unscheduled(op, &came, Instant(ms[1] * 1_000_000)) }
    }

    #[test]
    fn a_request_is_named_by_target_client_and_number() {
        let rings = Rings::of(vec![
            (target("target=s-MDT0000\nsource=mdt\n", vec![record(Op::MdtOpen, 5, [0, 30])]), 0),
            (target("target=s-OST0001\nsource=ost\n", vec![record(Op::OstSync, 5, [0, 90])]), 0),
        ]);
        let found = |text: &str| rings.find(&Meant::rpc(text).unwrap()).iter().map(Found::id).collect::<Vec<_>>();
        assert_eq!(found("s-OST0001:c1:5"), ["s-OST0001:00000000000000c1:5"]);
        assert_eq!(found("MDT0000:00000000000000c1:5"), ["s-MDT0000:00000000000000c1:5"]);
        assert!(found("MDT0000:c1:6").is_empty() && found("MDT0000:c2:5").is_empty());
        assert!(["a:b", "x:c1:", "dd.0", ":c1:5", "x:zz:5", "x:c1:0"].iter().all(|text| Meant::rpc(text).is_none()));
        let all = rings.find(&Meant::Job { name: "j".into(), id: JobId(9) });
        assert_eq!(all.iter().map(|f| f.record.op).collect::<Vec<_>>(), [Op::OstSync, Op::MdtOpen], "slowest first");
    }

    #[test]
    fn what_only_the_client_knows_is_its_queue_and_the_network() {
        let mut sent = record(Op::MdtStatfs, 8, [0, 50]);
        (sent.dispatched, sent.object) = (Instant(20_000_000), trace::why::place(trace::why::MDT));
        let rings = Rings::of(vec![
            (target("target=s-MDT0000\nsource=mdt\n", vec![]), 0),
            (target("target=client\nsource=client\n", vec![sent]), 0),
        ]);
        let found = rings.find(&Meant::rpc("MDT0000:c1:8").unwrap());
        assert!(found[0].at_client);
        let split = found[0].split;
        assert_eq!((split.ns(Stage::ClientQueue), split.ns(Stage::Network)), (20_000_000, 30_000_000));
        assert_eq!(split.total_ns(), 50_000_000);
    }

    #[test]
    fn what_the_target_has_overwritten_is_not_taken_for_nothing() {
        let mut sent = record(Op::OstRead, 8, [1000, 1050]);
        sent.object = trace::why::place(0);
        let clocks = "clock_ns=9000000000\nwall_ns=9000000000\n";
        let of = |lost: u64| {
            let kept = record(Op::OstSync, 9, [4000, 4001]);
            let ost = target(&format!("target=s-OST0000\nsource=ost\n{clocks}"), vec![kept]);
            let client = target(&format!("target=client\nsource=client\n{clocks}"), vec![sent]);
            Rings::of(vec![(ost, lost), (client, 0)]).find(&Meant::rpc("OST0000:c1:8").unwrap()).len()
        };
        assert_eq!((of(0), of(3)), (1, 0));
    }

    #[test]
    fn a_ring_that_was_overwritten_says_how_far_back_it_reaches() {
        let text = "target=s-OST0000\nclock_ns=9000000000\nwall_ns=1700000009000000000\n";
        let rings = Rings::of(vec![(target(text, vec![record(Op::OstSync, 1, [4000, 4001])]), 7)]);
        assert_eq!(rings.reach[0].oldest, Some((1_700_000_004_000_000_000, 5_000_000_000)));
        let failure = nothing_of(&Meant::job("none"), &rings);
        assert_eq!(i32::from(failure.code()), libc::ENODATA);
        let said = failure.to_string();
        assert!(said.contains("job none has no requests in the rings"), "{said}");
        assert!(said.contains("(5.0 s): 7 older ones were overwritten"), "{said}");
        let rpc = nothing_of(&Meant::rpc("OST0000:c1:5").unwrap(), &rings);
        assert_eq!(i32::from(rpc.code()), libc::ENOENT);
        let whole = Rings::of(vec![(target(text, vec![]), 0)]);
        assert!(nothing_of(&Meant::job("none"), &whole).to_string().contains("hold everything"), "nothing was lost");
    }
}
