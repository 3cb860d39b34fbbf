//! The tokio runtime behind the clients for asyncio: one per process, started when the first of them connects.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use tokio::runtime::{Builder, Handle, Runtime};

/// One receives and sends, the other one copies meanwhile.
const THREADS: usize = 2;

/// The runtime of this process, or of the one that it was forked from.
static CURRENT: AtomicPtr<OfProcess> = AtomicPtr::new(ptr::null_mut());

struct OfProcess {
    process: u32,
    runtime: Runtime,
}

/// The runtime of this process. It is never dropped: its threads end with the process.
///
/// A forked child has none of the threads of the runtime that it inherits, and to drop that would wait for them; so it
/// gets another one, and the old one stays where it is.
///
/// # Errors
/// If no threads can be started.
pub(crate) fn handle() -> io::Result<Handle> {
    let found = CURRENT.load(Ordering::Acquire);
    if let Some(current) = of_this_process(found) {
        return Ok(current.runtime.handle().clone());
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("hoplite-aio")
        .enable_all()
        .build()?;
    let made = Box::into_raw(Box::new(OfProcess { process: std::process::id(), runtime }));
    match CURRENT.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(leaked(made).runtime.handle().clone()),
        Err(other) => {
            // Another thread was faster.
            // SAFETY: it was made above by `Box::into_raw`, and nobody else has seen it.
            let unused = unsafe { Box::from_raw(made) };
            unused.runtime.shutdown_background();
            Ok(leaked(other).runtime.handle().clone())
        }
    }
}

fn of_this_process(found: *mut OfProcess) -> Option<&'static OfProcess> {
    (!found.is_null()).then(|| leaked(found)).filter(|found| found.process == std::process::id())
}

fn leaked(made: *mut OfProcess) -> &'static OfProcess {
    // SAFETY: what is in `CURRENT` comes from `Box::into_raw` in `handle`, and is neither changed nor freed any more.
    unsafe { &*made }
}
