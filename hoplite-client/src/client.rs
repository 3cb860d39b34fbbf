use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::id::MAX_OBJECT_ID_BYTES;
use hoplite_core::node::{self, Inspection, Response, Until};
use hoplite_core::shard::Locations;
use hoplite_core::topology::probe::survey::{SurveyOptions, SurveyProgress};
use hoplite_core::{ClusterId, Error as ObjectError, NodeId, ObjectId, Operation, Version};
use hoplite_proto::local::{self, Request};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::begun::{Access, Begun, Lasting, REPORT_TIMEOUT, Repeat, Wait};
use crate::connection::{Connection, handshake};
use crate::error::{ConnectFailure, Error, Result};
use crate::location_watch::LocationWatch;
use crate::many;
use crate::options::{ConnectOptions, GetOptions, PutOptions};
use crate::progress;
use crate::reader::{self, ObjectReader};
use crate::report::{Description, NodeStatus, ProbeReport};
use crate::timeout::checked_default;
use crate::view::ObjectView;
use crate::writer::{self, ObjectWriter};

const PROBE_TIMEOUT: Duration = Duration::from_secs(60 * 60);
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// A connection to the store of this node.
///
/// Clones share the connection, which carries 4096 concurrent calls by default. Call methods from
/// any task, thread or runtime, while the runtime that created the client runs. An id has 1 to 255
/// arbitrary bytes: `"weights/7"`, `b"\x01"`, an [`ObjectId`].
///
/// # Errors
/// Every call can also return:
/// * [`Error::ConnectionLost`], as soon as the connection breaks;
/// * [`Error::Connect`], if the connection was lost and no store has come back;
/// * [`Error::ForkedChild`], `InvalidId` and `LimitExceeded`;
/// * `Timeout`, which the store reports. If the store is suspended, the client reports it 0.75 s
///   later, or within 6 s if a wait or a locate has a timeout of zero. Reconnecting counts towards
///   the timeout, and may take 0.75 s even if the timeout is shorter.
///
/// # Cancel safety
/// Dropping a future at any time cancels the call at the store.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) access: Access,
}

/// One page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Objects in the order of their ids.
    pub objects: Vec<Locations>,
    /// Argument `after` of [`Client::list`] for the next page; `None` at the end.
    pub next: Option<ObjectId>,
}

impl Begun {
    pub(crate) fn client(&self) -> Client {
        Client { access: Access::Inner(Arc::clone(&self.connection)) }
    }
}

impl Client {
    /// Connects to the store at `socket`, with default [`ConnectOptions`].
    ///
    /// # Errors
    /// [`Error::Connect`].
    pub async fn connect(socket: impl AsRef<Path>) -> Result<Self> {
        let socket = socket.as_ref().to_owned();
        Self::connect_with(ConnectOptions { socket, ..ConnectOptions::default() }).await
    }

    /// Connects as [`Client::connect`] does, with `options`. The caller's tokio runtime must have
    /// I/O and time enabled.
    pub async fn connect_with(options: ConnectOptions) -> Result<Self> {
        checked_default()?;
        let options = options.with_own_owner();
        let path = options.socket.clone();
        let (options, greeted) = spawn_blocking(move || {
            handshake::greet(&options, options.timeout).map(|greeted| (options, greeted))
        })
        .await
        .map_err(|_| Error::Connect {
            path,
            kind: ConnectFailure::System { kind: std::io::ErrorKind::Interrupted },
        })??;
        Ok(Self {
            access: Access::Lasting(Arc::new(Lasting::new(options, Connection::start(greeted)?))),
        })
    }

    /// Node name of the store, which may change when the store restarts.
    pub fn node(&self) -> NodeId {
        self.connection().node().clone()
    }

    /// Cluster name.
    pub fn cluster(&self) -> ClusterId {
        self.connection().cluster().clone()
    }

    /// Protocol version between this client and its store.
    pub fn protocol(&self) -> Version {
        self.connection().version()
    }

    /// Bytes of the largest object that the store can ever hold.
    pub fn max_object_bytes(&self) -> u64 {
        self.connection().max_object_bytes()
    }

    /// Size in bytes from which every put waits for the directory. Smaller puts wait if
    /// [`Confirmation`](crate::Confirmation) requires it.
    pub fn confirmed_from_bytes(&self) -> u64 {
        self.connection().confirmed_from_bytes()
    }

