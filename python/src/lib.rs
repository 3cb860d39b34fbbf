//! The native half of the Python package `hoplite`.
//!
//! It binds only `hoplite-client`: it exchanges bytes, ids and metadata, and waits and copies
//! without the interpreter. `hoplite/_serialize.py` converts between bytes and Python values.
//!
//! * `client`: the two classes for Python, one for threads and one for asyncio, with the same
//!   methods.
//! * `operations`: the implementation of these methods, shared by both.
//! * `view`: the memory of an object as a Python buffer, the reader of an arriving object, and the
//!   writer of a new one.
//! * `buffers`: copies from and to memory of Python. With `view`, all unsafe code of this crate.
//! * `arguments` and `report`: conversions from and to Python.
//! * `notices`: messages for the logger about long waits and new connections.
//! * `trace`: the trace of calls.
//! * `progress`: progress reports for a Python function.
//! * `mailbox` and `runtime`: the delivery of task results to an event loop.
//! * `errors`: the only place that makes exceptions.

mod arguments;
mod buffers;
mod client;
mod errors;
mod mailbox;
mod many;
mod notices;
mod operations;
mod progress;
mod report;
mod runtime;
mod trace;
mod view;

use pyo3::pymodule;

/// The native half of the package; private.
#[pymodule(name = "_native")]
mod native {
    use pyo3::prelude::*;

    use crate::arguments::{Id, Ids, Op, Timeout};
    #[pymodule_export]
    use crate::client::{AsyncClient, Client, connect, connect_async};
    #[pymodule_export]
    use crate::mailbox::Mailbox;
    #[pymodule_export]
    use crate::progress::Progress;
    #[pymodule_export]
    use crate::trace::{Span, look_for_spans};
    #[pymodule_export]
    use crate::view::{Reader, View, Writer};

    /// Measurements of a debug build say little.
    #[pymodule_export]
    const BUILD: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pyfunction]
    fn default_socket_path() -> std::ffi::OsString {
        hoplite_client::default_socket_path().into_os_string()
    }

    /// Returns seconds; `None` for ever.
    #[pyfunction]
    fn default_timeout() -> Option<f64> {
        let timeout = hoplite_client::default_timeout();
        (timeout < hoplite_client::FOREVER).then_some(timeout.as_secs_f64())
    }

    /// Checks the arguments before the call puts anything.
    #[pyfunction]
    #[expect(unused_variables, reason = "to be extracted is all that they are for")]
    fn check_allreduce(target: Id, sources: Ids, op: Op, timeout: Timeout) {}
}
