//! The session with one shard: connects, introduces the store, carries messages both ways, and starts again when it is
//! lost.

use std::pin::pin;
use std::sync::Arc;

use futures::stream::{self, Stream, StreamExt};
use hoplite_core::error::Error;
use hoplite_core::node::Event;
use hoplite_core::session::{Attempts, CONNECT_TIMEOUT, Next, OPEN_TIMEOUT, STORE_PINGS};
use hoplite_core::shard::NodeInfo;
use hoplite_core::{ClusterId, Time};
use hoplite_daemon::metrics::label_of;
use hoplite_daemon::{Bearer, Credentials, cause};
use hoplite_proto::directory::{check_welcome, decode_shard_batch, encode_hello, encode_to_shard};
use hoplite_proto::status::from_status;
use hoplite_proto::trace;
use hoplite_proto::v1::directory_client::DirectoryClient;
use hoplite_proto::v1::{ShardMessages, StoreMessage, StoreMessages};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use crate::advertised::Advertised;
use crate::engine::Engine;
use crate::metrics;
use crate::outbox::{Batches, outbox};
use crate::report::Teller;

/// How a session stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionState {
    /// Not connected (yet); tries go on.
    Down,
    /// Messages flow.
    Up,
    /// The shard refuses this store, and no further try is made.
    GivenUp(Error),
}

/// One shard, as a store reaches it.
#[derive(Debug, Clone)]
pub(crate) struct ShardLink {
    /// The address as configured.
    pub(crate) address: String,
    channel: Channel,
    credentials: Credentials,
}

impl ShardLink {
    /// A link to the shard at `address`; `None` if that is not of the form `HOST:PORT`. Connects when it is first used.
    pub(crate) fn new(address: &str, credentials: &Credentials) -> Option<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
        // Without a port, that of HTTP would be meant.
        endpoint.uri().port()?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(STORE_PINGS.interval)
            .keep_alive_timeout(STORE_PINGS.timeout)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(16 << 20);
        let channel = credentials.channel(&endpoint);
        Some(Self { address: address.to_owned(), channel, credentials: credentials.clone() })
    }

    /// A client for calls to the shard.
    pub(crate) fn client(&self) -> DirectoryClient<InterceptedService<Channel, Bearer>> {
        let service = InterceptedService::new(self.channel.clone(), self.credentials.bearer());
        DirectoryClient::new(service).max_decoding_message_size(64 << 20)
    }
}

/// The conversation of this store with one shard.
pub(crate) struct Session {
    pub(crate) engine: Arc<Engine>,
    /// The shard's number in the configured list.
    pub(crate) shard: usize,
    pub(crate) link: ShardLink,
    pub(crate) teller: Teller,
    /// The data plane's address in here is what it was at the start.
    pub(crate) info: NodeInfo,
    pub(crate) advertised: Advertised,
    pub(crate) cluster: ClusterId,
}

impl Session {
    /// Keeps a session until it ends while `leaving`, or until `stop`; tells how it stands in `state`.
    pub(crate) async fn run(
        self,
        state: watch::Sender<SessionState>,
        leaving: CancellationToken,
        stop: CancellationToken,
    ) {
        let shard = &self.link.address;
        let started = Instant::now();
        let mut attempts = Attempts::default();
        while !leaving.is_cancelled() {
            let Some(ended) = stop.run_until_cancelled(self.run_once(&state)).await else { return };
            let was_up = *state.borrow() == SessionState::Up;
            if was_up {
                self.engine.session_down(self.shard);
                attempts.opened();
            } else if let Err(failure) = &ended {
                self.engine.session_failed(&failure.cause());
            }
            let ended = ended.map_err(|failure| failure.error);
            let next = attempts.ended(Time::ZERO + started.elapsed(), ended.as_ref().err());
            let is_news = matches!(next, Next::GiveUp | Next::Retry { is_news: true, .. });
            match &ended {
                Ok(()) => tracing::info!(shard, "the directory shard ended the session"),
                Err(error) if was_up => tracing::warn!(shard, %error, "lost the directory shard"),
                Err(error) if is_news && attempts.is_refused() => {
                    tracing::warn!(shard, %error, "the directory shard refuses this store");
                }
                Err(error) if is_news => tracing::warn!(shard, %error, "cannot reach the directory shard"),
                Err(error) => tracing::debug!(shard, %error, "cannot reach the directory shard"),
            }
            match (next, ended) {
                (Next::GiveUp, Err(error)) => {
                    state.send_replace(SessionState::GivenUp(error));
                    // The others go on until the daemon ends, which is soon.
                    return stop.cancelled().await;
                }
                (Next::GiveUp, Ok(())) => return,
                (Next::Retry { pause, .. }, _) => {
                    state.send_replace(SessionState::Down);
                    let _ = leaving.run_until_cancelled(tokio::time::sleep(pause)).await;
                }
            }
        }
    }

