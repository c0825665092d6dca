//! What commands print. `say!` is for those whose output is all they do: a reader that has seen enough (`| head`) ends
//! them without a word, a full disk with an error. `note!` is for those that have more to do than to print: they go on. Files that
//! commands write are there whole or not at all ([`to_file`]).
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};

/// Exit code of a program that nobody reads any more, as shells show SIGPIPE's.
const UNREAD: i32 = 128 + libc::SIGPIPE;

/// A path as a word of a command that people are told to run.
pub fn word(path: &Path) -> String {
    types::shell_word(path.as_os_str().as_bytes())
}

/// Prints a line, or ends the program.
macro_rules! say {
    ($($text:tt)*) => { $crate::out::print(format_args!("{}\n", format_args!($($text)*))) };
}
/// Prints a line if it can be printed.
macro_rules! note {
    ($($text:tt)*) => { $crate::out::try_print(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints, or ends the program.
pub fn print(text: fmt::Arguments<'_>) {
    if let Err(e) = write(text) {
        let code = match e.kind() {
            io::ErrorKind::BrokenPipe => UNREAD,
            _ => {
                let _ = writeln!(io::stderr(), "stria: writing the output: {e}");
                e.raw_os_error().unwrap_or(libc::EIO)
            }
        };
        std::process::exit(code);
    }
}

/// Writes a file by another name, which takes the place of what is there when all of it is written. What is no regular file, like a
/// pipe or a device, is written to directly, and stays whatever comes.
///
/// # Errors
/// What `write` answers; the file cannot be made or put in its place.
pub fn to_file<T>(path: &Path, write: impl FnOnce(File) -> Outcome<T>) -> Outcome<T> {
    let failed = |e: io::Error| Failure::io("writing", path, &e);
    if fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return write(File::options().write(true).open(path).map_err(failed)?);
    }
    // A link to a file stays one.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let mut new = path.clone().into_os_string();
    new.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(new);
    let file = File::options().write(true).create_new(true).open(&new).map_err(failed)?;
    let done = write(file).and_then(|done| fs::rename(&new, &path).map_err(failed).map(|()| done));
    if done.is_err() {
        let _ = fs::remove_file(&new);
    }
    done
}

/// Prints if possible.
pub fn try_print(text: fmt::Arguments<'_>) {
    let _ = write(text);
}

fn write(text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(text)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_whole_or_stays_what_it_was_and_devices_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("f"), dir.path().join("link"));
        let write = |path: &Path, text: &'static str, fails: bool| {
            to_file(path, |mut file| {
                file.write_all(text.as_bytes()).map_err(|e| Failure::io("writing", path, &e))?;
                if fails { Err(Failure::from("in the middle".to_string())) } else { Ok(()) }
            })
        };
        write(&path, "first", false).unwrap();
        assert!(write(&path, "half", true).is_err());
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        write(&link, "second", false).unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), fs::read_link(&link).is_ok()), ("second", true));
        let device = dir.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &device).unwrap();
        write(&device, "gone", false).unwrap();
        assert!(write(&device, "gone", true).is_err() && fs::symlink_metadata(&device).is_ok());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
