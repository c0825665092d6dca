//! The disks of a torture: a small file system of its own below each store, which another program can fill up, and which
//! can fail in two ways. Shut down as by a dead device it answers EIO, what it had not on its medium is gone, and it has to be
//! mounted again. Or most of its device is not there for a while: reads and writes of what lies there are EIO, and the file system, which
//! has its journal and what describes it in front, lives on. Needs root and loop devices.
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use types::format_size;

use super::rig::tool;
use crate::failure::Failure;

/// Size of each disk in bytes.
const DISK_BYTES: u64 = 1 << 30;
/// FS_IOC_SHUTDOWN of linux/fs.h.
const SHUTDOWN: u32 = 0x8004_587d;
/// Its argument: the journal is not written out before.
const WITHOUT_FLUSH: u32 = 2;
/// Bytes in front that are there always: the journal, what describes the file system (`flex_bg`), small files.
const FRONT_BYTES: u64 = 257 << 20;
/// Size of the journal.
const JOURNAL_MIB: u64 = 16;
/// LOOP_GET_STATUS64 and LOOP_SET_STATUS64 of linux/loop.h, the size of what they tell, and where in it the size limit is.
const LOOP_GET_STATUS64: u32 = 0x4c05;
const LOOP_SET_STATUS64: u32 = 0x4c04;
const LOOP_INFO_BYTES: usize = 232;
const LOOP_SIZE_LIMIT_AT: usize = 32;
/// How often a disk that processes still leave is asked for.
const TRIES: u32 = 100;

/// One disk.
struct Disk {
    /// The store on it: `ost1`.
    target: String,
    image: PathBuf,
    at: PathBuf,
}

/// The disks of all stores.
pub struct Disks {
    all: Vec<Disk>,
}

impl Disks {
    /// Moves the stores `targets` of the cluster in `cluster` to disks of their own, whose images lie in `root`.
    ///
    /// # Errors
    /// What this machine lacks for it; the stores that were not moved are where they were.
    pub fn move_stores(root: &Path, cluster: &Path, targets: &[String]) -> Result<Disks, String> {
        let mut disks = Disks { all: Vec::new() };
        let aside = root.join("aside");
        for target in targets {
            let (image, at) = (root.join(format!("{target}.img")), cluster.join(target));
            let wrong = |e: std::io::Error| format!("{}: {e}", image.display());
            File::create(&image).and_then(|f| f.set_len(DISK_BYTES)).map_err(wrong)?;
            let journal = format!("size={JOURNAL_MIB},location=0");
            let more = ["-q", "-F", "-E", "lazy_itable_init=1,nodiscard", "-J", &journal];
            tool(Command::new("mkfs.ext4").args(more).arg(&image))?;
            let disk = Disk { target: target.clone(), image, at };
            fs::create_dir_all(&aside).map_err(|e| format!("{}: {e}", aside.display()))?;
            tool(Command::new("mount").args(["-o", "loop"]).args([&disk.image, &aside]))?;
            // The slash and the dot: the directory's own mode, and everything in it.
            let copied = tool(Command::new("cp").arg("-a").arg(disk.at.join(".")).arg(&aside));
            tool(Command::new("umount").arg(&aside))?;
            copied?;
            let old = cluster.join(format!("{target}.moved"));
            let renamed = fs::rename(&disk.at, &old).and_then(|()| fs::create_dir(&disk.at));
            renamed.map_err(|e| format!("{}: {e}", disk.at.display()))?;
            disk.plug_in()?;
            fs::remove_dir_all(&old).map_err(|e| format!("{}: {e}", old.display()))?;
            disks.all.push(disk);
        }
        Ok(disks)
    }

