//! Copies from and to buffers of Python while the interpreter runs other threads.
//!
//! The exporter keeps the memory in place. If another thread writes during a copy, the copy is a
//! mixture, as in numpy functions that release the interpreter.

use std::sync::Arc;
use std::{ptr, slice};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Keeps a buffer exported. Drop the last clone on a thread attached to the interpreter.
pub(crate) type Keep = Arc<PyUntypedBuffer>;

#[derive(Debug)]
pub(crate) struct Input(Keep);

impl<'py> FromPyObject<'_, 'py> for Input {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let buffer = contiguous(&value)?;
        if buffer.format().to_bytes().contains(&b'O') {
            return Err(PyTypeError::new_err(
                "the buffer has objects of Python, which are no bytes",
            ));
        }
        Ok(Self(Arc::new(buffer)))
    }
}

impl Input {
    pub(crate) fn keep(&self) -> Keep {
        Arc::clone(&self.0)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self.0.len_bytes() {
            0 => &[],
            // SAFETY: the buffer is contiguous and exported as long as `self` lives. See the module
            // on other threads.
            length => unsafe { slice::from_raw_parts(self.0.buf_ptr().cast(), length) },
        }
    }
}

#[derive(Debug)]
pub(crate) struct Output(Keep);

impl<'py> FromPyObject<'_, 'py> for Output {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let buffer = contiguous(&value)?;
        if buffer.readonly() {
            return Err(PyTypeError::new_err("the buffer cannot be written to"));
        }
        buffer.as_typed::<u8>()?;
        Ok(Self(Arc::new(buffer)))
    }
}

impl Output {
    pub(crate) fn keep(&self) -> Keep {
        Arc::clone(&self.0)
    }

    pub(crate) fn length(&self) -> u64 {
        self.0.len_bytes() as u64
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self.0.len_bytes() {
            0 => &mut [],
            // SAFETY: as for `Input::bytes`; the exporter allows writes, and `self` is borrowed
            // mutably.
            length => unsafe { slice::from_raw_parts_mut(self.0.buf_ptr().cast(), length) },
        }
    }
}

fn contiguous(value: &Borrowed<'_, '_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(value)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer is not contiguous"));
    }
    Ok(buffer)
}

/// Copies to a new `bytes`, while other threads run.
pub(crate) fn copy_to_bytes<'py>(py: Python<'py>, source: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let length = isize::try_from(source.len())?;
    // SAFETY: a null pointer requests an object with that much uninitialised memory.
    let made = unsafe { ffi::PyBytes_FromStringAndSize(ptr::null(), length) };
    // SAFETY: the function returns a new reference, or null with an exception set.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, made)? };
    let bytes = made.cast_into::<PyBytes>()?;
    // SAFETY: `bytes` is a bytes object.
    let start = unsafe { ffi::PyBytes_AsString(bytes.as_ptr()) } as usize;
    py.detach(|| {
        // SAFETY: the object has that much room, is not shared yet, and lives until this function
        // ends.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), start as *mut u8, source.len()) };
    });
    Ok(bytes)
}
