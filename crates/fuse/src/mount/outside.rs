//! Paths that lie on no Stria mount, resolved without asking one.
//!
//! A thread that serves a mount, or a server that the mount needs, must not look at a path on it: the look waits for the answer
//! that this very thread would give, and a process that waits so is not ended by SIGKILL either. So every component is compared
//! with the mount table before the kernel is asked for it. What lies on a Stria mount below something else (the layers of an overlay, a loop
//! device, another FUSE daemon's source) the table does not tell.
use super::table::{self, Placed};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Symbolic links that are followed in one path, as the kernel has it.
const LINKS_MAX: usize = 40;
/// Type of Stria's mounts in the table.
const KIND: &str = "fuse.stria";

/// Why a path was not resolved.
#[derive(Debug, thiserror::Error)]
pub enum OutsideError {
    /// It lies on a Stria mount.
    #[error("{} lies on {}, a mount of a Stria file system", .path.display(), .mount.display())]
    Inside {
        /// The path as it was given.
        path: PathBuf,
        /// The mount point.
        mount: PathBuf,
    },
    /// A component of it cannot be looked at.
    #[error("looking at {}: {source}", .at.display())]
    Io {
        /// The component's path.
        at: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// The path without links, `.` and `..`, if it lies on no Stria mount of this process's namespace; nothing on such a mount is looked at.
/// What is missing at its end is left as it is written.
///
/// # Errors
/// [`OutsideError`].
pub fn resolve_outside(path: &Path) -> Result<PathBuf, OutsideError> {
    let full = std::path::absolute(path).map_err(|source| OutsideError::Io { at: path.into(), source })?;
    let table = Table { all: table::placed() };
    table.resolve(&full, |at| match std::fs::read_link(at) {
        Ok(target) => Ok(Some(target)),
        // It is there, and no link.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(None),
        Err(e) => Err(e),
    })
}

/// The mount table, as a tree.
struct Table {
    all: Vec<Placed>,
}

impl Table {
    /// Resolves an absolute path. `link` says where the link at a path leads; `None`: it is none.
    fn resolve(
        &self,
        path: &Path,
        mut link: impl FnMut(&Path) -> io::Result<Option<PathBuf>>,
    ) -> Result<PathBuf, OutsideError> {
        let failed = |at: &Path, source: io::Error| OutsideError::Io { at: at.into(), source };
        let mut todo = VecDeque::new();
        put_first(&mut todo, path);
        let (mut at, mut links) = (PathBuf::from("/"), 0);
        self.refuse(&at, path)?;
        while let Some(name) = todo.pop_front() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(name);
            self.refuse(&next, path)?;
            match link(&next) {
                Ok(None) => at = next,
                Ok(Some(target)) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(failed(&next, io::Error::from_raw_os_error(libc::ELOOP)));
                    }
                    if target.is_absolute() {
                        at = PathBuf::from("/");
                    }
                    put_first(&mut todo, &target);
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound && todo.iter().all(|name| name != "..") => {
                    return Ok(std::iter::once(next.into_os_string()).chain(todo).collect());
                }
                Err(e) => return Err(failed(&next, e)),
            }
        }
        Ok(at)
    }

    /// Refuses a path without links that lies on a Stria mount.
    fn refuse(&self, at: &Path, path: &Path) -> Result<(), OutsideError> {
        match self.above(at).filter(|mount| mount.entry.kind == KIND) {
            Some(mount) => Err(OutsideError::Inside { path: path.into(), mount: mount.entry.at.clone() }),
            None => Ok(()),
        }
    }

    /// The mount that a path without links lies on. A mount that another one covers, at its place or above it, has no paths.
    fn above(&self, at: &Path) -> Option<&Placed> {
        let mut places: Vec<&Path> = at.ancestors().collect();
        places.reverse();
        places.into_iter().fold(None, |mount, place| self.topmost(mount, place).or(mount))
    }

    /// The topmost of the mounts that are stacked on `mount` at one place.
    fn topmost(&self, mount: Option<&Placed>, place: &Path) -> Option<&Placed> {
        let (mut found, mut below) = (None, mount);
        // The table may have been read while it changed: as many steps as it has lines.
        for _ in &self.all {
            let Some(next) = self.all.iter().rev().find(|m| m.entry.at == place && self.is_on(m, below)) else { break };
            (found, below) = (Some(next), Some(next));
        }
        found
    }

    /// Whether a mount is mounted on another one; without one: on what this process cannot see.
    fn is_on(&self, mount: &Placed, below: Option<&Placed>) -> bool {
        match below {
            Some(below) => mount.parent == below.id && mount.id != below.id,
            None => mount.parent == mount.id || self.all.iter().all(|m| m.id != mount.parent),
        }
    }
}

