//! Where the control socket of a mount is: in a directory in which its owner alone can make names.
//!
//! Others may pass through it to ask. Who looks for a mount's socket knows its owner from the mount table, and believes
//! nothing that lies elsewhere, or that somebody else answers.
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use mount::pass;

use super::peer_uid;

/// Where the sockets of user `owner`'s mounts can be, best first. `runtime_dir`: the user's own, as the environment has it.
fn candidates(owner: u32, runtime_dir: Option<PathBuf>) -> Vec<PathBuf> {
    let fallback = PathBuf::from(format!("/tmp/stria-{owner}"));
    if owner == 0 {
        return vec!["/run/stria".into(), fallback];
    }
    let mut all: Vec<PathBuf> = runtime_dir.into_iter().filter(|d| d.is_absolute()).map(|d| d.join("stria")).collect();
    all.extend([PathBuf::from(format!("/run/user/{owner}/stria")), fallback]);
    all.dedup();
    all
}

fn own_uid() -> u32 {
    // SAFETY: plain system call without arguments.
    unsafe { libc::geteuid() }
}

/// Of a user as this process can know: the environment tells of its own user's directory only.
fn candidates_of(owner: u32) -> Vec<PathBuf> {
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| owner == own_uid());
    candidates(owner, runtime_dir.map(PathBuf::from))
}

/// Refuses a directory in which somebody else than `owner` can make or replace names.
fn check(dir: &Path, owner: u32) -> io::Result<()> {
    let meta =
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(dir)?.metadata()?;
    let no = |why: String| Err(io::Error::new(ErrorKind::PermissionDenied, why));
    if meta.uid() != owner {
        return no(format!("it belongs to user {}, not to user {owner}", meta.uid()));
    }
    if meta.mode() & 0o022 != 0 {
        return no(format!("others than its owner can change it (mode {:04o})", meta.mode() & 0o7777));
    }
    // Whoever can rename it can put another in its place.
    let above = std::fs::metadata(dir.parent().unwrap_or(Path::new("/")))?;
    let sticky = above.mode() & libc::S_ISVTX != 0;
    if (above.mode() & 0o022 != 0 && !sticky) || (above.uid() != owner && above.uid() != 0) {
        return no("others than its owner can replace it".into());
    }
    Ok(())
}

/// Makes a directory for sockets: others may pass.
fn make(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(dir) {
        Ok(()) => std::fs::set_permissions(dir, Permissions::from_mode(0o755)),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    }
}

fn name(connection: u32) -> String {
    format!("mount-{connection}")
}

