use std::future::pending;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use hoplite_core::id::Incarnation;
use hoplite_core::limits::Limits;
use hoplite_core::node::{Event, Node};
use hoplite_core::placement::ShardList;
use hoplite_core::plan::lanes::DEFAULT_MAX_LANES;
use hoplite_core::plan::rails::MAX_RAILS;
use hoplite_core::shard::{NodeInfo, UNREACHABLE};
use hoplite_daemon::metrics::Metrics;
use hoplite_daemon::{EventLoop, random_number};
use hoplite_net::{Credentials, HalfOpen, TransportKind};
use hoplite_proto::framing::max_request_bytes;
use hoplite_shm::Arena;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::advertised::{Advertised, check_certificate};
use crate::config::{Prefault, StoreConfig};
use crate::data::{self, DataConfig, DataMetrics, Puller, RailTable};
use crate::embedded::{DirectoryFailure, start_directory};
use crate::engine::Engine;
use crate::error::StoreError;
use crate::local::{self, LocalListener, LocalPlane, Shares, SocketAccess};
use crate::metrics::{self, Observer};
use crate::prefault::prefault;
use crate::session::SessionState;
use crate::shards::{Identity, SessionStates, ShardLinks, ShardSessions};
use crate::spill::SpillFiles;
use crate::traces::Traces;

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Time in which the shards must learn that this store leaves.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);

/// Addresses of a running store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Addresses {
    pub socket: PathBuf,
    pub data: Option<SocketAddr>,
    pub directory: Option<SocketAddr>,
    pub dashboard: Option<SocketAddr>,
}

/// Progress of a store's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Milestone {
    /// Clients can connect.
    Listening(Addresses),
    /// Each shard has had a session, and the arena's pages are touched if that is configured.
    Ready,
}

/// Runs a store until `shutdown`. Reports the progress of its start to `tell`, and counts in
/// `metrics`.
///
/// Connects to the directory in the background. Calls that need the directory wait for it until
/// their deadlines.
///
/// # Errors
/// The reason why the store cannot start, or a shard's refusal.
pub async fn run(
    config: StoreConfig,
    metrics: Option<Metrics>,
    mut tell: impl FnMut(Milestone),
    shutdown: CancellationToken,
) -> Result<(), StoreError> {
    let places = Places::take(&config).await?;
    let (drain, recovers) = (config.drain, config.spill.recover);
    let mut store = Running::start(config, metrics, places).await?;
    tell(Milestone::Listening(store.addresses.clone()));
    let ready = ready(store.sessions.states(), store.prefaulted.take());
    let ended = tokio::select! {
        source = async {
            match ready.await {
                Ok(()) => tell(Milestone::Ready),
                Err(source) => return source,
            }
            pending().await
        } => Err(StoreError::Arena { memory_bytes: store.engine.arena().capacity_bytes(), source }),
        () = shutdown.cancelled() => {
            if let Some(timeout) = drain {
                hoplite_daemon::extend_stop_timeout(timeout.saturating_add(2 * SHUTDOWN_TIMEOUT));
                store.engine.drain(timeout).await;
            }
            Ok(())
        }
        () = store.engine.drained() => Ok(()),
        error = refusal(store.sessions.states()) => Err(error),
        Ok(error) = &mut store.directory_failed => Err(StoreError::Directory(error)),
    };
    if recovers && ended.is_err() {
        store.engine.keep_spill_files();
    }
    store.end().await;
    ended
}

struct Places {
    arena: Arc<Arena>,
    data: Option<DataPlace>,
    local: LocalListener,
    spill: Option<SpillFiles>,
}

/// The data plane's sockets, not served yet.
struct DataPlace {
    listeners: Vec<TcpListener>,
    address: SocketAddr,
    advertised: Advertised,
}

