//! `-o` options: what users write, parsed; what the kernel and fusermount3 want, written.
use std::fmt::Write;

/// How a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// What `df` and `mount` show as the source. Default `stria`.
    pub fsname: String,
    /// Other users may enter the mount (for non-root mounts `user_allow_other` in /etc/fuse.conf is needed). Default false.
    pub allow_other: bool,
    /// The kernel checks permissions from mode bits, besides the servers. Default false.
    pub default_permissions: bool,
    /// Largest READ in bytes; 0 (default) leaves it to `max_write`.
    pub max_read_bytes: u32,
    /// Read-only. Default false.
    pub read_only: bool,
    /// Device files do not work. Default false (fusermount3 forces true for users).
    pub no_dev: bool,
    /// Setuid programs get no rights. Default false (fusermount3 forces true for users).
    pub no_suid: bool,
    /// Programs cannot be run. Default false.
    pub no_exec: bool,
    /// Access times are not kept. Default false.
    pub no_atime: bool,
    /// Access times of directories are not kept. Default false.
    pub no_diratime: bool,
    /// All writes are synchronous. Default false.
    pub sync: bool,
    /// Directory changes are synchronous. Default false.
    pub dirsync: bool,
    /// The mount goes away with the daemon even if it is killed. Default false.
    pub auto_unmount: bool,
    /// Mount over a directory that is a mount point already. Default false.
    pub over_mount: bool,
    /// Detach a dead FUSE mount found at the mount point. Default false.
    pub clean_stale: bool,
    /// When the daemon dies the mount stays and refuses everything, so that no program writes into the directory below;
    /// and a dead mount of this file system type found at the mount point is replaced. Default false.
    pub keep_dead: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            fsname: "stria".into(),
            allow_other: false,
            default_permissions: false,
            max_read_bytes: 0,
            read_only: false,
            no_dev: false,
            no_suid: false,
            no_exec: false,
            no_atime: false,
            no_diratime: false,
            sync: false,
            dirsync: false,
            auto_unmount: false,
            over_mount: false,
            clean_stale: false,
            keep_dead: false,
        }
    }
}

/// A mount option that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// Nobody knows it.
    #[error("unknown mount option '{0}'")]
    Unknown(String),
    /// It needs a value.
    #[error("mount option '{0}' needs a value: {0}=...")]
    NeedsValue(String),
    /// It has a value but takes none.
    #[error("mount option '{0}' takes no value")]
    TakesNoValue(String),
    /// Its value is wrong.
    #[error("mount option '{name}={value}': {why}")]
    BadValue {
        /// The option.
        name: String,
        /// Its value.
        value: String,
        /// What it should be.
        why: String,
    },
}

impl MountOptions {
    /// Parses a comma-separated list.
    ///
    /// # Errors
    /// [`OptionError`] for the first option that cannot be used.
    pub fn parse(text: &str) -> Result<MountOptions, OptionError> {
        Self::parse_with(text, |_, _| Ok(false))
    }

    /// Parses a comma-separated list; options that are not the session's own go to `other`, which says whether it knows
    /// them.
    ///
    /// # Errors
    /// [`OptionError`] for the first option that cannot be used.
    pub fn parse_with(
        text: &str,
        mut other: impl FnMut(&str, Option<&str>) -> Result<bool, OptionError>,
    ) -> Result<MountOptions, OptionError> {
        let mut options = MountOptions::default();
        for item in text.split(',').map(str::trim).filter(|s| !s.is_empty()) {
            let (name, value) = match item.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (item, None),
            };
            if !options.set(name, value)? && !other(name, value)? {
                return Err(OptionError::Unknown(name.into()));
            }
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool, OptionError> {
        if let "fsname" | "max_read" = name {
            let value = value.ok_or_else(|| OptionError::NeedsValue(name.into()))?;
            let bad = |why: &str| OptionError::BadValue { name: name.into(), value: value.into(), why: why.into() };
            if name == "fsname" {
                if value.is_empty() || value.contains(['\n', '\0', ',']) {
                    return Err(bad("must be a non-empty name without commas"));
                }
                self.fsname = value.into();
            } else {
                let bytes: u32 = value.parse().map_err(|_| bad("must be a number of bytes"))?;
                if bytes != 0 && !(4096..=16 << 20).contains(&bytes) {
                    return Err(bad("must be 0 or between 4096 and 16777216"));
                }
                self.max_read_bytes = bytes;
            }
            return Ok(true);
        }
        // Said for other programs: init systems, mount(8), file managers.
        let ignored = matches!(
            name,
            "rw" | "defaults"
                | "auto"
                | "noauto"
                | "nofail"
                | "_netdev"
                | "relatime"
                | "user"
                | "users"
                | "owner"
                | "group"
        ) && value.is_none()
            || name.starts_with("x-")
            || name == "comment";
        let flag: Option<(&mut bool, bool)> = match name {
            "allow_other" => Some((&mut self.allow_other, true)),
            "default_permissions" => Some((&mut self.default_permissions, true)),
            "ro" => Some((&mut self.read_only, true)),
            "rw" => Some((&mut self.read_only, false)),
            "nodev" => Some((&mut self.no_dev, true)),
            "dev" => Some((&mut self.no_dev, false)),
            "nosuid" => Some((&mut self.no_suid, true)),
            "suid" => Some((&mut self.no_suid, false)),
            "noexec" => Some((&mut self.no_exec, true)),
            "exec" => Some((&mut self.no_exec, false)),
            "noatime" => Some((&mut self.no_atime, true)),
            "atime" => Some((&mut self.no_atime, false)),
            "nodiratime" => Some((&mut self.no_diratime, true)),
            "diratime" => Some((&mut self.no_diratime, false)),
            "sync" => Some((&mut self.sync, true)),
            "async" => Some((&mut self.sync, false)),
            "dirsync" => Some((&mut self.dirsync, true)),
            "auto_unmount" => Some((&mut self.auto_unmount, true)),
            "over_mount" | "nonempty" => Some((&mut self.over_mount, true)),
            "clean_stale" => Some((&mut self.clean_stale, true)),
            _ => None,
        };
        match (flag, value) {
            (Some((flag, on)), None) => *flag = on,
            (Some(_), Some(_)) => return Err(OptionError::TakesNoValue(name.into())),
            (None, _) => return Ok(ignored),
        }
        Ok(true)
    }

    /// Flags for mount(2).
    pub(crate) fn mount_flags(&self) -> libc::c_ulong {
        let flags = [
            (self.read_only, libc::MS_RDONLY),
            (self.no_dev, libc::MS_NODEV),
            (self.no_suid, libc::MS_NOSUID),
            (self.no_exec, libc::MS_NOEXEC),
            (self.no_atime, libc::MS_NOATIME),
            (self.no_diratime, libc::MS_NODIRATIME),
            (self.sync, libc::MS_SYNCHRONOUS),
            (self.dirsync, libc::MS_DIRSYNC),
        ];
        flags.iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag)
    }

