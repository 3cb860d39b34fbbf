//! Blocking client: the calling thread drives the asynchronous client, without a further thread or
//! runtime.
//!
//! In an asynchronous runtime, use [`crate::Client`].

mod calls;

use std::convert::Infallible;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use hoplite_core::lifetime::Owner;
use hoplite_core::shard::Locations;
use hoplite_core::{ClusterId, Metadata, NodeId, PutId, Version};

use crate::batch::Results;
use crate::begun::{Access, REPORT_TIMEOUT, Single, User};
use crate::connection::{Connection, Pump, handshake};
use crate::error::Result;
use crate::link::{Line, Link, reconnect_deadline};
use crate::options::{ConnectOptions, GetOptions, PutOptions};
use crate::timeout::checked_default;
use crate::view::ObjectView;

/// First pause between two looks for the end of another thread's reconnection. Pauses double.
const FIRST_TURN_PAUSE: Duration = Duration::from_millis(1);
const MAX_TURN_PAUSE: Duration = Duration::from_millis(50);

/// A connection to the store of this node, for any number of threads at once.
///
/// Clones share the connection. For errors see [`crate::Client`].
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    link: Link<Arc<Piped>>,
    turn: Mutex<()>,
}

#[derive(Debug)]
struct Piped {
    connection: Arc<Connection>,
    user: User,
    pump: Arc<Pump>,
}

impl Piped {
    fn new(greeted: handshake::Greeted, options: &ConnectOptions) -> Result<Arc<Self>> {
        let (connection, pump) = Connection::pumped(greeted)?;
        Ok(Arc::new(Self { connection, user: User::from(options), pump: Arc::new(pump) }))
    }

    /// Returns a client for one call, which has waited for the connection.
    fn client(&self, waited: Duration) -> crate::Client {
        let (connection, user) = (Arc::clone(&self.connection), self.user);
        crate::Client { access: Access::Single(Single { connection, user, waited }) }
    }
}

impl Line for Arc<Piped> {
    fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Client {
    /// See [`crate::Client::connect`].
    pub fn connect(socket: impl AsRef<Path>) -> Result<Self> {
        let socket = socket.as_ref().to_owned();
        Self::connect_with(ConnectOptions { socket, ..ConnectOptions::default() })
    }

    /// See [`crate::Client::connect_with`].
    pub fn connect_with(options: ConnectOptions) -> Result<Self> {
        checked_default()?;
        let options = options.with_own_owner();
        let piped = Piped::new(handshake::greet(&options, options.timeout)?, &options)?;
        let link = Link::new(options, piped);
        Ok(Self { shared: Arc::new(Shared { link, turn: Mutex::new(()) }) })
    }

    /// See [`crate::Client::node`].
    pub fn node(&self) -> NodeId {
        self.shared.link.current().connection.node().clone()
    }

    /// See [`crate::Client::cluster`].
    pub fn cluster(&self) -> ClusterId {
        self.shared.link.current().connection.cluster().clone()
    }

    /// See [`crate::Client::owner`].
    pub fn owner(&self) -> Owner {
        self.shared.link.current().connection.owner().clone()
    }

    /// See [`crate::Client::protocol`].
    pub fn protocol(&self) -> Version {
        self.shared.link.current().connection.version()
    }

    /// See [`crate::Client::max_object_bytes`].
    pub fn max_object_bytes(&self) -> u64 {
        self.shared.link.current().connection.max_object_bytes()
    }

    /// See [`crate::Client::confirmed_from_bytes`].
    pub fn confirmed_from_bytes(&self) -> u64 {
        self.shared.link.current().connection.confirmed_from_bytes()
    }

    /// See [`crate::Client::max_ids`].
    pub fn max_ids(&self) -> usize {
        self.shared.link.current().connection.max_ids()
    }

    /// See [`crate::Client::is_connected`].
    pub fn is_connected(&self) -> bool {
        self.shared.link.is_connected()
    }

    /// See [`crate::Client::create`].
    pub fn create(
        &self,
        id: impl AsRef<[u8]>,
        size_bytes: u64,
        options: PutOptions,
    ) -> Result<ObjectWriter> {
        let (piped, client) = self.shared.connected(options.timeout)?;
        let writer = piped.pump.run(client.create(id, size_bytes, options))?;
        Ok(ObjectWriter { writer, pump: Arc::clone(&piped.pump) })
    }

    /// See [`crate::Client::get_reader`].
    pub fn get_reader(&self, id: impl AsRef<[u8]>, timeout: Duration) -> Result<ObjectReader> {
        self.get_reader_with(id, timeout.into())
    }

    /// See [`crate::Client::get_reader_with`].
    pub fn get_reader_with(
        &self,
        id: impl AsRef<[u8]>,
        options: GetOptions,
    ) -> Result<ObjectReader> {
        let (piped, client) = self.shared.connected(options.timeout)?;
        let reader = piped.pump.run(client.get_reader_with(id, options))?;
        Ok(ObjectReader { reader, pump: Arc::clone(&piped.pump) })
    }

    /// See [`crate::Client::get_many`].
    pub fn get_many(
        &self,
        ids: impl IntoIterator<Item: AsRef<[u8]>>,
        options: impl Into<GetOptions>,
    ) -> Result<Results<ObjectView>> {
        let options = options.into();
        let (piped, client) = self.shared.connected(options.timeout)?;
        piped.pump.run(client.get_many(ids, options))
    }

    /// See [`crate::Client::watch`].
    pub fn watch(&self, id: impl AsRef<[u8]>) -> Result<LocationWatch> {
        let (piped, client) = self.shared.connected(REPORT_TIMEOUT)?;
        let watch = piped.pump.run(client.watch(id))?;
        Ok(LocationWatch { watch, pump: Arc::clone(&piped.pump) })
    }

    /// Performs `work` in this thread, and calls `pause` at every `interval` while `work` waits. If
    /// `pause` fails, `work` is dropped, which cancels its calls. `timeout` limits only the wait
    /// for a lost store, before `work` begins.
    ///
    /// For programs with other duties, such as delivering signals. `work` may use one connection,
    /// but nothing that needs a tokio runtime. A wait for a store counts towards each call of
    /// `work`.
    ///
    /// # Errors
    /// The error of `pause`.
    pub fn drive<T, E>(
        &self,
        timeout: Duration,
        interval: Duration,
        mut pause: impl FnMut() -> Result<(), E>,
        work: impl AsyncFnOnce(&crate::Client) -> Result<T>,
    ) -> Result<Result<T>, E> {
        let sleep = |time: Duration| {
            let ends = Instant::now() + time;
            loop {
                let left = ends.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(());
                }
                thread::sleep(left.min(interval));
                pause()?;
            }
        };
        let (piped, client) = match self.shared.connected_with(timeout, sleep)? {
            Ok(connected) => connected,
            Err(error) => return Ok(Err(error)),
        };
        piped.pump.run(async {
            let mut work = pin!(work(&client));
            loop {
                match piped.connection.within(interval, work.as_mut()).await {
                    Some(output) => return Ok(output),
                    None => pause()?,
                }
            }
        })
    }
}

