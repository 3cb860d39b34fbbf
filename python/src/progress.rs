//! Reports the progress of a call to Python.

use std::sync::{Arc, Mutex, PoisonError};

use hoplite_client::tracked;
use pyo3::prelude::*;

#[pyclass(frozen, module = "hoplite._native")]
#[derive(Debug)]
pub(crate) struct Progress {
    counts: Arc<hoplite_client::Progress>,
    callback: Py<PyAny>,
    told: Mutex<Option<(u64, u64)>>,
}

#[pymethods]
impl Progress {
    #[new]
    fn new(callback: Py<PyAny>) -> Self {
        Self { counts: Arc::default(), callback, told: Mutex::new(None) }
    }

    pub(crate) fn report(&self, py: Python<'_>) -> PyResult<()> {
        let counts = (self.counts.done_bytes(), self.counts.total_bytes());
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).replace(counts);
        if told != Some(counts) {
            self.callback.call1(py, counts)?;
        }
        Ok(())
    }
}

impl Progress {
    /// Counts the bytes that `work` moves. Boxes it, because nested futures would exceed the stacks
    /// of threads.
    pub(crate) fn of<T>(&self, work: impl Future<Output = T>) -> impl Future<Output = T> {
        tracked(Arc::clone(&self.counts), Box::pin(work))
    }

    pub(crate) fn look(&self) -> PyResult<()> {
        Python::try_attach(|py| self.report(py)).unwrap_or(Ok(()))
    }
}
