//! The native half of the Python package `hoplite`, over `hoplite-client`.
//!
//! It exchanges bytes, ids and metadata, and waits and copies without the interpreter;
//! `hoplite/_serialize.py` converts to Python values. `buffers` and `view` have all unsafe code.

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

    #[pymodule_export]
    const BUILD: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pyfunction]
    fn default_socket_path() -> std::ffi::OsString {
        hoplite_client::default_socket_path().into_os_string()
    }

    #[pyfunction]
    fn default_timeout() -> Option<f64> {
        let timeout = hoplite_client::default_timeout();
        (timeout < hoplite_client::FOREVER).then_some(timeout.as_secs_f64())
    }

    /// Checks arguments before the call puts anything.
    #[pyfunction]
    #[expect(unused_variables, reason = "to be extracted is all that they are for")]
    fn check_allreduce(target: Id, sources: Ids, op: Op, timeout: Timeout) {}
}
