//! The sender's side: accepts connections of other stores and serves their requests.

use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::select_all;
use hoplite_core::error::Error;
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::link::Delivery;
use hoplite_core::plan::link::SAMPLE_INTERVAL;
use hoplite_core::time::Time;
use hoplite_core::trace::TraceContext;
use hoplite_daemon::{Acceptor, is_notable, warn_repeated};
use hoplite_net::{HalfOpen, HalfOpenSlot};
use hoplite_proto::data::frame::{Header, Kind};
use hoplite_proto::data::lanes::{decode_lane, decode_max_lanes};
use hoplite_proto::data::{Pull, decode_pull, decode_reject, decode_take, encode_known};
use hoplite_proto::{trace, v1};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::collective::MemberHost;
use super::config::{DataConfig, Sizes};
use super::connection::{ConnectionError, PeerConnection};
use super::digest::digest;
use super::handshake::{self, Side};
use super::keepalive::{Awaited, Keepalive};
use super::lanes::{Content, Cursor, OutgoingStreams};
use super::metrics::{DataMetrics, count};
use super::probe::ProbePlace;
use super::serving::{Ending, Found, HopHost, ServeRequest, ServeSource, end_message};
use super::spilled;

/// Serves other stores until `shutdown`, which ends every transfer at once. Has a listener for each
/// network card, or one for all. Serves small objects on the runtime `for_small`.
pub(crate) async fn run<S: ServeSource + HopHost + MemberHost>(
    listeners: Vec<TcpListener>,
    config: Arc<DataConfig>,
    source: Arc<S>,
    metrics: Arc<DataMetrics>,
    for_small: Option<Handle>,
    shutdown: CancellationToken,
) {
    let connections = TaskTracker::new();
    let half_open = HalfOpen::new(config.max_half_open);
    let permits = Arc::new(Semaphore::new(config.max_connections));
    let (probe, streams) =
        (ProbePlace::default(), Arc::new(OutgoingStreams::new(config.first_lanes)));
    metrics.observe(&streams);
    let server = Arc::new(Server {
        config,
        source,
        metrics,
        permits,
        probe,
        streams,
        started: Instant::now(),
    });
    let acceptor = Acceptor::new("other stores");
    let accept = || async {
        let accepts = listeners
            .iter()
            .map(|listener| Box::pin(acceptor.accept(listener, || listener.accept())));
        select_all(accepts).await.0
    };
    while let Some((stream, address)) = shutdown.run_until_cancelled(accept()).await {
        let place = half_open.admit();
        let server = Arc::clone(&server);
        let (shutdown, for_small, tasks) =
            (shutdown.clone(), for_small.clone(), connections.clone());
        connections.spawn(async move {
            let admitted = shutdown.run_until_cancelled(server.admit(stream, address, place)).await;
            let Some(Some(Admitted { connection, peer, permit })) = admitted else { return };
            let serve = |connection| async move {
                shutdown
                    .run_until_cancelled(server.serve_connection(connection, &peer, address))
                    .await;
                drop(permit);
            };
            match for_small.filter(|_| connection.sizes == Sizes::Small) {
                None => serve(connection).await,
                Some(runtime) => match connection.on(&runtime) {
                    Ok(connection) => drop(tasks.spawn_on(serve(connection), &runtime)),
                    Err(error) => warn_repeated!(%address, %error, "cannot serve another store"),
                },
            }
        });
    }
    connections.close();
    connections.wait().await;
}

pub(super) struct Server<S> {
    pub(super) config: Arc<DataConfig>,
    pub(super) source: Arc<S>,
    pub(super) metrics: Arc<DataMetrics>,
    /// Permits for connections after their handshake.
    permits: Arc<Semaphore>,
    pub(super) probe: ProbePlace,
    pub(super) streams: Arc<OutgoingStreams>,
    started: Instant,
}

struct Admitted {
    connection: PeerConnection,
    peer: NodeId,
    permit: OwnedSemaphorePermit,
}

