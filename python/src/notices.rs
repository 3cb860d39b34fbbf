//! Sends notices of the clients to Python's logger `hoplite`.

use hoplite_client::Notice;
use pyo3::prelude::*;
use tokio::runtime::Handle;

const LOGGER: &str = "hoplite";

pub(crate) fn log(notice: &Notice) {
    let text = notice.to_string();
    let log = move || {
        Python::try_attach(|py| {
            let logged = warn(py, &text);
            logged.unwrap_or_else(|error| error.write_unraisable(py, None));
        });
    };
    match Handle::try_current() {
        // A handler in Python may be slow.
        Ok(runtime) => drop(runtime.spawn_blocking(log)),
        Err(_) => log(),
    }
}

fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", (LOGGER,))?;
    logger.call_method1("warning", ("%s", text)).map(drop)
}
