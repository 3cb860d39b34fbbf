//! The blocking client: the asynchronous one, driven by whoever calls.
//!
//! There is no thread behind it and no runtime: a call sends, sleeps until the answer is there, and receives it, in the
//! calling thread. Any number of threads may call at once. What arrives while nobody calls is received at the next call.
//!
//! In a task of an asynchronous runtime these calls would block all tasks of its thread: use [`crate::Client`] there.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::Locations;
use hoplite_core::{Metadata, NodeId, ObjectId, PutId};

use crate::client::Page;
use crate::connection::{Connection, Pump, handshake};
use crate::error::Result;
use crate::options::{AllreduceOptions, ConnectOptions, PutOptions, ReduceOptions};
use crate::report::{Description, NodeStatus};
use crate::view::ObjectView;

/// A connection to the store of this node, for threads.
///
/// Cheap to clone; clones share the connection. Errors and semantics are those of [`crate::Client`].
#[derive(Debug, Clone)]
pub struct Client {
    client: crate::Client,
    pump: Arc<Pump>,
}

impl Client {
    /// Connects to the store that listens at `socket`; see [`crate::Client::connect`].
    ///
    /// # Errors
    /// [`Error::Connect`](crate::Error::Connect).
    pub fn connect(socket: impl AsRef<Path>) -> Result<Self> {
        let socket = socket.as_ref().to_owned();
        Self::connect_with(ConnectOptions { socket, ..ConnectOptions::default() })
    }

    /// Connects as `options` say; see [`crate::Client::connect_with`].
    ///
    /// # Errors
    /// [`Error::Connect`](crate::Error::Connect).
    pub fn connect_with(options: ConnectOptions) -> Result<Self> {
        let (connection, pump) = Connection::pumped(handshake::greet(&options)?)?;
        Ok(Self { client: crate::Client::over(connection), pump: Arc::new(pump) })
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
        self.pump.run(self.client.put(id, bytes))
    }

    /// Puts an object; see [`crate::Client::put_with`].
    ///
    /// # Errors
    /// As there.
    pub fn put_with(&self, id: impl AsRef<[u8]>, bytes: &[u8], options: PutOptions) -> Result<()> {
        self.pump.run(self.client.put_with(id, bytes, options))
    }

    /// Makes room for an object to be written piece by piece; see [`crate::Client::create`].
    ///
    /// # Errors
    /// As there.
    pub fn create(&self, id: impl AsRef<[u8]>, size_bytes: u64, options: PutOptions) -> Result<ObjectWriter> {
        let writer = self.pump.run(self.client.create(id, size_bytes, options))?;
        Ok(ObjectWriter { writer, pump: Arc::clone(&self.pump) })
    }

