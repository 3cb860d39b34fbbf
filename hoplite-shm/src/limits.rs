use std::fs;

use rustix::process::{Resource, getrlimit};

/// Makes writes beyond the file size limit (`ulimit -f`) fail with an error.
///
/// Otherwise, the kernel ends the process silently (SIGXFSZ). Child processes inherit the setting.
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Most bytes of a file, or of shared memory, that this process may make (`ulimit -f`).
pub fn file_size_limit_bytes() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Bytes of address space that this process may use (`ulimit -v`).
pub fn address_space_limit_bytes() -> u64 {
    getrlimit(Resource::As).current.unwrap_or(u64::MAX)
}

pub(crate) fn is_overcommit_strict() -> bool {
    fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2")
}
