//! The methods of both classes. Timeouts are in seconds; `None` waits for ever. `_native.pyi` has
//! the types of the results.

use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hoplite_client::{
    AllreduceOptions, GetOptions, Lifetime, ObjectId, REPORT_TIMEOUT, ReduceOptions, Replicas,
    Result,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::{Answer, AsyncClient, Client, usable};
use crate::arguments::{self, Id, Ids, LifetimeArgument, Op, Timeout, order, put_options};
use crate::buffers::{Input, Output};
use crate::errors::exception;
use crate::many::{Described, Objects};
use crate::operations::{self, range};
use crate::progress::Progress;
use crate::view::{Reader, Writer, taken};

macro_rules! methods {
    ($class:ident $(, $lives:lifetime)?) => {
        impl $class {
            fn perform<T, F>(
                &self,
                py: Python<'_>,
                about: Option<ObjectId>,
                timeout: Duration,
                work: impl FnOnce(hoplite_client::Client) -> F + Send $(+ $lives)?,
            ) -> PyResult<Py<PyAny>>
            where
                T: Answer,
                F: Future<Output = Result<T>> + Send $(+ $lives)?,
            {
                self.perform_with(py, about, timeout, Vec::new(), work)
            }

            fn lifetime(
                &self,
                py: Python<'_>,
                lifetime: Option<LifetimeArgument>,
            ) -> PyResult<Option<Arc<Lifetime>>> {
                let own = || Ok(usable(py, self.process, &self.client)?.owner());
                lifetime.map_or(Ok(None), |lifetime| arguments::lifetime(py, lifetime, own))
            }
        }

        #[pymethods]
        impl $class {
            /// The node, which may change with a restart.
            #[getter]
            fn node(&self) -> String {
                // A forked child could wait for a lock for ever.
                let current = match self.process == std::process::id() {
                    true => self.client.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(|client| client.node()),
                    false => None,
                };
                current.unwrap_or_else(|| self.node.clone()).as_str().to_owned()
            }

            #[getter]
            fn cluster(&self) -> &str {
                self.cluster.as_str()
            }

            #[getter]
            fn max_object_bytes(&self) -> u64 {
                self.max_object_bytes
            }

            /// In bytes; puts from this size on wait for the directory.
            #[getter]
            fn confirmed_from_bytes(&self, py: Python<'_>) -> PyResult<u64> {
                Ok(usable(py, self.process, &self.client)?.confirmed_from_bytes())
            }

            #[getter]
            fn owner(&self, py: Python<'_>) -> PyResult<String> {
                Ok(usable(py, self.process, &self.client)?.owner().as_str().to_owned())
            }

            #[getter]
            fn process(&self) -> u32 {
                self.process
            }

            #[getter]
            fn usable(&self) -> bool {
                self.process == std::process::id()
                    && self
                        .client
                        .read()
                        .unwrap_or_else(PoisonError::into_inner)
                        .as_ref()
                        .is_some_and(|client| client.is_connected())
            }

            fn share(&self, py: Python<'_>) -> PyResult<Self> {
                let client = RwLock::new(Some(usable(py, self.process, &self.client)?));
                let (node, cluster) = (self.node.clone(), self.cluster.clone());
                let (process, max_object_bytes) = (self.process, self.max_object_bytes);
                Ok(Self { process, node, cluster, max_object_bytes, client, progress: None })
            }

            fn tracked(&self, py: Python<'_>, progress: Py<Progress>) -> PyResult<Self> {
                Ok(Self { progress: Some(progress), ..self.share(py)? })
            }

            fn close(&self) {
                drop(self.client.write().unwrap_or_else(PoisonError::into_inner).take());
            }

            #[expect(clippy::too_many_arguments, reason = "they are those of Python, which names them")]
            #[pyo3(signature = (
                id, pieces, dtype, shape, user, timeout, confirm, replicas = 0, lifetime = None, quorum = false
            ))]
            fn put(
                &self,
                py: Python<'_>,
                id: Id,
                pieces: Vec<Input>,
                dtype: &str,
                shape: Option<Vec<u64>>,
                user: &[u8],
                timeout: Timeout,
                confirm: u8,
                replicas: u8,
                lifetime: Option<LifetimeArgument>,
                quorum: bool,
            ) -> PyResult<Py<PyAny>> {
                let id = id.within(py, &self.cluster)?;
                let replicas = Replicas { wanted: replicas, awaited: confirm, quorum };
                let lifetime = self.lifetime(py, lifetime)?;
                let options = put_options(py, dtype, shape, user, timeout, (replicas, lifetime))?;
                let keep = pieces.iter().map(Input::keep).collect();
                self.perform_with(py, Some(id.clone()), timeout.0, keep, |client| {
                    operations::put(client, id, pieces, options)
                })
            }

            #[expect(clippy::too_many_arguments, reason = "they are those of Python, which names them")]
            fn create(
                &self,
                py: Python<'_>,
                id: Id,
                size_bytes: u64,
                dtype: &str,
                shape: Option<Vec<u64>>,
                user: &[u8],
                timeout: Timeout,
                confirm: u8,
                replicas: u8,
                lifetime: Option<LifetimeArgument>,
                quorum: bool,
            ) -> PyResult<Py<PyAny>> {
                let id = id.within(py, &self.cluster)?;
                let replicas = Replicas { wanted: replicas, awaited: confirm, quorum };
                let lifetime = self.lifetime(py, lifetime)?;
                let options = put_options(py, dtype, shape, user, timeout, (replicas, lifetime))?;
                self.perform(py, Some(id.clone()), timeout.0, move |client| {
                    operations::create(client, id, size_bytes, options)
                })
            }

            fn write(&self, py: Python<'_>, writer: &Writer, piece: Input) -> PyResult<Py<PyAny>> {
                let (id, between) = (writer.id.clone(), writer.writer.clone());
                let writer = taken(&between).ok_or_else(|| PyValueError::new_err("the writer has ended"))?;
                let keep = vec![piece.keep()];
                self.perform_with(py, Some(id), Duration::ZERO, keep, move |_| operations::append(between, writer, piece))
            }

            fn seal(&self, py: Python<'_>, writer: &Writer) -> PyResult<Py<PyAny>> {
                let id = writer.id.clone();
                let writer = taken(&writer.writer).ok_or_else(|| PyValueError::new_err("the writer has ended"))?;
                self.perform(py, Some(id), Duration::ZERO, move |_| operations::seal(writer))
            }

            #[pyo3(signature = (id, timeout, allow_stale=false))]
            fn get(
                &self,
                py: Python<'_>,
                id: Id,
                timeout: Timeout,
                allow_stale: bool,
            ) -> PyResult<Py<PyAny>> {
                let id = id.within(py, &self.cluster)?;
                let options = GetOptions { timeout: timeout.0, allow_stale };
                self.perform(py, Some(id.clone()), timeout.0, move |client| operations::get(client, id, options))
            }

            fn check_count(&self, py: Python<'_>, objects: usize) -> PyResult<()> {
                let maximum = usable(py, self.process, &self.client)?.max_ids();
                hoplite_client::check_count(objects, maximum).map_err(|error| exception(py, &error))
            }

            #[pyo3(signature = (objects, timeout, confirm, replicas, lifetime = None))]
            fn put_many(
                &self,
                py: Python<'_>,
                objects: Vec<Described>,
                timeout: Timeout,
                confirm: u8,
                replicas: u8,
                lifetime: Option<LifetimeArgument>,
            ) -> PyResult<Py<PyAny>> {
                let lifetime = self.lifetime(py, lifetime)?;
                let replicas = Replicas { wanted: replicas, awaited: confirm, quorum: false };
                let objects = Objects::new(py, objects, &self.cluster, replicas, lifetime.as_ref())?;
                let options = put_options(py, "opaque", None, &[], timeout, (replicas, None))?;
                let keep = objects.keep();
                self.perform_with(py, None, timeout.0, keep, |client| operations::put_many(client, objects, options))
            }

            fn get_many(
                &self,
                py: Python<'_>,
                ids: Ids,
                timeout: Timeout,
                allow_stale: bool,
            ) -> PyResult<Py<PyAny>> {
                let ids = ids.within(py, &self.cluster)?;
                let options = GetOptions { timeout: timeout.0, allow_stale };
                self.perform(py, None, timeout.0, move |client| operations::get_many(client, ids, options))
            }

            fn delete_many(&self, py: Python<'_>, ids: Ids, timeout: Timeout) -> PyResult<Py<PyAny>> {
                let ids = ids.within(py, &self.cluster)?;
                self.perform(py, None, timeout.0, move |client| operations::delete_many(client, ids, timeout.0))
            }

            #[pyo3(signature = (id, timeout, allow_stale=false))]
            fn open(
                &self,
                py: Python<'_>,
                id: Id,
                timeout: Timeout,
                allow_stale: bool,
            ) -> PyResult<Py<PyAny>> {
                let id = id.within(py, &self.cluster)?;
                let options = GetOptions { timeout: timeout.0, allow_stale };
                self.perform(py, Some(id.clone()), timeout.0, move |client| operations::open(client, id, options))
            }

            fn read(
                &self,
                py: Python<'_>,
                reader: &Reader,
                out: Output,
                timeout: Timeout,
            ) -> PyResult<Py<PyAny>> {
                let (id, between) = (reader.id.clone(), reader.reader.clone());
                let reader = taken(&between).ok_or_else(|| PyValueError::new_err("the object was read already"))?;
                let left_bytes = reader.size_bytes() - reader.position_bytes();
                let keep = vec![out.keep()];
                if out.length() > left_bytes {
                    let said = format!("the object has {left_bytes} more bytes, not {}", out.length());
                    return Err(PyValueError::new_err(said));
                }
                self.perform_with(py, Some(id), timeout.0, keep, move |_| {
                    operations::read(between, reader, out, timeout.0)
                })
            }

            fn get_into(&self, py: Python<'_>, id: Id, out: Output, timeout: Timeout) -> PyResult<Py<PyAny>> {
                let id = id.within(py, &self.cluster)?;
                let keep = vec![out.keep()];
                self.perform_with(py, Some(id.clone()), timeout.0, keep, move |client| {
                    operations::get_into(client, id, out, timeout.0)
                })
            }

            fn gather(&self, py: Python<'_>, ids: Ids, timeout: Timeout) -> PyResult<Py<PyAny>> {
                let ids = ids.within(py, &self.cluster)?;
                self.perform(py, None, timeout.0, move |client| operations::gather(client, ids, timeout.0))
            }

            fn gather_into(
                &self,
                py: Python<'_>,
                ids: Ids,
                out: Output,
                timeout: Timeout,
            ) -> PyResult<Py<PyAny>> {
                let ids = ids.within(py, &self.cluster)?;
                let keep = vec![out.keep()];
                self.perform_with(py, None, timeout.0, keep, move |client| {
                    operations::gather_into(client, ids, out, timeout.0)
                })
            }

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
                let ids = ids.within(py, &self.cluster)?;
                let own = own_id(&ids, rank)?;
                let options = put_options(py, dtype, shape, user, timeout, Default::default())?;
                let keep = pieces.iter().map(Input::keep).collect();
                self.perform_with(py, Some(own.clone()), timeout.0, keep, move |client| {
                    operations::allgather(client, ids, own, pieces, options)
                })
            }

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
                replicas: u8,
                timeout: Timeout,
            ) -> PyResult<Py<PyAny>> {
                let target = target.within(py, &self.cluster)?;
                let sources = sources.within(py, &self.cluster)?;
                let options = ReduceOptions {
                    op: op.0,
                    num_objects,
                    order: order(deterministic),
                    range: byte_range.map(|(start, stop)| range(start, stop)),
                    replicas,
                    timeout: timeout.0,
                };
                self.perform(py, Some(target.clone()), timeout.0, move |client| {
                    operations::reduce(client, target, sources, options)
                })
            }

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
                let target = target.within(py, &self.cluster)?;
                let sources = sources.within(py, &self.cluster)?;
                own_id(&sources, rank)?;
                let options = AllreduceOptions {
                    op: op.0,
                    order: order(deterministic),
                    timeout: timeout.0,
                };
                let keep = vec![out.keep()];
                self.perform_with(py, Some(target.clone()), timeout.0, keep, move |client| {
                    operations::allreduce_into(client, target, sources, rank, out, options)
                })
            }

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
                let target = target.within(py, &self.cluster)?;
                let sources = sources.within(py, &self.cluster)?;
                own_id(&sources, rank)?;
                let options = AllreduceOptions {
                    op: op.0,
                    order: order(deterministic),
                    timeout: timeout.0,
                };
                let keep = vec![out.keep()];
                self.perform_with(py, Some(target.clone()), timeout.0, keep, move |client| {
                    operations::reduce_scatter_into(client, target, sources, rank, out, options)
                })
            }

            fn allgather_into(
                &self,
                py: Python<'_>,
                target: Id,
                sources: Ids,
                rank: usize,
                out: Output,
                timeout: Timeout,
            ) -> PyResult<Py<PyAny>> {
                let target = target.within(py, &self.cluster)?;
                let sources = sources.within(py, &self.cluster)?;
                own_id(&sources, rank)?;
                let keep = vec![out.keep()];
                self.perform_with(py, Some(target.clone()), timeout.0, keep, move |client| {
                    operations::allgather_into(client, target, sources, rank, out, timeout.0)
                })
            }

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
                let name = name.within(py, &self.cluster)?;
                let options = put_options(py, dtype, shape, user, timeout, Default::default())?;
                let keep = parts.iter().flatten().map(Input::keep).collect();
                self.perform_with(py, Some(name.clone()), timeout.0, keep, move |client| {
                    operations::all_to_all(client, name, parts, rank, options)
                })
            }

            fn barrier(
                &self,
                py: Python<'_>,
                name: Id,
                participants: usize,
                rank: usize,
                timeout: Timeout,
            ) -> PyResult<Py<PyAny>> {
                let name = name.within(py, &self.cluster)?;
                self.perform(py, Some(name.clone()), timeout.0, move |client| {
                    operations::barrier(client, name, participants, rank, timeout.0)
                })
            }

            /// Returns the number of deleted objects, a few lost nodes that may have copies, and
            /// the number of all such nodes.
            #[pyo3(signature = (ids, timeout, wait_all = false))]
            fn delete(&self, py: Python<'_>, ids: Ids, timeout: Timeout, wait_all: bool) -> PyResult<Py<PyAny>> {
                let ids = ids.within(py, &self.cluster)?;
                let about = if let [id] = &ids[..] { Some(id.clone()) } else { None };
                self.perform(py, about, timeout.0, move |client| operations::delete(client, ids, timeout.0, wait_all))
            }

            fn wait(&self, py: Python<'_>, ids: Ids, count: usize, timeout: Timeout) -> PyResult<Py<PyAny>> {
                let ids = ids.within(py, &self.cluster)?;
                self.perform(py, None, timeout.0, move |client| operations::wait(client, ids, count, timeout.0))
            }

            fn contains(&self, py: Python<'_>, id: Id) -> PyResult<Py<PyAny>> {
                let id = id.within(py, &self.cluster)?;
                self.perform(py, Some(id.clone()), REPORT_TIMEOUT, move |client| operations::contains(client, id))
            }

            fn locate(&self, py: Python<'_>, id: Id, timeout: Timeout) -> PyResult<Py<PyAny>> {
                let id = id.within(py, &self.cluster)?;
                self.perform(py, Some(id.clone()), timeout.0, move |client| operations::locate(client, id, timeout.0))
            }

            fn describe(&self, py: Python<'_>, id: Id) -> PyResult<Py<PyAny>> {
                let id = id.within(py, &self.cluster)?;
                self.perform(py, Some(id.clone()), REPORT_TIMEOUT, move |client| operations::describe(client, id))
            }

            /// Returns a page, and the id after which the next page begins.
            fn list(
                &self,
                py: Python<'_>,
                prefix: Vec<u8>,
                after: Vec<u8>,
                limit: usize,
            ) -> PyResult<Py<PyAny>> {
                self.perform(py, None, REPORT_TIMEOUT, move |client| operations::list(client, prefix, after, limit))
            }

            fn status(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
                self.perform(py, None, REPORT_TIMEOUT, operations::status)
            }
        }
    };
}

methods!(Client);
methods!(AsyncClient, 'static);

fn own_id(ids: &[ObjectId], rank: usize) -> PyResult<ObjectId> {
    let own = ids.get(rank).cloned();
    own.ok_or_else(|| PyValueError::new_err("a rank is less than the number of participants"))
}
