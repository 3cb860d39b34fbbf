//! Makes calls in the trace of a context variable, so asyncio tasks have separate traces.

use hoplite_client::{EnteredTrace, Result, TraceContext, enter_trace, traced};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The current span; empty before the first `hoplite.trace`.
static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

#[pyclass(module = "hoplite._native", frozen)]
pub(crate) struct Span(TraceContext);

#[pymethods]
impl Span {
    #[new]
    fn new(traceparent: &str) -> PyResult<Self> {
        traceparent.parse().map(Self).map_err(|error| {
            let error: hoplite_client::NotATraceparent = error;
            PyValueError::new_err(error.to_string())
        })
    }
}

#[pyfunction]
pub(crate) fn look_for_spans(py: Python<'_>, variable: Py<PyAny>) {
    VARIABLE.get_or_init(py, || variable);
}

pub(crate) fn current(py: Python<'_>) -> PyResult<Option<TraceContext>> {
    let Some(variable) = VARIABLE.get(py) else { return Ok(None) };
    let span: Option<PyRef<'_, Span>> = variable.bind(py).call_method0("get")?.extract()?;
    Ok(span.map(|span| span.0))
}

pub(crate) fn enter(trace: Option<TraceContext>) -> Option<EnteredTrace> {
    trace.map(|trace| enter_trace(Some(trace)))
}

pub(crate) async fn within<T>(
    trace: Option<TraceContext>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    match trace {
        Some(trace) => traced(trace, work).await,
        None => work.await,
    }
}