/// The name of a bound socket; taken away when dropped, unless it is another's by then. To be dropped before the socket: the
/// file system may give the number of a socket that is gone to the next.
pub(super) struct Name {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for Name {
    fn drop(&mut self) {
        let now = std::fs::symlink_metadata(&self.path).map(|m| (m.dev(), m.ino()));
        if now.is_ok_and(|i| i == self.identity)
            && let Err(e) = std::fs::remove_file(&self.path)
        {
            tracing::debug!("{}: {e}", self.path.display());
        }
    }
}

/// Binds the socket of a mount of this user.
///
/// # Errors
/// `AddrInUse`: the daemon of an earlier mount with this connection's number has not ended yet. Else what is wrong with every
/// directory that would do.
pub(super) fn bind(connection: u32) -> io::Result<(UnixListener, Name)> {
    bind_in(&candidates_of(own_uid()), connection)
}

fn bind_in(places: &[PathBuf], connection: u32) -> io::Result<(UnixListener, Name)> {
    let mut refusals = Vec::new();
    for dir in places {
        let done = make(dir).and_then(|()| check(dir, own_uid())).and_then(|()| bind_at(dir.join(name(connection))));
        match done {
            Err(e) if e.kind() == ErrorKind::AddrInUse => return Err(e),
            Err(e) => refusals.push(format!("{}: {e}", dir.display())),
            bound => return bound,
        }
    }
    Err(io::Error::other(format!("no place for its control socket ({})", refusals.join("; "))))
}

fn bind_at(path: PathBuf) -> io::Result<(UnixListener, Name)> {
    let listener = match UnixListener::bind(&path) {
        // A daemon that was killed leaves its name behind; nobody answers there.
        Err(e) if e.kind() == ErrorKind::AddrInUse => match UnixStream::connect(&path) {
            Err(gone) if gone.kind() == ErrorKind::ConnectionRefused => {
                std::fs::remove_file(&path)?;
                UnixListener::bind(&path)?
            }
            _ => return Err(e),
        },
        bound => bound?,
    };
    // What comes with a question is closed by us, and may be long in closing.
    pass::take_no_descriptors(listener.as_fd());
    // Everybody may ask; what is asked is judged by who asks.
    std::fs::set_permissions(&path, Permissions::from_mode(0o666))?;
    let meta = std::fs::symlink_metadata(&path)?;
    Ok((listener, Name { path, identity: (meta.dev(), meta.ino()) }))
}

/// The directory in which this user's daemons make names: the first that will do.
///
/// # Errors
/// What is wrong with every one.
pub fn own_place() -> io::Result<PathBuf> {
    own_place_of(&candidates_of(own_uid()))
}

fn own_place_of(places: &[PathBuf]) -> io::Result<PathBuf> {
    let mut refusals = Vec::new();
    for dir in places {
        match make(dir).and_then(|()| check(dir, own_uid())) {
            Ok(()) => return Ok(dir.clone()),
            Err(e) => refusals.push(format!("{}: {e}", dir.display())),
        }
    }
    Err(io::Error::other(refusals.join("; ")))
}

/// Connects to the daemon of `owner`'s mount.
///
/// # Errors
/// There is no socket, its place is not the owner's alone, nobody answers, or somebody else does.
pub(super) fn connect(connection: u32, owner: u32) -> io::Result<UnixStream> {
    connect_in(&candidates_of(owner), connection, owner)
}

fn connect_in(places: &[PathBuf], connection: u32, owner: u32) -> io::Result<UnixStream> {
    let mut last: Option<io::Error> = None;
    for dir in places {
        let path = dir.join(name(connection));
        let at = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        if let Err(e) = std::fs::symlink_metadata(&path) {
            // A place that cannot be looked into may be the one.
            if e.kind() != ErrorKind::NotFound {
                last = Some(at(e));
            }
            continue;
        }
        let stream = check(dir, owner).and_then(|()| UnixStream::connect(&path)).map_err(at)?;
        return match peer_uid(&stream) {
            Some(uid) if uid == owner || uid == 0 => Ok(stream),
            uid => Err(at(io::Error::new(
                ErrorKind::PermissionDenied,
                format!("user {} answers there, the mount is user {owner}'s", uid.unwrap_or(u32::MAX)),
            ))),
        };
    }
    let looked = || places.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" or ");
    Err(last.unwrap_or_else(|| {
        io::Error::new(
            ErrorKind::NotFound,
            format!(
                "it has no control socket in {}: its daemon is gone or could not make one, which its log tells",
                looked()
            ),
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_lie_where_their_owner_alone_makes_names() {
        assert_eq!(candidates(0, Some("/x".into())), [Path::new("/run/stria"), Path::new("/tmp/stria-0")]);
        let of = |dir: &str| candidates(7, Some(dir.into()));
        assert_eq!(of("/run/user/7"), [Path::new("/run/user/7/stria"), Path::new("/tmp/stria-7")]);
        assert_eq!(of("here").len(), 2, "a relative path means something else to everybody");
    }

    #[test]
    fn a_place_that_others_could_change_is_passed_over_and_a_name_left_behind_is_taken_again() {
        let place = tempfile::tempdir().unwrap();
        let (open, link, good) = (place.path().join("open"), place.path().join("link"), place.path().join("good"));
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(place.path(), &link).unwrap();
        let said = bind_in(&[open.clone(), link.clone()], 5).map(drop).unwrap_err().to_string();
        assert!(said.contains("open: others than its owner can change it (mode 0777)"), "{said}");
        let places = [open, link, good.clone()];
        let own = own_uid();
        let said = connect_in(&places, 5, own).unwrap_err().to_string();
        assert!(said.contains("it has no control socket in"), "{said}");
        let (first, first_name) = bind_in(&places, 5).unwrap();
        assert!(connect_in(&places, 5, own).is_ok());
        assert_eq!(bind_in(&places, 5).map(drop).unwrap_err().kind(), ErrorKind::AddrInUse);
        // The first ends, and the next comes before its name is gone.
        // SAFETY: plain system call on a descriptor that lives.
        unsafe { libc::shutdown(std::os::fd::AsRawFd::as_raw_fd(&first), libc::SHUT_RDWR) };
        let (second, second_name) = bind_in(&places, 5).unwrap();
        drop((first_name, first));
        assert!(connect_in(&places, 5, own).is_ok(), "the successor's name stays");
        // One that is killed leaves its name behind.
        std::mem::forget(second_name);
        drop(second);
        let (_third, third_name) = bind_in(&places, 5).unwrap();
        drop(third_name);
        assert!(!good.join("mount-5").exists());
    }

    #[test]
    fn nobody_believes_a_socket_of_somebody_else() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("d");
        let (_listener, _name) = bind_in(std::slice::from_ref(&dir), 5).unwrap();
        // It is this user's, and said to be another's.
        let said = connect_in(std::slice::from_ref(&dir), 5, own_uid() + 1).unwrap_err().to_string();
        assert!(said.contains("it belongs to user"), "{said}");
    }
}
