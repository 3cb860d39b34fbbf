use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::join_all;
use hoplite_core::plan::link::{Intake, LinkEstimate, LinkEstimator, RateSample};
use hoplite_core::plan::rails::TEST_INTERVAL;
use hoplite_core::time::Time;
use hoplite_net::TransportKind;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::config::{DataConfig, Sizes};
use super::connection::{ConnectionError, PeerConnection};
use super::faults::PeerReports;
use super::handshake;
use super::metrics::DataMetrics;
use super::pool::{Peer, Pool};
use super::probe::Surveyor;
use super::rails::RailTable;
use super::route::RouteUse;

/// Most routes that one request tries.
const MAX_ROUTES_TRIED: usize = 3;

/// A store's connections to other stores, and its estimates of their links.
#[derive(Debug)]
pub(crate) struct Puller {
    pub(super) config: Arc<DataConfig>,
    pub(super) metrics: Arc<DataMetrics>,
    pub(super) pool: Pool,
    reports: Arc<PeerReports>,
    link: Arc<Mutex<LinkEstimator>>,
    intake: Arc<Mutex<Intake>>,
    laned_streams: Arc<AtomicUsize>,
    origin: Instant,
}

pub(super) struct Flow<'a>(&'a Puller);

/// Counts an arriving stream until dropped. The senders' plans use the count.
#[derive(Debug)]
pub(super) struct LanedStream(Arc<AtomicUsize>);

impl LanedStream {
    pub(super) fn others(&self) -> usize {
        self.0.load(Ordering::Relaxed).saturating_sub(1)
    }
}

impl Drop for LanedStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'a> Flow<'a> {
    pub(super) fn begin(puller: &'a Puller) -> Self {
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
    pub(crate) fn new(config: Arc<DataConfig>, metrics: Arc<DataMetrics>) -> Self {
        let max_idle = config.max_idle_per_peer + config.max_lanes - 1;
        let pool = Pool::new(max_idle, config.pool_idle_timeout);
        let link = LinkEstimator::new(config.links.bytes_per_second, config.links.latency);
        let link = Arc::new(Mutex::new(link));
        let (reports, intake, laned_streams) = (Arc::default(), Arc::default(), Arc::default());
        let origin = Instant::now();
        Self { config, metrics, pool, reports, link, intake, laned_streams, origin }
    }

    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.config.transport, TransportKind::Plain)
    }

    pub(crate) fn rails(&self) -> &RailTable {
        &self.config.rails
    }

    pub(crate) fn max_lanes(&self) -> usize {
        self.config.max_lanes
    }

    /// The new puller has separate connections, because a connection belongs to one runtime.
    pub(crate) fn for_small(&self) -> Self {
        let config = Arc::new(DataConfig {
            sizes: Sizes::Small,
            max_lanes: 1,
            ..DataConfig::clone(&self.config)
        });
        let pool = Pool::new(config.max_idle_per_peer, config.pool_idle_timeout);
        let (metrics, link) = (Arc::clone(&self.metrics), Arc::clone(&self.link));
        let (reports, intake) = (Arc::clone(&self.reports), Arc::clone(&self.intake));
        let (laned_streams, origin) = (Arc::clone(&self.laned_streams), self.origin);
        Self { config, metrics, pool, reports, link, intake, laned_streams, origin }
    }

    pub(crate) fn surveyor(&self) -> Surveyor {
        Surveyor::new(Arc::clone(&self.config))
    }

    /// Configured estimate, or else the measured one, or else the default.
    pub(crate) fn link(&self) -> LinkEstimate {
        self.lock_link().link()
    }

    pub(super) fn begin_receiving(&self) -> LanedStream {
        self.laned_streams.fetch_add(1, Ordering::Relaxed);
        LanedStream(Arc::clone(&self.laned_streams))
    }

    pub(super) fn transferred(&self, sample: RateSample) {
        let mut link = self.lock_link();
        link.transferred(sample);
        if let Some(rate) = link.measured_rate() {
            self.metrics.received(rate);
        }
    }

    fn lock_link(&self) -> MutexGuard<'_, LinkEstimator> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_intake(&self) -> MutexGuard<'_, Intake> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    /// Tests failed routes over network cards until `shutdown`.
    pub(crate) async fn keep_testing_routes(&self, shutdown: CancellationToken) {
        let mut looks = interval(TEST_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let testing = async {
            loop {
                looks.tick().await;
                self.test_routes().await;
            }
        };
        shutdown.run_until_cancelled(testing).await;
    }

    /// Closes connections idle for too long. After `shutdown`, closes all.
    pub(crate) async fn maintain(&self, shutdown: CancellationToken) {
        let mut checks = interval(self.config.pool_idle_timeout / 2);
        while shutdown.run_until_cancelled(checks.tick()).await.is_some() {
            self.pool.expire();
        }
        self.pool.close();
    }

    /// Takes an idle connection if `may_be_old`, or opens one. If a route fails, uses another.
    /// Returns `true` for a new connection.
    pub(super) async fn open(
        &self,
        peer: &Peer,
        may_be_old: bool,
    ) -> Result<(PeerConnection, RouteUse, bool), ConnectionError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let rail = RouteUse::begin(&self.config.rails, peer, &[]);
            if may_be_old && let Some(connection) = self.pool.take(peer, rail.route()) {
                return Ok((connection, rail, false));
            }
            match handshake::connect(&self.config, &peer.0, &rail).await {
                Ok((connection, took)) => {
                    rail.worked();
                    self.reports.reached(peer);
                    self.lock_link().connected(took);
                    let rail = rail.adopted(&self.config.rails, peer, connection.rail);
                    return Ok((connection, rail, true));
                }
                Err(error) if rail.could_not_open(&error) && attempt < MAX_ROUTES_TRIED => {}
                Err(error) => {
                    self.reports.failed(self.now(), peer, &error);
                    return Err(error);
                }
            }
        }
    }

    /// Connects over failed routes that are due for a test.
    async fn test_routes(&self) {
        let tests = RouteUse::tests(&self.config.rails).into_iter().map(async |(peer, rail)| {
            match handshake::connect(&self.config, &peer.0, &rail).await {
                Ok((connection, _)) => {
                    rail.worked();
                    self.pool.put(peer, rail.route(), connection);
                }
                Err(error) => drop(rail.could_not_open(&error)),
            }
        });
        join_all(tests).await;
    }

    pub(crate) fn reports(&self) -> &PeerReports {
        &self.reports
    }

    #[cfg(test)]
    pub(super) fn forget_idle(&self) {
        self.pool.forget();
    }

    #[cfg(test)]
    pub(super) fn idle_connections(&self) -> usize {
        self.pool.idle_connections()
    }
}
