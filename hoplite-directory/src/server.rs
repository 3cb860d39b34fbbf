//! Starts and stops all parts of the daemon.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::Version;
use hoplite_core::id::ClusterId;
use hoplite_core::limits::Limits;
use hoplite_core::session::SHARD_PINGS;
use hoplite_core::shard::{ShardConfig, ShardRun};
use hoplite_daemon::metrics::Metrics;
use hoplite_daemon::{EventLoop, Tracer, random_number};
use hoplite_net::Credentials;
use hoplite_proto::bounds::{MAX_BATCH_BYTES, MAX_SHARD_FRAME_BYTES};
use hoplite_proto::v1::directory_server::DirectoryServer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic_health::pb::health_server::{Health, HealthServer};

use crate::connection::{self, Accepted, Gate, Incoming, Listener};
use crate::dashboard::{self, DashboardData, Prefixes};
use crate::direct::DirectSessions;
use crate::events::Events;
use crate::guard::Guard;
use crate::levels;
use crate::metrics::ShardMetrics;
use crate::owner::ShardOwner;
use crate::pauses::Pauses;
use crate::refusals::Refusals;
use crate::service::DirectoryService;
use crate::session::Host;
use crate::watch::Loads;

/// Default name of a cluster.
pub const DEFAULT_CLUSTER: &str = "hoplite";

const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);
/// Flow-control window of an HTTP/2 stream; a connection has twice that.
const WINDOW_BYTES: u32 = 4 << 20;
/// Most streams of a connection: a session, and tools' calls.
const MAX_STREAMS: u32 = 128;
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Stream window of a client without the token, and the limit of its headers and messages.
const VISITOR_BYTES: u32 = 4 << 10;
/// Smallest window of a connection that HTTP/2 permits.
const VISITOR_WINDOW_BYTES: u32 = 65_535;
const MAX_VISITOR_STREAMS: u32 = 4;
const VISIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Configuration of a shard.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub struct DirectoryConfig {
    pub cluster: ClusterId,
    /// Newest version that the shard speaks.
    pub newest_version: Version,
    pub credentials: Credentials,
    pub limits: Limits,
    pub tracer: Option<Tracer>,
}

impl Default for DirectoryConfig {
    fn default() -> Self {
        let cluster = ClusterId::new(DEFAULT_CLUSTER).expect("the default name is a valid one");
        Self {
            cluster,
            newest_version: Version::NEWEST,
            credentials: Credentials::default(),
            limits: Limits::default(),
            tracer: None,
        }
    }
}

/// Listeners.
#[derive(Debug)]
pub struct Listeners {
    /// For stores and tools.
    pub control: Listener,
    /// For browsers, if there is a dashboard.
    pub dashboard: Option<TcpListener>,
}

impl From<TcpListener> for Listeners {
    fn from(control: TcpListener) -> Self {
        Self { control: Listener::Tcp(control), dashboard: None }
    }
}

/// Reason why a shard stopped early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum DirectoryError {
    #[error("the directory's server failed")]
    Serve(#[source] tonic::transport::Error),
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error("the operating system has no random numbers")]
    Random(#[source] io::Error),
    /// The shard's task ended, because of a bug.
    #[error("the shard stopped by itself")]
    ShardEnded,
}

/// Warns if the certificate lacks the listener's address. Stores may use another name or a proxy.
fn warn_of_other_names(credentials: &Credentials, listener: &Listener) {
    let (Listener::Tcp(listener), Some(tls)) = (listener, &credentials.tls) else { return };
    let Ok(address) = listener.local_addr() else { return };
    if address.ip().is_unspecified() {
        return;
    }
    if let Err(error) = tls.check_named(&address.ip().to_canonical().to_string()) {
        tracing::warn!(%address, %error, "stores that connect to this shard by its address refuse it");
    }
}

/// Serves one shard until `shutdown`. Then ends all sessions, within about a second.
///
/// # Errors
/// The reason for an early stop.
pub async fn run(
    config: DirectoryConfig,
    metrics: Option<Metrics>,
    listeners: impl Into<Listeners>,
    shutdown: CancellationToken,
) -> Result<(), DirectoryError> {
    let tasks = TaskTracker::new();
    let stop = shutdown.child_token();
    let event_loop = EventLoop::start("shard", stop.clone()).map_err(DirectoryError::Thread)?;
    let _stop_on_drop = stop.clone().drop_guard();
    let abort = CancellationToken::new();
    let _abort_on_drop = abort.clone().drop_guard();

    let Listeners { control: listener, dashboard } = listeners.into();
    warn_of_other_names(&config.credentials, &listener);
    let (events, refusals) = (Events::new(), Arc::<Refusals>::default());
    let loads = Loads::new(events.clone());
    let pauses = Pauses::new();
    tasks.spawn(pauses.clone().watch(stop.clone()));
    let shard_metrics = metrics.as_ref().map(ShardMetrics::new);
    let (owner, shard) =
        ShardOwner::new(shard_config(&config), shard_metrics, events.clone(), pauses);
    if let Some(metrics) = &metrics {
        levels::register_gauges(metrics, shard.clone(), refusals.clone());
    }
    let owner = event_loop.spawn(owner.traced(config.tracer.clone()).run(stop.clone()));

    let host = Host {
        shard,
        cluster: config.cluster.clone(),
        run: ShardRun(random_number().map_err(DirectoryError::Random)?),
        newest: config.newest_version,
        loads,
        refusals: refusals.clone(),
        events: events.clone(),
        stop: stop.clone(),
    };
    if let Some(listener) = dashboard {
        start_dashboard(listener, &host, config.credentials.clone(), metrics.as_ref(), &tasks);
    }

    let direct = DirectSessions { host, event_loop: event_loop.clone(), tasks: TaskTracker::new() };
    let gate = Gate {
        credentials: config.credentials,
        cluster: config.cluster,
        newest: config.newest_version,
        direct,
        refusals,
        events,
        abort: abort.clone(),
        tasks: tasks.clone(),
    };
    let ended = first_end(serve(gate, listener), owner, &stop).await;
    stop.cancel();
    abort.cancel();
    tasks.close();
    tasks.wait().await;
    event_loop.ended().await;
    ended
}

