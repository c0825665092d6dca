//! How much memory there is: of the machine, and for this process.
use std::fs;
use std::path::{Path, PathBuf};

/// Memory of the machine in bytes; 0 when it cannot be told.
#[must_use]
pub fn memory_bytes() -> u64 {
    let told = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = told.lines().find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    total.and_then(|kib| kib.trim().parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// Memory in bytes that this process may have: the machine's, or what its control groups allow (a container's limit, systemd's
/// `MemoryMax`). 0 when neither can be told.
#[must_use]
pub fn allowed_memory_bytes() -> u64 {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let groups = groups(&text("/proc/self/mountinfo"), &text("/proc/self/cgroup"));
    let allowed = least(&groups, |path| fs::read_to_string(path).ok());
    match (memory_bytes(), allowed) {
        (0, Some(allowed)) => allowed,
        (all, allowed) => all.min(allowed.unwrap_or(u64::MAX)),
    }
}

/// Files that hold a limit of the memory of this process, in both versions of control groups.
fn groups(mounts: &str, groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for group in groups.lines() {
        let mut fields = group.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (kind, file) = match controllers {
            "" => ("cgroup2", "memory.max"),
            c if c.split(',').any(|c| c == "memory") => ("cgroup", "memory.limit_in_bytes"),
            _ => continue,
        };
        for mount in mounts.lines() {
            let Some((place, of)) = mount.split_once(" - ") else { continue };
            let (place, of): (Vec<&str>, Vec<&str>) = (place.split(' ').collect(), of.split(' ').collect());
            let (&[_, _, _, root, at, ..], &[found, _, options, ..]) = (place.as_slice(), of.as_slice()) else {
                continue;
            };
            if found != kind || (kind == "cgroup" && !options.split(',').any(|o| o == "memory")) {
                continue;
            }
            // In a container the tree may begin at its own group, which is called by its whole name all the same.
            let below = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
            let below = below.strip_prefix("/").unwrap_or(below);
            files.extend(Path::new(at).join(below).ancestors().take_while(|p| p.starts_with(at)).map(|p| p.join(file)));
        }
    }
    files
}

/// The least of the limits in these files.
fn least(files: &[PathBuf], read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    files.iter().filter_map(|f| read(f)?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit under these mounts and groups, where these files are.
    fn limit(mounts: &str, of: &str, files: &[(&str, &str)]) -> Option<u64> {
        let read = |path: &Path| files.iter().find(|f| Path::new(f.0) == path).map(|f| f.1.to_owned());
        least(&groups(mounts, of), read)
    }

    #[test]
    fn the_least_limit_of_a_process_group_and_those_above_counts_in_both_versions() {
        let v2 = "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let files = [
            ("/sys/fs/cgroup/system.slice/memory.max", "500000000\n"),
            ("/sys/fs/cgroup/system.slice/stria.service/memory.max", "max\n"),
        ];
        assert_eq!(limit(v2, "0::/system.slice/stria.service\n", &files), Some(500_000_000));
        assert_eq!(limit(v2, "0::/user.slice\n", &files), None);
        assert_eq!(limit(v2, "0::/\n", &[("/sys/fs/cgroup/memory.max", "7000000\n")]), Some(7_000_000), "a container");
        let v1 = "33 24 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                  34 24 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  35 24 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let files = [
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "300000000\n"),
            ("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "200000000\n"),
        ];
        assert_eq!(limit(v1, "5:memory:/a/b\n4:cpu:/\n0::/\n", &files), Some(200_000_000));
        assert_eq!(limit(v1, "5:memory:/a\n0::/\n", &files), Some(300_000_000));
        let inside = "34 24 0:31 /docker/17 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let files = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "100000000\n")];
        assert_eq!(limit(inside, "5:memory:/docker/17\n", &files), Some(100_000_000));
    }
}
