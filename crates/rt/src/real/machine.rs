//! Which machine this is: what each boot of it says, and no other machine does.
//!
//! A machine runs one boot at a time, so a process of another boot of the same machine has ended. That evicts clients, so
//! that two machines must never be taken for one: copies of a disk share the machine id, boards of careless makers a
//! product UUID, and copied virtual machines have the network addresses that their makers gave them. Only what agrees in all three is one
//! machine; one that does not tell all three is not known. The product UUID is root's to read, which keeps others from
//! saying that they are this machine.
//!
//! Containers see the machine's files, and some are shown a boot id of their own, beside others that live in the same boot
//! of the kernel. So only a process of the kernel's first namespaces says where it runs.
use std::path::Path;

/// Namespaces of processes and of users that a kernel begins with; their numbers are part of its interface
/// (`PROC_PID_INIT_INO`, `PROC_USER_INIT_INO`).
const FIRST: [(&str, &str); 2] = [("pid", "pid:[4026531836]"), ("user", "user:[4026531837]")];

/// Product UUIDs that boards have whose makers gave them none.
const NO_UUIDS: [&str; 2] = ["03000200040005000006000700080009", "12345678123456781234567812345678"];
/// `addr_assign_type` of an interface whose address is drawn anew at each boot.
const RANDOM: &str = "1";

/// The number of the machine whose files begin at `root`; `None`: its files do not tell.
pub(super) fn identity(root: &Path) -> Option<u64> {
    let is_first = |(name, link): (&str, &str)| {
        std::fs::read_link(root.join("proc/self/ns").join(name)).is_ok_and(|l| l == Path::new(link))
    };
    if !FIRST.into_iter().all(is_first) {
        return None;
    }
    let id = digits(&read(root, "etc/machine-id")?)?;
    let uuid = digits(&read(root, "sys/class/dmi/id/product_uuid")?).filter(|u| !NO_UUIDS.contains(&u.as_str()))?;
    let addresses = addresses(&root.join("sys/class/net"));
    let named = format!("{id} {uuid} {}", addresses.join(" "));
    (!addresses.is_empty()).then(|| super::origin::hash(named.as_bytes()) | 1)
}

fn read(root: &Path, name: &str) -> Option<String> {
    std::fs::read_to_string(root.join(name)).ok().map(|t| t.trim().to_ascii_lowercase())
}

/// The 32 hexadecimal digits of an identifier that is one.
fn digits(text: &str) -> Option<String> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let first = digits.chars().next()?;
    let is_one =
        digits.len() == 32 && digits.chars().all(|c| c.is_ascii_hexdigit()) && digits.chars().any(|c| c != first);
    is_one.then_some(digits)
}

/// Addresses of the interfaces that are hardware, each once.
fn addresses(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let of_hardware = entries.flatten().map(|e| e.path()).filter(|p| p.join("device").exists());
    let lasting = of_hardware.filter(|p| read(p, "addr_assign_type").is_some_and(|t| t != RANDOM));
    let mut addresses: Vec<String> = lasting.filter_map(|p| read(&p, "address")).collect();
    addresses.retain(|a| a.chars().any(|c| c.is_ascii_hexdigit() && c != '0'));
    addresses.sort();
    addresses.dedup();
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Files {
            let files = Files(tempfile::tempdir().unwrap());
            files.set("etc/machine-id", "3d1219c7c4c5404aaa1f6d2a48adfda4\n");
            files.set("sys/class/dmi/id/product_uuid", "4C4C4544-0042-3510-8051-B4C04F4A4D32\n");
            files.set_interface("eth0", "0c:42:a1:00:00:01", "0");
            for (name, link) in FIRST {
                files.set_namespace(name, link);
            }
            files
        }
        fn set_namespace(&self, name: &str, link: &str) {
            let dir = self.0.path().join("proc/self/ns");
            std::fs::create_dir_all(&dir).unwrap();
            drop(std::fs::remove_file(dir.join(name)));
            std::os::unix::fs::symlink(link, dir.join(name)).unwrap();
        }
        fn set(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        fn set_interface(&self, name: &str, address: &str, kind: &str) {
            let dir = format!("sys/class/net/{name}");
            self.set(&format!("{dir}/address"), &format!("{address}\n"));
            self.set(&format!("{dir}/addr_assign_type"), &format!("{kind}\n"));
            self.set(&format!("{dir}/device/vendor"), "0x15b3\n");
        }
        fn identity(&self) -> Option<u64> {
            identity(self.0.path())
        }
    }

    #[test]
    fn a_machine_is_known_by_what_each_boot_says_again() {
        let (one, again) = (Files::new(), Files::new());
        again.set("sys/class/net/lo/address", "00:00:00:00:00:00\n");
        again.set("sys/class/net/veth3/address", "9a:00:00:00:00:07\n");
        again.set_interface("usb0", "ee:00:00:00:00:09", RANDOM);
        assert!(one.identity().is_some());
        assert_eq!(one.identity(), again.identity());
    }

    #[test]
    fn copies_of_a_disk_or_of_a_virtual_machine_and_sisters_of_a_board_are_others() {
        let one = Files::new();
        for (name, text) in [
            ("etc/machine-id", "3d1219c7c4c5404aaa1f6d2a48adfda5"),
            ("sys/class/dmi/id/product_uuid", "4C4C4544-0042-3510-8051-B4C04F4A4D33"),
            ("sys/class/net/eth0/address", "0c:42:a1:00:00:02"),
        ] {
            let other = Files::new();
            other.set(name, text);
            assert!(other.identity().is_some() && other.identity() != one.identity(), "{name}");
        }
    }

    #[test]
    fn a_machine_that_does_not_tell_all_is_not_known() {
        for (name, text) in [
            ("etc/machine-id", "uninitialized"),
            ("etc/machine-id", ""),
            ("sys/class/dmi/id/product_uuid", "00000000-0000-0000-0000-000000000000"),
            ("sys/class/dmi/id/product_uuid", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"),
            ("sys/class/dmi/id/product_uuid", "03000200-0400-0500-0006-000700080009"),
            ("sys/class/dmi/id/product_uuid", "Not Settable"),
            ("sys/class/net/eth0/address", "00:00:00:00:00:00"),
            ("sys/class/net/eth0/addr_assign_type", RANDOM),
        ] {
            let files = Files::new();
            files.set(name, text);
            assert_eq!(files.identity(), None, "{name}: {text}");
        }
        for (name, link) in [("pid", "pid:[4026532310]"), ("user", "user:[4026532308]")] {
            let files = Files::new();
            files.set_namespace(name, link);
            assert_eq!(files.identity(), None, "a container may have a boot id of its own");
        }
        let files = Files::new();
        std::fs::remove_file(files.0.path().join("sys/class/dmi/id/product_uuid")).unwrap();
        assert_eq!(files.identity(), None, "as for all but root");
    }
}
