//! The kernel's mount table: what is mounted where, without touching any file system.
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Where.
    pub at: PathBuf,
    /// File system type, for example `fuse.stria`.
    pub kind: String,
    /// Source, for example `stria`.
    pub source: String,
    /// Minor device number; for FUSE the number of the connection.
    pub minor: u32,
    /// User who mounted it, for FUSE; root where the table does not say.
    pub user: u32,
}

/// A line of the mount table with its place in the tree of mounts.
#[derive(Debug)]
pub(crate) struct Placed {
    /// Number of the mount.
    pub id: u32,
    /// Number of the mount that it is mounted on.
    pub parent: u32,
    pub entry: MountEntry,
}

/// All mounts of this process's namespace with their places, oldest first. Empty if `/proc` is not there.
pub(crate) fn placed() -> Vec<Placed> {
    placed_of(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
}

/// The mounts of a mount table's text.
pub(crate) fn placed_of(table: &[u8]) -> Vec<Placed> {
    let number = |field: Option<&[u8]>| std::str::from_utf8(field?).ok()?.parse().ok();
    let parse = |line: &[u8]| {
        let mut fields = line.split(|&b| b == b' ');
        Some(Placed { id: number(fields.next())?, parent: number(fields.next())?, entry: parse_line(line)? })
    };
    table.split(|&b| b == b'\n').filter_map(parse).collect()
}

/// All mounts of this process's namespace, oldest first. Empty if `/proc` is not there.
pub fn mounts() -> Vec<MountEntry> {
    mounts_of("self")
}

/// All mounts of the namespace of a process, oldest first. Empty if it cannot be looked at.
pub(crate) fn mounts_of(process: &str) -> Vec<MountEntry> {
    let bytes = std::fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    bytes.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

/// The topmost mount exactly at `at`.
pub(crate) fn mount_at(at: &Path) -> Option<MountEntry> {
    mounts().into_iter().rev().find(|m| m.at == at)
}

/// The connection number of the FUSE mount at `at`.
pub(crate) fn connection_at(at: &Path) -> Option<u32> {
    mount_at(at).filter(|m| m.kind.starts_with("fuse")).map(|m| m.minor)
}

/// `36 35 0:53 / /mnt rw,noatime shared:1 - fuse.stria stria rw,...`
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let dev = std::str::from_utf8(fields.nth(2)?).ok()?;
    let at = unescape(fields.nth(1)?);
    let mut rest = fields.skip_while(|f| *f != b"-").skip(1);
    let text = |f: &[u8]| String::from_utf8_lossy(&unescape(f)).into_owned();
    let (kind, source) = (text(rest.next()?), text(rest.next()?));
    let minor = dev.split_once(':')?.1.parse().ok()?;
    // The system writes it before what whoever mounts may choose.
    let options = rest.next().unwrap_or_default().split(|b| *b == b',');
    let user = options.filter_map(|o| std::str::from_utf8(o.strip_prefix(b"user_id=")?).ok()?.parse().ok()).next();
    Some(MountEntry { at: OsString::from_vec(at).into(), kind, source, minor, user: user.unwrap_or(0) })
}

/// Undoes the octal escapes (`\040` for a space).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut i = 0;
    while i < field.len() {
        let octal =
            field.get(i + 1..i + 4).filter(|d| field[i] == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        match octal {
            Some(d) => {
                out.push(d.iter().fold(0u8, |v, c| v.wrapping_mul(8).wrapping_add(c - b'0')));
                i += 4;
            }
            None => {
                out.push(field[i]);
                i += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_table_line_is_understood_with_optional_fields_and_escapes() {
        let line = b"36 35 0:53 / /mnt/a\\040b rw,noatime shared:1 master:2 - fuse.stria my\\011fs rw,user_id=0";
        let m = parse_line(line).unwrap();
        assert_eq!(
            (m.at.to_str().unwrap(), m.kind.as_str(), m.source.as_str(), m.minor),
            ("/mnt/a b", "fuse.stria", "my\tfs", 53)
        );
        assert_eq!(m.user, 0);
        let line = b"36 35 0:53 / /m rw - fuse.stria user_id=3 rw,user_id=1000,group_id=1000,allow_other,max_read=7";
        assert_eq!(parse_line(line).unwrap().user, 1000);
        assert_eq!(parse_line(b""), None);
        assert_eq!(parse_line(b"36 35 0:53 / /mnt rw"), None);
    }
}