    async fn run_once(&self, state: &watch::Sender<SessionState>) -> Result<(), Failure> {
        let (outbox, batches) = outbox().map_err(|_| Error::unavailable("a timer"))?;
        let info = NodeInfo { data_address: self.advertised.now().await, ..self.info.clone() };
        let hello = StoreMessages { hello: Some(encode_hello(&info, &self.cluster)), messages: Vec::new() };
        let mut client = self.link.client();
        let opening = async {
            let mut inbound = client.session(outbound(hello, batches)).await?.into_inner();
            let first = inbound.message().await?;
            Ok::<_, Status>((inbound, first))
        };
        let opened = timeout(OPEN_TIMEOUT, opening).await;
        let (mut inbound, first) = opened
            .map_err(|_| Error::unavailable("the directory shard"))?
            .map_err(|status| Failure::of_opening(&self.link.credentials, status))?;
        let Some(ShardMessages { welcome: Some(welcome), messages: early }) = first else {
            return Err(Error::unavailable("the directory shard").into());
        };
        check_welcome(&welcome)?;
        tracing::info!(shard = self.link.address, "session with the directory shard is up");
        self.engine.session_up(self.shard, outbox);
        state.send_replace(SessionState::Up);
        let mut batch = ShardMessages { welcome: None, messages: early };
        let mut telling = pin!(self.teller.run(&self.link));
        loop {
            for message in decode_shard_batch(batch)? {
                self.engine.apply(Event::FromShard { shard: self.shard, message });
            }
            let next = tokio::select! {
                next = inbound.message() => next,
                never = &mut telling => match never {},
            };
            match next {
                Ok(Some(next)) => batch = next,
                Ok(None) => return Ok(()),
                Err(status) => return Err(from_status(&status).into()),
            }
        }
    }
}

/// Why a session has ended, or did not come about.
struct Failure {
    error: Error,
    is_tls: bool,
}

impl Failure {
    /// As the value of a label.
    fn cause(&self) -> String {
        if self.is_tls { metrics::TLS.to_owned() } else { label_of(self.error.code()) }
    }

    /// Why a session did not come about.
    fn of_opening(credentials: &Credentials, status: Status) -> Self {
        // This side did not accept what the other one has shown, or the other one said nonsense. That the other one does not
        // accept this side ends the connection later, without this being said.
        let is_tls = cause::<rustls::Error>(&status).is_some();
        Self { error: from_status(&credentials.explained(status)), is_tls }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, is_tls: false }
    }
}

/// The stream of frames to the shard: the hello, then what is queued, several messages at a time.
fn outbound(hello: StoreMessages, batches: Batches) -> impl Stream<Item = StoreMessages> + Send + 'static {
    let queued = stream::unfold(batches, |mut batches| async move {
        let encode =
            |(message, cause)| StoreMessage { trace: trace::encode(cause), ..encode_to_shard(message) };
        let messages = batches.next().await?.into_iter().map(encode).collect();
        Some((StoreMessages { hello: None, messages }, batches))
    });
    stream::iter([hello]).chain(queued)
}
