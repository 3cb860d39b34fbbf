//! Limits of this process and machine that affect shared memory.

use std::fs;

use rustix::process::{Resource, getrlimit};

/// Makes a file beyond `ulimit -f` an ordinary write error.
///
/// Without this call, the kernel silently ends the process (SIGXFSZ). Started programs inherit the
/// setting.
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal installs no handler, so no code runs at an unexpected time.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The longest file of this process, shared memory included (`ulimit -f`).
pub fn file_size_limit_bytes() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// The bytes that this process may map (`ulimit -v`).
pub fn address_space_limit_bytes() -> u64 {
    getrlimit(Resource::As).current.unwrap_or(u64::MAX)
}

/// Returns `true` if the kernel does not overcommit, and so may refuse pages of shared memory.
pub(crate) fn is_overcommit_strict() -> bool {
    fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2")
}