impl DataPlace {
    async fn take(config: &StoreConfig) -> Result<Option<Self>, StoreError> {
        let StoreConfig { listen, advertise, .. } = config;
        let (names, addresses) = (advertise.len(), listen.len());
        if addresses == 0 {
            return Ok(None);
        }
        if names.max(addresses) > MAX_RAILS {
            return Err(StoreError::TooManyAddresses);
        }
        if names > 0 && addresses > 1 && names != addresses {
            return Err(StoreError::AdvertiseCount { names, addresses });
        }
        check_cards(listen)?;
        let (mut listeners, mut listened) = (Vec::new(), Vec::new());
        for address in listen.iter().copied() {
            let listen_error = |source| StoreError::Listen { address, source };
            let listener = TcpListener::bind(address).await.map_err(listen_error)?;
            listened.push(listener.local_addr().map_err(listen_error)?);
            listeners.push(listener);
        }
        let advertised = Advertised::find(advertise, &listened)
            .await
            .map_err(|(name, source)| StoreError::AdvertiseUnknown { name, source })?;
        check_cards(&advertised.addresses())?;
        if names > addresses {
            let is_own = |told: &SocketAddr| UdpSocket::bind(SocketAddr::new(told.ip(), 0)).is_ok();
            if let Some(foreign) = advertised.addresses().into_iter().find(|told| !is_own(told)) {
                return Err(StoreError::ForeignAddress { address: foreign });
            }
        }
        for told in advertised.addresses() {
            if told.ip().is_unspecified() || told.port() == 0 {
                return Err(StoreError::AdvertiseNeeded { address: told });
            }
            if let Some(tls) = &config.credentials.tls {
                check_certificate(tls, told).map_err(|source| StoreError::Certificate {
                    address: told,
                    source: source.into(),
                })?;
            }
        }
        if let [first, others @ ..] = advertised.addresses().as_slice()
            && !others.is_empty()
        {
            tracing::info!(main = %first, ?others, "other stores reach this store over several network cards");
        }
        Ok(Some(Self { listeners, address: listened[0], advertised }))
    }
}

fn check_cards(addresses: &[SocketAddr]) -> Result<(), StoreError> {
    let ips: Vec<_> = addresses.iter().map(|address| address.ip().to_canonical()).collect();
    let twice = ips.iter().enumerate().find(|(number, ip)| ips[..*number].contains(ip));
    if let Some((_, ip)) = twice {
        return Err(StoreError::SameCard { ip: *ip });
    }
    match ips.iter().find(|ip| ip.is_loopback() != ips[0].is_loopback()) {
        Some(_) => Err(StoreError::MixedLoopback),
        None => Ok(()),
    }
}

impl Places {
    async fn take(config: &StoreConfig) -> Result<Self, StoreError> {
        let (backing, memory_bytes) = (config.backing, config.memory_bytes);
        // Not on this runtime's threads: the allocation of huge pages takes seconds.
        let arena = tokio::task::spawn_blocking(move || Arena::create(backing, memory_bytes)).await;
        let arena = arena
            .map_err(|error| StoreError::Thread(error.into()))?
            .map_err(|source| StoreError::Arena { memory_bytes, source })?;
        let data = DataPlace::take(config).await?;
        let local = LocalListener::bind(&config.socket, &socket_access(config))?;
        let spill = SpillFiles::take(config).await?;
        Ok(Self { arena, data, local, spill })
    }
}

fn socket_access(config: &StoreConfig) -> SocketAccess {
    let StoreConfig { socket_mode: mode, socket_owner: owner, socket_group: group, .. } = *config;
    SocketAccess { mode, owner, group, clients: config.clients.clone() }
}

/// The parts of a running store. Dropping it ends all parts at once.
struct Running {
    addresses: Addresses,
    engine: Arc<Engine>,
    sessions: Arc<ShardSessions>,
    directory_failed: DirectoryFailure,
    /// `None` if the start does not wait for the arena's pages.
    prefaulted: Option<JoinHandle<Result<(), hoplite_shm::Error>>>,
    clients: JoinHandle<()>,
    /// One thread for clients and shards, whose small messages cause one another.
    event_loop: EventLoop,
    /// Ends only the sessions.
    leaving: CancellationToken,
    stop: DropGuard,
    tasks: TaskTracker,
}

