//! The two classes of clients that Python sees: the same methods, which block or return futures of the running event loop.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use futures::FutureExt;
use hoplite_client::{
    AllreduceOptions, ConnectOptions, Error, NodeId, ObjectId, ReduceOptions, Result, blocking,
    default_socket_path,
};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arguments::{Id, Ids, Op, Timeout, order, put_options};
use crate::buffers::{Input, Keep, Output};
use crate::errors::{exception, exception_about, internal};
use crate::mailbox::{Canceller, Mailbox};
use crate::operations::{self, range};
use crate::runtime;
use crate::trace;
use crate::view::Reader;

/// How often a thread that waits looks for signals: a tenth of a second is what people take for at once.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// A connection to the store of this node, for threads.
#[pyclass(frozen, module = "hoplite._native")]
#[derive(Debug)]
pub(crate) struct Client {
    process: u32,
    node: NodeId,
    confirmed_from_bytes: u64,
    /// `None` once it is closed.
    client: RwLock<Option<blocking::Client>>,
    is_lost: Arc<AtomicBool>,
}

/// A connection to the store of this node, for event loops of asyncio.
#[pyclass(frozen, module = "hoplite._native")]
#[derive(Debug)]
pub(crate) struct AsyncClient {
    process: u32,
    node: NodeId,
    confirmed_from_bytes: u64,
    /// `None` once it is closed.
    client: RwLock<Option<hoplite_client::Client>>,
    is_lost: Arc<AtomicBool>,
}

impl Client {
    /// Performs `work` in this thread, while others run Python. A signal whose handler raises ends it. What it copies from or
    /// to is released by `_keep`, once this thread is attached again.
    fn perform_with<T, F>(
        &self,
        py: Python<'_>,
        about: Option<ObjectId>,
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
        let driven = py.detach(|| {
            let _entered = trace::enter(trace);
            catch_unwind(AssertUnwindSafe(|| {
                client.drive(SIGNAL_INTERVAL, || watch.look(), async |client| work(client.clone()).await)
            }))
        });
        match driven {
            Ok(Ok(outcome)) => answer(py, outcome, about.as_ref(), &self.is_lost),
            Ok(Err(raised)) => Err(raised),
            Err(panic) => Err(internal(py, &*panic)),
        }
    }
}

/// Lets the handlers of signals run that have arrived.
#[derive(Debug, Default)]
struct Watch {
    /// Only the main thread runs handlers. The others need not ask for the interpreter again, which many would feel that wait.
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
        // There is no interpreter any more if it is ending: then this thread is one that it does not wait for.
        looked.unwrap_or(Ok(()))
    }
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    threading.call_method0("main_thread")?.getattr("ident")?.eq(threading.call_method0("get_ident")?)
}

impl AsyncClient {
    /// Performs `work` in a task, and returns a future of the running event loop. If that is cancelled, so is the task. What it
    /// copies from or to is released by `keep`, in the thread of the event loop.
    fn perform_with<T, F>(
        &self,
        py: Python<'_>,
        about: Option<ObjectId>,
        keep: Vec<Keep>,
        work: impl FnOnce(hoplite_client::Client) -> F + Send + 'static,
    ) -> PyResult<Py<PyAny>>
    where
        T: Answer,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let client = usable(py, self.process, &self.client)?;
        spawn(py, about, keep, Arc::clone(&self.is_lost), async move { work(client).await })
    }
}

/// Runs `work` in the runtime, for a future of the running event loop.
fn spawn<T: Answer>(
    py: Python<'_>,
    about: Option<ObjectId>,
    keep: Vec<Keep>,
    is_lost: Arc<AtomicBool>,
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
                    Ok(outcome) => answer(py, outcome, about.as_ref(), &is_lost),
                    Err(panic) => Err(internal(py, &*panic)),
                }
            }),
        );
    });
    let canceller = Canceller { number, mailbox: mailbox.unbind(), task: task.abort_handle() };
    future.call_method1("add_done_callback", (canceller,))?;
    Ok(future.unbind())
}

