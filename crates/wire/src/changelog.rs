//! The changelog: what happened to names and files, for programs that follow it (backup, policy engines, audits).
//!
//! Kinds and flags have the numbers of Lustre's changelogs, so that programs that read those know these.
use std::collections::BTreeMap;

use crate::{Bytes, byte_enum, message};
use types::{ClientId, Fid, WallTime};

byte_enum! {
    /// What happened.
    ChangeKind { /// Nothing: a mark. None is written.
        #[default] Mark = 0, /// A regular file was made.
        Create = 1, /// A directory was made.
        Mkdir = 2, /// A file got another name.
        Hardlink = 3, /// A symbolic link was made.
        Symlink = 4, /// A FIFO, socket or device node was made.
        Mknod = 5, /// A file lost a name.
        Unlink = 6, /// A directory was removed.
        Rmdir = 7, /// A file or directory was renamed, perhaps over another one.
        Rename = 8, /// A file that was written to was closed.
        Close = 11, /// A file got a layout, or other objects; a directory a default layout.
        Layout = 12, /// A file got another size by truncation.
        Truncate = 13, /// Owner, group, mode or project were changed.
        Setattr = 14, /// An extended attribute or an ACL was set or removed.
        Xattr = 15, /// The modification time was set, and nothing else.
        Mtime = 17, /// The access time was set, and nothing else.
        Atime = 19, }
}

impl ChangeKind {
    /// Every kind that is written, and its name.
    pub const ALL: [(ChangeKind, &'static str); 15] = [
        (ChangeKind::Create, "CREAT"),
        (ChangeKind::Mkdir, "MKDIR"),
        (ChangeKind::Hardlink, "HLINK"),
        (ChangeKind::Symlink, "SLINK"),
        (ChangeKind::Mknod, "MKNOD"),
        (ChangeKind::Unlink, "UNLNK"),
        (ChangeKind::Rmdir, "RMDIR"),
        (ChangeKind::Rename, "RENME"),
        (ChangeKind::Close, "CLOSE"),
        (ChangeKind::Layout, "LYOUT"),
        (ChangeKind::Truncate, "TRUNC"),
        (ChangeKind::Setattr, "SATTR"),
        (ChangeKind::Xattr, "XATTR"),
        (ChangeKind::Mtime, "MTIME"),
        (ChangeKind::Atime, "ATIME"),
    ];

    /// Its name, of five letters.
    #[must_use]
    pub fn name(self) -> &'static str {
        ChangeKind::ALL.iter().find(|(kind, _)| *kind == self).map_or("MARK", |(_, name)| name)
    }
    /// Its bit in a mask of kinds.
    #[must_use]
    pub fn bit(self) -> u32 {
        1 << self as u8
    }
}

byte_enum! {
    /// What is done about a user of the changelog.
    ChangelogAct { /// A new user: records are kept for it from now on.
        #[default] Register = 0, /// A user goes; what nobody else waits for is removed.
        Deregister = 1, /// A user has taken records in: those that nobody else waits for are removed.
        Clear = 2, }
}

message! {
    /// One thing that happened. Names and FIDs that mean nothing for its kind are empty and zero.
    ChangeRecord {
        /// Its place in the order in which things happened: 1, 2, and so on.
        index: u64,
        /// What.
        kind: ChangeKind,
        /// Of `Unlink`, `Rmdir` and `Rename`: 1: the inode that lost its name had no other, and goes. Of `Rename`: 8: `source` and `target`
        /// exchanged their names.
        flags: u16,
        /// When.
        time: WallTime,
        /// The inode that it is about. Of `Rename`: the one whose name was taken over, if there was one.
        target: Fid,
        /// Directory of the name.
        parent: Fid,
        /// The name. Of `Rename`: the new one.
        name: Bytes,
        /// Of `Rename`: the inode that was renamed.
        source: Fid,
        /// Of `Rename`: the directory in which it was.
        source_parent: Fid,
        /// Of `Rename`: its name there.
        source_name: Bytes,
        /// User who did it; 4294967295: not known (the ends of opens do not say).
        uid: u32,
        /// Group of who did it.
        gid: u32,
        /// Number of the job ([`types::job_id`]); 0: none.
        job: u64,
        /// The client through which it was done.
        client: ClientId,
    }
    /// `Changelog` request: a page of records.
    ChangelogRequest {
        /// The first that is wanted.
        from: u64,
    }
    /// `Changelog` reply. Everything that was answered before the request came is in the log by then, and on stable storage.
    ChangelogReply {
        /// Records in order; none: there are no more.
        records: Vec<ChangeRecord>,
        /// Index of the last record that was written, 0: none.
        last: u64,
        /// Whether anybody is registered: otherwise nothing is written.
        written: bool,
        /// Names of jobs in these records, in the order of their first record; empty: not known.
        jobs: Vec<Bytes>,
    }
    /// `ChangelogUser` request.
    ChangelogUserRequest {
        /// Drawn by who asks: what was registered or removed by this number is not registered or removed again, but answered again.
        id: u64,
        /// What.
        act: ChangelogAct,
        /// Which user; none when one is registered.
        user: u32,
        /// Of `Clear`: the last record that was taken in; 0: all that there are.
        index: u64,
    }
    /// `ChangelogUser` reply. What is answered is on stable storage.
    ChangelogUserReply {
        /// Why it was refused, as an errno value of Linux; 0: it was not.
        errno: u16,
        /// The same as a sentence.
        why: Bytes,
        /// The user.
        user: u32,
        /// The last record that it has taken in, or that was written before it came.
        index: u64,
    }
}

/// Names: directory and name to inode.
pub type Names = BTreeMap<(Fid, Vec<u8>), Fid>;

impl ChangeRecord {
    /// In `flags`: the inode lost its last name.
    pub const LAST_NAME: u16 = 1;
    /// In `flags` of renames: the two inodes exchanged their names.
    pub const EXCHANGED: u16 = 8;
    /// In `uid` and `gid`: who did it is not known.
    pub const UNKNOWN: u32 = u32::MAX;

    /// Does to `names` what it tells of: records from the first one on, in order, give the names of the file system.
    ///
    /// # Errors
    /// The names are not those that it happened to; a sentence. They are of no use then.
    pub fn carry_out(&self, names: &mut Names) -> Result<(), String> {
        let at = (self.parent, self.name.0.clone());
        let (had, wanted) = match self.kind {
            ChangeKind::Create | ChangeKind::Mkdir | ChangeKind::Hardlink | ChangeKind::Symlink | ChangeKind::Mknod => {
                (names.insert(at, self.target), None)
            }
            ChangeKind::Unlink | ChangeKind::Rmdir => (names.remove(&at), Some(self.target)),
            ChangeKind::Rename => {
                let from = (self.source_parent, self.source_name.0.clone());
                if names.remove(&from) != Some(self.source) {
                    return Err(format!("what was renamed has another name: {self:?}"));
                }
                let had = names.insert(at, self.source);
                if self.flags & ChangeRecord::EXCHANGED != 0 {
                    names.insert(from, self.target);
                }
                (had, Some(self.target).filter(|t| !t.is_zero()))
            }
            _ => return Ok(()),
        };
        if had == wanted { Ok(()) } else { Err(format!("the name stood for {had:?}: {self:?}")) }
    }
}