impl<S: ServeSource + HopHost + MemberHost> Server<S> {
    async fn admit(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        place: HalfOpenSlot,
    ) -> Option<Admitted> {
        let opening =
            handshake::open(&self.config, stream, Side::Accepting, self.config.write_stall_timeout);
        let opened = tokio::select! {
            opened = opening => opened,
            () = place.evicted() => Err(ConnectionError::Crowded),
        };
        drop(place);
        let (connection, peer) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                if is_notable(&self.metrics.malformed_connections) {
                    tracing::warn!(%address, %error, "refused a connection to the data plane");
                }
                if let ConnectionError::Refused(error @ Error::VersionMismatch { .. }) = error {
                    self.source.refused_version(error);
                }
                return None;
            }
        };
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            if is_notable(&self.metrics.refused_connections) {
                tracing::warn!(%peer, %address, limit = self.config.max_connections, "too many connections from other stores");
            }
            return None;
        };
        Some(Admitted { connection, peer, permit })
    }

    async fn serve_connection(
        &self,
        mut connection: PeerConnection,
        peer: &NodeId,
        address: SocketAddr,
    ) {
        let protocol = connection.version.number();
        tracing::debug!(%peer, %address, protocol, "a store connected");
        match self.answer_requests(&mut connection, peer).await {
            Ok(()) => tracing::debug!(%peer, %address, "a store disconnected"),
            Err(error) if error.is_malformed() => {
                if is_notable(&self.metrics.malformed_connections) {
                    tracing::warn!(%peer, %address, %error, "closed a connection");
                }
            }
            Err(error) => tracing::debug!(%peer, %address, %error, "a connection ended"),
        }
    }

    async fn answer_requests(
        &self,
        connection: &mut PeerConnection,
        peer: &NodeId,
    ) -> Result<(), ConnectionError> {
        loop {
            connection.expect_within(Some(self.config.server_idle_timeout));
            let header = match connection.read_header().await {
                Err(ConnectionError::Idle(_) | ConnectionError::Closed) => return Ok(()),
                header => header?,
            };
            connection.expect_within(Some(self.config.write_stall_timeout));
            if connection.sizes == Sizes::Small
                && matches!(header.kind(), Kind::Probe | Kind::Echo | Kind::TakeTrain | Kind::Lane)
            {
                return Err(ConnectionError::Unexpected(header.kind()));
            }
            self.answer_request(connection, peer, &header).await?;
        }
    }

    async fn answer_request(
        &self,
        connection: &mut PeerConnection,
        peer: &NodeId,
        header: &Header,
    ) -> Result<(), ConnectionError> {
        match header.kind() {
            Kind::Pull => {
                let pull = connection.read_control::<v1::Pull>(header).await?;
                let beside = (trace::decode(&pull.trace), decode_max_lanes(pull.max_lanes));
                let pull = decode_pull(pull)?;
                connection.expect_within(None);
                self.answer_pull(connection, peer, &pull, beside).await?;
            }
            Kind::Lane => {
                let lane = decode_lane(&connection.read_control::<v1::Lane>(header).await?)?;
                connection.expect_within(None);
                self.answer_lane(connection, peer, lane).await?;
            }
            Kind::Combine => {
                let combine = connection.read_control::<v1::Combine>(header).await?;
                connection.expect_within(Some(self.config.silence_timeout));
                self.host_hop(connection, peer, combine).await?;
            }
            Kind::Take => {
                let take = connection.read_control::<v1::Take>(header).await?;
                let beside = (trace::decode(&take.trace), decode_max_lanes(take.max_lanes));
                let take = decode_take(take)?;
                connection.expect_within(None);
                self.answer_take(connection, peer, &take, beside).await?;
            }
            Kind::Enlist => {
                let enlist = connection.read_control::<v1::Enlist>(header).await?;
                connection.expect_within(Some(self.config.silence_timeout));
                self.host_member(connection, peer, enlist).await?;
            }
            Kind::Reject => {
                let reject = connection.read_control::<v1::Reject>(header).await?;
                self.answer_reject(connection, reject).await?;
            }
            Kind::AskPosition => {
                let asked = connection.read_control::<v1::AskPosition>(header).await?;
                self.answer_position(connection, &asked).await?;
            }
            Kind::Probe => {
                connection.read_control::<()>(header).await?;
                connection.expect_within(Some(self.config.silence_timeout));
                self.host_probe(connection, peer).await?;
            }
            Kind::DrainStore => {
                let request = connection.read_control::<v1::DrainStore>(header).await?;
                connection.expect_within(None);
                self.answer_drain(connection, peer, &request).await?;
            }
            Kind::Echo => {
                let echo = connection.read_control::<v1::Echo>(header).await?;
                self.probe.answer_echo(connection, &echo).await?;
            }
            Kind::TakeTrain => {
                let train = connection.read_control::<v1::TakeTrain>(header).await?;
                self.probe.send_train(connection, &train).await?;
            }
            // The coordinator may send these before it learns that its hop or member has failed.
            Kind::Keepalive | Kind::Release | Kind::Commit => {
                connection.read_control::<()>(header).await?;
            }
            Kind::Stop => drop(connection.read_control::<v1::Stop>(header).await?),
            Kind::DigestRequest => {
                let request = connection.read_control::<v1::DigestRequest>(header).await?;
                connection.expect_within(None);
                self.answer_digest(connection, peer, &request).await?;
            }
            kind => return Err(ConnectionError::Unexpected(kind)),
        }
        Ok(())
    }

    async fn answer_pull(
        &self,
        connection: &mut PeerConnection,
        peer: &NodeId,
        pull: &Pull,
        (trace, max_lanes): (Option<TraceContext>, usize),
    ) -> Result<(), ConnectionError> {
        count(&self.metrics.serves, 1);
        let (id, put) = (&pull.id, pull.put);
        let awaits_hop = pull.awaits_hop;
        let request = ServeRequest { peer: peer.clone(), id: id.clone(), put, awaits_hop, trace };
        let ended = self.serve(connection, peer, pull, request, max_lanes).await;
        match &ended {
            Ok(ending) => tracing::debug!(%id, %put, receiver = %peer, ?ending, "served"),
            Err(error) => tracing::debug!(%id, %put, receiver = %peer, %error, "served in part"),
        }
        connection.write_control(Kind::End, &end_message(ended?)).await
    }

    async fn serve(
        &self,
        connection: &mut PeerConnection,
        peer: &NodeId,
        pull: &Pull,
        request: ServeRequest,
        max_lanes: usize,
    ) -> Result<Ending, ConnectionError> {
        let found = self.source.serve(request);
        let awaited = if pull.awaits_hop { Awaited::Producer } else { Awaited::Receiver };
        let Some(found) = self.keepalive(awaited).during(connection, found).await? else {
            return Ok(Ending::NoCopy);
        };
        if pull.size_bytes != found.size_bytes() {
            return Ok(Ending::Refused(Error::invalid_request("the object has another size")));
        }
        if !connection.carries(pull.range.end - pull.range.start) {
            return Ok(Ending::Refused(Error::invalid_request(
                "this connection is for small objects",
            )));
        }
        let content = match found {
            Found::Memory(served) if pull.awaits_hop => Content::Hop(served),
            Found::Memory(served) => Content::Copy(served),
            Found::File(copy) => {
                let keepalive = self.keepalive(Awaited::Producer);
                return spilled::send(
                    connection,
                    &copy,
                    pull.range.clone(),
                    keepalive,
                    (&self.metrics, &self.config.rails),
                )
                .await;
            }
        };
        let stream = (content, Cursor::of_copy(pull.range.clone()));
        self.send_stream(connection, peer, stream, max_lanes).await.0
    }

    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.started.elapsed()
    }

    /// Adds a transfer's statistics to the metrics, at intervals.
    pub(super) fn sample(
        &self,
        due_at: &mut Instant,
        now: Instant,
        peer: &NodeId,
        delivery: Option<Delivery>,
    ) {
        let Some(delivery) = delivery.filter(|_| now >= *due_at) else { return };
        *due_at = now + SAMPLE_INTERVAL;
        let now = Time::ZERO + now.duration_since(self.started);
        if let Some(slow) = self.metrics.measured(now, peer, delivery) {
            tracing::info!(peers = ?slow, "links that have been slow for long");
            self.source.has_slow_links(slow);
        }
    }

    async fn answer_reject(
        &self,
        connection: &mut PeerConnection,
        reject: v1::Reject,
    ) -> Result<(), ConnectionError> {
        let (target, attempt, error) = decode_reject(reject)?;
        self.source.reject(target, attempt, error);
        connection.write_control(Kind::End, &end_message(Ending::Complete)).await
    }

    async fn answer_position(
        &self,
        connection: &mut PeerConnection,
        asked: &v1::AskPosition,
    ) -> Result<(), ConnectionError> {
        let record = self.source.how_made(&ObjectId::new(&asked.target)?);
        connection.write_control(Kind::Position, &encode_known(record)).await
    }

    async fn answer_digest(
        &self,
        connection: &mut PeerConnection,
        peer: &NodeId,
        request: &v1::DigestRequest,
    ) -> Result<(), ConnectionError> {
        let id = ObjectId::new(&request.id)?;
        let put = PutId(request.put);
        let request = ServeRequest { peer: peer.clone(), id, put, awaits_hop: false, trace: None };
        let found = self.source.serve(request);
        let found = self.keepalive(Awaited::Producer).during(connection, found).await?;
        let digest = match found.filter(|found| connection.carries(found.size_bytes())) {
            Some(Found::Memory(served)) => {
                let digest = digest(&served);
                self.keepalive(Awaited::Copy(&served)).during(connection, digest).await?.ok()
            }
            Some(Found::File(copy)) => {
                let digest = spilled::digest(&copy);
                self.keepalive(Awaited::Producer).during(connection, digest).await?.ok()
            }
            None => None,
        };
        match digest {
            Some(digest) => {
                let message = v1::Digest { xxh3_128: digest.to_vec().into() };
                connection.write_control(Kind::Digest, &message).await
            }
            None => connection.write_control(Kind::End, &end_message(Ending::NoCopy)).await,
        }
    }

    pub(super) fn keepalive<'a>(&self, awaited: Awaited<'a>) -> Keepalive<'a> {
        Keepalive { interval: self.config.keepalive_interval, started: self.started, awaited }
    }
}
