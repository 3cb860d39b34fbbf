//! Ending together with the process that started this one.
//!
//! A development cluster runs its daemons as children. They must not stay behind when that process is killed in a way
//! that leaves it no time to end them.

use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};

/// Ends this process, as SIGTERM would, when the process `parent` that started it ends; at once if it has ended already.
///
/// To be called at the start, by the main thread. On Linux the request belongs to the thread of the parent that started
/// this process, so the parent must start it from a thread that lives as long as itself.
pub(crate) fn exit_with_parent(parent: u32) {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        // Only kernels that are not Linux, or a sandbox, refuse it. The parent still ends this process in order.
        tracing::warn!(%error, "cannot follow the end of the parent process");
    }
    // The parent may have ended before the request was made, and then nobody would send the signal.
    let current = getppid().and_then(|pid| u32::try_from(Pid::as_raw(Some(pid))).ok());
    if current != Some(parent) {
        let _ = kill_process(rustix::process::getpid(), Signal::TERM);
    }
}
