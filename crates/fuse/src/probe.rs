//! Which transports are available here, and if not why not, in words for `stria status`.
use std::fmt;
use std::fs;
use std::path::Path;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Why FUSE over io_uring cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingRefusal {
    /// The kernel does not know the parameter: older than 6.14 or built without CONFIG_FUSE_IO_URING.
    NotInKernel {
        /// The running kernel's release.
        release: String,
    },
    /// The fuse module is not loaded.
    ModuleNotLoaded,
    /// The parameter is N.
    SwitchedOff {
        /// Whether this process may write the parameter.
        can_switch_on: bool,
    },
    /// No io_uring with 128-byte entries can be made (often refused in containers).
    NoIoUring {
        /// The system's answer.
        why: String,
    },
}

impl fmt::Display for RingRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingRefusal::NotInKernel { release } => {
                write!(f, "kernel {release} has no FUSE over io_uring (Linux 6.14 or newer with CONFIG_FUSE_IO_URING)")
            }
            RingRefusal::ModuleNotLoaded => write!(f, "the fuse module is not loaded (modprobe fuse)"),
            RingRefusal::SwitchedOff { can_switch_on: true } => {
                write!(f, "switched off; this process may switch it on: echo Y > {PARAMETER}")
            }
            RingRefusal::SwitchedOff { can_switch_on: false } => {
                write!(f, "switched off; root can switch it on: echo Y > {PARAMETER}")
            }
            RingRefusal::NoIoUring { why } => write!(f, "io_uring is refused here: {why}"),
        }
    }
}

/// What a mount could use here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Obstacle to `/dev/fuse`, and with it to any mount.
    pub dev: Option<String>,
    /// Obstacle to FUSE over io_uring.
    pub ring: Option<RingRefusal>,
    /// Where fusermount3 is, for mounts by users.
    pub fusermount: Option<std::path::PathBuf>,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.dev {
            None => writeln!(f, "/dev/fuse: available")?,
            Some(why) => writeln!(f, "/dev/fuse: not available: {why}")?,
        }
        match &self.ring {
            None => writeln!(f, "FUSE over io_uring: available")?,
            Some(why) => writeln!(f, "FUSE over io_uring: not available: {why}")?,
        }
        match &self.fusermount {
            Some(path) => write!(f, "mounts by users: {}", path.display()),
            None => write!(f, "mounts by users: not available: fusermount3 is not installed (package fuse3)"),
        }
    }
}

/// Looks at kernel, module parameter, device and helper program. Changes nothing.
pub fn probe() -> Probe {
    let dev = match fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => None,
        Err(e) => Some(format!("cannot open it: {e}")),
    };
    Probe { dev, ring: ring_refusal(), fusermount: crate::mount::find_fusermount() }
}

/// Why the ring cannot be used, `None` if it can.
pub fn ring_refusal() -> Option<RingRefusal> {
    if !Path::new("/sys/module/fuse").exists() {
        return Some(RingRefusal::ModuleNotLoaded);
    }
    match fs::read_to_string(PARAMETER) {
        Err(_) => {
            let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
            return Some(RingRefusal::NotInKernel { release: release.trim().to_owned() });
        }
        Ok(value) if value.trim() != "Y" => {
            let can_switch_on = fs::OpenOptions::new().write(true).open(PARAMETER).is_ok();
            return Some(RingRefusal::SwitchedOff { can_switch_on });
        }
        Ok(_) => {}
    }
    let ring = io_uring::IoUring::<io_uring::squeue::Entry128>::builder().build(2);
    ring.err().map(|e| RingRefusal::NoIoUring { why: e.to_string() })
}

/// Switches FUSE over io_uring on for the whole machine (root only; lasts until the module is reloaded).
///
/// # Errors
/// The system's answer; nothing changed.
pub fn enable_ring() -> std::io::Result<()> {
    fs::write(PARAMETER, "Y")
}

/// Number of possible CPUs, which is the number of ring queues. At least 1.
pub fn possible_cpus() -> u16 {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    parse_cpu_count(&text).unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u16))
}

/// Highest CPU of a list such as `0-3,8-11`, plus one.
fn parse_cpu_count(text: &str) -> Option<u16> {
    let last = text.trim().rsplit([',', '-']).next()?;
    last.parse::<u16>().ok()?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_queues_is_the_highest_possible_cpu_plus_one() {
        assert_eq!(parse_cpu_count("0-1\n"), Some(2));
        assert_eq!(parse_cpu_count("0\n"), Some(1));
        assert_eq!(parse_cpu_count("0-3,8-11"), Some(12));
        assert_eq!(parse_cpu_count(""), None);
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        let off = RingRefusal::SwitchedOff { can_switch_on: false }.to_string();
        assert!(off.contains("root") && off.contains(PARAMETER));
        assert!(RingRefusal::NotInKernel { release: "5.15".into() }.to_string().contains("5.15"));
    }
}
