//! `stria trace record`: asks the OSTs through a mount, a piece at a time, and writes the file.
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trace::{RECORD_BYTES, Record, Target, Writer};

use crate::cli::TraceRecord;
use crate::control;
use crate::daemon::ClusterDir;
use crate::failure::{Failure, Outcome};

/// How often OSTs are asked what happened since: their rings hold some 40,000 requests.
const LOOK: Duration = Duration::from_millis(200);

/// What an OST told at a time.
struct Told {
    settings: String,
    total: u64,
    lost: u64,
    records: Vec<Record>,
}

/// An OST that is being recorded.
struct Source {
    ost: u16,
    /// Its number in the file.
    at: u16,
    next: u64,
    lost: u64,
}

fn ask(connection: u32, ost: u16, from: u64) -> Outcome<Told> {
    let answer = control::ask(connection, &json!({"do": "trace", "ost": ost, "from": from}))?;
    let number = |key: &str| answer[key].as_u64().unwrap_or_default();
    let nonsense = |why: String| Failure::with_errno(format!("OST {ost} answered nonsense: {why}"), libc::EPROTO);
    let records = records(&answer["records"]).map_err(nonsense)?;
    let settings = answer["settings"].as_str().unwrap_or_default().to_string();
    Ok(Told { settings, total: number("total"), lost: number("lost"), records })
}

fn records(value: &Value) -> Result<Vec<Record>, String> {
    let text = value.as_str().unwrap_or_default();
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let pair = |p: &[u8]| Some(digit(p[0])? << 4 | digit(*p.get(1)?)?);
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
    let bytes = bytes.ok_or("its records are not hexadecimal")?;
    let (records, rest) = bytes.as_chunks::<RECORD_BYTES>();
    if !rest.is_empty() {
        return Err(format!("{} bytes are not whole records", bytes.len()));
    }
    records.iter().map(|r| Record::get(r).map_err(|e| e.what.to_string())).collect()
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
    let osts = chosen(connection, &a.ost)?;
    let file = File::create(&a.output).map_err(|e| Failure::io("writing", &a.output, &e))?;
    let done = write(connection, &osts, a, BufWriter::new(file));
    if done.is_err() {
        // Half a trace is none.
        let _ = std::fs::remove_file(&a.output);
    }
    let (sources, records) = done?;
    let lost: u64 = sources.iter().map(|s| s.lost).sum();
    say!("{}: {records} requests of {} OSTs", a.output.display(), sources.len());
    if lost > 0 {
        let why = if a.seconds.is_some() { "before they were read" } else { "before" };
        say!("{lost} older ones were overwritten {why}: set oss.trace_bytes higher to keep more");
    }
    Ok(())
}

fn chosen(connection: u32, wanted: &[u16]) -> Outcome<Vec<u16>> {
    let there = control::ask_osts(connection)?;
    if let Some(wrong) = wanted.iter().find(|o| !there.contains(o)) {
        let why = format!("--ost {wrong}: there are OSTs {there:?}");
        return Err(Failure::with_errno(why, libc::ENOENT));
    }
    Ok(if wanted.is_empty() { there } else { wanted.to_vec() })
}

fn write(connection: u32, osts: &[u16], a: &TraceRecord, out: BufWriter<File>) -> Outcome<(Vec<Source>, u64)> {
    let failed = |e: io::Error| Failure::io("writing", &a.output, &e);
    let mut writer = Writer::new(out).map_err(failed)?;
    let mut sources = begin(connection, osts, a, &mut writer)?;
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

/// Asks every OST what it is; those that do not answer are left out, and told of.
fn begin(connection: u32, osts: &[u16], a: &TraceRecord, writer: &mut Writer<BufWriter<File>>) -> Outcome<Vec<Source>> {
    let mut sources = Vec::new();
    let mut refused = None;
    for ost in osts {
        let told = match ask(connection, *ost, u64::MAX) {
            Ok(told) => told,
            Err(e) => {
                note!("{e}: it is left out");
                refused = Some(e);
                continue;
            }
        };
        let target = Target::from_text(&told.settings).map_err(|e| Failure::from(format!("OST {ost}: {e}")))?;
        let at = writer.target(&target).map_err(|e| Failure::io("writing", &a.output, &e))?;
        let next = if a.seconds.is_some() { told.total } else { 0 };
        sources.push(Source { ost: *ost, at, next, lost: 0 });
    }
    match (sources.is_empty(), refused) {
        (true, Some(e)) => Err(e),
        (true, None) => Err(Failure::with_errno("this file system has no OSTs yet", libc::ENOENT)),
        _ => Ok(sources),
    }
}

/// Writes what happened at an OST since it was asked last; answers how many requests.
fn drain(connection: u32, source: &mut Source, file: &Path, writer: &mut Writer<BufWriter<File>>) -> Outcome<u64> {
    let mut written = 0;
    loop {
        let told = ask(connection, source.ost, source.next)?;
        if told.total < source.next {
            note!("OST {} was started anew: what it did before is missing", source.ost);
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
