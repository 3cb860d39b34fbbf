//! Reports the store's load while a shard has a dashboard or `hoplite top` watches it.

use std::future::pending;
use std::sync::Arc;

use futures::stream;
use hoplite_core::error::Error;
use hoplite_core::id::NodeId;
use hoplite_core::load::{Detail, Load, Reporter};
use hoplite_core::time::Time;
use hoplite_daemon::recent_log_lines;
use hoplite_proto::directory::encode_load;
use hoplite_proto::status::from_status;
use hoplite_proto::v1::LoadReport;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use crate::engine::Engine;
use crate::shard_link::ShardLink;

/// Most queued load reports; further reports for the shard are dropped.
const MAX_QUEUED: usize = 2;

pub(crate) struct LoadReports {
    pub(crate) engine: Arc<Engine>,
    pub(crate) node: NodeId,
}

impl LoadReports {
    /// Sends a report whenever the shard requests one. Returns when the gRPC connection is lost.
    pub(crate) async fn run(&self, link: &ShardLink) -> Error {
        if let Err(status) = self.tell(link).await {
            tracing::debug!(shard = link.address, %status, "cannot send load reports to the shard");
            let error = from_status(&status);
            if matches!(error, Error::Unavailable { .. }) {
                return error;
            }
        }
        pending().await
    }

    async fn tell(&self, link: &ShardLink) -> Result<(), Status> {
        let (reports, mut queued) = mpsc::channel(MAX_QUEUED);
        let name = LoadReport { node: self.node.to_string(), ..LoadReport::default() };
        let _ = reports.try_send(name);
        let outbound = stream::poll_fn(move |cx| queued.poll_recv(cx));
        let mut orders = link.client().watch(outbound).await?.into_inner();
        let started = Instant::now();
        let now = || Time::ZERO + started.elapsed();
        let (mut reporter, mut is_detailed) = (Reporter::default(), false);
        loop {
            let due = async {
                match reporter.next() {
                    Some(next) => sleep_until(started + next.since(Time::ZERO)).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                order = orders.message() => {
                    let Some(order) = order? else { return Ok(()) };
                    is_detailed = order.detailed;
                    reporter.watch(now(), millis(order.interval_ms), millis(order.duration_ms));
                }
                () = due => {
                    if let Some(load) = reporter.measured(now(), self.load(is_detailed))
                        && reports.try_send(encode_load(load)).is_err()
                    {
                        reporter.report_failed();
                    }
                }
            }
        }
    }

    fn load(&self, is_detailed: bool) -> Load {
        let detail = is_detailed
            .then(|| Detail { clients: self.engine.client_loads(), log: recent_log_lines() });
        Load { detail, ..self.engine.load() }
    }
}

fn millis(count: u64) -> std::time::Duration {
    std::time::Duration::from_millis(count)
}
