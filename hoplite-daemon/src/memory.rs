//! How much memory this process may use: the machine's, or what its control groups allow.

use std::fs;
use std::path::Path;

/// Where the system shows its control groups.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// The memory that this process may use, in bytes.
pub fn available_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let total_bytes = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_bytes(Path::new(CONTROL_GROUPS), &groups).map_or(total_bytes, |limit| limit.min(total_bytes))
}

/// The lowest limit of the control groups `groups`, written as in `/proc/self/cgroup`, and of those around them, which
/// are shown below `root`; `None` if nothing limits them.
fn limit_bytes(root: &Path, groups: &str) -> Option<u64> {
    groups.lines().filter_map(|group| limit_of(root, group)).min()
}

/// The lowest limit of one line, `NUMBER:CONTROLLERS:PATH`. Version 2 names no controllers, and has one hierarchy.
fn limit_of(root: &Path, group: &str) -> Option<u64> {
    let (controllers, path) = group.split_once(':')?.1.split_once(':')?;
    let (top, file) = if controllers.is_empty() {
        (root.to_owned(), "memory.max")
    } else if controllers.split(',').any(|controller| controller == "memory") {
        (root.join("memory"), "memory.limit_in_bytes")
    } else {
        return None;
    };
    let own = top.join(path.trim_start_matches('/'));
    // In a container the path may be one of the host, of which only the top is shown: the container's own group.
    own.ancestors()
        .take_while(|place| place.starts_with(&top))
        .filter_map(|place| fs::read_to_string(place.join(file)).ok()?.trim().parse().ok())
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
        let files = [("a/memory.max", "7000\n"), ("a/b/memory.max", "max\n"), ("other/memory.max", "1\n")];
        assert_eq!(limited(&files, "0::/a/b\n"), Some(7000));
        assert_eq!(limited(&files, "0::/\n"), None);
        assert_eq!(limited(&files, ""), None);
    }

    #[test]
    fn the_first_version_has_a_hierarchy_for_memory() {
        let files =
            [("memory/memory.limit_in_bytes", "9000\n"), ("memory/a/memory.limit_in_bytes", "8000\n")];
        assert_eq!(limited(&files, "3:cpu,cpuacct:/a\n2:memory:/a\n0::/a\n"), Some(8000));
        // In a container without a namespace of its own.
        assert_eq!(limited(&files, "2:memory:/docker/123\n"), Some(9000));
        assert_eq!(limited(&files, "3:cpu:/a\n"), None);
    }
}
