//! Objects as Python sees them: whole ones as a buffer, and ones that still arrive.

use std::os::raw::c_int;
use std::sync::Mutex;

use hoplite_client::{Metadata, ObjectId, ObjectReader, ObjectView};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::buffers;

/// The bytes of a complete object where the store keeps them, through the buffer protocol: read-only.
///
/// The store keeps them as long as this exists, and every buffer that was made of it keeps it alive.
#[pyclass(frozen, module = "hoplite._native")]
#[derive(Debug)]
pub(crate) struct View(pub(crate) ObjectView);

#[pymethods]
impl View {
    /// The size of the object in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.size_bytes()
    }

    /// The name of the element type.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.metadata().dtype.name()
    }

    /// The shape, or None for bytes without one.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        shape(py, self.0.metadata())
    }

    /// What the application put beside the bytes.
    #[getter]
    fn user<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.metadata().user)
    }

    /// A private copy.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        buffers::copy_to_bytes(py, &self.0)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    /// To be called by the interpreter, with a structure to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let py = slf.py();
        let bytes: &[u8] = &slf.get().0;
        let (start, length) = (bytes.as_ptr().cast_mut().cast(), isize::try_from(bytes.len())?);
        // SAFETY: the memory stays as it is while this object lives, to which the structure gets a reference. The function
        // refuses those who want to write.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 1, flags) };
        if filled == 0 {
            Ok(())
        } else {
            Err(PyErr::take(py).unwrap_or_else(|| PyBufferError::new_err("no such buffer")))
        }
    }
}

/// An object that is read from its beginning to its end while it arrives.
#[pyclass(frozen, module = "hoplite._native")]
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) id: ObjectId,
    size_bytes: u64,
    metadata: Metadata,
    /// `None` once it was read.
    pub(crate) reader: Mutex<Option<ObjectReader>>,
}

impl Reader {
    pub(crate) fn new(id: ObjectId, reader: ObjectReader) -> Self {
        let (size_bytes, metadata) = (reader.size_bytes(), reader.metadata().clone());
        Self { id, size_bytes, metadata, reader: Mutex::new(Some(reader)) }
    }
}

#[pymethods]
impl Reader {
    /// The size of the object in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.size_bytes
    }

    /// The name of the element type.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.metadata.dtype.name()
    }

    /// The shape, or None for bytes without one.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        shape(py, &self.metadata)
    }

    /// What the application put beside the bytes.
    #[getter]
    fn user<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.metadata.user)
    }
}

fn shape<'py>(py: Python<'py>, metadata: &Metadata) -> PyResult<Option<Bound<'py, PyTuple>>> {
    metadata.shape.as_ref().map(|extents| PyTuple::new(py, extents)).transpose()
}
