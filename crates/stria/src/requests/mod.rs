//! `stria trace`: what targets did with requests, taken home into a file, shown, and written for other programs. `stria why`:
//! where the time of slow ones went.
mod record;
mod rings;
mod show;
mod slow;
mod why;

use std::io::{self, BufWriter, Write};
use std::path::Path;

use trace::Trace;

pub use why::why;

use crate::cli::{TraceExport, TraceFormat, TraceImport, TraceVerb};
use crate::failure::{Failure, Outcome};
use crate::out;

/// The verbs of `trace`.
///
/// # Errors
/// No trace, nobody who tells one, nowhere to write it.
pub fn trace(verb: &TraceVerb) -> Outcome {
    match verb {
        TraceVerb::Record(a) => record::record(a),
        TraceVerb::Show(a) => {
            let trace = load(&a.file)?;
            crate::out::print(format_args!("{}", show::summary(&trace, a.clients)));
            Ok(())
        }
        TraceVerb::Slow(a) => {
            let trace = load(&a.file)?;
            crate::out::print(format_args!("{}", slow::slowest(&trace, a.top)));
            Ok(())
        }
        TraceVerb::Export(a) => export(a),
        TraceVerb::Import(a) => import(a),
    }
}

/// Reads a trace.
fn load(file: &Path) -> Outcome<Trace> {
    let bytes = std::fs::read(file).map_err(|e| Failure::io("reading", file, &e))?;
    trace::read(&bytes).map_err(|e| Failure::usage(format!("{}: {e}", file.display())))
}

fn import(a: &TraceImport) -> Outcome {
    let text = std::fs::read_to_string(&a.file).map_err(|e| Failure::io("reading", &a.file, &e))?;
    let read = match a.format {
        TraceFormat::Csv => trace::import::csv,
        TraceFormat::Dxt => trace::import::dxt,
        TraceFormat::Blkparse => trace::import::blkparse,
    };
    let mut trace = read(&text).map_err(|e| Failure::usage(format!("{}: {e}", a.file.display())))?;
    for set in &a.set {
        let pair = set.split_once('=').filter(|(key, _)| !key.is_empty() && !set.contains('\n'));
        let (key, value) = pair.ok_or_else(|| Failure::usage(format!("--set {set}: write KEY=VALUE")))?;
        trace.targets.iter_mut().for_each(|t| t.settings.push((key.into(), value.into())));
    }
    out::to_file(&a.output, |file| {
        trace.write(BufWriter::new(file)).map_err(|e| Failure::io("writing", &a.output, &e))
    })?;
    say!("{}: {} requests of {} targets", a.output.display(), trace.len(), trace.targets.len());
    Ok(())
}

fn export(a: &TraceExport) -> Outcome {
    let trace = load(&a.file)?;
    let write = |out: &mut dyn Write| -> io::Result<()> {
        let mut out = BufWriter::new(out);
        if a.json { trace::export::json(&trace, &mut out) } else { trace::export::csv(&trace, &mut out) }?;
        out.flush()
    };
    let Some(path) = &a.output else {
        return match write(&mut io::stdout().lock()) {
            // A reader that went away (`| head`) has what it wanted.
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Failure::io("writing", Path::new("stdout"), &e)),
            _ => Ok(()),
        };
    };
    out::to_file(path, |mut file| write(&mut file).map_err(|e| Failure::io("writing", path, &e)))
}