/// What an operation makes for Python.
trait Answer: for<'py> IntoPyObject<'py> + Send + 'static {}

impl<T: for<'py> IntoPyObject<'py> + Send + 'static> Answer for T {}

fn answer<T: Answer>(
    py: Python<'_>,
    outcome: Result<T>,
    about: Option<&ObjectId>,
    is_lost: &AtomicBool,
) -> PyResult<Py<PyAny>> {
    match outcome {
        Ok(value) => value.into_py_any(py),
        Err(error) => {
            if matches!(error, Error::ConnectionLost { .. }) {
                is_lost.store(true, Ordering::Relaxed);
            }
            Err(exception_about(py, &error, about))
        }
    }
}

/// The client, unless it is closed or belongs to the process that this one was forked from.
fn usable<T: Clone>(py: Python<'_>, process: u32, client: &RwLock<Option<T>>) -> PyResult<T> {
    let current = std::process::id();
    if current != process {
        // Not left to the client: what it locks may have been locked for ever by the fork.
        return Err(exception(py, &Error::ForkedChild { connected: process, current }));
    }
    let client = client.read().unwrap_or_else(PoisonError::into_inner);
    client.clone().ok_or_else(|| PyValueError::new_err("the client is closed"))
}

fn connect_options(socket: Option<PathBuf>, timeout: Timeout, program: String) -> ConnectOptions {
    ConnectOptions { socket: socket.unwrap_or_else(default_socket_path), timeout: timeout.0, program }
}

/// Connects to the store that listens at `socket`.
#[pyfunction]
pub(crate) fn connect(
    py: Python<'_>,
    socket: Option<PathBuf>,
    timeout: Timeout,
    program: String,
) -> PyResult<Client> {
    let options = connect_options(socket, timeout, program);
    let client = py
        .detach(|| while_looking(move || blocking::Client::connect_with(options)))?
        .map_err(|error| exception_about(py, &error, None))?;
    let (node, confirmed_from_bytes) = (client.node().clone(), client.confirmed_from_bytes());
    let client = RwLock::new(Some(client));
    Ok(Client { process: std::process::id(), node, confirmed_from_bytes, client, is_lost: Arc::default() })
}

