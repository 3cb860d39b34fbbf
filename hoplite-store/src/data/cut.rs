//! Ends a long conversation whose route is cut, while another route to the peer works.

use std::future::pending;
use std::sync::Arc;

use hoplite_core::id::NodeId;
use hoplite_core::plan::rails::{CutDetector, Finding, LOOK_INTERVAL, Route};
use hoplite_net::AcknowledgementWatch;
use tokio::time::sleep;

use super::config::DataConfig;
use super::connection::{ConnectionError, PeerConnection};
use super::handshake;
use super::pool::Peer;
use super::route::{RouteUse, failed};

/// Watches the route of one connection to a peer with several.
#[derive(Debug)]
pub(super) struct CutWatch {
    config: Arc<DataConfig>,
    peer: Peer,
    route: Route,
    acknowledgements: AcknowledgementWatch,
}

impl CutWatch {
    pub(super) fn begin(
        config: &Arc<DataConfig>,
        peer: Peer,
        route: Route,
        connection: &PeerConnection,
    ) -> Option<Self> {
        let acknowledgements = connection.watch_acknowledgements().ok()?;
        Some(Self { config: Arc::clone(config), peer, route, acknowledgements })
    }

    /// Watches a connection that `peer` opened.
    pub(super) fn incoming(
        config: &Arc<DataConfig>,
        peer: &NodeId,
        connection: &PeerConnection,
    ) -> Option<Self> {
        let from = connection.addresses().ok()?.1.ip().to_canonical();
        let (main, route) = config.rails.lock().incoming(peer, connection.rail, from)?;
        Self::begin(config, (peer.clone(), main), route, connection)
    }

    /// Waits until the route is cut.
    async fn cut(&self) -> ConnectionError {
        let mut detector = CutDetector::default();
        loop {
            sleep(LOOK_INTERVAL).await;
            let Some(seen) = self.acknowledgements.unacknowledged() else { return pending().await };
            match detector.look(seen) {
                Finding::Works => {}
                Finding::Suspect => {
                    if self.answers_elsewhere().await
                        && let Some(seen) = self.acknowledgements.unacknowledged()
                    {
                        detector.answered(seen);
                    }
                }
                Finding::Cut => {
                    failed(&self.config.rails, &self.peer.0, self.route, &ConnectionError::Cut);
                    return ConnectionError::Cut;
                }
            }
        }
    }

    /// Connects over another route.
    async fn answers_elsewhere(&self) -> bool {
        let other = RouteUse::begin(&self.config.rails, &self.peer, &[self.route.number]);
        if other.route() == self.route.number {
            return false;
        }
        match handshake::connect(&self.config, &self.peer.0, &other).await {
            Ok(_) => {
                other.worked();
                true
            }
            // No proof that the other route failed: the peer's host may be silent.
            Err(_) => false,
        }
    }
}

/// Performs `work` over the watched connection. Drops it when the route is cut.
pub(super) async fn unless_cut<T, E: From<ConnectionError>>(
    watch: Option<CutWatch>,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let Some(watch) = watch else { return work.await };
    tokio::select! {
        biased;
        done = work => done,
        error = watch.cut() => Err(error.into()),
    }
}
