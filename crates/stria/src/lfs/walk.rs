//! What commands on several paths, and walks below a path, do when one path fails: the others have their turn, each failure is told, and the
//! command fails at the end.
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};

/// Failures of paths, told as they come; the first one waits, and is what the command fails with if it stays alone.
#[derive(Debug, Default)]
pub(super) struct Failures {
    first: Option<Failure>,
    count: usize,
}

impl Failures {
    /// Takes in how it went with one path.
    pub fn note(&mut self, done: Outcome) {
        let Err(e) = done else { return };
        self.count += 1;
        match &self.first {
            None => self.first = Some(e),
            Some(first) => {
                if self.count == 2 {
                    first.report("stria");
                }
                e.report("stria");
            }
        }
    }
    /// How it went with all of them, for `verb`.
    ///
    /// # Errors
    /// The only failure there was; of several the number, with the errno of the first.
    pub fn end(self, verb: &str) -> Outcome {
        match self.first {
            None => Ok(()),
            Some(only) if self.count == 1 => Err(only),
            Some(first) => {
                let why = format!("{verb}: {} paths failed, and the others are done", self.count);
                Err(Failure::with_errno(why, i32::from(first.code())))
            }
        }
    }
}

/// Paths of what is in a directory, in order of names. What cannot be told is missing.
///
/// # Errors
/// The directory cannot be read, from the beginning or from some entry on; what was read until then is in `names`.
pub(super) fn list(dir: &Path, names: &mut Vec<PathBuf>) -> io::Result<()> {
    let read = fs::read_dir(dir).and_then(|entries| {
        for entry in entries {
            names.push(entry?.path());
        }
        Ok(())
    });
    names.sort();
    read
}

/// Whether something that a directory named is there no more: somebody removed it meanwhile.
pub(super) fn is_gone(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::NotFound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_stands_for_itself_and_several_for_the_first() {
        let fail = |errno| Err(Failure::with_errno("it failed", errno));
        assert!(Failures::default().end("verb").is_ok());
        let mut failures = Failures::default();
        failures.note(Ok(()));
        failures.note(fail(libc::ENOENT));
        failures.note(Ok(()));
        assert_eq!(failures.end("verb").unwrap_err().to_string(), "it failed");
        let mut failures = Failures::default();
        [libc::EACCES, libc::ENOENT, libc::EIO].into_iter().for_each(|errno| failures.note(fail(errno)));
        let end = failures.end("verb").unwrap_err();
        assert_eq!(i32::from(end.code()), libc::EACCES);
        assert!(end.to_string().contains("3 paths failed"), "{end}");
    }
}
