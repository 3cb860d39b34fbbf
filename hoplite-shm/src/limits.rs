//! The limits of this process, and of this machine, that shared memory runs into.

use std::fs;

use rustix::process::{Resource, getrlimit};

/// Has write errors tell of a file that would exceed the limit of file sizes (`ulimit -f`), as any other error does.
///
/// Without this call, the kernel ends the process (SIGXFSZ) without a word. Programs that this one starts ignore the
/// signal too.
pub fn ignore_file_size_signal() {
    // SAFETY: to ignore a signal installs no handler, so no code runs at an unexpected time.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Returns the size in bytes that a file of this process may have, shared memory included (`ulimit -f`).
pub fn file_size_limit_bytes() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Returns the number of bytes that this process may map (`ulimit -v`).
pub fn address_space_limit_bytes() -> u64 {
    getrlimit(Resource::As).current.unwrap_or(u64::MAX)
}

/// Returns `true` if the kernel promises no more memory than there is. A page of shared memory can be refused then.
pub(crate) fn is_overcommit_strict() -> bool {
    fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2")
}
