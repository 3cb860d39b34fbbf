//! Ends this process together with its parent.
//!
//! A development cluster runs its daemons as children. They must also end if their parent is killed
//! without time to stop them.

use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};

/// Ends this process, as SIGTERM does, when its parent process `parent` ends; immediately if
/// `parent` has ended already.
///
/// The main thread must call this function at the start. Linux ties the request to the thread that
/// started this process, so that thread must live as long as the parent.
pub(crate) fn exit_with_parent(parent: u32) {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        // Only other kernels or a sandbox refuse. The parent still stops this process in an orderly
        // shutdown.
        tracing::warn!(%error, "cannot tie this process to its parent");
    }
    // The parent may have ended before the request. The kernel then sends no signal.
    let current = getppid().and_then(|pid| u32::try_from(Pid::as_raw(Some(pid))).ok());
    if current != Some(parent) {
        let _ = kill_process(rustix::process::getpid(), Signal::TERM);
    }
}
