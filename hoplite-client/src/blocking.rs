//! The blocking client: the asynchronous one on a runtime of its own.
//!
//! The runtime has no thread: whoever calls drives it. So a call costs no hand-over between threads, and any number of
//! threads may call at once. What arrives while nobody calls is received at the next call.
//!
//! # Panics
//! Every method that waits panics if it is called from a task of a tokio runtime, which it would block. Use
//! [`hoplite_client::Client`](crate::Client) there.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::shard::Locations;
use hoplite_core::{Metadata, NodeId, PutId};
use hoplite_proto::v1;
use tokio::runtime::Runtime;

use crate::client::Page;
use crate::error::{ConnectFailure, Error, Result};
use crate::options::{ConnectOptions, PutOptions};
use crate::view::ObjectView;

/// A connection to the store of this node, for threads.
///
/// Cheap to clone; clones share the connection. Errors and semantics are those of [`crate::Client`].
#[derive(Debug, Clone)]
pub struct Client {
    client: crate::Client,
    driver: Arc<Driver>,
}

impl Client {
    /// Connects to the store that listens at `socket`; see [`crate::Client::connect`].
    ///
    /// # Errors
    /// [`Error::Connect`].
    pub fn connect(socket: impl AsRef<Path>) -> Result<Self> {
        let socket = socket.as_ref().to_owned();
        Self::connect_with(ConnectOptions { socket, ..ConnectOptions::default() })
    }

    /// Connects as `options` say; see [`crate::Client::connect_with`].
    ///
    /// # Errors
    /// [`Error::Connect`].
    pub fn connect_with(options: ConnectOptions) -> Result<Self> {
        let driver = Arc::new(Driver::new(&options)?);
        let client = driver.run(crate::Client::connect_with(options))?;
        Ok(Self { client, driver })
    }

    /// The name of the node whose store this is.
    pub fn node(&self) -> &NodeId {
        self.client.node()
    }

    /// See [`crate::Client::inline_below_bytes`].
    pub fn inline_below_bytes(&self) -> u64 {
        self.client.inline_below_bytes()
    }

    /// Puts plain bytes; see [`crate::Client::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put(&self, id: impl AsRef<[u8]>, bytes: &[u8]) -> Result<()> {
        self.driver.run(self.client.put(id, bytes))
    }

    /// Puts an object; see [`crate::Client::put_with`].
    ///
    /// # Errors
    /// As there.
    pub fn put_with(&self, id: impl AsRef<[u8]>, bytes: &[u8], options: PutOptions) -> Result<()> {
        self.driver.run(self.client.put_with(id, bytes, options))
    }

    /// Makes room for an object to be written piece by piece; see [`crate::Client::create`].
    ///
    /// # Errors
    /// As there.
    pub fn create(&self, id: impl AsRef<[u8]>, size_bytes: u64, options: PutOptions) -> Result<ObjectWriter> {
        let writer = self.driver.run(self.client.create(id, size_bytes, options))?;
        Ok(ObjectWriter { writer, driver: Arc::clone(&self.driver) })
    }

    /// Gets a zero-copy view; see [`crate::Client::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&self, id: impl AsRef<[u8]>, timeout: Duration) -> Result<ObjectView> {
        self.driver.run(self.client.get(id, timeout))
    }

    /// Copies an object into `out` while it arrives; see [`crate::Client::get_into`].
    ///
    /// # Errors
    /// As there.
    pub fn get_into(&self, id: impl AsRef<[u8]>, out: &mut [u8], timeout: Duration) -> Result<usize> {
        self.driver.run(self.client.get_into(id, out, timeout))
    }

    /// Copies an object into a new vector while it arrives; see [`crate::Client::get_vec`].
    ///
    /// # Errors
    /// As there.
    pub fn get_vec(&self, id: impl AsRef<[u8]>, timeout: Duration) -> Result<Vec<u8>> {
        self.driver.run(self.client.get_vec(id, timeout))
    }

    /// Reads an object while it arrives; see [`crate::Client::get_reader`].
    ///
    /// # Errors
    /// As there.
    pub fn get_reader(&self, id: impl AsRef<[u8]>, timeout: Duration) -> Result<ObjectReader> {
        let reader = self.driver.run(self.client.get_reader(id, timeout))?;
        Ok(ObjectReader { reader, driver: Arc::clone(&self.driver) })
    }

    /// Removes every copy of each object; see [`crate::Client::delete`].
    ///
    /// # Errors
    /// As there.
    pub fn delete<I>(&self, ids: I, timeout: Duration) -> Result<usize>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.driver.run(self.client.delete(ids, timeout))
    }

    /// Waits for some of several objects; see [`crate::Client::wait`].
    ///
    /// # Errors
    /// As there.
    pub fn wait<I>(&self, ids: I, count: usize, timeout: Duration) -> Result<Vec<usize>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.driver.run(self.client.wait(ids, count, timeout))
    }

    /// Whether all bytes of an object are somewhere in the cluster; see [`crate::Client::contains`].
    ///
    /// # Errors
    /// As there.
    pub fn contains(&self, id: impl AsRef<[u8]>) -> Result<bool> {
        self.driver.run(self.client.contains(id))
    }

    /// Waits until an object has a location; see [`crate::Client::locate`].
    ///
    /// # Errors
    /// As there.
    pub fn locate(&self, id: impl AsRef<[u8]>, timeout: Duration) -> Result<Locations> {
        self.driver.run(self.client.locate(id, timeout))
    }

    /// Follows where an object is; see [`crate::Client::watch`].
    ///
    /// # Errors
    /// As there.
    pub fn watch(&self, id: impl AsRef<[u8]>) -> Result<LocationWatch> {
        Ok(LocationWatch { watch: self.client.watch(id)?, driver: Arc::clone(&self.driver) })
    }

    /// Lists objects; see [`crate::Client::list`].
    ///
    /// # Errors
    /// As there.
    pub fn list(&self, prefix: impl AsRef<[u8]>, after: impl AsRef<[u8]>, limit: usize) -> Result<Page> {
        self.driver.run(self.client.list(prefix, after, limit))
    }

    /// All that the directory knows of one object; see [`crate::Client::describe`].
    ///
    /// # Errors
    /// As there.
    pub fn describe(&self, id: impl AsRef<[u8]>) -> Result<v1::response::Description> {
        self.driver.run(self.client.describe(id))
    }

    /// The counters of this node's store; see [`crate::Client::status`].
    ///
    /// # Errors
    /// As there.
    pub fn status(&self) -> Result<v1::NodeStatus> {
        self.driver.run(self.client.status())
    }
}

