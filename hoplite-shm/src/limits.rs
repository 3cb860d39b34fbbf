//! The limits of this process and of this machine that affect shared memory.

use std::fs;

use rustix::process::{Resource, getrlimit};

/// Makes the kernel report a file beyond the limit of file sizes (`ulimit -f`) as an ordinary write
/// error.
///
/// Without this call, the kernel ends the process without a message (SIGXFSZ). Programs that this
/// process starts also ignore the signal.
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal installs no handler, so no code runs at an unexpected time.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Returns the largest size in bytes of a file of this process, including shared memory
/// (`ulimit -f`).
pub fn file_size_limit_bytes() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Returns the number of bytes that this process may map (`ulimit -v`).
pub fn address_space_limit_bytes() -> u64 {
    getrlimit(Resource::As).current.unwrap_or(u64::MAX)
}

/// Returns `true` if the kernel does not overcommit memory. It may then refuse a page of shared
/// memory.
pub(crate) fn is_overcommit_strict() -> bool {
    fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2")
}
