use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};

/// Ends this process, as SIGTERM does, when `parent` ends or has ended.
///
/// The main thread must call this first: the signal goes to the calling thread.
pub(crate) fn exit_with_parent(parent: u32) {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        // Linux may refuse in a sandbox.
        tracing::warn!(%error, "cannot tie this process to its parent");
    }
    // The parent may have ended before.
    let current = getppid().and_then(|pid| u32::try_from(Pid::as_raw(Some(pid))).ok());
    if current != Some(parent) {
        let _ = kill_process(rustix::process::getpid(), Signal::TERM);
    }
}
