use std::sync::Arc;
use std::time::Duration;

use hoplite_core::node::{DrainReport, DrainState, Event, Unmoved};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Engine;

/// Longest wait of a drained store to report to the store that requested the drain.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

impl Engine {
    pub(crate) async fn drain(self: &Arc<Self>, timeout: Duration) {
        tracing::info!(?timeout, "draining");
        let mut ended = self.drained.subscribe();
        ended.mark_unchanged();
        self.apply(Event::Drain { timeout });
        let _ = ended.changed().await;
    }

    pub(crate) async fn drain_for_another(
        self: &Arc<Self>,
        timeout: Option<Duration>,
    ) -> (DrainReport, TaskTrackerToken) {
        let answering = self.drain_answers.token();
        let Some(timeout) = timeout else { return (self.lock().node.drain_report(), answering) };
        self.drain(timeout).await;
        (self.drained.borrow().clone().unwrap_or_default(), answering)
    }

    pub(crate) async fn drained(&self) {
        let mut ended: watch::Receiver<_> = self.drained.subscribe();
        let is_drained = |report: &Option<DrainReport>| {
            report.as_ref().is_some_and(|report| report.state == DrainState::Drained)
        };
        let _ = ended.wait_for(is_drained).await;
        self.drain_answers.close();
        let _ = timeout(ANSWER_TIMEOUT, self.drain_answers.wait()).await;
    }

    pub(super) fn drain_ended(&self, report: DrainReport) {
        let DrainReport {
            moved_objects, moved_bytes, left_objects, left_bytes, open_calls, ..
        } = report;
        if report.state == DrainState::Drained {
            let DrainReport { held_objects, short_objects, .. } = report;
            tracing::info!(
                moved_objects, moved_bytes, held_objects, short_objects, open_calls, "drained"
            );
        } else {
            tracing::warn!(
                moved_objects,
                moved_bytes,
                left_objects,
                left_bytes,
                "the drain has failed"
            );
        }
        for Unmoved { id, size_bytes, obstacle } in &report.unmoved {
            tracing::warn!(%id, size_bytes, ?obstacle, "not moved to another store");
        }
        self.drained.send_replace(Some(report));
    }
}