impl Running {
    async fn start(
        config: StoreConfig,
        exported: Option<Metrics>,
        places: Places,
    ) -> Result<Self, StoreError> {
        let Places { arena, data, local, spill } = places;
        let data_address = data.as_ref().map(|data| data.address);
        let advertised = data.as_ref().map(|data| data.advertised.clone());
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let leaving = stop.child_token();
        let stop_on_drop = stop.clone().drop_guard();
        let directory = start_directory(&config, exported.clone(), &stop, &tasks).await?;
        let links = Arc::new(ShardLinks::new(&directory.shards, &config, &directory.route)?);
        let event_loop = EventLoop::start("control", stop.clone()).map_err(StoreError::Thread)?;

        let data_config = Arc::new(data_config(&config, advertised.clone()));
        let metrics = Arc::new(DataMetrics::default());
        let puller = Puller::new(Arc::clone(&data_config), Arc::clone(&metrics));
        let spill_config = spill.as_ref().map(SpillFiles::config);
        let seed = random_number().map_err(StoreError::Random)?;
        let node = Node::new(config.of_node(
            &directory.shards,
            arena.capacity_bytes(),
            spill_config,
            seed,
        ));
        let running = (tasks.clone(), event_loop.handle().clone());
        let engine = Engine::new(node, arena, puller, Arc::clone(&metrics), running, stop.clone());
        engine.spill_to(spill);
        start_upkeep(&engine, &stop, &tasks, &event_loop);
        if let Some(DataPlace { listeners, .. }) = data {
            let for_small = Some(event_loop.handle().clone());
            let (engine, stop) = (Arc::clone(&engine), stop.clone());
            tasks.spawn(data::run(listeners, data_config, engine, metrics, for_small, stop));
        }
        let prefaulted_bytes = Arc::new(AtomicU64::new(0));
        observe(&engine, &config, exported, &prefaulted_bytes);
        let prefaulting =
            || prefault(Arc::clone(engine.arena()), Arc::clone(&prefaulted_bytes), stop.clone());
        let prefaulted = (config.prefault == Prefault::AtStart).then(|| tasks.spawn(prefaulting()));
        let info = node_info(&config, directory.shards, advertised.as_ref())?;
        let identity =
            Identity { info, advertised: advertised.clone(), cluster: config.cluster.clone() };
        let ends = (leaving.clone(), stop.clone());
        let sessions =
            ShardSessions::start(&engine, &links, identity, event_loop.handle().clone(), ends);
        let plane = local_plane(&engine, &config, advertised, links, prefaulted_bytes);
        let clients = event_loop.spawn(local::run(local, Arc::new(plane), leaving.clone()));
        Ok(Self {
            addresses: Addresses {
                socket: config.socket,
                data: data_address,
                directory: directory.address,
                dashboard: directory.dashboard,
            },
            engine,
            sessions,
            directory_failed: directory.failure,
            prefaulted,
            clients,
            event_loop,
            leaving,
            stop: stop_on_drop,
            tasks,
        })
    }

    /// Tells clients first, then the directory. Then ends all parts at once.
    async fn end(mut self) {
        self.engine.apply(Event::ShutDown);
        self.leaving.cancel();
        self.engine.end_sessions();
        let _ = timeout(SHUTDOWN_TIMEOUT, &mut self.clients).await;
        goodbye(self.sessions.states()).await;
        drop(self.stop);
        self.tasks.close();
        let ended = async { tokio::join!(self.tasks.wait(), self.event_loop.ended()) };
        if timeout(SHUTDOWN_TIMEOUT, ended).await.is_err() {
            tracing::warn!("some tasks did not end in time");
        }
        self.engine.remove_spill_files();
    }
}

fn data_config(config: &StoreConfig, advertised: Option<Advertised>) -> DataConfig {
    let Credentials { token, tls, .. } = config.credentials.clone();
    let own = advertised.as_ref().map(Advertised::own).unwrap_or_default();
    let max_lanes = config.links.max_lanes.unwrap_or(own.len()).max(DEFAULT_MAX_LANES);
    DataConfig {
        newest: config.newest_version,
        links: config.links,
        max_lanes,
        rails: Arc::new(RailTable::new(own)),
        transport: tls.map_or(TransportKind::Plain, TransportKind::Tls),
        token,
        advertised,
        ..DataConfig::new(config.cluster.clone(), config.node.clone())
    }
}

