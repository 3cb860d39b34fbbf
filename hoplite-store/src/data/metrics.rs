use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hoplite_core::id::NodeId;
use hoplite_core::link::Delivery;
use hoplite_core::time::Time;
use hoplite_core::topology::live::{PeerLink, PeerLinks};

use super::lanes::OutgoingStreams;

/// Counts since the start of the store, except `lanes`.
#[derive(Debug, Default)]
pub(crate) struct DataMetrics {
    pub(crate) sent_bytes: AtomicU64,
    /// Object bytes that arrived undamaged.
    pub(crate) received_bytes: AtomicU64,
    pub(crate) serves: AtomicU64,
    pub(crate) pulls: AtomicU64,
    /// Transfers, hops and collectives that ended at a damaged or unknown frame.
    pub(crate) corrupt_frames: AtomicU64,
    /// Open lanes, besides the first one of each stream.
    pub(crate) lanes: AtomicU64,
    pub(crate) lanes_opened: AtomicU64,
    pub(crate) lanes_left: AtomicU64,
    pub(crate) lanes_lost: AtomicU64,
    pub(crate) lanes_ended: AtomicU64,
    /// Connections that violated the protocol, or came from another cluster.
    pub(crate) malformed_connections: AtomicU64,
    pub(crate) incompatible_peers: AtomicU64,
    /// Connections closed at once, because too many were open.
    pub(crate) refused_connections: AtomicU64,
    links: Mutex<PeerLinks>,
    streams: OnceLock<Arc<OutgoingStreams>>,
}

impl DataMetrics {
    /// Adds statistics of a transfer. Returns the peers with slow links if the list has changed.
    pub(super) fn measured(
        &self,
        now: Time,
        peer: &NodeId,
        delivery: Delivery,
    ) -> Option<Vec<NodeId>> {
        let mut links = self.lock_links();
        links.add(now, peer, delivery.into());
        links.news(now)
    }

    pub(super) fn received(&self, bytes_per_second: u64) {
        self.lock_links().received(bytes_per_second);
    }

    pub(super) fn observe(&self, streams: &Arc<OutgoingStreams>) {
        self.streams.get_or_init(|| Arc::clone(streams));
    }

    pub(crate) fn links(&self) -> Vec<PeerLink> {
        let mut links = self.lock_links().worst_first();
        if let Some(streams) = self.streams.get() {
            links.iter_mut().for_each(|link| link.lanes = streams.lanes_to(&link.peer));
        }
        links
    }

    fn lock_links(&self) -> MutexGuard<'_, PeerLinks> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn count(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}