    /// Most objects (65,536 by default) in one call of [`Client::put_many`], [`Client::get_many`]
    /// or [`Client::delete_many`].
    pub fn max_ids(&self) -> usize {
        self.connection().max_ids()
    }

    /// Returns `true` unless the connection is known to be lost, or was inherited by a fork.
    ///
    /// After a loss, the next call may reconnect: see [`AfterLoss`](crate::AfterLoss).
    pub fn is_connected(&self) -> bool {
        self.access.is_connected()
    }

    pub(crate) fn connection(&self) -> Arc<Connection> {
        self.access.connection()
    }

    /// Connects if necessary, and subtracts the time for it from `timeout`.
    pub(crate) async fn begin(&self, timeout: &mut Duration) -> Result<Begun> {
        Begun::new(&self.access, timeout).await
    }

    pub(crate) async fn begin_report(&self) -> Result<Begun> {
        self.begin(&mut { REPORT_TIMEOUT }).await
    }

    /// Puts plain bytes as [`Client::put_with`] does, with the default [`PutOptions`].
    pub async fn put(&self, id: impl AsRef<[u8]>, bytes: &[u8]) -> Result<()> {
        self.put_with(id, bytes, PutOptions::default()).await
    }

    /// Puts `bytes` under `id`. Copies them once; receivers can read them during the copy. A put
    /// may be repeated with the same bytes and metadata.
    ///
    /// # Errors
    /// `AlreadyExists` if the id names another object; `InvalidMetadata`; `ObjectTooLarge`;
    /// `StoreFull` if no memory becomes free in time; `QuotaExceeded`; `Timeout` if another writer
    /// of the id, or the directory, takes longer.
    ///
    /// # Cancel safety
    /// The object is aborted, unless the store has all bytes.
    pub async fn put_with(
        &self,
        id: impl AsRef<[u8]>,
        bytes: &[u8],
        mut options: PutOptions,
    ) -> Result<()> {
        let (id, call) = (ObjectId::new(id)?, self.begin(&mut options.timeout).await?);
        let put = pin!(writer::put(&call.connection, id.clone(), bytes, options));
        call.run(Wait::of("put", &id), Repeat::Harmless, put).await
    }

    /// Reserves memory for an object, to be written piece by piece.
    ///
    /// # Errors
    /// See [`Client::put_with`].
    pub async fn create(
        &self,
        id: impl AsRef<[u8]>,
        size_bytes: u64,
        mut options: PutOptions,
    ) -> Result<ObjectWriter> {
        let (id, call) = (ObjectId::new(id)?, self.begin(&mut options.timeout).await?);
        let create = pin!(ObjectWriter::create(&call.connection, id.clone(), size_bytes, options));
        call.run(Wait::of("put", &id), Repeat::Harmless, create).await
    }

    /// Waits until the whole object is on this node, and returns a view of the store's memory, or
    /// of a copy if the object has at most 4 KiB.
    ///
    /// # Errors
    /// `Timeout`; `ObjectLost` if every copy is gone; `Deleted`; `StoreFull` if there is no memory
    /// for a copy; `ObjectTooLarge` if the object exceeds the store's memory.
    pub async fn get(&self, id: impl AsRef<[u8]>, timeout: Duration) -> Result<ObjectView> {
        self.get_with(id, timeout.into()).await
    }

    /// Acts as [`Client::get`]. If the options allow it, the object may be
    /// [stale](ObjectView::is_stale): already deleted or replaced.
    pub async fn get_with(
        &self,
        id: impl AsRef<[u8]>,
        mut options: GetOptions,
    ) -> Result<ObjectView> {
        let (id, call) = (ObjectId::new(id)?, self.begin(&mut options.timeout).await?);
        let GetOptions { timeout, allow_stale } = options;
        let request =
            node::Request::Get { id: id.clone(), until: Until::Contents, timeout, allow_stale };
        let get = pin!(async {
            if progress::is_tracked() {
                return reader::get_tracked(&call.connection, id.clone(), options).await;
            }
            match call.connection.call_node(request, Operation::Get, timeout).await? {
                Response::Object(view) => ObjectView::open(&call.connection, view),
                Response::Contents { view, bytes } => Ok(ObjectView::copied(view, &bytes)),
                _ => Err(call.connection.unexpected()),
            }
        });
        call.run(Wait::for_object("get", &id), Repeat::Harmless, get).await
    }

