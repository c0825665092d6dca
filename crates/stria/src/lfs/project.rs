//! `project`: which project files and directories count for.
//!
//! Syntax and lines are those of Lustre's `lfs` (interface facts only). Differs: what is made in a directory that has a project always
//! gets it; so `-s` says nothing new.
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::getopt::{Absent, Grammar};
use super::walk::{Failures, is_gone, list};
use crate::failure::{Failure, Outcome};

const USAGE: &str =
    "usage: project [-d | -r] PATH...               (list: of a directory what is in it, -d itself, -r all below)
       project -p ID [-s] [-r] PATH...         (set; -r with all that lies below)
       project -C [-r] PATH...                 (set to 0, none)
       project -c [-p ID] [-d | -r] [-0] PATH... (what has another project than ID, or than the directory PATH; -0: names only, a NUL behind each)
  ID  1 to 4294967295
  what is made in a directory gets the directory's project (-s, which is always so)";

const KEEPS: Absent = Absent {
    letters: "k",
    names: &["keep"],
    why: "what is made in a directory that has a project always gets it: there is no flag to clear while the project stays",
};

/// `project`.
///
/// # Errors
/// What is wrong with the arguments, or with a path; the others have their turn.
pub fn project(arguments: &[OsString]) -> Outcome {
    let verb = "project";
    let long = &[("help", 'h')];
    let parsed = Grammar { verb, short: "hdrsCc0p:", long, absent: &[KEEPS] }.read(arguments)?;
    if parsed.has('h') {
        say!("{USAGE}");
        return Ok(());
    }
    let set = match parsed.value('p') {
        Some(text) => {
            let id = text.parse::<u32>().ok().filter(|id| *id > 0);
            let why = || {
                Failure::usage(format!(
                    "{verb}: '{text}' is no project: write a number from 1 to 4294967295; -C sets none"
                ))
            };
            Some(id.ok_or_else(why)?)
        }
        None => parsed.has('C').then_some(0),
    };
    if parsed.operands.is_empty() || parsed.has('C') && parsed.has('p') || parsed.has('s') && set.is_none() {
        return Err(Failure::usage(format!("{verb}: name a path, and with -s a project (-p)\n{USAGE}")));
    }
    let checks = parsed.has('c');
    if checks && (parsed.has('C') || parsed.has('s')) || parsed.has('0') && !checks {
        return Err(Failure::usage(format!("{verb}: -c changes nothing: without -C and -s; -0 is for -c\n{USAGE}")));
    }
    let asked = Asked { set, checks, itself: parsed.has('d'), deep: parsed.has('r'), bare: parsed.has('0') };
    let mut failures = Failures::default();
    for path in parsed.operands.iter().map(Path::new) {
        let done = asked.path(path, &mut failures);
        failures.note(done);
    }
    failures.end(verb)
}

/// What is to be done with each path.
struct Asked {
    /// The project that it gets, or with `checks` should have.
    set: Option<u32>,
    checks: bool,
    /// A directory itself, not what is in it.
    itself: bool,
    /// And all that is below it.
    deep: bool,
    bare: bool,
}

impl Asked {
    /// One path; what fails below it is in `failures`.
    fn path(&self, path: &Path, failures: &mut Failures) -> Outcome {
        let meta = std::fs::symlink_metadata(path).map_err(|e| Failure::io("looking at", path, &e))?;
        if !super::xattr::is_ours(&meta) {
            return Err(super::xattr::not_ours(path));
        }
        let lists_itself = self.itself || !meta.is_dir();
        match self.set {
            _ if self.checks => {
                let wanted = self.set.map_or_else(|| project_of(path).map(|(_, id)| id), Ok)?;
                let mut each = |path: &Path| check(path, wanted, self.bare);
                if lists_itself {
                    return each(path);
                }
                let mut walk = Walk { dev: meta.dev(), each: &mut each, failures };
                walk.path(path, false);
                walk.below(path, self.deep);
            }
            Some(id) => {
                let each = &mut |path: &Path| change(path, id);
                Walk { dev: meta.dev(), each, failures }.path(path, self.deep);
            }
            None if lists_itself => return show(path),
            None => Walk { dev: meta.dev(), each: &mut show, failures }.below(path, self.deep),
        }
        Ok(())
    }
}

