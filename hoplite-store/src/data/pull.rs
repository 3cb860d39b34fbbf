//! The receiver's side: asks a sender for the bytes of an object and puts them where they belong.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::plan::link::{LinkEstimator, RateSample};
use hoplite_core::plan::reduce::Link;
use hoplite_core::shard::PullOutcome;
use hoplite_core::time::Time;
use hoplite_proto::data::frame::{Header, Kind};
use hoplite_proto::data::{Pull, encode_pull};
use hoplite_proto::v1;
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, ConnectionError};
use super::digest::digest;
use super::pool::{Peer, Pool};
use super::{DataConfig, DataMetrics, count};
use crate::copies::LiveCopy;

/// What to pull, and from whom.
#[derive(Debug, Clone)]
pub(crate) struct PullRequest {
    /// The object.
    pub(crate) id: ObjectId,
    /// Which put of it.
    pub(crate) put: PutId,
    /// From which byte on: no further than the copy is valid.
    pub(crate) offset_bytes: u64,
    /// Who has it.
    pub(crate) sender: NodeId,
    /// Where the sender listens.
    pub(crate) sender_address: SocketAddr,
}

/// Which put to compare a local copy with, and who has it.
#[derive(Debug, Clone)]
pub(crate) struct CompareRequest {
    /// The object.
    pub(crate) id: ObjectId,
    /// The other put of it.
    pub(crate) put: PutId,
    /// Who has it.
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
    link: Mutex<LinkEstimator>,
    origin: Instant,
}

/// How an exchange with another store failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PullError {
    /// There was no connection to begin with.
    #[error("cannot connect: {0}")]
    Connect(ConnectionError),
    /// It broke, or what came over it was wrong.
    #[error(transparent)]
    Exchange(ConnectionError),
}

impl Puller {
    /// A puller without any connection.
    pub(crate) fn new(config: Arc<DataConfig>, metrics: Arc<DataMetrics>) -> Self {
        let pool = Pool::new(config.max_idle_per_peer, config.pool_idle_timeout);
        let link = Mutex::new(LinkEstimator::new(config.links.bytes_per_second, config.links.latency));
        Self { config, metrics, pool, link, origin: Instant::now() }
    }

    /// What the links to other stores do: as set, or as measured, or as one assumes before that.
    pub(crate) fn link(&self) -> Link {
        self.lock_link().link()
    }

    /// Takes in what a transfer has shown of the links.
    pub(super) fn transferred(&self, sample: RateSample) {
        self.lock_link().transferred(sample);
    }