/// An object that is being written; see [`crate::ObjectWriter`].
#[derive(Debug)]
pub struct ObjectWriter {
    writer: crate::ObjectWriter,
    driver: Arc<Driver>,
}

impl ObjectWriter {
    /// Appends `bytes`; see [`crate::ObjectWriter::write`].
    ///
    /// # Errors
    /// As there.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write(bytes)
    }

    /// How many bytes were written so far.
    pub fn written_bytes(&self) -> u64 {
        self.writer.written_bytes()
    }

    /// Declares the object complete; see [`crate::ObjectWriter::seal`].
    ///
    /// # Errors
    /// As there.
    pub fn seal(self) -> Result<()> {
        self.driver.run(self.writer.seal())
    }
}

/// Reads an object while it arrives; see [`crate::ObjectReader`].
#[derive(Debug)]
pub struct ObjectReader {
    reader: crate::ObjectReader,
    driver: Arc<Driver>,
}

impl ObjectReader {
    /// The size of the whole object, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.reader.size_bytes()
    }

    /// How many bytes were read so far.
    pub fn position_bytes(&self) -> u64 {
        self.reader.position_bytes()
    }

    /// What was put together with the bytes.
    pub fn metadata(&self) -> &Metadata {
        self.reader.metadata()
    }

    /// Which put made the object.
    pub fn put_id(&self) -> PutId {
        self.reader.put_id()
    }

    /// Copies the next bytes into `out`; see [`crate::ObjectReader::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&mut self, out: &mut [u8], timeout: Duration) -> Result<usize> {
        self.driver.run(self.reader.read(out, timeout))
    }
}

/// The locations of one object, now and at every change; see [`crate::LocationWatch`].
#[derive(Debug)]
pub struct LocationWatch {
    watch: crate::LocationWatch,
    driver: Arc<Driver>,
}

impl Iterator for LocationWatch {
    type Item = Result<Locations>;

    /// Waits for the next state; see [`crate::LocationWatch::next`]. There is no timeout.
    fn next(&mut self) -> Option<Self::Item> {
        self.driver.run(self.watch.next())
    }
}

/// The runtime. Gone when the client and everything of it that waits is gone; views do not need it.
struct Driver {
    /// Always there until `drop`.
    runtime: Option<Runtime>,
    process: u32,
}

impl Driver {
    fn new(options: &ConnectOptions) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::Connect {
            path: options.socket.clone(),
            kind: ConnectFailure::System { kind: error.kind() },
        })?;
        Ok(Self { runtime: Some(runtime), process: std::process::id() })
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.as_ref().expect("the runtime is taken only by drop").block_on(future)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        if self.process == std::process::id() {
            // Not an ordinary drop, which panics inside another runtime.
            runtime.shutdown_background();
        } else {
            // A forked child shares the epoll instance with its parent, who still needs it.
            std::mem::forget(runtime);
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}