    /// Copies the object into the front of `out` while it arrives, and returns its length.
    ///
    /// # Errors
    /// The errors of [`Client::get`], and [`Error::BufferTooSmall`]. After an error, the contents
    /// of `out` are undefined.
    pub async fn get_into(
        &self,
        id: impl AsRef<[u8]>,
        out: &mut [u8],
        mut timeout: Duration,
    ) -> Result<usize> {
        let (id, call) = (ObjectId::new(id)?, self.begin(&mut timeout).await?);
        let get = pin!(reader::get_into(&call.connection, id.clone(), out, timeout));
        call.run(Wait::for_object("get", &id), Repeat::Harmless, get).await
    }

    /// Copies the object into a new vector while it arrives. Fails as [`Client::get`].
    pub async fn get_vec(&self, id: impl AsRef<[u8]>, mut timeout: Duration) -> Result<Vec<u8>> {
        let (id, call) = (ObjectId::new(id)?, self.begin(&mut timeout).await?);
        let get = pin!(reader::get_vec(&call.connection, id.clone(), timeout));
        call.run(Wait::for_object("get", &id), Repeat::Harmless, get).await
    }

    /// Waits for an object's first bytes. The reader follows the arriving bytes.
    ///
    /// # Errors
    /// See [`Client::get`].
    pub async fn get_reader(
        &self,
        id: impl AsRef<[u8]>,
        timeout: Duration,
    ) -> Result<ObjectReader> {
        self.get_reader_with(id, timeout.into()).await
    }

    /// Acts as [`Client::get_reader`]. If the options allow it, the object may be
    /// [stale](ObjectReader::is_stale).
    pub async fn get_reader_with(
        &self,
        id: impl AsRef<[u8]>,
        mut options: GetOptions,
    ) -> Result<ObjectReader> {
        let (id, call) = (ObjectId::new(id)?, self.begin(&mut options.timeout).await?);
        let open = pin!(ObjectReader::open_with(&call.connection, id.clone(), options));
        call.run(Wait::for_object("get", &id), Repeat::Harmless, open).await
    }