    fn lock_link(&self) -> MutexGuard<'_, LinkEstimator> {
        // Each change is one store, so a panic elsewhere leaves it whole.
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
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
        count(&self.metrics.pulls, 1);
        let peer = (request.sender.clone(), request.sender_address);
        let receive = Receive { request, live, puller: self };
        let attempt = self.exchange(&peer, receive);
        let ended = cancel.run_until_cancelled(attempt).await;
        let valid_bytes = live.buffer().valid_bytes().min(live.size_bytes());
        let outcome = match ended {
            None => PullOutcome::Cancelled,
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => self.outcome(&request.id, &request.sender, &error),
        };
        let all_arrived = valid_bytes == live.size_bytes() && outcome != PullOutcome::Cancelled;
        // However the exchange ended: each byte was checked on its own.
        let outcome =
            if all_arrived && request.offset_bytes < valid_bytes { PullOutcome::Complete } else { outcome };
        tracing::info!(
            id = %request.id, put = %request.put, sender = %request.sender, offset_bytes = request.offset_bytes,
            valid_bytes, ?outcome, "pulled"
        );
        (valid_bytes, outcome)
    }

    /// What a failed exchange with `sender` means for whoever wanted the bytes of `id`.
    pub(super) fn outcome(&self, id: &ObjectId, sender: &NodeId, error: &PullError) -> PullOutcome {
        tracing::warn!(%id, %sender, %error, "a pull failed");
        match error {
            PullError::Connect(_) => PullOutcome::SenderUnreachable,
            PullError::Exchange(ConnectionError::Stalled(_)) => PullOutcome::SenderStalled,
            PullError::Exchange(error) if error.is_malformed() => {
                count(&self.metrics.corrupt_frames, 1);
                PullOutcome::Corrupt
            }
            PullError::Exchange(_) => PullOutcome::SenderUnreachable,
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
        let peer = (request.holder.clone(), request.holder_address);
        let theirs = self.exchange(&peer, AskDigest { request });
        let (ours, theirs) = cancel.run_until_cancelled(async { tokio::join!(digest(live), theirs) }).await?;
        match (ours, theirs) {
            (Ok(ours), Ok(Some(theirs))) => Some(*theirs == ours),
            (Err(_), _) | (_, Ok(None)) => None,
            (_, Err(error)) => {
                tracing::warn!(id = %request.id, holder = %request.holder, %error, "a comparison failed");
                None
            }
        }
    }

    /// Runs one exchange with `peer`, over an idle connection or a new one.
    ///
    /// An idle connection may have been closed by the peer without our having noticed: when nothing at all comes back
    /// over it, the exchange is run once more over a new one.
    pub(super) async fn exchange<E: Exchange>(
        &self,
        peer: &Peer,
        exchange: E,
    ) -> Result<E::Answer, PullError> {
        let limit = self.config.silence_timeout;
        if let Some(mut connection) = self.pool.take(peer) {
            let frames_before = connection.frames_read();
            match run_while_alive(&exchange, &mut connection, limit).await {
                Ok(answer) => {
                    self.pool.put(peer.clone(), connection);
                    return Ok(answer);
                }
                Err(ConnectionError::Closed | ConnectionError::Io(_))
                    if connection.frames_read() == frames_before => {}
                Err(error) => return Err(PullError::Exchange(error)),
            }
        }
        let mut connection = self.connect(peer).await.map_err(PullError::Connect)?;
        let answer = run_while_alive(&exchange, &mut connection, limit).await.map_err(PullError::Exchange)?;
        self.pool.put(peer.clone(), connection);
        Ok(answer)
    }

    /// A new connection to a store.
    pub(super) async fn connect(&self, (node, address): &Peer) -> Result<Connection, ConnectionError> {
        let limit = self.config.connect_timeout;
        let begun = Instant::now();
        let stream = timeout(limit, TcpStream::connect(address)).await;
        let stream = stream.map_err(|_| ConnectionError::Stalled(limit))??;
        self.lock_link().connected(begun.elapsed());
        let mut connection = Connection::new(stream)?;
        let found = connection.handshake(&self.config).await?;
        if found != *node {
            return Err(ConnectionError::Nonsense("another node answers at that address"));
        }
        Ok(connection)
    }

    /// How many connections are idle.
    #[cfg(test)]
    pub(super) fn idle_connections(&self) -> usize {
        self.pool.idle_connections()
    }
}

/// Runs one exchange, unless nothing at all moves for `limit`.
async fn run_while_alive<E: Exchange>(
    exchange: &E,
    connection: &mut Connection,
    limit: Duration,
) -> Result<E::Answer, ConnectionError> {
    let pulse = connection.pulse();
    pulse.beat();
    tokio::select! {
        biased;
        answer = exchange.run(connection) => answer,
        () = pulse.silent_for(limit) => Err(ConnectionError::Stalled(limit)),
    }
}

/// A request and its whole answer. If it succeeds, the connection is ready for the next one.
pub(super) trait Exchange: Sync {
    type Answer: Send;

    fn run(
        &self,
        connection: &mut Connection,
    ) -> impl Future<Output = Result<Self::Answer, ConnectionError>> + Send;
}

/// Receives the bytes of an object, from where the local copy ends.
struct Receive<'a> {
    request: &'a PullRequest,
    live: &'a LiveCopy,
    puller: &'a Puller,
}

