//! The two client classes: calls that block, or return a future of the running event loop.

mod methods;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use futures::FutureExt;
use hoplite_client::{
    AfterLoss, ClusterId, ConnectOptions, Error, NodeId, ObjectId, Owner, Result, blocking,
    default_socket_path,
};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arguments::Timeout;
use crate::buffers::Keep;
use crate::errors::{exception, exception_about, internal};
use crate::mailbox::{Canceller, Mailbox};
use crate::notices;
use crate::progress::Progress;
use crate::runtime;
use crate::trace;

const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

#[pyclass(frozen, module = "hoplite._native")]
#[derive(Debug)]
pub(crate) struct Client {
    process: u32,
    node: NodeId,
    cluster: ClusterId,
    max_object_bytes: u64,
    client: RwLock<Option<blocking::Client>>,
    progress: Option<Py<Progress>>,
}

#[pyclass(frozen, module = "hoplite._native")]
#[derive(Debug)]
pub(crate) struct AsyncClient {
    process: u32,
    node: NodeId,
    cluster: ClusterId,
    max_object_bytes: u64,
    client: RwLock<Option<hoplite_client::Client>>,
    progress: Option<Py<Progress>>,
}

impl Client {
    /// Performs `work` while other threads run Python. If the connection is lost, first waits up to
    /// `timeout` for a store. `_keep` releases the buffers once this
    /// thread is attached to the interpreter again.
    fn perform_with<T, F>(
        &self,
        py: Python<'_>,
        about: Option<ObjectId>,
        timeout: Duration,
        _keep: Vec<Keep>,
        work: impl FnOnce(hoplite_client::Client) -> F + Send,
    ) -> PyResult<Py<PyAny>>
    where
        T: Answer,
        F: Future<Output = Result<T>> + Send,
    {
        let client = usable(py, self.process, &self.client)?;
        let trace = trace::current(py)?;
        let mut watch = Watch::default();
        let progress = self.progress.as_ref().map(Py::get);
        let driven = py.detach(|| {
            let _entered = trace::enter(trace);
            let mut pause = || {
                watch.look()?;
                progress.map_or(Ok(()), Progress::look)
            };
            catch_unwind(AssertUnwindSafe(|| {
                client.drive(timeout, SIGNAL_INTERVAL, &mut pause, async |client| match progress {
                    None => work(client.clone()).await,
                    Some(progress) => progress.of(work(client.clone())).await,
                })
            }))
        });
        match driven {
            Ok(Ok(outcome)) => {
                if let (Some(progress), Ok(_)) = (progress, &outcome) {
                    progress.report(py)?;
                }
                answer(py, outcome, about.as_ref())
            }
            Ok(Err(raised)) => Err(raised),
            Err(panic) => Err(internal(py, &*panic)),
        }
    }
}

#[derive(Debug, Default)]
struct Watch {
    /// `true` outside the main thread, which alone runs signal handlers.
    is_in_vain: bool,
}

impl Watch {
    fn look(&mut self) -> PyResult<()> {
        if self.is_in_vain {
            return Ok(());
        }
        let looked = Python::try_attach(|py| {
            self.is_in_vain = !is_main_thread(py)?;
            py.check_signals()
        });
        looked.unwrap_or(Ok(()))
    }
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    threading
        .call_method0("main_thread")?
        .getattr("ident")?
        .eq(threading.call_method0("get_ident")?)
}

impl AsyncClient {
    /// Performs `work` in a task. Cancelling the returned future cancels it. `keep` releases the
    /// buffers in the event loop's thread.
    fn perform_with<T, F>(
        &self,
        py: Python<'_>,
        about: Option<ObjectId>,
        _timeout: Duration,
        keep: Vec<Keep>,
        work: impl FnOnce(hoplite_client::Client) -> F + Send + 'static,
    ) -> PyResult<Py<PyAny>>
    where
        T: Answer,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let client = usable(py, self.process, &self.client)?;
        match &self.progress {
            None => spawn(py, about, keep, async move { work(client).await }),
            Some(progress) => {
                let progress = progress.clone_ref(py);
                spawn(py, about, keep, async move { progress.get().of(work(client)).await })
            }
        }
    }
}

fn spawn<T: Answer>(
    py: Python<'_>,
    about: Option<ObjectId>,
    keep: Vec<Keep>,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    let work = trace::within(trace::current(py)?, work);
    let runtime = runtime::handle(py)?;
    let (mailbox, event_loop) = Mailbox::of_running_loop(py)?;
    let (future, number, slot) = mailbox.get().expect(&event_loop)?;
    let task = runtime.spawn(async move {
        let done = AssertUnwindSafe(work).catch_unwind().await;
        slot.post(
            number,
            Box::new(move |py| {
                drop(keep);
                match done {
                    Ok(outcome) => answer(py, outcome, about.as_ref()),
                    Err(panic) => Err(internal(py, &*panic)),
                }
            }),
        );
    });
    let canceller = Canceller { number, mailbox: mailbox.unbind(), task: task.abort_handle() };
    future.call_method1("add_done_callback", (canceller,))?;
    Ok(future.unbind())
}