fn local_plane(
    engine: &Arc<Engine>,
    config: &StoreConfig,
    advertised: Option<Advertised>,
    shards: Arc<ShardLinks>,
    prefaulted_bytes: Arc<AtomicU64>,
) -> LocalPlane {
    LocalPlane {
        engine: Arc::clone(engine),
        access: socket_access(config),
        half_open: HalfOpen::new(local::MAX_HALF_OPEN),
        shares: shares(&config.limits),
        turns: Arc::default(),
        limits: config.limits.clone(),
        replicas: config.replicas,
        node: config.node.clone(),
        cluster: config.cluster.clone(),
        newest: config.newest_version,
        advertised,
        shards,
        prefaulted_bytes,
    }
}

/// Describes this run of the store, as a new incarnation.
fn node_info(
    config: &StoreConfig,
    shards: Vec<String>,
    advertised: Option<&Advertised>,
) -> Result<NodeInfo, StoreError> {
    Ok(NodeInfo {
        node: config.node.clone(),
        incarnation: Incarnation(random_number().map_err(StoreError::Random)?),
        data_address: advertised.map_or(UNREACHABLE, Advertised::address),
        labels: config.labels.clone(),
        shards: ShardList::new(shards),
        version: config.newest_version,
    })
}

fn shares(limits: &Limits) -> Shares {
    Shares::new(limits.max_clients, max_request_bytes(limits), limits.max_ids_per_request)
}

fn observe(
    engine: &Arc<Engine>,
    config: &StoreConfig,
    exported: Option<Metrics>,
    prefaulted_bytes: &Arc<AtomicU64>,
) {
    if let Some(exported) = exported {
        engine.observe(Observer::new(&exported));
        metrics::look(&exported, engine, Arc::clone(prefaulted_bytes));
    }
    if let Some(tracer) = config.tracer.clone() {
        engine.trace(Traces::new(tracer, &config.node));
    }
}

fn start_upkeep(
    engine: &Arc<Engine>,
    stop: &CancellationToken,
    tasks: &TaskTracker,
    event_loop: &EventLoop,
) {
    let (alarm, alarm_stop) = (Arc::clone(engine), stop.clone());
    event_loop.spawn(async move { alarm_stop.run_until_cancelled(alarm.run_alarm()).await });
    let (pool, pool_stop) = (Arc::clone(engine), stop.clone());
    tasks.spawn(async move { pool.close_idle_connections(pool_stop).await });
}

/// Waits until each shard has had a session and the arena's pages are touched. Fails if they do not
/// fit into memory.
async fn ready(
    sessions: SessionStates,
    prefaulted: Option<JoinHandle<Result<(), hoplite_shm::Error>>>,
) -> Result<(), hoplite_shm::Error> {
    let connected = async {
        for (_, mut state) in sessions {
            let _ = state.wait_for(|state| *state == SessionState::Up).await;
        }
        Ok(())
    };
    let touched = async {
        match prefaulted {
            Some(prefaulted) => prefaulted.await.unwrap_or(Ok(())),
            None => Ok(()),
        }
    };
    tokio::try_join!(connected, touched).map(drop)
}

async fn refusal(sessions: SessionStates) -> StoreError {
    let watches = sessions.into_iter().map(|(shard, mut state)| {
        Box::pin(async move {
            loop {
                if let SessionState::GivenUp(source) = state.borrow_and_update().clone() {
                    return StoreError::Refused { shard, source };
                }
                if state.changed().await.is_err() {
                    pending::<()>().await;
                }
            }
        })
    });
    futures::future::select_all(watches).await.0
}

async fn goodbye(mut sessions: SessionStates) {
    let ended =
        sessions.iter_mut().map(|(_, state)| state.wait_for(|state| *state != SessionState::Up));
    let _ = timeout(GOODBYE_TIMEOUT, futures::future::join_all(ended)).await;
}

#[cfg(test)]
mod tests {
    use hoplite_core::plan::collective::SchedulePreference;
    use hoplite_core::{ClusterId, Limits, NodeId};
    use hoplite_shm::Backing;

    use super::*;
    use crate::config::{ClientRules, Directory, LinkSettings, SpillSettings};