impl Shared {
    fn connected(&self, timeout: Duration) -> Result<(Arc<Piped>, crate::Client)> {
        let sleep = |time| {
            thread::sleep(time);
            Ok::<_, Infallible>(())
        };
        match self.connected_with(timeout, sleep) {
            Ok(connected) => connected,
        }
    }

    fn connected_with<E>(
        &self,
        timeout: Duration,
        mut sleep: impl FnMut(Duration) -> Result<(), E>,
    ) -> Result<Result<(Arc<Piped>, crate::Client)>, E> {
        let with_client = |piped: Arc<Piped>, waited| {
            let client = piped.client(waited);
            (piped, client)
        };
        match self.link.ready() {
            Ok(Some(piped)) => return Ok(Ok(with_client(piped, Duration::ZERO))),
            Ok(None) => {}
            Err(error) => return Ok(Err(error)),
        }
        let deadline = reconnect_deadline(timeout);
        let waited = || deadline.started().elapsed();
        let mut pause = FIRST_TURN_PAUSE;
        let _turn = loop {
            match self.turn.try_lock() {
                Ok(turn) => break turn,
                Err(TryLockError::Poisoned(turn)) => break turn.into_inner(),
                Err(TryLockError::WouldBlock) if deadline.left().is_zero() => {
                    return Ok(Err(self.link.turn_timeout(deadline)));
                }
                Err(TryLockError::WouldBlock) => {
                    sleep(pause.min(deadline.left()))?;
                    pause = (2 * pause).min(MAX_TURN_PAUSE);
                }
            }
        };
        match self.link.ready() {
            Ok(Some(piped)) => return Ok(Ok(with_client(piped, waited()))),
            Ok(None) => {}
            Err(error) => return Ok(Err(error)),
        }
        let options = self.link.options();
        let greeted = self.link.greet_with(deadline, sleep)?;
        let piped = greeted.and_then(|greeted| Piped::new(greeted, options));
        Ok(piped.map(|piped| {
            self.link.replace(Arc::clone(&piped));
            with_client(piped, waited())
        }))
    }
}

/// See [`crate::ObjectWriter`].
#[derive(Debug)]
pub struct ObjectWriter {
    writer: crate::ObjectWriter,
    pump: Arc<Pump>,
}

impl ObjectWriter {
    /// See [`crate::ObjectWriter::write`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write(bytes)
    }

    /// Bytes written so far.
    pub fn written_bytes(&self) -> u64 {
        self.writer.written_bytes()
    }

    /// See [`crate::ObjectWriter::seal`].
    pub fn seal(self) -> Result<()> {
        self.pump.run(self.writer.seal())
    }
}

/// See [`crate::ObjectReader`].
#[derive(Debug)]
pub struct ObjectReader {
    reader: crate::ObjectReader,
    pump: Arc<Pump>,
}

impl ObjectReader {
    /// See [`crate::ObjectReader::size_bytes`].
    pub fn size_bytes(&self) -> u64 {
        self.reader.size_bytes()
    }

    /// Bytes read so far.
    pub fn position_bytes(&self) -> u64 {
        self.reader.position_bytes()
    }

    /// Metadata of the object.
    pub fn metadata(&self) -> &Metadata {
        self.reader.metadata()
    }

    /// Put that created the object.
    pub fn put_id(&self) -> PutId {
        self.reader.put_id()
    }

    /// See [`crate::ObjectView::is_stale`].
    pub fn is_stale(&self) -> bool {
        self.reader.is_stale()
    }

    /// See [`crate::ObjectReader::read`].
    pub fn read(&mut self, out: &mut [u8], timeout: Duration) -> Result<usize> {
        self.pump.run(self.reader.read(out, timeout))
    }
}

/// See [`crate::LocationWatch`].
#[derive(Debug)]
pub struct LocationWatch {
    watch: crate::LocationWatch,
    pump: Arc<Pump>,
}

impl LocationWatch {
    /// See [`crate::LocationWatch::next_within`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Locations>> {
        self.pump.run(self.watch.next_within(timeout))
    }
}

impl Iterator for LocationWatch {
    type Item = Result<Locations>;

    /// See [`crate::LocationWatch::next`]. Has no timeout.
    fn next(&mut self) -> Option<Self::Item> {
        self.pump.run(self.watch.next())
    }
}
