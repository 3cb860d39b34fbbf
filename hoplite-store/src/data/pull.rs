//! The receiver's side: pulls objects from other stores into copies of this one, and compares copies with theirs.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::plan::link::LinkEstimate;
use hoplite_core::plan::link::{Intake, LinkEstimator, RateSample};
use hoplite_core::shard::PullOutcome;
use hoplite_core::time::Time;
use hoplite_core::trace::TraceContext;
use hoplite_daemon::warn_repeated;
use hoplite_proto::data::frame::Kind;
use hoplite_proto::v1;
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

use super::call::{Call, CallError};
use super::config::{DataConfig, Sizes};
use super::connection::{ConnectionError, PeerConnection};
use super::digest::digest;
use super::faults::PeerReports;
use super::handshake;
use super::metrics::{DataMetrics, count};
use super::pool::{Peer, Pool};
use super::probe::Surveyor;
use super::stream::{Arrived, InputStream, RemoteCopy, Sink};
use crate::copies::LiveCopy;
use hoplite_net::TransportKind;

/// What to pull, and from whom.
#[derive(Debug, Clone)]
pub(crate) struct PullRequest {
    /// The object to pull.
    pub(crate) id: ObjectId,
    /// Which put of it.
    pub(crate) put: PutId,
    /// From which byte on: no further than the copy is valid.
    pub(crate) offset_bytes: u64,
    /// The store that has it.
    pub(crate) sender: NodeId,
    /// Where the sender listens.
    pub(crate) sender_address: SocketAddr,
    /// The span that has caused this.
    pub(crate) trace: Option<TraceContext>,
}

/// Which put to compare a local copy with, and who has it.
#[derive(Debug, Clone)]
pub(crate) struct CompareRequest {
    /// The id of both puts.
    pub(crate) id: ObjectId,
    /// The other put of it.
    pub(crate) put: PutId,
    /// The store that has it.
    pub(crate) holder: NodeId,
    /// Where the holder listens.
    pub(crate) holder_address: SocketAddr,
}

/// Pulls from other stores, and directs hops there, over pooled connections.
#[derive(Debug)]
pub(crate) struct Puller {
    pub(super) config: Arc<DataConfig>,
    pub(super) metrics: Arc<DataMetrics>,
    pub(super) pool: Pool,
    reports: Arc<PeerReports>,
    link: Arc<Mutex<LinkEstimator>>,
    /// What comes in just now.
    intake: Arc<Mutex<Intake>>,
    origin: Instant,
}

/// A transfer whose bytes come, until this is dropped.
struct Flow<'a>(&'a Puller);

impl<'a> Flow<'a> {
    fn begin(puller: &'a Puller) -> Self {
        puller.lock_intake().begin();
        Self(puller)
    }
}

impl Drop for Flow<'_> {
    fn drop(&mut self) {
        let ended = self.0.lock_intake().end();
        if let Some(sample) = ended {
            self.0.lock_link().took_in(sample);
        }
    }
}

impl Puller {
    /// A puller without any connection.
    pub(crate) fn new(config: Arc<DataConfig>, metrics: Arc<DataMetrics>) -> Self {
        let pool = Pool::new(config.max_idle_per_peer, config.pool_idle_timeout);
        let link = LinkEstimator::new(config.links.bytes_per_second, config.links.latency);
        let link = Arc::new(Mutex::new(link));
        let (reports, intake) = (Arc::default(), Arc::default());
        Self { config, metrics, pool, reports, link, intake, origin: Instant::now() }
    }

