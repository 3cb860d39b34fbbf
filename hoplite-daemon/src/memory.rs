use std::fs;
use std::path::Path;

use hoplite_shm::{address_space_limit_bytes, file_size_limit_bytes};

const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// Memory limits by the machine, its control groups and the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Size of the machine's memory.
    pub machine_bytes: u64,
    /// Lowest limit of the process's control groups.
    pub control_group_bytes: Option<u64>,
    /// Limit of the address space (`ulimit -v`).
    pub address_space_bytes: Option<u64>,
    /// Limit of a file, such as an arena (`ulimit -f`).
    pub file_size_bytes: Option<u64>,
}

impl MemoryLimits {
    /// Reads the limits.
    pub fn read() -> Self {
        let info = rustix::system::sysinfo();
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let finite = |bytes| (bytes < u64::MAX).then_some(bytes);
        Self {
            machine_bytes: (info.totalram as u64).saturating_mul(u64::from(info.mem_unit)),
            control_group_bytes: limit_bytes(Path::new(CONTROL_GROUPS), &groups),
            address_space_bytes: finite(address_space_limit_bytes()),
            file_size_bytes: finite(file_size_limit_bytes()),
        }
    }

    /// Lowest limit of memory, without `file_size_bytes`.
    pub fn available_bytes(&self) -> u64 {
        let limits = [self.control_group_bytes, self.address_space_bytes];
        limits.into_iter().flatten().fold(self.machine_bytes, u64::min)
    }

    /// Returns `percent` of the available memory, at most `file_size_bytes`: an arena is a file.
    pub fn share_for_arena(&self, percent: u64) -> u64 {
        (self.available_bytes() / 100 * percent).min(self.file_size_bytes.unwrap_or(u64::MAX))
    }
}

/// Returns the lowest limit of `groups`, a text as in `/proc/self/cgroup`, and their ancestors.
/// `root` is their mount point.
fn limit_bytes(root: &Path, groups: &str) -> Option<u64> {
    groups.lines().filter_map(|group| limit_of(root, group)).min()
}

/// Returns the lowest limit of a control group and its ancestors. `group` is a line
/// `NUMBER:CONTROLLERS:PATH`, in version 2 without controllers.
fn limit_of(root: &Path, group: &str) -> Option<u64> {
    let (controllers, path) = group.split_once(':')?.1.split_once(':')?;
    // Above `memory.high`, the kernel throttles the group.
    let (top, files) = if controllers.is_empty() {
        (root.to_owned(), &["memory.max", "memory.high"][..])
    } else if controllers.split(',').any(|controller| controller == "memory") {
        (root.join("memory"), &["memory.limit_in_bytes"][..])
    } else {
        return None;
    };
    let own = top.join(path.trim_start_matches('/'));
    // Skips missing directories: a container may see only the top.
    own.ancestors()
        .take_while(|place| place.starts_with(&top))
        .flat_map(|place| files.iter().map(move |file| place.join(file)))
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(files: &[(&str, &str)], groups: &str) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        limit_bytes(root.path(), groups)
    }

    #[test]
    fn the_lowest_limit_of_a_group_and_those_around_it_counts() {
        let files =
            [("a/memory.max", "7000\n"), ("a/b/memory.max", "max\n"), ("other/memory.max", "1\n")];
        assert_eq!(limited(&files, "0::/a/b\n"), Some(7000));
        assert_eq!(limited(&files, "0::/\n"), None);
        assert_eq!(limited(&files, ""), None);
        let files = [("a/memory.max", "7000\n"), ("a/memory.high", "6000\n")];
        assert_eq!(limited(&files, "0::/a\n"), Some(6000));
    }

    #[test]
    fn the_lowest_limit_of_all_kinds_counts() {
        let machine = MemoryLimits {
            machine_bytes: 1000,
            control_group_bytes: None,
            address_space_bytes: None,
            file_size_bytes: None,
        };
        assert_eq!((machine.available_bytes(), machine.share_for_arena(30)), (1000, 300));
        let limited = MemoryLimits {
            control_group_bytes: Some(9000),
            address_space_bytes: Some(500),
            ..machine
        };
        assert_eq!((limited.available_bytes(), limited.share_for_arena(30)), (500, 150));
        let limited =
            MemoryLimits { control_group_bytes: Some(400), file_size_bytes: Some(50), ..machine };
        assert_eq!((limited.available_bytes(), limited.share_for_arena(30)), (400, 50));
        assert!(MemoryLimits::read().available_bytes() > 0);
    }

    #[test]
    fn the_first_version_has_a_hierarchy_for_memory() {
        let files = [
            ("memory/memory.limit_in_bytes", "9000\n"),
            ("memory/a/memory.limit_in_bytes", "8000\n"),
        ];
        assert_eq!(limited(&files, "3:cpu,cpuacct:/a\n2:memory:/a\n0::/a\n"), Some(8000));
        assert_eq!(limited(&files, "2:memory:/docker/123\n"), Some(9000));
        assert_eq!(limited(&files, "3:cpu:/a\n"), None);
    }
}
