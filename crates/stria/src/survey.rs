//! `survey`: what the surveys need of a mount.
use std::ffi::OsString;
use std::path::Path;

use bench::survey::files::Osts;

use crate::failure::{Failure, Outcome};
use crate::{control, lfs, out};

/// Runs the verb.
///
/// # Errors
/// What cannot be, or went wrong.
pub fn survey(kind: &bench::survey::cli::Survey) -> Outcome {
    // Figures may go to a file or a program: what is told along goes where errors go.
    let warn = |text: &str| eprintln!("stria: {text}");
    Ok(bench::survey::cli::survey(kind, &Mount, &|text| out::print(format_args!("{text}")), &warn)?)
}

/// OSTs as the mount shows them on which a directory lies.
struct Mount;

impl Osts for Mount {
    fn all(&self, dir: &Path) -> bench::Outcome<Vec<u16>> {
        let found = lfs::connection_of(dir).and_then(|(connection, _)| control::ask_osts(connection));
        found.map_err(failed)
    }
    fn make(&self, path: &Path, ost: u16) -> bench::Outcome {
        let line: [OsString; 5] = ["-c".into(), "1".into(), "-i".into(), ost.to_string().into(), path.into()];
        lfs::setstripe(&line).map_err(failed)
    }
}

fn failed(failure: Failure) -> bench::Failed {
    bench::Failed::new(failure.to_string(), i32::from(failure.code()))
}
