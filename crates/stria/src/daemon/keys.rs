//! The cluster's keys: made with its directory, found by whoever works on it.
//!
//! `keys/admin.key` is for servers, and for mounts that may administer; `keys/client.key` comes from it and is what another
//! host needs to mount. Both are their owner's alone.
use std::io;
use std::path::{Path, PathBuf};

use ptlrpc::ClusterKey;

use super::dir::ClusterDir;
use super::private::{PrivateDir, read_secret};
use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::out::word;

/// The administrator's key, in the keys' directory.
const ADMIN: &str = "admin.key";
/// The setting that names a key's file.
const SETTING: &str = "cluster.key_file";
/// The clients' key.
const CLIENT: &str = "client.key";

/// Where a cluster's directory has its keys.
#[must_use]
pub fn place(dir: &Path) -> PathBuf {
    dir.join("keys")
}

/// Makes the keys that are missing, from `secret`.
///
/// # Errors
/// They cannot be made, or those that are there are open to others.
pub fn make_missing(dir: &Path, secret: &[u8; 32]) -> Outcome {
    let keys = PrivateDir::open_or_make(&place(dir), dir)?;
    match keys.read(ADMIN) {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => keys.write_if_missing(ADMIN, &ClusterKey::new_text(secret))?,
        Err(e) => return Err(Failure::io("reading", &place(dir).join(ADMIN), &e)),
    }
    // Of whatever key is there now: another process may have been quicker.
    let admin = read(&place(dir).join(ADMIN))?;
    if keys.read(CLIENT).ok().as_deref() != Some(admin.client_text().as_str()) {
        keys.write_whole(CLIENT, &admin.client_text())?;
    }
    Ok(())
}

/// Makes the keys of a directory of the administrator's key in `file`.
///
/// # Errors
/// It cannot be read, is open to others, or is none; the keys cannot be made.
pub fn take(dir: &Path, file: &Path) -> Outcome {
    read(file)?;
    let text = String::from_utf8_lossy(&read_secret(SETTING, file)?).into_owned();
    let keys = PrivateDir::open_or_make(&place(dir), dir)?;
    keys.write_if_missing(ADMIN, &text)?;
    make_missing(dir, &[0; 32])
}

/// The key that a process is to use, for connections of the configured level: the configuration's file, else the one that the
/// directory names, else the directory's own.
///
/// # Errors
/// There is none; it cannot be read, is open to others, or is no key.
pub fn find(config: &Config, dir: Option<&ClusterDir>) -> Result<ClusterKey, Failure> {
    Ok(of_config(config, dir)?.with_security(config.security()))
}

fn of_config(config: &Config, dir: Option<&ClusterDir>) -> Result<ClusterKey, Failure> {
    let named = Some(config.key_file.as_str()).filter(|f| !f.is_empty());
    let named = named.or(dir.map(|d| d.key_file.as_str()).filter(|f| !f.is_empty()));
    match (named, dir) {
        (Some(file), _) => read(Path::new(file)),
        (None, Some(dir)) => {
            let (at, file) = (dir.path().display(), place(dir.path()).join(ADMIN));
            if !file.exists() {
                let why = format!("{at} has no key of its cluster: 'stria mkfs --dir {}' makes it", word(dir.path()));
                return Err(Failure::with_errno(why, libc::ENOKEY));
            }
            drop(PrivateDir::open(&place(dir.path()), dir.path())?);
            read(&file)
        }
        (None, None) => Err(Failure::with_errno(
            "a cluster's key is needed: say --dir DIR on its host, or copy its DIR/keys/client.key and say --set cluster.key_file=FILE",
            libc::ENOKEY,
        )),
    }
}

fn read(file: &Path) -> Result<ClusterKey, Failure> {
    let text = read_secret(SETTING, file)?;
    ClusterKey::from_text(&text).map_err(|e| Failure::usage(format!("{SETTING} {}: {e}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Own;
    use std::os::unix::fs::PermissionsExt;

    fn close(file: &Path) {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    #[test]
    fn a_key_file_must_exist_be_closed_and_be_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        let config = Config::from(Own { key_file: file.display().to_string(), ..Own::default() });
        assert!(find(&config, None).unwrap_err().to_string().contains("cluster.key_file"));
        std::fs::write(&file, "short\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(find(&config, None).unwrap_err().to_string().contains("chmod -R go= "));
        close(&file);
        assert!(find(&config, None).unwrap_err().to_string().contains("at least 16"));
        std::fs::write(&file, "long enough for a secret\n").unwrap();
        assert!(find(&config, None).unwrap().is_administrator());
        let without = find(&Config::default(), None).unwrap_err().to_string();
        assert!(without.contains("keys/client.key"), "{without}");
    }

    #[test]
    fn keys_are_made_once_and_the_clients_is_made_again_from_the_administrators() {
        let dir = tempfile::tempdir().unwrap();
        make_missing(dir.path(), &[1; 32]).unwrap();
        let text = |name: &str| std::fs::read_to_string(place(dir.path()).join(name)).unwrap();
        let (admin, client) = (text(ADMIN), text(CLIENT));
        std::fs::remove_file(place(dir.path()).join(CLIENT)).unwrap();
        make_missing(dir.path(), &[2; 32]).unwrap();
        assert_eq!((text(ADMIN), text(CLIENT)), (admin, client));
        let only =
            Config::from(Own { key_file: place(dir.path()).join(CLIENT).display().to_string(), ..Own::default() });
        assert!(!find(&only, None).unwrap().is_administrator());
    }
}
