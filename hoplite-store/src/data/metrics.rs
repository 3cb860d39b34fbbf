//! Counters of the data plane, and its estimates of links.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hoplite_core::id::NodeId;
use hoplite_core::link::Delivery;
use hoplite_core::time::Time;
use hoplite_core::topology::live::{PeerLink, PeerLinks};

/// Counters since the start of the store.
#[derive(Debug, Default)]
pub(crate) struct DataMetrics {
    /// Bytes of objects that were handed to sockets.
    pub(crate) sent_bytes: AtomicU64,
    /// Bytes of objects that arrived, damaged ones not counted.
    pub(crate) received_bytes: AtomicU64,
    /// Transfers to other stores that began.
    pub(crate) serves: AtomicU64,
    /// Transfers from other stores that began.
    pub(crate) pulls: AtomicU64,
    /// Transfers that ended because a frame was damaged or not of the protocol.
    pub(crate) corrupt_frames: AtomicU64,
    /// Further connections that streams to other stores have now.
    pub(crate) lanes: AtomicU64,
    /// Further connections that streams have opened.
    pub(crate) lanes_opened: AtomicU64,
    /// Further connections that streams have closed because they were of no use.
    pub(crate) lanes_left: AtomicU64,
    /// Further connections of streams that broke.
    pub(crate) lanes_lost: AtomicU64,
    /// Connections from peers that did not speak the protocol, or belong to another cluster.
    pub(crate) malformed_connections: AtomicU64,
    /// Connections of clients and stores without a common version of the protocol.
    pub(crate) incompatible_peers: AtomicU64,
    /// Connections closed at once because there were too many.
    pub(crate) refused_connections: AtomicU64,
    /// Estimates from transfers to other stores.
    links: Mutex<PeerLinks>,
}

impl DataMetrics {
    /// Takes in what the kernel knows of a transfer to `peer`. Returns the slow links, if the directory does not know these.
    pub(super) fn measured(&self, now: Time, peer: &NodeId, delivery: Delivery) -> Option<Vec<NodeId>> {
        let mut links = self.lock_links();
        links.add(now, peer, delivery.into());
        links.news(now)
    }

    /// Takes in at which rate this store receives.
    pub(super) fn received(&self, bytes_per_second: u64) {
        self.lock_links().received(bytes_per_second);
    }

    /// The links to other stores, slowest first.
    pub(crate) fn links(&self) -> Vec<PeerLink> {
        self.lock_links().worst_first()
    }

    fn lock_links(&self) -> MutexGuard<'_, PeerLinks> {
        // An estimate that a panic left half changed is one sample off.
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}