trait Answer: for<'py> IntoPyObject<'py> + Send + 'static {}

impl<T: for<'py> IntoPyObject<'py> + Send + 'static> Answer for T {}

fn answer<T: Answer>(
    py: Python<'_>,
    outcome: Result<T>,
    about: Option<&ObjectId>,
) -> PyResult<Py<PyAny>> {
    match outcome {
        Ok(value) => value.into_py_any(py),
        Err(error) => Err(exception_about(py, &error, about)),
    }
}

fn usable<T: Clone>(py: Python<'_>, process: u32, client: &RwLock<Option<T>>) -> PyResult<T> {
    let current = std::process::id();
    if current != process {
        // The client's locks may have been held during the fork.
        return Err(exception(py, &Error::ForkedChild { connected: process, current }));
    }
    let client = client.read().unwrap_or_else(PoisonError::into_inner);
    client.clone().ok_or_else(|| PyValueError::new_err("the client is closed"))
}

fn connect_options(
    socket: Option<PathBuf>,
    timeout: Timeout,
    program: String,
    reconnect: bool,
    owners: Vec<Owner>,
) -> ConnectOptions {
    ConnectOptions {
        owners,
        socket: socket.unwrap_or_else(default_socket_path),
        timeout: timeout.0,
        program,
        after_loss: if reconnect { AfterLoss::Reconnect } else { AfterLoss::Fail },
        listener: notices::log,
        on_full: Some(collect_garbage),
        ..ConnectOptions::default()
    }
}

fn owners(py: Python<'_>, names: Vec<String>) -> PyResult<Vec<Owner>> {
    let owners = names.into_iter().map(Owner::new).collect::<hoplite_core::Result<_>>();
    owners.map_err(|error| exception(py, &error.into()))
}

#[pyfunction]
#[pyo3(signature = (socket, timeout, program, reconnect, owners = Vec::new()))]
pub(crate) fn connect(
    py: Python<'_>,
    socket: Option<PathBuf>,
    timeout: Timeout,
    program: String,
    reconnect: bool,
    owners: Vec<String>,
) -> PyResult<Client> {
    let options = connect_options(socket, timeout, program, reconnect, self::owners(py, owners)?);
    let client = py
        .detach(|| while_looking(move || blocking::Client::connect_with(options)))?
        .map_err(|error| exception_about(py, &error, None))?;
    Ok(Client {
        process: std::process::id(),
        node: client.node(),
        cluster: client.cluster(),
        max_object_bytes: client.max_object_bytes(),
        client: RwLock::new(Some(client)),
        progress: None,
    })
}

/// Collects reference cycles, which may keep arrays of the store.
fn collect_garbage() {
    // Python reports finalizers that raise.
    let _ = Python::try_attach(|py| {
        py.import("gc").and_then(|gc| gc.call_method0("collect")).map(drop)
    });
}

/// Performs `work` in a thread, and runs signal handlers, which do not stop `work`.
fn while_looking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> PyResult<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::Builder::new().name("hoplite-connect".to_owned()).spawn(move || {
        let _ = sender.send(catch_unwind(AssertUnwindSafe(work)));
    })?;
    let mut watch = Watch::default();
    loop {
        match receiver.recv_timeout(SIGNAL_INTERVAL) {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(panic)) => return Err(Python::attach(|py| internal(py, &*panic))),
            Err(RecvTimeoutError::Timeout) => watch.look()?,
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread sends before it ends"),
        }
    }
}

#[pyfunction]
#[pyo3(signature = (socket, timeout, program, reconnect, owners = Vec::new()))]
pub(crate) fn connect_async(
    py: Python<'_>,
    socket: Option<PathBuf>,
    timeout: Timeout,
    program: String,
    reconnect: bool,
    owners: Vec<String>,
) -> PyResult<Py<PyAny>> {
    let options = connect_options(socket, timeout, program, reconnect, self::owners(py, owners)?);
    spawn(py, None, Vec::new(), async move {
        let client = hoplite_client::Client::connect_with(options).await?;
        Ok(AsyncClient {
            process: std::process::id(),
            node: client.node(),
            cluster: client.cluster(),
            max_object_bytes: client.max_object_bytes(),
            client: RwLock::new(Some(client)),
            progress: None,
        })
    })
}
