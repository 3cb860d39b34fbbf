//! The tokio runtime for asyncio: one per process, started by the first connection.

use std::io;
use std::sync::{Mutex, PoisonError};

use pyo3::Python;
use tokio::runtime::{Builder, Handle, Runtime};

/// One thread receives and sends while the other copies.
const THREADS: usize = 2;

/// The runtime, and the process that started it: this one or a parent.
///
/// Only threads attached to the interpreter lock it, so a forked child never inherits a held lock.
static CURRENT: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// Returns the runtime of this process, which is never dropped: a forked child leaks the inherited
/// one, whose drop would wait for missing threads.
///
/// # Errors
/// If no threads can be started.
pub(crate) fn handle(_py: Python<'_>) -> io::Result<Handle> {
    let process = std::process::id();
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((owner, runtime)) = *current
        && owner == process
    {
        return Ok(runtime.handle().clone());
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("hoplite-aio")
        .enable_all()
        .build()?;
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    *current = Some((process, runtime));
    Ok(runtime.handle().clone())
}
