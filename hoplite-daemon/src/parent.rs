//! Ends this process together with its parent, such as a development cluster that is killed.

use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};

/// Ends this process, as SIGTERM does, when its parent process `parent` ends, or immediately if it
/// has ended.
///
/// The main thread must call this first, because Linux ties the request to the thread that started
/// this process.
pub(crate) fn exit_with_parent(parent: u32) {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        // Only other kernels or a sandbox refuse. The parent still stops this process in order.
        tracing::warn!(%error, "cannot tie this process to its parent");
    }
    // The parent may have ended before the request. The kernel then sends no signal.
    let current = getppid().and_then(|pid| u32::try_from(Pid::as_raw(Some(pid))).ok());
    if current != Some(parent) {
        let _ = kill_process(rustix::process::getpid(), Signal::TERM);
    }
}