/// Serves stores and other clients until the shard stops and all sessions have ended.
async fn serve(gate: Gate, listener: Listener) -> Result<(), tonic::transport::Error> {
    let (host, sessions) = (gate.direct.host.clone(), gate.direct.tasks.clone());
    let (stop, events) = (host.stop.clone(), gate.events.clone());
    let guard = Guard { refusals: Arc::clone(&gate.refusals), events: events.clone() };
    let service = DirectoryService { host, tasks: gate.tasks.clone(), events };
    let directory = DirectoryServer::new(service)
        .max_decoding_message_size(MAX_BATCH_BYTES)
        .max_encoding_message_size(MAX_SHARD_FRAME_BYTES);
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<DirectoryServer<DirectoryService>>().await;
    let Accepted { members, visitors } = gate.open(listener, stop.clone());
    let visitors = serve_visitors(directory.clone(), health.clone(), guard, visitors, stop.clone());
    tokio::try_join!(serve_members(directory, health, members, stop), visitors)?;
    sessions.close();
    sessions.wait().await;
    Ok(())
}

fn start_dashboard(
    listener: TcpListener,
    host: &Host,
    credentials: Credentials,
    metrics: Option<&Metrics>,
    tasks: &TaskTracker,
) {
    let Host { shard, cluster, loads, refusals, events, stop, .. } = host.clone();
    let refused = metrics.map(|metrics| metrics.refused_connections("dashboard"));
    tasks.spawn(loads.clone().keep_history(stop.clone()));
    let data =
        DashboardData { shard, cluster, events, loads, refusals, prefixes: Prefixes::default() };
    tasks.spawn(dashboard::serve(listener, credentials, data, refused, stop));
}

fn shard_config(config: &DirectoryConfig) -> ShardConfig {
    ShardConfig {
        limits: config.limits.clone(),
        // Stores reconnect within a second after the shard's restart: their longest pause between
        // tries.
        warm_up: config.limits.node_grace * 3,
    }
}

fn serve_members(
    directory: DirectoryServer<DirectoryService>,
    health: HealthServer<impl Health>,
    connections: mpsc::Receiver<Incoming>,
    stop: CancellationToken,
) -> impl Future<Output = Result<(), tonic::transport::Error>> {
    Server::builder()
        .http2_keepalive_interval(Some(SHARD_PINGS.interval))
        .http2_keepalive_timeout(Some(SHARD_PINGS.timeout))
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES)
        .max_concurrent_streams(MAX_STREAMS)
        .timeout(CALL_TIMEOUT)
        .add_service(directory)
        .add_service(health)
        .add_service(reflection().build_v1().expect(VALID))
        .add_service(reflection().build_v1alpha().expect(VALID))
        .serve_with_incoming_shutdown(connection::served(connections), stop.cancelled_owned())
}

/// Serves clients without the token until `stop`, within small limits.
fn serve_visitors(
    directory: DirectoryServer<DirectoryService>,
    health: HealthServer<impl Health>,
    guard: Guard,
    connections: mpsc::Receiver<Incoming>,
    stop: CancellationToken,
) -> impl Future<Output = Result<(), tonic::transport::Error>> {
    Server::builder()
        .initial_stream_window_size(VISITOR_BYTES)
        .initial_connection_window_size(VISITOR_WINDOW_BYTES)
        .http2_max_header_list_size(VISITOR_BYTES)
        .max_concurrent_streams(MAX_VISITOR_STREAMS)
        .timeout(VISIT_TIMEOUT)
        .add_service(InterceptedService::new(directory, guard.clone()))
        .add_service(InterceptedService::new(reflection().build_v1().expect(VALID), guard.clone()))
        .add_service(InterceptedService::new(reflection().build_v1alpha().expect(VALID), guard))
        .add_service(health.max_decoding_message_size(VISITOR_BYTES as usize))
        .serve_with_incoming_shutdown(connection::served(connections), stop.cancelled_owned())
}

/// Runs `server` until its end, or until [`SHUTDOWN_GRACE`] after `stop`.
/// [`DirectoryError::ShardEnded`] if the shard's task `owner` ends before `stop`.
async fn first_end(
    server: impl Future<Output = Result<(), tonic::transport::Error>>,
    owner: JoinHandle<()>,
    stop: &CancellationToken,
) -> Result<(), DirectoryError> {
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep(SHUTDOWN_GRACE).await;
    };
    let shard_ended = async {
        let _ = owner.await;
        if stop.is_cancelled() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        served = server => served.map_err(DirectoryError::Serve),
        () = overdue => Ok(()),
        () = shard_ended => Err(DirectoryError::ShardEnded),
    }
}

const VALID: &str = "the built-in descriptors are valid";

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(hoplite_proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