    /// Waits until `count` of the objects are available in the cluster. Returns their indices,
    /// ascending; fewer than `count` after a timeout.
    ///
    /// A timeout of zero queries the directory once, for up to 5 s.
    ///
    /// # Errors
    /// `InvalidRequest` if `count` is larger than the number of ids.
    pub async fn wait<I>(&self, ids: I, count: usize, mut timeout: Duration) -> Result<Vec<usize>>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let ids = checked(ids, usize::MAX)?;
        let call = self.begin(&mut timeout).await?;
        if count > ids.len() {
            return Err(ObjectError::invalid_request(
                "cannot wait for more objects than there are ids",
            )
            .into());
        }
        let wait = pin!(many::wait(&call.connection, ids.clone(), count, timeout));
        call.run(Wait::for_objects("wait", &ids), Repeat::Harmless, wait).await
    }

    /// Returns `true` if all bytes of the object are somewhere in the cluster.
    pub async fn contains(&self, id: impl AsRef<[u8]>) -> Result<bool> {
        match self.locate(id, Duration::ZERO).await {
            Ok(locations) => Ok(locations.is_available()),
            Err(Error::Object(ObjectError::ObjectLost { .. })) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until the object has a location (a node with a complete or partial copy), and returns
    /// all its locations. A timeout of zero returns the known locations.
    ///
    /// # Errors
    /// `Timeout`; `ObjectLost` if every copy is gone.
    pub async fn locate(&self, id: impl AsRef<[u8]>, mut timeout: Duration) -> Result<Locations> {
        let (id, call) = (ObjectId::new(id)?, self.begin(&mut timeout).await?);
        let request = node::Request::Locate { id: id.clone(), timeout };
        let locate = pin!(async {
            match call.connection.call_node(request, Operation::Locate, timeout).await? {
                Response::Locations(locations) => Ok(locations),
                _ => Err(call.connection.unexpected()),
            }
        });
        call.run(Wait::for_object("locate", &id), Repeat::Harmless, locate).await
    }

    /// Yields the object's present locations, and each change. A watch ends with its connection, or
    /// with an error that [`LocationWatch::next`] returns.
    pub async fn watch(&self, id: impl AsRef<[u8]>) -> Result<LocationWatch> {
        let (id, call) = (ObjectId::new(id)?, self.begin_report().await?);
        LocationWatch::open(&call.connection, id)
    }

    /// Lists at most `limit` objects, and at most 10,000, in the order of their ids. Their ids
    /// start with `prefix` and are greater than `after`.
    ///
    /// # Errors
    /// `InvalidId` if `prefix` or `after` is too long. `Unavailable` if a directory shard does not
    /// answer.
    pub async fn list(
        &self,
        prefix: impl AsRef<[u8]>,
        after: impl AsRef<[u8]>,
        limit: usize,
    ) -> Result<Page> {
        let bounded = |bytes: &[u8]| {
            if bytes.len() > MAX_OBJECT_ID_BYTES {
                return Err(ObjectError::InvalidId { length_bytes: bytes.len() });
            }
            Ok(Bytes::copy_from_slice(bytes))
        };
        let request = Inspection::List {
            prefix: bounded(prefix.as_ref())?,
            after: bounded(after.as_ref())?,
            limit,
        };
        let call = self.begin_report().await?;
        match call.report("list", None, request).await? {
            local::Response::Listing { objects, more } => {
                let next = more.then(|| objects.last().map(|last| last.id.clone())).flatten();
                Ok(Page { objects, next })
            }
            _ => Err(call.connection.unexpected()),
        }
    }

    /// Describes an object: its locations, and the senders assigned to receivers, with reasons.
    ///
    /// # Errors
    /// `Unavailable` if no directory shard of the object answers.
    pub async fn describe(&self, id: impl AsRef<[u8]>) -> Result<Description> {
        let id = ObjectId::new(id)?;
        let call = self.begin_report().await?;
        match call.report("describe", Some(&id), Inspection::Describe { id: id.clone() }).await? {
            local::Response::Description(description) => {
                Ok(Description::decode(&id, *description)?)
            }
            _ => Err(call.connection.unexpected()),
        }
    }

    /// Counters of this node's store and directory shards.
    pub async fn status(&self) -> Result<NodeStatus> {
        let call = self.begin_report().await?;
        match call.report("status", None, Inspection::Status).await? {
            local::Response::Status(status) => Ok((*status).into()),
            _ => Err(call.connection.unexpected()),
        }
    }

    /// Nodes of the cluster and their loads, from the first shard that answers.
    ///
    /// # Errors
    /// `Unavailable` if no shard answers.
    #[doc(hidden)]
    pub async fn directory_status(&self) -> Result<hoplite_proto::v1::StatusReply> {
        let call = self.begin_report().await?;
        match call.report("status", None, Inspection::Cluster).await? {
            local::Response::Cluster(status) => Ok(*status),
            _ => Err(call.connection.unexpected()),
        }
    }

    /// Measures the links between `nodes`, by default all. Calls `report_progress` a few times a
    /// second. Dropping the future ends the probe.
    ///
    /// # Errors
    /// `InvalidRequest` if a node is not connected, or if fewer than two nodes reach each other.
    /// `LimitExceeded` for more than 10,000 nodes, for more than 500 if the bandwidth of all pairs
    /// is measured, or during another probe of this store. `PermissionDenied` for a client that may
    /// only read; `options.apply` needs root or the store's user.
    pub async fn probe(
        &self,
        nodes: Vec<NodeId>,
        options: SurveyOptions,
        mut report_progress: impl FnMut(SurveyProgress),
    ) -> Result<ProbeReport> {
        let call = self.begin_report().await?;
        let request = Request::Node(node::Request::Inspect(Inspection::Probe { nodes, options }));
        let mut probe = pin!(call.connection.call(request, Operation::Connect, PROBE_TIMEOUT));
        loop {
            match timeout(PROGRESS_INTERVAL, &mut probe).await {
                Ok(answer) => {
                    return match answer? {
                        local::Response::Probed(probed) => {
                            ProbeReport::decode(*probed).ok_or_else(|| call.connection.unexpected())
                        }
                        _ => Err(call.connection.unexpected()),
                    };
                }
                Err(_) => {
                    if let local::Response::ProbeProgress(progress) =
                        call.report("probe", None, Inspection::ProbeProgress).await?
                    {
                        report_progress(progress);
                    }
                }
            }
        }
    }
}

pub(crate) fn checked(
    ids: impl IntoIterator<Item: AsRef<[u8]>>,
    maximum: usize,
) -> Result<Vec<ObjectId>> {
    let ids: Vec<ObjectId> = ids
        .into_iter()
        .take(maximum.saturating_add(1))
        .map(ObjectId::new)
        .collect::<std::result::Result<_, _>>()?;
    if ids.len() > maximum {
        return Err(ObjectError::limit_exceeded("ids in a request", maximum as u64).into());
    }
    Ok(ids)
}