/// Performs `work`, which blocks, in a thread of its own, and looks for signals meanwhile. One whose handler raises leaves
/// `work` to end by itself.
fn while_looking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> PyResult<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::Builder::new().name("hoplite-connect".to_owned()).spawn(move || {
        // Nobody hears of it who has been interrupted.
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

/// Connects to the store that listens at `socket`, for event loops.
#[pyfunction]
pub(crate) fn connect_async(
    py: Python<'_>,
    socket: Option<PathBuf>,
    timeout: Timeout,
    program: String,
) -> PyResult<Py<PyAny>> {
    let options = connect_options(socket, timeout, program);
    let is_lost = Arc::default();
    let also_lost = Arc::clone(&is_lost);
    spawn(py, None, Vec::new(), also_lost, async move {
        let client = hoplite_client::Client::connect_with(options).await?;
        let (node, confirmed_from_bytes) = (client.node().clone(), client.confirmed_from_bytes());
        let client = RwLock::new(Some(client));
        Ok(AsyncClient { process: std::process::id(), node, confirmed_from_bytes, client, is_lost })
    })
}

/// The methods that both classes have. Those that wait take a timeout in seconds, `None` for ever.
macro_rules! methods {
    ($class:ident $(, $lives:lifetime)?) => {
        impl $class {
            /// Performs `work`, which uses no memory of Python.
            fn perform<T, F>(
                &self,
                py: Python<'_>,
                about: Option<ObjectId>,
                work: impl FnOnce(hoplite_client::Client) -> F + Send $(+ $lives)?,
            ) -> PyResult<Py<PyAny>>
            where
                T: Answer,
                F: Future<Output = Result<T>> + Send $(+ $lives)?,
            {
                self.perform_with(py, about, Vec::new(), work)
            }
        }

        #[pymethods]
        impl $class {
            /// The name of the node.
            #[getter]
            fn node(&self) -> &str {
                self.node.as_str()
            }

            /// Objects below this many bytes are put without waiting for the directory, unless `confirm` says so.
            #[getter]
            fn confirmed_from_bytes(&self) -> u64 {
                self.confirmed_from_bytes
            }

            /// The process that connected.
            #[getter]
            fn process(&self) -> u32 {
                self.process
            }

            /// Whether it is open, of this process, and no call has found the connection lost.
            #[getter]
            fn usable(&self) -> bool {
                let is_open = self.client.read().unwrap_or_else(PoisonError::into_inner).is_some();
                is_open && self.process == std::process::id() && !self.is_lost.load(Ordering::Relaxed)
            }

            /// Another client over the same connection, which stays open as long as one of them is.
            fn share(&self, py: Python<'_>) -> PyResult<Self> {
                let client = RwLock::new(Some(usable(py, self.process, &self.client)?));
                let (node, is_lost) = (self.node.clone(), Arc::clone(&self.is_lost));
                let (process, confirmed_from_bytes) = (self.process, self.confirmed_from_bytes);
                Ok(Self { process, node, confirmed_from_bytes, client, is_lost })
            }

            /// Ends the connection, once nothing of it is in use any more.
            fn close(&self) {
                drop(self.client.write().unwrap_or_else(PoisonError::into_inner).take());
            }

            /// Puts the concatenation of `pieces`.
            #[expect(clippy::too_many_arguments, reason = "they are those of Python, which names them")]
            fn put(
                &self,
                py: Python<'_>,
                id: Id,
                pieces: Vec<Input>,
                dtype: &str,
                shape: Option<Vec<u64>>,
                user: &[u8],
                timeout: Timeout,
                confirm: bool,
            ) -> PyResult<Py<PyAny>> {
                let options = put_options(py, dtype, shape, user, timeout, confirm)?;
                let keep = pieces.iter().map(Input::keep).collect();
                self.perform_with(py, Some(id.0.clone()), keep, |client| {
                    operations::put(client, id.0, pieces, options)
                })
            }

            /// Waits until the object is complete on this node, and returns a view of it.
            fn get(&self, py: Python<'_>, id: Id, timeout: Timeout) -> PyResult<Py<PyAny>> {
                self.perform(py, Some(id.0.clone()), move |client| operations::get(client, id.0, timeout.0))
            }

            /// Waits until the object begins to be on this node, and returns a reader for it.
            fn open(&self, py: Python<'_>, id: Id, timeout: Timeout) -> PyResult<Py<PyAny>> {
                self.perform(py, Some(id.0.clone()), move |client| operations::open(client, id.0, timeout.0))
            }

            /// Copies all of what `reader` reads into `out` while it arrives. Once per reader.
            fn read(
                &self,
                py: Python<'_>,
                reader: &Reader,
                out: Output,
                timeout: Timeout,
            ) -> PyResult<Py<PyAny>> {
                let id = reader.id.clone();
                let reader = reader.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
                let reader = reader.ok_or_else(|| PyValueError::new_err("the object was read already"))?;
                let keep = vec![out.keep()];
                self.perform_with(py, Some(id), keep, move |_| operations::read(reader, out, timeout.0))
            }

            /// Copies the object into the front of `out` while it arrives, and returns its length.
            fn get_into(&self, py: Python<'_>, id: Id, out: Output, timeout: Timeout) -> PyResult<Py<PyAny>> {
                let keep = vec![out.keep()];
                self.perform_with(py, Some(id.0.clone()), keep, move |client| {
                    operations::get_into(client, id.0, out, timeout.0)
                })
            }

            /// Gets views of several objects at once.
            fn gather(&self, py: Python<'_>, ids: Ids, timeout: Timeout) -> PyResult<Py<PyAny>> {
                self.perform(py, None, move |client| operations::gather(client, ids.0, timeout.0))
            }

            /// Copies several objects one after the other into `out`, and returns their lengths.
            fn gather_into(
                &self,
                py: Python<'_>,
                ids: Ids,
                out: Output,
                timeout: Timeout,
            ) -> PyResult<Py<PyAny>> {
                let keep = vec![out.keep()];
                self.perform_with(py, None, keep, move |client| {
                    operations::gather_into(client, ids.0, out, timeout.0)
                })
            }

            /// Puts the concatenation of `pieces` as the object of `rank`, and gets views of all.
            #[expect(clippy::too_many_arguments, reason = "they are those of Python, which names them")]
            fn allgather(
                &self,
                py: Python<'_>,
                ids: Ids,
                rank: usize,
                pieces: Vec<Input>,
                dtype: &str,
                shape: Option<Vec<u64>>,
                user: &[u8],
                timeout: Timeout,
            ) -> PyResult<Py<PyAny>> {
                let own = own_id(&ids, rank)?;
                let options = put_options(py, dtype, shape, user, timeout, false)?;
                let keep = pieces.iter().map(Input::keep).collect();
                self.perform_with(py, Some(own.clone()), keep, move |client| {
                    operations::allgather(client, ids.0, own, pieces, options)
                })
            }

            /// Reduces several arrays into a new one, and returns the ids that were reduced.
            #[expect(clippy::too_many_arguments, reason = "they are those of Python, which names them")]
            fn reduce(
                &self,
                py: Python<'_>,
                target: Id,
                sources: Ids,
                op: Op,
                num_objects: Option<usize>,
                deterministic: bool,
                byte_range: Option<(u64, u64)>,
                timeout: Timeout,
            ) -> PyResult<Py<PyAny>> {
                let options = ReduceOptions {
                    op: op.0,
                    num_objects,
                    order: order(deterministic),
                    range: byte_range.map(|(start, stop)| range(start, stop)),
                    timeout: timeout.0,
                };
                self.perform(py, Some(target.0.clone()), move |client| {
                    operations::reduce(client, target.0, sources.0, options)
                })
            }

            /// Reduces the objects of all participants into the front of `out`, and returns the length of the result.
            #[expect(clippy::too_many_arguments, reason = "they are those of Python, which names them")]
            fn allreduce_into(
                &self,
                py: Python<'_>,
                target: Id,
                sources: Ids,
                rank: usize,
                out: Output,
                op: Op,
                deterministic: bool,
                timeout: Timeout,
            ) -> PyResult<Py<PyAny>> {
                own_id(&sources, rank)?;
                let options = AllreduceOptions {
                    op: op.0,
                    order: order(deterministic),
                    timeout: timeout.0,
                };
                let keep = vec![out.keep()];
                self.perform_with(py, Some(target.0.clone()), keep, move |client| {
                    operations::allreduce_into(client, target.0, sources.0, rank, out, options)
                })
            }

            /// As `allreduce_into`, but only one of as many equal parts as there are participants: that of the rank.
            #[expect(clippy::too_many_arguments, reason = "they are those of Python, which names them")]
            fn reduce_scatter_into(
                &self,
                py: Python<'_>,
                target: Id,
                sources: Ids,
                rank: usize,
                out: Output,
                op: Op,
                deterministic: bool,
                timeout: Timeout,
            ) -> PyResult<Py<PyAny>> {
                own_id(&sources, rank)?;
                let options = AllreduceOptions {
                    op: op.0,
                    order: order(deterministic),
                    timeout: timeout.0,
                };
                let keep = vec![out.keep()];
                self.perform_with(py, Some(target.0.clone()), keep, move |client| {
                    operations::reduce_scatter_into(client, target.0, sources.0, rank, out, options)
                })
            }

            /// Copies the equally long objects of all participants into the front of `out`, and returns their length together.
            fn allgather_into(
                &self,
                py: Python<'_>,
                target: Id,
                sources: Ids,
                rank: usize,
                out: Output,
                timeout: Timeout,
            ) -> PyResult<Py<PyAny>> {
                own_id(&sources, rank)?;
                let keep = vec![out.keep()];
                self.perform_with(py, Some(target.0.clone()), keep, move |client| {
                    operations::allgather_into(client, target.0, sources.0, rank, out, timeout.0)
                })
            }

            /// Gives each participant the concatenation of the pieces for it, and gets views of what all give to this one.
            #[expect(clippy::too_many_arguments, reason = "they are those of Python, which names them")]
            fn all_to_all(
                &self,
                py: Python<'_>,
                name: Id,
                parts: Vec<Vec<Input>>,
                rank: usize,
                dtype: &str,
                shape: Option<Vec<u64>>,
                user: &[u8],
                timeout: Timeout,
            ) -> PyResult<Py<PyAny>> {
                let options = put_options(py, dtype, shape, user, timeout, false)?;
                let keep = parts.iter().flatten().map(Input::keep).collect();
                self.perform_with(py, Some(name.0.clone()), keep, move |client| {
                    operations::all_to_all(client, name.0, parts, rank, options)
                })
            }

            /// Waits until all participants are here.
            fn barrier(
                &self,
                py: Python<'_>,
                name: Id,
                participants: usize,
                rank: usize,
                timeout: Timeout,
            ) -> PyResult<Py<PyAny>> {
                self.perform(py, Some(name.0.clone()), move |client| {
                    operations::barrier(client, name.0, participants, rank, timeout.0)
                })
            }

            /// Removes every copy of the objects, and returns how many there were.
            fn delete(&self, py: Python<'_>, ids: Ids, timeout: Timeout) -> PyResult<Py<PyAny>> {
                let about = if let [id] = &ids.0[..] { Some(id.clone()) } else { None };
                self.perform(py, about, move |client| operations::delete(client, ids.0, timeout.0))
            }

            /// Waits until `count` of the objects are available, and returns the indices of those that are.
            fn wait(&self, py: Python<'_>, ids: Ids, count: usize, timeout: Timeout) -> PyResult<Py<PyAny>> {
                self.perform(py, None, move |client| operations::wait(client, ids.0, count, timeout.0))
            }

            /// Whether all bytes of the object are somewhere.
            fn contains(&self, py: Python<'_>, id: Id) -> PyResult<Py<PyAny>> {
                self.perform(py, Some(id.0.clone()), move |client| operations::contains(client, id.0))
            }

            /// Waits until the object has a location, and returns what is known of it.
            fn locate(&self, py: Python<'_>, id: Id, timeout: Timeout) -> PyResult<Py<PyAny>> {
                self.perform(py, Some(id.0.clone()), move |client| {
                    operations::locate(client, id.0, timeout.0)
                })
            }

            /// All that is known of an object now.
            fn describe(&self, py: Python<'_>, id: Id) -> PyResult<Py<PyAny>> {
                self.perform(py, Some(id.0.clone()), move |client| operations::describe(client, id.0))
            }

            /// A page of the objects whose id starts with `prefix`, and the id to go on after.
            fn list(
                &self,
                py: Python<'_>,
                prefix: Vec<u8>,
                after: Vec<u8>,
                limit: usize,
            ) -> PyResult<Py<PyAny>> {
                self.perform(py, None, move |client| operations::list(client, prefix, after, limit))
            }

            /// The counters of the store.
            fn status(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
                self.perform(py, None, operations::status)
            }
        }
    };
}

methods!(Client);
methods!(AsyncClient, 'static);

fn own_id(ids: &Ids, rank: usize) -> PyResult<ObjectId> {
    let own = ids.0.get(rank).cloned();
    own.ok_or_else(|| PyValueError::new_err("a rank is less than the number of participants"))
}
