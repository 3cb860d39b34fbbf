//! The tokio runtime behind the clients for asyncio: one per process, started when the first of them connects.

use std::io;
use std::sync::{Mutex, PoisonError};

use pyo3::Python;
use tokio::runtime::{Builder, Handle, Runtime};

/// One receives and sends, the other one copies meanwhile.
const THREADS: usize = 2;

/// The process that the runtime belongs to: this one, or the one that it was forked from.
///
/// It is locked only by threads that are attached to the interpreter. So is the thread that forks, and a child never finds it
/// locked.
static CURRENT: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// The runtime of this process. It is never dropped: its threads end with the process.
///
/// A forked child has none of the threads of the runtime that it inherits, and to drop that would wait for them; so it
/// gets another one, and the old one stays where it is.
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