    /// Takes all space of the disks; gives it back when the answer is dropped.
    ///
    /// # Errors
    /// A file that takes the space cannot be made.
    pub fn fill(&self) -> Result<Filler, Failure> {
        let mut filler = Filler(Vec::new());
        let mut taken = 0;
        for disk in &self.all {
            let path = disk.at.join("filler");
            let file = File::create(&path).map_err(|e| Failure::io("making", &path, &e))?;
            filler.0.push(path);
            let (mut at, mut step) = (0_i64, 64_i64 << 20);
            while step >= 4096 {
                // SAFETY: plain system call on a descriptor that is open.
                if unsafe { libc::fallocate(file.as_raw_fd(), 0, at, step) } == 0 { at += step } else { step /= 2 }
            }
            taken += at as u64;
        }
        note!("  the disks below the stores are full: {} are taken", format_size(taken));
        Ok(filler)
    }

    fn of(&self, target: &str) -> Result<&Disk, String> {
        self.all.iter().find(|d| d.target == target).ok_or_else(|| format!("{target} has no disk of its own"))
    }

    /// The disk of a store fails.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn fail(&self, target: &str) -> Result<(), String> {
        let disk = self.of(target)?;
        let root = File::open(&disk.at).map_err(|e| format!("{}: {e}", disk.at.display()))?;
        let how: u32 = WITHOUT_FLUSH;
        // SAFETY: the call reads one u32 that outlives it.
        let rc = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN as libc::Ioctl, &raw const how) };
        if rc == 0 { Ok(()) } else { Err(format!("{}: {}", disk.at.display(), std::io::Error::last_os_error())) }
    }

    /// Most of the disk of a store is not there any more, or is again, for those who use it.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn cut_short(&self, target: &str, short: bool) -> Result<(), String> {
        self.of(target)?.limit(if short { FRONT_BYTES } else { 0 })
    }

    /// Takes the disk of a store that nobody serves away, and puts it back, well again.
    ///
    /// # Errors
    /// It is in use, or cannot be mounted.
    pub fn replug(&self, target: &str) -> Result<(), String> {
        let disk = self.of(target)?;
        disk.take_away()?;
        disk.plug_in()
    }
}

impl Disk {
    fn plug_in(&self) -> Result<(), String> {
        tool(Command::new("mount").args(["-o", "loop"]).args([&self.image, &self.at]))
    }
    /// Limits the loop device to so many bytes of its image; 0: all of them.
    fn limit(&self, bytes: u64) -> Result<(), String> {
        use std::os::unix::fs::MetadataExt;
        let wrong = |e: std::io::Error| format!("{}: {e}", self.at.display());
        let device = fs::metadata(&self.at).map_err(wrong)?.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let link = fs::read_link(format!("/sys/dev/block/{major}:{minor}")).map_err(wrong)?;
        let name = link.file_name().unwrap_or_default();
        let device = File::options().read(true).write(true).open(Path::new("/dev").join(name)).map_err(wrong)?;
        let mut info = [0_u8; LOOP_INFO_BYTES];
        let status = |request: u32, info: &mut [u8; LOOP_INFO_BYTES]| {
            // SAFETY: the call reads and writes the bytes of a loop_info64, which outlive it.
            match unsafe { libc::ioctl(device.as_raw_fd(), request as libc::Ioctl, info.as_mut_ptr()) } {
                0 => Ok(()),
                _ => Err(wrong(std::io::Error::last_os_error())),
            }
        };
        status(LOOP_GET_STATUS64, &mut info)?;
        info[LOOP_SIZE_LIMIT_AT..LOOP_SIZE_LIMIT_AT + 8].copy_from_slice(&bytes.to_ne_bytes());
        status(LOOP_SET_STATUS64, &mut info)
    }
    fn take_away(&self) -> Result<(), String> {
        let mut tries = 0;
        loop {
            match tool(Command::new("umount").arg(&self.at)) {
                // The last process that used it may still be ending.
                Err(_) if tries < TRIES => tries += 1,
                done => return done,
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for disk in &self.all {
            if let Err(e) = disk.take_away() {
                eprintln!("{} stays mounted: {e}", disk.at.display());
            }
        }
    }
}

/// Space that is taken.
pub struct Filler(Vec<PathBuf>);
impl Drop for Filler {
    fn drop(&mut self) {
        for path in &self.0 {
            if let Err(e) = fs::remove_file(path) {
                eprintln!("{} stays: {e}", path.display());
            }
        }
    }
}
