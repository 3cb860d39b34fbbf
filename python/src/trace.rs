//! In which trace calls are made: in the one that a context variable of Python names, so that each task of asyncio has its own.

use hoplite_client::{EnteredTrace, Result, TraceContext, enter_trace, traced};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The variable; nothing until a trace is entered for the first time, so that calls of others do not pay for it.
static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// A span, as the variable has it.
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

/// Has calls look at this context variable.
#[pyfunction]
pub(crate) fn look_for_spans(py: Python<'_>, variable: Py<PyAny>) {
    VARIABLE.get_or_init(py, || variable);
}

/// In which trace a call is made now.
pub(crate) fn current(py: Python<'_>) -> PyResult<Option<TraceContext>> {
    let Some(variable) = VARIABLE.get(py) else { return Ok(None) };
    let span: Option<PyRef<'_, Span>> = variable.bind(py).call_method0("get")?.extract()?;
    Ok(span.map(|span| span.0))
}

/// Makes the calls of this thread in the trace, if there is one.
pub(crate) fn enter(trace: Option<TraceContext>) -> Option<EnteredTrace> {
    trace.map(|trace| enter_trace(Some(trace)))
}

/// Makes the calls of `work` in the trace, if there is one.
pub(crate) async fn within<T>(
    trace: Option<TraceContext>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    match trace {
        Some(trace) => traced(trace, work).await,
        None => work.await,
    }
}