impl Exchange for Receive<'_> {
    type Answer = PullOutcome;

    async fn run(&self, connection: &mut Connection) -> Result<PullOutcome, ConnectionError> {
        let Self { request, live, puller } = self;
        let size_bytes = live.size_bytes();
        let mut offset_bytes = request.offset_bytes.min(live.buffer().valid_bytes());
        let pull = Pull {
            id: request.id.clone(),
            put: request.put,
            size_bytes,
            range: offset_bytes..size_bytes,
            awaits_hop: false,
        };
        connection.write_control(Kind::Pull, &encode_pull(&pull)).await?;
        let mut sample = RateSample::default();
        loop {
            let header = connection.read_header().await?;
            match header.kind() {
                Kind::Keepalive => connection.read_control::<()>(&header).await?,
                Kind::Block => {
                    let length_bytes = check_block(&header, offset_bytes, size_bytes)?;
                    connection.read_block(&header, live.buffer(), offset_bytes).await?;
                    offset_bytes += length_bytes;
                    live.advance(offset_bytes);
                    count(&puller.metrics.received_bytes, length_bytes);
                    sample.arrived(puller.now(), length_bytes);
                }
                Kind::End => {
                    let end = connection.read_control::<v1::End>(&header).await?;
                    puller.transferred(sample);
                    return end_outcome(&end, offset_bytes == size_bytes);
                }
                kind => return Err(ConnectionError::Unexpected(kind)),
            }
        }
    }
}

/// Checks that a block is the next one and ends before `end_bytes`; answers its length.
pub(super) fn check_block(
    header: &Header,
    offset_bytes: u64,
    end_bytes: u64,
) -> Result<u64, ConnectionError> {
    let length_bytes = u64::from(header.length_bytes());
    if header.offset_bytes() != offset_bytes {
        return Err(ConnectionError::Nonsense("a block that is not the next one"));
    }
    if length_bytes == 0 || length_bytes > end_bytes - offset_bytes {
        return Err(ConnectionError::Nonsense("a block that is empty, or goes past the end"));
    }
    Ok(length_bytes)
}

/// How a transfer ended, by the sender's word and our count.
pub(super) fn end_outcome(end: &v1::End, all_arrived: bool) -> Result<PullOutcome, ConnectionError> {
    match end.outcome() {
        v1::end::Outcome::Complete if all_arrived => Ok(PullOutcome::Complete),
        v1::end::Outcome::Complete => Err(ConnectionError::Nonsense("the end before the last byte")),
        v1::end::Outcome::NoCopy | v1::end::Outcome::Refused => Ok(PullOutcome::SenderHasNoCopy),
        v1::end::Outcome::InputFailed | v1::end::Outcome::Released | v1::end::Outcome::Unspecified => {
            Err(ConnectionError::Nonsense("an end that says nothing of the transfer"))
        }
    }
}

/// Asks for the digest of a copy; the answer is `None` if there is no such copy.
struct AskDigest<'a> {
    request: &'a CompareRequest,
}

impl Exchange for AskDigest<'_> {
    type Answer = Option<Bytes>;

    async fn run(&self, connection: &mut Connection) -> Result<Option<Bytes>, ConnectionError> {
        let id = Bytes::copy_from_slice(self.request.id.as_bytes());
        let request = v1::DigestRequest { id, put: self.request.put.0 };
        connection.write_control(Kind::DigestRequest, &request).await?;
        loop {
            let header = connection.read_header().await?;
            match header.kind() {
                Kind::Keepalive => connection.read_control::<()>(&header).await?,
                Kind::Digest => {
                    let digest = connection.read_control::<v1::Digest>(&header).await?;
                    return Ok(Some(digest.xxh3_128));
                }
                Kind::End => {
                    connection.read_control::<v1::End>(&header).await?;
                    return Ok(None);
                }
                kind => return Err(ConnectionError::Unexpected(kind)),
            }
        }
    }
}
