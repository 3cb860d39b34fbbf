//! A complete object as a Python buffer, the reader of an arriving one, and the writer of a new
//! one.

use std::os::raw::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use hoplite_client::{Metadata, ObjectId, ObjectReader, ObjectView, ObjectWriter};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::buffers;

/// A complete object in the store's memory, as a read-only buffer.
///
/// The store keeps the bytes while this object, or a buffer made from it, lives.
#[pyclass(frozen, module = "hoplite._native")]
#[derive(Debug)]
pub(crate) struct View(pub(crate) ObjectView);

#[pymethods]
impl View {
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.size_bytes()
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.metadata().dtype.name()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        shape(py, self.0.metadata())
    }

    #[getter]
    fn user<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.metadata().user)
    }

    #[getter]
    fn is_stale(&self) -> bool {
        self.0.is_stale()
    }

    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        buffers::copy_to_bytes(py, &self.0)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    /// Only the interpreter calls this.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let py = slf.py();
        let bytes: &[u8] = &slf.get().0;
        let (start, length) = (bytes.as_ptr().cast_mut().cast(), isize::try_from(bytes.len())?);
        // SAFETY: the memory does not change while this object lives, and the structure gets a
        // reference to the object. Requests for writable memory are refused.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 1, flags) };
        if filled == 0 {
            Ok(())
        } else {
            Err(PyErr::take(py).unwrap_or_else(|| PyBufferError::new_err("no such buffer")))
        }
    }
}

/// A reader or writer, taken out during a call.
pub(crate) type Between<T> = Arc<Mutex<Option<T>>>;

/// Takes the reader or writer out. `None` during a call, and after a failed call or the last one.
pub(crate) fn taken<T>(between: &Between<T>) -> Option<T> {
    between.lock().unwrap_or_else(PoisonError::into_inner).take()
}

pub(crate) fn left<T>(between: &Between<T>, value: T) {
    *between.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
}

#[pyclass(frozen, module = "hoplite._native")]
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) id: ObjectId,
    size_bytes: u64,
    metadata: Metadata,
    is_stale: bool,
    pub(crate) reader: Between<ObjectReader>,
}

impl Reader {
    pub(crate) fn new(id: ObjectId, reader: ObjectReader) -> Self {
        let (size_bytes, metadata) = (reader.size_bytes(), reader.metadata().clone());
        let is_stale = reader.is_stale();
        Self { id, size_bytes, metadata, is_stale, reader: Arc::new(Mutex::new(Some(reader))) }
    }
}

#[pymethods]
impl Reader {
    #[getter]
    fn nbytes(&self) -> u64 {
        self.size_bytes
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.metadata.dtype.name()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        shape(py, &self.metadata)
    }

    #[getter]
    fn user<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.metadata.user)
    }

    #[getter]
    fn is_stale(&self) -> bool {
        self.is_stale
    }
}

/// Writes a new object from its beginning. Dropping it before its end aborts the put.
#[pyclass(frozen, module = "hoplite._native")]
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) id: ObjectId,
    pub(crate) writer: Between<ObjectWriter>,
}

impl Writer {
    pub(crate) fn new(id: ObjectId, writer: ObjectWriter) -> Self {
        Self { id, writer: Arc::new(Mutex::new(Some(writer))) }
    }
}

fn shape<'py>(py: Python<'py>, metadata: &Metadata) -> PyResult<Option<Bound<'py, PyTuple>>> {
    metadata.shape.as_ref().map(|extents| PyTuple::new(py, extents)).transpose()
}
