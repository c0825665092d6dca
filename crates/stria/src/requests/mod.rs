//! `stria trace`: what OSTs did with requests, taken home into a file, shown, and written for other programs.
mod record;
mod show;
mod slow;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use trace::Trace;

use crate::cli::{TraceExport, TraceVerb};
use crate::failure::{Failure, Outcome};

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
    }
}

/// Reads a trace.
fn load(file: &Path) -> Outcome<Trace> {
    let bytes = std::fs::read(file).map_err(|e| Failure::io("reading", file, &e))?;
    trace::read(&bytes).map_err(|e| Failure::usage(format!("{}: {e}", file.display())))
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
    let done = File::create(path).and_then(|mut file| write(&mut file));
    done.map_err(|e| Failure::io("writing", path, &e))
}
