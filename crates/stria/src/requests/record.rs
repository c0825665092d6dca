//! `stria trace record`: asks OSTs, metadata target and client through a mount, and writes the file.
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::time::{Duration, Instant};

use trace::{Target, Writer};

use super::rings::{Keeper, ask};
use crate::cli::TraceRecord;
use crate::control;
use crate::daemon::ClusterDir;
use crate::failure::{Failure, Outcome};
use crate::out;

/// How often rings are asked what happened since: they hold some 30,000 requests.
const LOOK: Duration = Duration::from_millis(200);

/// A ring that is being recorded.
struct Source {
    keeper: Keeper,
    /// Its number in the file.
    at: u16,
    next: u64,
    lost: u64,
}

/// The verb `trace record`.
///
/// # Errors
/// No mount; no OST that answers; a file that cannot be written.
pub fn record(a: &TraceRecord) -> Outcome {
    let connection = match (&a.mount, &a.dir) {
        (Some(mount), _) => crate::lfs::connection_of(mount)?.0,
        (None, Some(dir)) => crate::upkeep::mount_of(&ClusterDir::open(dir)?)?,
        (None, None) => return Err(Failure::usage("say which file system: a mount, or --dir DIR")),
    };
    let keepers = chosen(connection, &a.ost)?;
    let (sources, records) = out::to_file(&a.output, |file| write(connection, &keepers, a, BufWriter::new(file)))?;
    let lost: u64 = sources.iter().map(|s| s.lost).sum();
    let osts = sources.iter().filter(|s| matches!(s.keeper, Keeper::Ost(_))).count();
    let others: Vec<String> =
        sources.iter().filter(|s| !matches!(s.keeper, Keeper::Ost(_))).map(|s| format!(", {}", s.keeper)).collect();
    say!("{}: {records} requests of {osts} OSTs{}", a.output.display(), others.concat());
    if lost > 0 {
        let why = if a.seconds.is_some() { "before they were read" } else { "before" };
        say!("{lost} older ones were overwritten {why}: set oss.trace_bytes and mds.trace_bytes higher to keep more");
    }
    Ok(())
}

fn chosen(connection: u32, wanted: &[u16]) -> Outcome<Vec<Keeper>> {
    let there = control::ask_osts(connection)?;
    if let Some(wrong) = wanted.iter().find(|o| !there.contains(o)) {
        let why = format!("--ost {wrong}: there are OSTs {there:?}");
        return Err(Failure::with_errno(why, libc::ENOENT));
    }
    let osts = if wanted.is_empty() { &there } else { wanted };
    let others: &[Keeper] = if wanted.is_empty() { &[Keeper::Mdt, Keeper::Client] } else { &[] };
    Ok(osts.iter().map(|ost| Keeper::Ost(*ost)).chain(others.iter().copied()).collect())
}

fn write(connection: u32, keepers: &[Keeper], a: &TraceRecord, out: BufWriter<File>) -> Outcome<(Vec<Source>, u64)> {
    let failed = |e: io::Error| Failure::io("writing", &a.output, &e);
    let mut writer = Writer::new(out).map_err(failed)?;
    let mut sources = begin(connection, keepers, a, &mut writer)?;
    let until = a.seconds.map(|s| Instant::now() + Duration::from_secs(s));
    let mut written = 0;
    loop {
        let over = until.is_none_or(|u| Instant::now() >= u);
        for source in &mut sources {
            written += drain(connection, source, &a.output, &mut writer)?;
        }
        if over {
            break;
        }
        let left = until.map_or(Duration::ZERO, |u| u.saturating_duration_since(Instant::now()));
        std::thread::sleep(LOOK.min(left));
    }
    writer.finish().map_err(failed)?;
    Ok((sources, written))
}

/// Asks everybody what they are; those that do not answer are left out, and told of.
fn begin(
    connection: u32,
    keepers: &[Keeper],
    a: &TraceRecord,
    writer: &mut Writer<BufWriter<File>>,
) -> Outcome<Vec<Source>> {
    let mut sources = Vec::new();
    let mut refused = None;
    for keeper in keepers {
        let told = match ask(connection, *keeper, u64::MAX) {
            Ok(told) => told,
            Err(e) => {
                note!("{e}: it is left out");
                refused = Some(e);
                continue;
            }
        };
        let target = Target::from_text(&told.settings).map_err(|e| Failure::from(format!("{keeper}: {e}")))?;
        let at = writer.target(&target).map_err(|e| Failure::io("writing", &a.output, &e))?;
        let next = if a.seconds.is_some() { told.total } else { 0 };
        sources.push(Source { keeper: *keeper, at, next, lost: 0 });
    }
    match (sources.is_empty(), refused) {
        (true, Some(e)) => Err(e),
        (true, None) => Err(Failure::with_errno("this file system has no OSTs yet", libc::ENOENT)),
        _ => Ok(sources),
    }
}

/// Writes what happened since a ring was asked last; answers how many requests.
fn drain(connection: u32, source: &mut Source, file: &Path, writer: &mut Writer<BufWriter<File>>) -> Outcome<u64> {
    let mut written = 0;
    loop {
        let told = ask(connection, source.keeper, source.next)?;
        if told.total < source.next {
            note!("{} was started anew: what it did before is missing", source.keeper);
            source.next = 0;
            continue;
        }
        source.lost += told.lost;
        source.next += told.lost + told.records.len() as u64;
        written += told.records.len() as u64;
        writer.records(source.at, &told.records).map_err(|e| Failure::io("writing", file, &e))?;
        if source.next >= told.total || (told.records.is_empty() && told.lost == 0) {
            return Ok(written);
        }
    }
}