    /// The data string for mount(2).
    pub(crate) fn mount_data(&self, fd: i32, uid: u32, gid: u32) -> String {
        let mut data = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid}");
        self.write_fuse_options(&mut data);
        data
    }

    /// The `-o` argument for fusermount3.
    pub(crate) fn fusermount_options(&self) -> String {
        let mut text = format!("fsname={},subtype=stria", self.fsname);
        let flags = [
            (self.read_only, "ro"),
            (self.no_dev, "nodev"),
            (self.no_suid, "nosuid"),
            (self.no_exec, "noexec"),
            (self.no_atime, "noatime"),
            (self.sync, "sync"),
            (self.dirsync, "dirsync"),
            (self.auto_unmount, "auto_unmount"),
        ];
        for (_, name) in flags.iter().filter(|(on, _)| *on) {
            text.push(',');
            text.push_str(name);
        }
        self.write_fuse_options(&mut text);
        text
    }

    fn write_fuse_options(&self, text: &mut String) {
        if self.allow_other {
            text.push_str(",allow_other");
        }
        if self.default_permissions {
            text.push_str(",default_permissions");
        }
        if self.max_read_bytes != 0 {
            write!(text, ",max_read={}", self.max_read_bytes).expect("writing to a String cannot fail");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_people_expect_are_understood_and_the_last_one_wins() {
        let o = MountOptions::parse(
            "ro,allow_other,noatime,nodev,fsname=scratch,max_read=131072,rw,x-systemd.automount,_netdev",
        )
        .unwrap();
        assert!(o.allow_other && o.no_atime && o.no_dev && !o.read_only);
        assert_eq!((o.fsname.as_str(), o.max_read_bytes), ("scratch", 131072));
        assert_eq!(o.mount_flags(), libc::MS_NODEV | libc::MS_NOATIME);
        assert_eq!(o.mount_data(5, 0, 0), "fd=5,rootmode=40000,user_id=0,group_id=0,allow_other,max_read=131072");
        assert_eq!(MountOptions::parse(" , ,").unwrap(), MountOptions::default());
    }

    #[test]
    fn permission_checks_stay_with_the_servers_unless_asked() {
        let data = MountOptions::default().mount_data(3, 0, 0);
        assert!(!data.contains("default_permissions"));
        assert!(
            MountOptions::parse("default_permissions").unwrap().mount_data(3, 0, 0).ends_with(",default_permissions")
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let text = |s: &str| MountOptions::parse(s).unwrap_err().to_string();
        assert_eq!(text("rw,alow_other"), "unknown mount option 'alow_other'");
        assert_eq!(text("fsname"), "mount option 'fsname' needs a value: fsname=...");
        assert_eq!(text("ro=1"), "mount option 'ro' takes no value");
        assert_eq!(text("max_read=12"), "mount option 'max_read=12': must be 0 or between 4096 and 16777216");
        assert_eq!(text("max_read=big"), "mount option 'max_read=big': must be a number of bytes");
    }

    #[test]
    fn options_of_others_reach_them() {
        let mut seen = None;
        let parsed = MountOptions::parse_with("ro,squash_uid=7", |name, value| {
            seen = Some((name.to_owned(), value.map(str::to_owned)));
            Ok(true)
        });
        assert!(parsed.unwrap().read_only);
        assert_eq!(seen, Some(("squash_uid".into(), Some("7".into()))));
    }
}
