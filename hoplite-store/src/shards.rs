//! The sessions with the shards of the directory, whose list may change.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hoplite_core::ClusterId;
use hoplite_core::id::NodeId;
use hoplite_core::placement::{MAX_SHARD_NAME_BYTES, MAX_SHARDS};
use hoplite_core::shard::NodeInfo;
use hoplite_net::opening::Caller;
use hoplite_net::{Credentials, Route};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::advertised::Advertised;
use crate::config::StoreConfig;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::report::LoadReports;
use crate::session::{Session, SessionState};
use crate::shard_link::ShardLink;

/// Links by shard index, shared by sessions and tools' requests.
#[derive(Debug)]
pub(crate) struct ShardLinks {
    credentials: Credentials,
    caller: Caller,
    /// `None` if another store has listed a text that is not `HOST:PORT`.
    links: RwLock<Vec<Option<ShardLink>>>,
}

impl ShardLinks {
    /// Makes links to the configured shards. Fails for an invalid or repeated address, or too many.
    pub(crate) fn new(
        addresses: &[String],
        config: &StoreConfig,
        route: &Route,
    ) -> Result<Self, StoreError> {
        if addresses.len() > MAX_SHARDS {
            return Err(StoreError::TooManyShards);
        }
        let StoreConfig { cluster, node, newest_version: newest, credentials, .. } = config;
        let links = Self::none(credentials.clone(), cluster, node, *newest);
        let mut seen = HashSet::new();
        // Two sessions of one store with one shard would end each other for ever.
        if let Some(address) = addresses.iter().find(|address| !seen.insert(*address)) {
            return Err(StoreError::ShardTwice { address: address.clone() });
        }
        for address in addresses {
            let Some(link) = links.over(route.clone(), address) else {
                return Err(StoreError::ShardAddress { address: address.clone() });
            };
            links.push(Some(link));
        }
        Ok(links)
    }

    pub(crate) fn none(
        credentials: Credentials,
        cluster: &ClusterId,
        node: &NodeId,
        newest: hoplite_core::Version,
    ) -> Self {
        let caller = Caller { cluster: Some(cluster.clone()), node: Some(node.clone()), newest };
        Self { credentials, caller, links: RwLock::default() }
    }

    pub(crate) fn to(&self, address: &str) -> Option<ShardLink> {
        self.over(Route::Network, address)
    }

    fn over(&self, route: Route, address: &str) -> Option<ShardLink> {
        let link = ShardLink::new(address, &self.credentials, self.caller.clone(), route);
        link.filter(|_| address.len() <= MAX_SHARD_NAME_BYTES)
    }

    fn push(&self, link: Option<ShardLink>) {
        self.links.write().unwrap_or_else(PoisonError::into_inner).push(link);
    }

    pub(crate) fn count(&self) -> usize {
        self.links.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn get(&self, shard: usize) -> Option<ShardLink> {
        self.links.read().unwrap_or_else(PoisonError::into_inner).get(shard)?.clone()
    }

    pub(crate) fn of(&self, shards: impl IntoIterator<Item = usize>) -> Vec<ShardLink> {
        shards.into_iter().filter_map(|shard| self.get(shard)).collect()
    }
}

pub(crate) type SessionStates = Vec<(String, watch::Receiver<SessionState>)>;

pub(crate) struct Identity {
    pub(crate) info: NodeInfo,
    pub(crate) advertised: Option<Advertised>,
    pub(crate) cluster: ClusterId,
}

pub(crate) struct ShardSessions {
    engine: Arc<Engine>,
    links: Arc<ShardLinks>,
    identity: Identity,
    runtime: Handle,
    /// Ends sessions after their queued messages.
    leaving: CancellationToken,
    /// Ends sessions at once.
    stop: CancellationToken,
    kept: Mutex<Vec<KeptSession>>,
}

/// A session that begins again after each loss, until its shard leaves the list.
struct KeptSession {
    shard: usize,
    address: String,
    state: watch::Receiver<SessionState>,
    leaving: CancellationToken,
}

impl ShardSessions {
    /// Starts a session with each shard, and follows changes of the list until `stop`.
    pub(crate) fn start(
        engine: &Arc<Engine>,
        links: &Arc<ShardLinks>,
        identity: Identity,
        runtime: Handle,
        (leaving, stop): (CancellationToken, CancellationToken),
    ) -> Arc<Self> {
        let (engine, links) = (Arc::clone(engine), Arc::clone(links));
        let kept = Mutex::default();
        let sessions = Arc::new(Self { engine, links, identity, runtime, leaving, stop, kept });
        for shard in 0..sessions.links.count() {
            sessions.begin(shard);
        }
        let (following, stop) = (Arc::clone(&sessions), sessions.stop.clone());
        sessions.runtime.spawn(async move { stop.run_until_cancelled(following.follow()).await });
        sessions
    }

    pub(crate) fn states(&self) -> SessionStates {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().map(|session| (session.address.clone(), session.state.clone())).collect()
    }

    async fn follow(&self) {
        loop {
            let left = self.engine.shards_changed().await;
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).retain(|session| {
                let stays = !left.contains(&session.shard);
                if !stays {
                    tracing::info!(
                        shard = session.address,
                        "the directory shard has left the directory"
                    );
                    session.leaving.cancel();
                }
                stays
            });
            let shards = self.engine.shards();
            for shard in self.links.count()..shards.len() {
                let link = self.links.to(shards.name(shard));
                if link.is_none() {
                    let address = shards.name(shard);
                    tracing::warn!(shard = address, "the new directory shard has no valid address");
                }
                self.links.push(link);
                self.begin(shard);
            }
        }
    }

    fn begin(&self, shard: usize) {
        let Some(link) = self.links.get(shard) else { return };
        let (state, observed) = watch::channel(SessionState::Down);
        let leaving = self.leaving.child_token();
        let kept = KeptSession {
            shard,
            address: link.address.clone(),
            state: observed,
            leaving: leaving.clone(),
        };
        let Identity { info, advertised, cluster } = &self.identity;
        let session = Session {
            engine: Arc::clone(&self.engine),
            shard,
            link,
            load_reports: LoadReports { engine: Arc::clone(&self.engine), node: info.node.clone() },
            info: info.clone(),
            advertised: advertised.clone(),
            cluster: cluster.clone(),
            started: Instant::now(),
        };
        self.runtime.spawn(session.run(state, leaving, self.stop.clone()));
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
    }
}
