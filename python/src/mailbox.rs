//! Delivers the results of tasks to an event loop of Python.
//!
//! Tasks put their results into a mailbox, whose file descriptor the event loop watches. So tasks
//! never wait for the interpreter, many results wake the loop once, and a busy thread survives the
//! interpreter's end.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use rustix::event::{EventfdFlags, eventfd};
use tokio::task::AbortHandle;

/// Makes a future's value or exception on a thread attached to the interpreter.
pub(crate) type Letter = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

#[pyclass(frozen, module = "hoplite._native")]
#[derive(Debug)]
pub(crate) struct Mailbox {
    slot: Arc<Slot>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    futures: HashMap<u64, Py<PyAny>>,
}

pub(crate) struct Slot {
    letters: Mutex<Vec<(u64, Letter)>>,
    bell: OwnedFd,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("bell", &self.bell).finish_non_exhaustive()
    }
}

impl Slot {
    pub(crate) fn post(&self, number: u64, letter: Letter) {
        let mut letters = lock(&self.letters);
        letters.push((number, letter));
        if letters.len() == 1 {
            // Fails only if the bell is readable already.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }
}

impl Mailbox {
    pub(crate) fn of_running_loop(py: Python<'_>) -> PyResult<(Bound<'_, Self>, Bound<'_, PyAny>)> {
        let module = py.import("hoplite._mailbox")?;
        let (mailbox, event_loop) = module.call_method0("of_running_loop")?.extract()?;
        Ok((mailbox, event_loop))
    }

    pub(crate) fn expect<'py>(
        &self,
        event_loop: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyAny>, u64, Arc<Slot>)> {
        let future = event_loop.call_method0("create_future")?;
        let mut waiting = lock(&self.waiting);
        let number = waiting.next;
        waiting.next += 1;
        waiting.futures.insert(number, future.clone().unbind());
        Ok((future, number, Arc::clone(&self.slot)))
    }
}

#[pymethods]
impl Mailbox {
    #[new]
    fn new() -> PyResult<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(std::io::Error::from)?;
        let slot = Arc::new(Slot { letters: Mutex::default(), bell });
        Ok(Self { slot, waiting: Mutex::default() })
    }

    fn fileno(&self) -> i32 {
        self.slot.bell.as_raw_fd()
    }

    /// The event loop calls this in its thread.
    fn deliver(&self, py: Python<'_>) {
        // Reset first, so that later results are noticed.
        let _ = rustix::io::read(&self.slot.bell, &mut [0; 8]);
        let letters = std::mem::take(&mut *lock(&self.slot.letters));
        for (number, letter) in letters {
            let future = lock(&self.waiting).futures.remove(&number);
            let Some(future) = future.map(|future| future.into_bound(py)) else { continue };
            if let Err(error) = settle(&future, letter) {
                error.write_unraisable(py, Some(&future));
            }
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A locked mailbox is in use, not garbage.
        let Ok(waiting) = self.waiting.try_lock() else { return Ok(()) };
        waiting.futures.values().try_for_each(|future| visit.call(future))
    }

    fn __clear__(&self) {
        lock(&self.waiting).futures.clear();
    }
}

fn settle(future: &Bound<'_, PyAny>, letter: Letter) -> PyResult<()> {
    if future.call_method0("done")?.extract()? {
        return Ok(());
    }
    match letter(future.py()) {
        Ok(value) => future.call_method1("set_result", (value,))?,
        Err(error) => future.call_method1("set_exception", (error,))?,
    };
    Ok(())
}

#[pyclass(frozen, module = "hoplite._native")]
#[derive(Debug)]
pub(crate) struct Canceller {
    pub(crate) number: u64,
    pub(crate) mailbox: Py<Mailbox>,
    pub(crate) task: AbortHandle,
}

#[pymethods]
impl Canceller {
    fn __call__(&self, py: Python<'_>, future: &Bound<'_, PyAny>) -> PyResult<()> {
        if future.call_method0("cancelled")?.extract()? {
            self.task.abort();
            lock(&self.mailbox.bind(py).get().waiting).futures.remove(&self.number);
        }
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.mailbox)
    }
}

impl Drop for Canceller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
