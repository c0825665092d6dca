//! What a store's directory lies on, as the kernel tells it: chooses the scheduler of an OST that was given none.
//!
//! A disk turns when its `queue/rotational` says 1; a partition is asked by its disk, a loop device by what its file lies
//! on, and stacked devices (dm, md) answer for those below them. Disks of virtual machines (virtio, Xen, Hyper-V, QEMU,
//! VMware, VirtualBox) say 1 whatever lies below: they tell nothing. Neither do file systems without a block device of their own
//! (tmpfs, overlay, btrfs, NFS). What is not known counts as no disk that turns.
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nrs::Medium;
use oss::store::FoundMedium;

/// Loop devices on files on loop devices: so many, then nothing is said.
const LOOPS_MAX: u32 = 8;
/// Parts of the place of a virtual machine's disk among the devices.
const VIRTUAL_BUSES: &[&str] = &["/virtio", "/vbd-", "/vmbus", "/VMBUS:"];
/// Makers of the disks of virtual machines.
const VIRTUAL_VENDORS: &[&str] = &["QEMU", "VMware", "VBOX", "Msft"];

/// What a directory lies on.
#[must_use]
pub fn of(dir: &Path) -> FoundMedium {
    let device_of = |path: &Path| fs::metadata(path).ok().map(|m| m.dev());
    Devices { sysfs: "/sys".into(), device_of }.of(dir, 0)
}

/// Where devices are described, and which a path lies on.
struct Devices<F> {
    sysfs: PathBuf,
    device_of: F,
}

fn unknown(why: String) -> FoundMedium {
    FoundMedium { medium: Medium::Any, why }
}

impl<F: Fn(&Path) -> Option<u64>> Devices<F> {
    fn of(&self, path: &Path, loops: u32) -> FoundMedium {
        let Some(device) = (self.device_of)(path) else {
            return unknown(format!("{} cannot be looked at", path.display()));
        };
        let (major, minor) = (libc::major(device), libc::minor(device));
        let Ok(mut place) = self.sysfs.join(format!("dev/block/{major}:{minor}")).canonicalize() else {
            return unknown("its file system has no block device of its own".into());
        };
        if place.join("partition").exists() {
            place.pop();
        }
        let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let read = |what: &str| fs::read_to_string(place.join(what)).map(|text| text.trim().to_string());
        if let Ok(file) = read("loop/backing_file") {
            if loops == LOOPS_MAX {
                return unknown(format!("{name} lies on loop devices without end"));
            }
            let below = self.of(Path::new(&file), loops + 1);
            return FoundMedium { why: format!("{name} is {file}: {}", below.why), ..below };
        }
        let maker = read("device/vendor").unwrap_or_default();
        let bus = place.to_string_lossy();
        if VIRTUAL_BUSES.iter().any(|b| bus.contains(b)) || VIRTUAL_VENDORS.contains(&maker.as_str()) {
            return unknown(format!("{name} is a virtual machine's, which does not tell what lies below"));
        }
        match read("queue/rotational").as_deref() {
            Ok("1") => FoundMedium { medium: Medium::Rotating, why: format!("{name} is a rotating disk") },
            Ok("0") => FoundMedium { medium: Medium::Flash, why: format!("{name} does not rotate") },
            _ => unknown(format!("{name} does not say whether it rotates")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Names and texts of files.
    type Files<'a> = &'a [(&'a str, &'a str)];

    /// A tree of devices as the kernel shows it: number, place, files.
    fn devices(all: &[(u32, &str, Files)]) -> tempfile::TempDir {
        let sysfs = tempfile::tempdir().unwrap();
        fs::create_dir_all(sysfs.path().join("dev/block")).unwrap();
        for (minor, place, files) in all {
            let at = sysfs.path().join("devices").join(place);
            fs::create_dir_all(&at).unwrap();
            symlink(&at, sysfs.path().join(format!("dev/block/8:{minor}"))).unwrap();
            for (file, text) in *files {
                fs::create_dir_all(at.join(file).parent().unwrap()).unwrap();
                fs::write(at.join(file), format!("{text}\n")).unwrap();
            }
        }
        sysfs
    }

    #[test]
    fn a_disk_that_turns_is_found_below_partitions_and_loops_and_a_virtual_one_tells_nothing() {
        let sysfs = devices(&[
            (0, "pci/ata1/block/sda", &[("queue/rotational", "1"), ("device/vendor", "ATA")]),
            (1, "pci/ata1/block/sda/sda1", &[("partition", "1")]),
            (2, "pci/nvme/nvme0/nvme0n1", &[("queue/rotational", "0")]),
            (3, "virtual/block/loop0", &[("queue/rotational", "1"), ("loop/backing_file", "/at/1/image")]),
            (4, "virtual/block/loop1", &[("queue/rotational", "1"), ("loop/backing_file", "/at/2/image")]),
            (5, "virtual/block/loop2", &[("loop/backing_file", "/at/5/itself")]),
            (6, "pci/virtio1/block/vda", &[("queue/rotational", "1")]),
            (7, "pci/scsi/block/sdb", &[("queue/rotational", "1"), ("device/vendor", "QEMU")]),
            (8, "virtual/block/dm-0", &[("queue/rotational", "1")]),
            (9, "virtual/block/silent", &[]),
        ]);
        // A path `/at/N/..` lies on device 8:N.
        let device_of = |path: &Path| {
            let minor = path.iter().nth(2)?.to_str()?.parse().ok()?;
            Some(libc::makedev(8, minor))
        };
        let devices = Devices { sysfs: sysfs.path().into(), device_of };
        let found = |minor: u32| devices.of(Path::new(&format!("/at/{minor}/ost0")), 0);
        for (minor, medium) in [
            (0, Medium::Rotating),
            (1, Medium::Rotating),
            (2, Medium::Flash),
            (3, Medium::Rotating),
            (4, Medium::Flash),
            (5, Medium::Any),
            (6, Medium::Any),
            (7, Medium::Any),
            (8, Medium::Rotating),
            (9, Medium::Any),
            // No such device: tmpfs and its like.
            (10, Medium::Any),
        ] {
            assert_eq!(found(minor).medium, medium, "8:{minor}: {}", found(minor).why);
        }
        assert_eq!(found(3).why, "loop0 is /at/1/image: sda is a rotating disk");
        assert_eq!(devices.of(Path::new("/gone"), 0).why, "/gone cannot be looked at");
    }
}
