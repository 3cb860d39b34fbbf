//! The native half of the Python package `hoplite`.
//!
//! It binds `hoplite-client` and nothing else: bytes, ids and metadata go in and out, and waits and copies happen without
//! the interpreter. What the bytes mean to a Python program is decided in `hoplite/_serialize.py`.
//!
//! * `client`: the two classes that Python sees, one that blocks and one for asyncio, with the same methods.
//! * `operations`: what these methods do, once for both.
//! * `view`: the memory of an object as a buffer of Python, and an object that is read while it arrives.
//! * `buffers`: memory of Python that bytes are copied from and to. With `view`, all unsafe code of this crate.
//! * `arguments` and `report`: from Python and to Python.
//! * `notices`: the logger that hears of long waits and of new connections.
//! * `trace`: in which trace calls are made.
//! * `progress`: the bytes that calls have moved, for a function of Python.
//! * `mailbox` and `runtime`: how the results of tasks reach an event loop.
//! * `errors`: the one place that makes exceptions.

mod arguments;
mod buffers;
mod client;
mod errors;
mod mailbox;
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
    use crate::view::{Reader, View};

    /// With which profile this was built: measurements of a debug build say little.
    #[pymodule_export]
    const BUILD: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

    /// The version of the package, which is that of its native half.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// Where clients look for the store of this node unless they are told.
    #[pyfunction]
    fn default_socket_path() -> std::ffi::OsString {
        hoplite_client::default_socket_path().into_os_string()
    }

    /// The timeout of calls whose caller names none, in seconds; `None` if it is for ever.
    #[pyfunction]
    fn default_timeout() -> Option<f64> {
        let timeout = hoplite_client::default_timeout();
        (timeout < hoplite_client::FOREVER).then_some(timeout.as_secs_f64())
    }

    /// Checks what an allreduce is asked for, before anything is put for it.
    #[pyfunction]
    #[expect(unused_variables, reason = "to be extracted is all that they are for")]
    fn check_allreduce(target: Id, sources: Ids, op: Op, timeout: Timeout) {}
}
