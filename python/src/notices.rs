//! Notices of the clients, for the logger `hoplite` of Python.

use hoplite_client::Notice;
use pyo3::prelude::*;
use tokio::runtime::Handle;

/// The logger that everything in the package uses.
const LOGGER: &str = "hoplite";

/// Logs a notice as a warning.
pub(crate) fn log(notice: &Notice) {
    let text = notice.to_string();
    let log = move || {
        // There is no interpreter any more if it is ending: then nobody reads logs either.
        Python::try_attach(|py| {
            let logged = warn(py, &text);
            // Nobody could catch the error here.
            logged.unwrap_or_else(|error| error.write_unraisable(py, None));
        });
    };
    match Handle::try_current() {
        // A handler of Python may take its time; the runtime serves other calls meanwhile.
        Ok(runtime) => drop(runtime.spawn_blocking(log)),
        Err(_) => log(),
    }
}

fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", (LOGGER,))?;
    logger.call_method1("warning", ("%s", text)).map(drop)
}