    /// Gets a zero-copy view; see [`crate::Client::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&self, id: impl AsRef<[u8]>, timeout: Duration) -> Result<ObjectView> {
        self.pump.run(self.client.get(id, timeout))
    }

    /// Copies an object into `out` while it arrives; see [`crate::Client::get_into`].
    ///
    /// # Errors
    /// As there.
    pub fn get_into(&self, id: impl AsRef<[u8]>, out: &mut [u8], timeout: Duration) -> Result<usize> {
        self.pump.run(self.client.get_into(id, out, timeout))
    }

    /// Copies an object into a new vector while it arrives; see [`crate::Client::get_vec`].
    ///
    /// # Errors
    /// As there.
    pub fn get_vec(&self, id: impl AsRef<[u8]>, timeout: Duration) -> Result<Vec<u8>> {
        self.pump.run(self.client.get_vec(id, timeout))
    }

    /// Reads an object while it arrives; see [`crate::Client::get_reader`].
    ///
    /// # Errors
    /// As there.
    pub fn get_reader(&self, id: impl AsRef<[u8]>, timeout: Duration) -> Result<ObjectReader> {
        let reader = self.pump.run(self.client.get_reader(id, timeout))?;
        Ok(ObjectReader { reader, pump: Arc::clone(&self.pump) })
    }

    /// Removes every copy of each object; see [`crate::Client::delete`].
    ///
    /// # Errors
    /// As there.
    pub fn delete<I>(&self, ids: I, timeout: Duration) -> Result<usize>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.pump.run(self.client.delete(ids, timeout))
    }

    /// Waits for some of several objects; see [`crate::Client::wait`].
    ///
    /// # Errors
    /// As there.
    pub fn wait<I>(&self, ids: I, count: usize, timeout: Duration) -> Result<Vec<usize>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.pump.run(self.client.wait(ids, count, timeout))
    }

    /// Reduces all of several arrays into one; see [`crate::Client::reduce`].
    ///
    /// # Errors
    /// As there.
    pub fn reduce<I>(
        &self,
        target: impl AsRef<[u8]>,
        sources: I,
        op: ReduceOp,
        timeout: Duration,
    ) -> Result<Vec<ObjectId>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.pump.run(self.client.reduce(target, sources, op, timeout))
    }

    /// Reduces several arrays into one; see [`crate::Client::reduce_with`].
    ///
    /// # Errors
    /// As there.
    pub fn reduce_with<I>(
        &self,
        target: impl AsRef<[u8]>,
        sources: I,
        options: ReduceOptions,
    ) -> Result<Vec<ObjectId>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.pump.run(self.client.reduce_with(target, sources, options))
    }

    /// Gets views of several objects at once; see [`crate::Client::gather`].
    ///
    /// # Errors
    /// As there.
    pub fn gather<I>(&self, ids: I, timeout: Duration) -> Result<Vec<ObjectView>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.pump.run(self.client.gather(ids, timeout))
    }

    /// Copies several objects, one after the other, into `out` while they arrive; see [`crate::Client::gather_into`].
    ///
    /// # Errors
    /// As there.
    pub fn gather_into<I>(&self, ids: I, out: &mut [u8], timeout: Duration) -> Result<Vec<usize>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.pump.run(self.client.gather_into(ids, out, timeout))
    }

    /// Puts one object and gets views of all; see [`crate::Client::allgather`].
    ///
    /// # Errors
    /// As there.
    pub fn allgather<I>(
        &self,
        ids: I,
        rank: usize,
        bytes: &[u8],
        options: PutOptions,
    ) -> Result<Vec<ObjectView>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.pump.run(self.client.allgather(ids, rank, bytes, options))
    }

    /// Reduces the objects of all participants, and returns the result to each; see [`crate::Client::allreduce`].
    ///
    /// # Errors
    /// As there.
    pub fn allreduce<I>(
        &self,
        target: impl AsRef<[u8]>,
        sources: I,
        rank: usize,
        options: AllreduceOptions,
    ) -> Result<Vec<u8>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.pump.run(self.client.allreduce(target, sources, rank, options))
    }

    /// Reduces the objects of all participants into the front of each one's `out`; see [`crate::Client::allreduce_into`].
    ///
    /// # Errors
    /// As there.
    pub fn allreduce_into<I>(
        &self,
        target: impl AsRef<[u8]>,
        sources: I,
        rank: usize,
        out: &mut [u8],
        options: AllreduceOptions,
    ) -> Result<usize>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.pump.run(self.client.allreduce_into(target, sources, rank, out, options))
    }

    /// Whether all bytes of an object are somewhere in the cluster; see [`crate::Client::contains`].
    ///
    /// # Errors
    /// As there.
    pub fn contains(&self, id: impl AsRef<[u8]>) -> Result<bool> {
        self.pump.run(self.client.contains(id))
    }

    /// Waits until an object has a location; see [`crate::Client::locate`].
    ///
    /// # Errors
    /// As there.
    pub fn locate(&self, id: impl AsRef<[u8]>, timeout: Duration) -> Result<Locations> {
        self.pump.run(self.client.locate(id, timeout))
    }

    /// Follows where an object is; see [`crate::Client::watch`].
    ///
    /// # Errors
    /// As there.
    pub fn watch(&self, id: impl AsRef<[u8]>) -> Result<LocationWatch> {
        Ok(LocationWatch { watch: self.client.watch(id)?, pump: Arc::clone(&self.pump) })
    }

    /// Lists objects; see [`crate::Client::list`].
    ///
    /// # Errors
    /// As there.
    pub fn list(&self, prefix: impl AsRef<[u8]>, after: impl AsRef<[u8]>, limit: usize) -> Result<Page> {
        self.pump.run(self.client.list(prefix, after, limit))
    }

    /// All that the directory knows of one object; see [`crate::Client::describe`].
    ///
    /// # Errors
    /// As there.
    pub fn describe(&self, id: impl AsRef<[u8]>) -> Result<Description> {
        self.pump.run(self.client.describe(id))
    }

    /// The counters of this node's store; see [`crate::Client::status`].
    ///
    /// # Errors
    /// As there.
    pub fn status(&self) -> Result<NodeStatus> {
        self.pump.run(self.client.status())
    }

    /// Performs `work`, any calls of the asynchronous client that it is given, in this thread, and calls `pause` every
    /// `interval` while it waits. If that fails, `work` is dropped, which cancels its calls.
    ///
    /// For hosts that have to look after something else while a thread is blocked here, such as the interpreter of a
    /// language that delivers signals between its instructions. `work` may not use what needs a tokio runtime.
    ///
    /// # Errors
    /// That of `pause`.
    pub fn drive<T, E>(
        &self,
        interval: Duration,
        mut pause: impl FnMut() -> Result<(), E>,
        work: impl AsyncFnOnce(&crate::Client) -> T,
    ) -> Result<T, E> {
        self.pump.run(async {
            let mut work = pin!(work(&self.client));
            loop {
                match self.client.connection.within(interval, work.as_mut()).await {
                    Some(output) => return Ok(output),
                    None => pause()?,
                }
            }
        })
    }
}

/// An object that is being written; see [`crate::ObjectWriter`].
#[derive(Debug)]
pub struct ObjectWriter {
    writer: crate::ObjectWriter,
    pump: Arc<Pump>,
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
        self.pump.run(self.writer.seal())
    }
}

/// Reads an object while it arrives; see [`crate::ObjectReader`].
#[derive(Debug)]
pub struct ObjectReader {
    reader: crate::ObjectReader,
    pump: Arc<Pump>,
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
        self.pump.run(self.reader.read(out, timeout))
    }
}

/// The locations of one object, now and at every change; see [`crate::LocationWatch`].
#[derive(Debug)]
pub struct LocationWatch {
    watch: crate::LocationWatch,
    pump: Arc<Pump>,
}

impl LocationWatch {
    /// Waits for the next state for at most `timeout`; see [`crate::LocationWatch::next_within`].
    ///
    /// # Errors
    /// As there.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Locations>> {
        self.pump.run(self.watch.next_within(timeout))
    }
}

impl Iterator for LocationWatch {
    type Item = Result<Locations>;

    /// Waits for the next state; see [`crate::LocationWatch::next`]. There is no timeout, other than with
    /// [`next_within`](Self::next_within).
    fn next(&mut self) -> Option<Self::Item> {
        self.pump.run(self.watch.next())
    }
}
