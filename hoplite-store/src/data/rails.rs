//! The network cards (rails) of this store.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hoplite_core::id::NodeId;
use hoplite_core::plan::rails::Rails;
use hoplite_core::time::Time;
use tokio::time::Instant;

/// This store's network cards, and the routes to stores with several.
#[derive(Debug)]
pub(crate) struct RailTable {
    pub(super) own: Vec<IpAddr>,
    rails: Mutex<Rails>,
    counts: Vec<RailCounts>,
    origin: Instant,
}

#[derive(Debug, Default)]
struct RailCounts {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

/// Use of a network card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RailReport {
    pub(crate) address: IpAddr,
    /// Connections in use from this card to other stores.
    pub(crate) connections: usize,
    /// Bytes of objects since the start of the store.
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) failed_routes: usize,
}

impl RailTable {
    pub(crate) fn new(own: Vec<IpAddr>) -> Self {
        let counts = own.iter().filter(|_| own.len() > 1).map(|_| RailCounts::default()).collect();
        let rails = Mutex::new(Rails::new(own.len()));
        Self { own, rails, counts, origin: Instant::now() }
    }

    /// Describes each network card; none if there is a single one.
    pub(crate) fn reports(&self) -> Vec<RailReport> {
        let rails = self.lock();
        let failed: Vec<_> = rails.failed_routes().filter_map(|route| route.own).collect();
        let cards = self.own.iter().zip(&self.counts).zip(rails.used()).enumerate();
        cards
            .map(|(number, ((address, counts), connections))| RailReport {
                address: *address,
                connections: *connections,
                sent_bytes: counts.sent_bytes.load(Ordering::Relaxed),
                received_bytes: counts.received_bytes.load(Ordering::Relaxed),
                failed_routes: failed.iter().filter(|own| **own == number).count(),
            })
            .collect()
    }

    pub(crate) fn failed_routes(&self) -> usize {
        self.lock().failed_routes().count()
    }

    pub(super) fn learn(&self, peer: &NodeId, addresses: &[SocketAddr]) {
        self.lock().learn(peer, addresses);
    }

    pub(super) fn routes(&self, peer: &NodeId) -> usize {
        self.lock().routes(peer)
    }

    pub(super) fn number_of(&self, local: IpAddr) -> Option<usize> {
        let is_at = |own: &IpAddr| *own == local.to_canonical();
        self.own.iter().position(is_at).filter(|_| self.own.len() > 1)
    }

    pub(super) fn sent(&self, rail: Option<usize>, bytes: u64) {
        if let Some(counts) = rail.and_then(|rail| self.counts.get(rail)) {
            counts.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn received(&self, rail: Option<usize>, bytes: u64) {
        if let Some(counts) = rail.and_then(|rail| self.counts.get(rail)) {
            counts.received_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Rails> {
        self.rails.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