    /// Returns `true` if bytes go straight from sockets to the arena.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.config.transport, TransportKind::Plain)
    }

    /// Another one for small objects, with connections of its own: each belongs to the runtime in which it was made.
    pub(crate) fn for_small(&self) -> Self {
        let config = Arc::new(DataConfig { sizes: Sizes::Small, ..DataConfig::clone(&self.config) });
        let pool = Pool::new(config.max_idle_per_peer, config.pool_idle_timeout);
        let (metrics, link) = (Arc::clone(&self.metrics), Arc::clone(&self.link));
        let (reports, intake) = (Arc::clone(&self.reports), Arc::clone(&self.intake));
        Self { config, metrics, pool, reports, link, intake, origin: self.origin }
    }

    /// What coordinates probes of the network for the same store.
    pub(crate) fn surveyor(&self) -> Surveyor {
        Surveyor::new(Arc::clone(&self.config))
    }

    /// What the links to other stores do: as set, or as measured, or as one assumes before that.
    pub(crate) fn link(&self) -> LinkEstimate {
        self.lock_link().link()
    }

    /// Takes in what a transfer has shown of the links.
    pub(super) fn transferred(&self, sample: RateSample) {
        let mut link = self.lock_link();
        link.transferred(sample);
        if let Some(rate) = link.measured_rate() {
            self.metrics.received(rate);
        }
    }

    fn lock_link(&self) -> MutexGuard<'_, LinkEstimator> {
        // Each change is one store, so a panic elsewhere leaves it whole.
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_intake(&self) -> MutexGuard<'_, Intake> {
        // A count that a panic left wrong means samples that are too long, and say nothing.
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    /// Closes connections that have been idle for too long, until `shutdown`; then all of them.
    pub(crate) async fn maintain(&self, shutdown: CancellationToken) {
        let mut checks = interval(self.config.pool_idle_timeout / 2);
        while shutdown.run_until_cancelled(checks.tick()).await.is_some() {
            self.pool.expire();
        }
        self.pool.close();
    }

    /// Pulls the bytes of an object into `live` and advances it, until all have arrived or it has to end.
    ///
    /// Answers how many leading bytes of `live` are valid then, all of them checked, and how it ended. Nothing touches
    /// the copy's memory afterwards, nor when the future is dropped.
    pub(crate) async fn pull(
        &self,
        request: &PullRequest,
        live: &LiveCopy,
        cancel: &CancellationToken,
    ) -> (u64, PullOutcome) {
        let ended = cancel.run_until_cancelled(self.receive(request, live)).await;
        let valid_bytes = live.known_bytes().min(live.size_bytes());
        let all_arrived = valid_bytes == live.size_bytes();
        let outcome = match ended {
            None => PullOutcome::Cancelled,
            // However the transfer ended: each byte was checked on its own.
            Some(_) if all_arrived && request.offset_bytes < valid_bytes => PullOutcome::Complete,
            Some(outcome) => outcome,
        };
        tracing::debug!(
            id = %request.id, put = %request.put, sender = %request.sender, offset_bytes = request.offset_bytes,
            valid_bytes, ?outcome, "pulled"
        );
        (valid_bytes, outcome)
    }

    /// Receives the bytes of an object, from where `live` ends.
    async fn receive(&self, request: &PullRequest, live: &LiveCopy) -> PullOutcome {
        let size_bytes = live.size_bytes();
        let mut offset_bytes = request.offset_bytes.min(live.known_bytes());
        let copy = RemoteCopy {
            id: &request.id,
            put: request.put,
            size_bytes,
            node: &request.sender,
            address: request.sender_address,
            awaits_hop: false,
            trace: request.trace,
        };
        let mut stream = InputStream::new(self, copy, size_bytes, *live.signs().borrow());
        let (mut sample, mut flow) = (RateSample::default(), None);
        loop {
            let sink = Sink::Arena { buffer: live.buffer(), base_bytes: 0 };
            match stream.next(offset_bytes, sink).await {
                Ok(Arrived::Block { length_bytes }) => {
                    offset_bytes += length_bytes;
                    live.advance(offset_bytes);
                    let now = self.now();
                    sample.arrived(now, length_bytes);
                    flow.get_or_insert_with(|| Flow::begin(self));
                    self.lock_intake().arrived(now, length_bytes);
                }
                Ok(Arrived::Sign(sign)) => live.heard(sign),
                Ok(Arrived::End(end)) => {
                    self.transferred(sample);
                    return stream.ended(&end, offset_bytes == size_bytes);
                }
                Err(outcome) => return outcome,
            }
        }
    }

    /// What a failed transfer from `sender` means for the receiver of `id`.
    pub(super) fn outcome(&self, id: &ObjectId, sender: &NodeId, error: &CallError) -> PullOutcome {
        warn_repeated!(%id, %sender, %error, "a transfer failed");
        match error {
            CallError::Connection(ConnectionError::Idle(_) | ConnectionError::Stalled(_)) => {
                PullOutcome::SenderStalled
            }
            CallError::Connection(error) if error.is_malformed() => {
                count(&self.metrics.corrupt_frames, 1);
                PullOutcome::Corrupt
            }
            CallError::Connect(_) | CallError::Connection(_) => PullOutcome::SenderUnreachable,
        }
    }

    /// Whether the complete copy `live` has the same bytes as the copy of another put; `None` if that could not be
    /// found out. Waits as long as the holder says that it is alive.
    ///
    /// Nothing touches the copy's memory afterwards, nor when the future is dropped.
    pub(crate) async fn compare(
        &self,
        request: &CompareRequest,
        live: &LiveCopy,
        cancel: &CancellationToken,
    ) -> Option<bool> {
        let theirs = self.ask_digest(request);
        let (ours, theirs) = cancel.run_until_cancelled(async { tokio::join!(digest(live), theirs) }).await?;
        match (ours, theirs) {
            (Ok(ours), Ok(Some(theirs))) => Some(*theirs == ours),
            (Err(_), _) | (_, Ok(None)) => None,
            (_, Err(error)) => {
                warn_repeated!(id = %request.id, holder = %request.holder, %error, "a comparison failed");
                None
            }
        }
    }

    /// The digest of a copy of another store; `None` if there is no such copy.
    async fn ask_digest(&self, request: &CompareRequest) -> Result<Option<Bytes>, CallError> {
        let id = Bytes::copy_from_slice(request.id.as_bytes());
        let message = v1::DigestRequest { id, put: request.put.0 };
        let peer = (request.holder.clone(), request.holder_address);
        let mut call = Call::begin(self, peer, Kind::DigestRequest, &message).await?;
        let digest = loop {
            let header = call.read_header().await?;
            let connection = call.connection();
            match header.kind() {
                Kind::Keepalive => drop(connection.read_control::<v1::Keepalive>(&header).await?),
                Kind::Digest => break Some(connection.read_control::<v1::Digest>(&header).await?.xxh3_128),
                Kind::End => {
                    connection.read_control::<v1::End>(&header).await?;
                    break None;
                }
                kind => return Err(ConnectionError::Unexpected(kind).into()),
            }
        };
        call.finish();
        Ok(digest)
    }

    /// A new connection to a store.
    pub(super) async fn connect(&self, peer: &Peer) -> Result<PeerConnection, ConnectionError> {
        match handshake::connect(&self.config, peer).await {
            Ok((connection, took)) => {
                self.reports.reached(peer);
                self.lock_link().connected(took);
                Ok(connection)
            }
            Err(error) => {
                self.reports.failed(self.now(), peer, &error);
                Err(error)
            }
        }
    }

    /// What it has to tell of the stores that refuse this one, or cannot be reached.
    pub(crate) fn reports(&self) -> &PeerReports {
        &self.reports
    }

    /// Returns the number of connections that are idle.
    #[cfg(test)]
    pub(super) fn idle_connections(&self) -> usize {
        self.pool.idle_connections()
    }
}