/// Puts the names of a path before those that are still to be gone.
fn put_first(todo: &mut VecDeque<OsString>, path: &Path) {
    let names = path.components().filter_map(|c| match c {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    });
    let names: Vec<OsString> = names.collect();
    names.into_iter().rev().for_each(|name| todo.push_front(name));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Root, a Stria mount, a directory of it bound elsewhere, one that a disk covers, one on which a disk is mounted, and one below which
    /// a second is stacked.
    const TABLE: &str = "\
20 1 8:1 / / rw - ext4 /dev/sda rw
30 20 0:50 / /mnt/fs rw - fuse.stria stria rw,user_id=0
31 20 0:50 /sub /srv/bound rw - fuse.stria stria rw,user_id=0
32 20 0:51 / /old/fs rw - fuse.stria stria rw,user_id=0
33 20 8:2 / /old rw - ext4 /dev/sdb rw
34 30 8:3 / /mnt/fs/disk rw - ext4 /dev/sdc rw
35 20 0:52 / /twice rw - ext4 /dev/sdd rw
36 35 0:53 / /twice rw - fuse.stria stria rw,user_id=0
";

    /// Resolves in [`TABLE`] with these links; asks nothing that lies on a Stria mount.
    fn resolve(path: &str, links: &[(&str, &str)]) -> Result<String, String> {
        let table = Table { all: table::placed_of(TABLE.as_bytes()) };
        let said = table.resolve(Path::new(path), |at| {
            let inside = ["/mnt/fs", "/srv/bound", "/twice"].iter().any(|m| at.starts_with(m));
            assert!(!inside, "{} was looked at", at.display());
            if at.to_str().unwrap().contains("missing") {
                return Err(io::ErrorKind::NotFound.into());
            }
            Ok(links.iter().find(|(from, _)| at == Path::new(from)).map(|(_, to)| PathBuf::from(to)))
        });
        said.map(|p| p.to_str().unwrap().into()).map_err(|e| match e {
            OutsideError::Inside { mount, .. } => mount.to_str().unwrap().into(),
            OutsideError::Io { source, .. } => format!("errno {}", source.raw_os_error().unwrap_or_default()),
        })
    }

    #[test]
    fn a_path_is_resolved_and_nothing_on_a_stria_mount_is_looked_at() {
        let inside = |mount: &str| Err(mount.to_string());
        let outside = |path: &str| Ok(path.to_string());
        for (path, wanted) in [
            ("/mnt/fs", inside("/mnt/fs")),
            ("/mnt/fs/backup", inside("/mnt/fs")),
            ("/mnt/fs/../out", inside("/mnt/fs")),
            ("/mnt/fs/disk/backup", inside("/mnt/fs")),
            ("/mnt/./x/../fs/a", inside("/mnt/fs")),
            ("/srv/bound/a", inside("/srv/bound")),
            ("/twice/a", inside("/twice")),
            ("/mnt/fs2/backup", outside("/mnt/fs2/backup")),
            ("/mnt/other/../backup", outside("/mnt/backup")),
            ("/../mnt/b", outside("/mnt/b")),
            ("/old/fs/backup", outside("/old/fs/backup")),
            ("/a/missing/b/c", outside("/a/missing/b/c")),
            ("/a/missing", outside("/a/missing")),
            ("/", outside("/")),
        ] {
            assert_eq!(resolve(path, &[]), wanted, "{path}");
        }
    }

    #[test]
    fn links_are_followed_wherever_they_lead_and_not_without_end() {
        let links = [
            ("/link", "/mnt/fs/d"),
            ("/a/up", "../mnt/fs"),
            ("/a/out", "../out/./x"),
            ("/chain", "link"),
            ("/loop", "/loop"),
            ("/a/gone", "missing/x"),
        ];
        assert_eq!(resolve("/link/f", &links), Err("/mnt/fs".into()));
        assert_eq!(resolve("/a/up/f", &links), Err("/mnt/fs".into()));
        assert_eq!(resolve("/chain", &links), Err("/mnt/fs".into()));
        assert_eq!(resolve("/a/out/f", &links), Ok("/out/x/f".into()));
        assert_eq!(resolve("/a/gone/y", &links), Ok("/a/missing/x/y".into()));
        assert_eq!(resolve("/loop/f", &links), Err(format!("errno {}", libc::ELOOP)));
        // What is missing has no way up.
        assert_eq!(resolve("/missing/../mnt/fs/f", &[]), Err("errno 0".into()));
    }

    #[test]
    fn paths_of_this_machine_are_resolved_as_the_system_does() {
        let dir = tempfile::tempdir().unwrap();
        let full = dir.path().canonicalize().unwrap();
        std::fs::create_dir(full.join("real")).unwrap();
        std::fs::write(full.join("real/file"), "").unwrap();
        std::os::unix::fs::symlink("real", full.join("link")).unwrap();
        assert_eq!(resolve_outside(&dir.path().join("link/file")).unwrap(), full.join("real/file"));
        assert_eq!(resolve_outside(&dir.path().join("link/new")).unwrap(), full.join("real/new"));
        assert!(resolve_outside(&dir.path().join("real/file/x")).is_err(), "a file has no names in it");
        assert_eq!(resolve_outside(Path::new("Cargo.toml")).unwrap(), Path::new("Cargo.toml").canonicalize().unwrap());
    }
}
