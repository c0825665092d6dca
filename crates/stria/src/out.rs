//! What commands print. `say!` is for those whose output is all they do: a reader that has seen enough (`| head`) ends
//! them without a word, a full disk with an error. `note!` is for those that have more to do than to print: they go on. Files that
//! commands write are there whole or not at all ([`to_file`]).
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::failure::{Failure, Outcome};

/// Exit code of a program that nobody reads any more, as shells show SIGPIPE's.
const UNREAD: i32 = 128 + libc::SIGPIPE;

/// A path as a word of a command that people are told to run.
pub fn word(path: &Path) -> String {
    types::shell_word(path.as_os_str().as_bytes())
}

/// A text without what a terminal would take for commands, in lines: daemons of other users say what they like.
pub fn printable(text: &str) -> String {
    let escape = |c: char| if c.is_control() && c != '\n' { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}

/// The same of all texts in a daemon's answer.
pub fn no_control(answer: &mut Value) {
    match answer {
        Value::String(text) => *text = printable(text),
        Value::Array(all) => all.iter_mut().for_each(no_control),
        Value::Object(all) => all.values_mut().for_each(no_control),
        _ => {}
    }
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
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => return write(File::options().write(true).open(path).map_err(failed)?),
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        // A link that the kernel does not follow here, since another user may have put it there, among others.
        Err(e) => return Err(failed(e)),
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

    #[test]
    fn a_link_of_another_user_in_a_directory_for_all_is_not_followed() {
        let protected = fs::read_to_string("/proc/sys/fs/protected_symlinks").is_ok_and(|t| t.trim() == "1");
        // SAFETY: plain system call without arguments.
        if !protected || unsafe { libc::geteuid() } != 0 {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (precious, shared) = (dir.path().join("precious"), dir.path().join("shared"));
        fs::write(&precious, "precious").unwrap();
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
        let link = shared.join("link");
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(65_534), Some(65_534)).unwrap();
        let refused = to_file(&link, |_| Ok(())).unwrap_err();
        assert_eq!(i32::from(refused.code()), libc::EACCES);
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    }

    #[test]
    fn what_daemons_say_has_no_commands_for_terminals() {
        let mut answer = serde_json::json!({"fsname": "a\u{1b}[2J", "osts": [{"nid": "b\n\r"}], "n": 1});
        no_control(&mut answer);
        assert_eq!(answer, serde_json::json!({"fsname": "a\\u{1b}[2J", "osts": [{"nid": "b\n\\r"}], "n": 1}));
    }
}