    async fn refusal_of(change: impl FnOnce(&mut StoreConfig)) -> StoreError {
        let place = tempfile::tempdir().unwrap();
        let mut config = StoreConfig {
            newest_version: hoplite_core::Version::NEWEST,
            node: NodeId::new("n").unwrap(),
            cluster: ClusterId::new("c").unwrap(),
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            credentials: Credentials::default(),
            advertise: Vec::new(),
            directory: Directory::Shards(vec!["127.0.0.1:1".to_owned()]),
            socket: place.path().join("store.sock"),
            socket_mode: 0o600,
            socket_owner: None,
            socket_group: None,
            clients: ClientRules::default(),
            memory_bytes: 1 << 20,
            backing: Backing::Pages,
            prefault: Prefault::OnUse,
            links: LinkSettings::default(),
            labels: Vec::new(),
            allreduce_schedule: SchedulePreference::Auto,
            replicas: 1,
            spill: SpillSettings::default(),
            drain: None,
            limits: Limits::default(),
            tracer: None,
        };
        change(&mut config);
        run(config, None, |told| panic!("{told:?}"), CancellationToken::new()).await.unwrap_err()
    }

    #[tokio::test]
    async fn addresses_that_cannot_work_are_refused_at_the_start() {
        let shards = |addresses: &[&str]| {
            let addresses = addresses.iter().map(|&address| address.to_owned()).collect();
            move |config: &mut StoreConfig| config.directory = Directory::Shards(addresses)
        };
        assert!(matches!(refusal_of(shards(&[])).await, StoreError::NoShards));
        assert!(matches!(refusal_of(shards(&["a:1"; 257])).await, StoreError::TooManyShards));
        assert!(matches!(refusal_of(shards(&["host"])).await, StoreError::ShardAddress { .. }));
        assert!(matches!(refusal_of(shards(&["", "a:1"])).await, StoreError::ShardAddress { .. }));
        assert!(matches!(
            refusal_of(shards(&["a:1", "b:1", "a:1"])).await,
            StoreError::ShardTwice { .. }
        ));
        for address in ["0.0.0.0:7400", "10.0.0.1:0"] {
            let error = refusal_of(|config| config.advertise = vec![address.to_owned()]).await;
            assert!(matches!(error, StoreError::AdvertiseNeeded { .. }), "{error}");
        }
        let error = refusal_of(|config| config.advertise = vec!["localhost".to_owned()]).await;
        assert!(matches!(error, StoreError::AdvertiseUnknown { .. }), "{error}");
    }

    #[tokio::test]
    async fn network_cards_that_cannot_work_are_refused_at_the_start() {
        let cards = async |listen: &[&str], advertise: &[&str]| {
            let error = refusal_of(|config| {
                config.listen = listen.iter().map(|address| address.parse().unwrap()).collect();
                config.advertise = advertise.iter().map(|&name| name.to_owned()).collect();
            });
            error.await.to_string()
        };
        let twice = "127.0.0.1 is named twice: name one address for each network card";
        assert_eq!(cards(&["127.0.0.1:0", "127.0.0.1:0"], &[]).await, twice);
        assert_eq!(cards(&["127.0.0.2:0"], &["127.0.0.1:1", "localhost:2"]).await, twice);
        let missing = cards(&["192.0.2.1:0", "192.0.2.2:0"], &[]).await;
        assert_eq!(missing, "cannot listen on 192.0.2.1:0");
        assert_eq!(
            cards(&["127.0.0.1:0", "127.0.0.2:0"], &["127.0.0.1:1"]).await,
            "advertise one name for each of the 2 addresses to listen on, or none: got 1"
        );
        let many: Vec<_> = (1..=17).map(|number| format!("127.0.0.{number}:0")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let limit = "a store has at most 16 addresses, one for each network card";
        assert_eq!(cards(&many, &[]).await, limit);
        assert_eq!(
            cards(&["0.0.0.0:0"], &["192.0.2.1:5", "192.0.2.2:5"]).await,
            "no network card of this host has 192.0.2.1:5: listen on one address for each card"
        );
        let mixed = "other hosts cannot reach loopback: do not mix it with other addresses";
        assert_eq!(cards(&["127.0.0.1:0", "0.0.0.0:0"], &[]).await, mixed);
        assert_eq!(cards(&["0.0.0.0:0"], &["10.0.0.1:5", "127.0.0.1:5"]).await, mixed);
    }
}