/// A walk over what is below a path on the same file system.
struct Walk<'a> {
    dev: u64,
    each: &'a mut dyn FnMut(&Path) -> Outcome,
    failures: &'a mut Failures,
}

impl Walk<'_> {
    /// A path, and with `deep` all that is below it. What is neither file nor directory has no descriptor to ask by.
    fn path(&mut self, path: &Path, deep: bool) {
        let meta = match std::fs::symlink_metadata(path) {
            Ok(meta) => meta,
            Err(e) if is_gone(&e) => return,
            Err(e) => return self.failures.note(Err(Failure::io("looking at", path, &e))),
        };
        if meta.dev() != self.dev || !(meta.is_dir() || meta.is_file()) {
            return;
        }
        let done = (self.each)(path);
        let is_told = done.is_err();
        self.failures.note(done);
        if deep && meta.is_dir() {
            let read = self.entries(path, true);
            // Whose project cannot be told is mostly not to be read, either.
            self.failures.note(if is_told { Ok(()) } else { read });
        }
    }
    /// What is in a directory, and with `deep` all that is below it.
    fn below(&mut self, path: &Path, deep: bool) {
        let read = self.entries(path, deep);
        self.failures.note(read);
    }
    fn entries(&mut self, path: &Path, deep: bool) -> Outcome {
        let mut names = Vec::new();
        let read = list(path, &mut names);
        names.iter().for_each(|name| self.path(name, deep));
        read.map_err(|e| Failure::io("reading", path, &e))
    }
}

fn open(path: &Path) -> Result<File, Failure> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|e| Failure::io("opening", path, &e))
}

fn call(path: &Path, number: u32, bytes: &mut [u8], what: &str) -> Outcome {
    let file = open(path)?;
    // SAFETY: the argument has the size that the number says, and outlives the call.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::c_ulong::from(number), bytes.as_mut_ptr()) };
    if done == 0 { Ok(()) } else { Err(Failure::io(what, path, &std::io::Error::last_os_error())) }
}

fn change(path: &Path, id: u32) -> Outcome {
    call(path, mount::project::SET, &mut mount::project::argument(0, id), "setting the project of")
}

/// The flags and the project of a file or directory.
fn project_of(path: &Path) -> Result<(u32, u32), Failure> {
    let mut bytes = mount::project::argument(0, 0);
    call(path, mount::project::GET, &mut bytes, "asking for the project of")?;
    Ok(mount::project::read(&bytes).unwrap_or_default())
}

fn show(path: &Path) -> Outcome {
    let (flags, id) = project_of(path)?;
    say!("{id:>5} {} {}", if flags != 0 { 'P' } else { '-' }, path.display());
    Ok(())
}

/// Names a path that has another project; `bare`: with a NUL behind, and nothing else.
fn check(path: &Path, wanted: u32, bare: bool) -> Outcome {
    let (_, id) = project_of(path)?;
    if id == wanted {
        return Ok(());
    }
    if bare {
        let mut out = std::io::stdout().lock();
        let name = [path.as_os_str().as_bytes(), b"\0"].concat();
        return out.write_all(&name).map_err(|e| Failure::io("writing", Path::new("standard output"), &e));
    }
    say!("{} - project identifier is not set (inode={id}, tree={wanted})", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_arguments_are_refused_before_anything_is_changed() {
        for (given, why) in [
            (&["-p", "x", "/"][..], "'x' is no project"),
            (&["-p", "0", "/"], "'0' is no project"),
            (&["-p", "-1", "/"], "'-1' is no project"),
            (&["-p", "4294967296", "/"], "'4294967296' is no project"),
            (&["-p", "1"], "name a path"),
            (&["-s", "/"], "with -s a project"),
            (&["-C", "-k", "/"], "no flag to clear"),
            (&["-c", "-C", "/"], "-c changes nothing"),
            (&["-p", "1", "-0", "/"], "-0 is for -c"),
            (&["/"], "not on a Stria mount"),
            (&["-p", "1", "/no such file"], "/no such file"),
        ] {
            let words: Vec<OsString> = given.iter().map(OsString::from).collect();
            let said = project(&words).unwrap_err().to_string();
            assert!(said.contains(why), "{given:?}: {said}");
        }
    }
}
