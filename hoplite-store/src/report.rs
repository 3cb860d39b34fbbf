//! Tells a shard how this store is, while somebody looks at the cluster there.

use std::future::pending;
use std::sync::Arc;

use futures::stream;
use hoplite_core::error::Error;
use hoplite_core::id::NodeId;
use hoplite_core::load::Reporter;
use hoplite_core::time::Time;
use hoplite_proto::directory::encode_load;
use hoplite_proto::status::from_status;
use hoplite_proto::v1::LoadReport;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use crate::engine::Engine;
use crate::shard_link::ShardLink;

/// Most reports that wait to be sent: a shard that does not read gets no more.
const MAX_QUEUED: usize = 2;

/// Tells shards how this store is.
pub(crate) struct LoadReports {
    /// The store.
    pub(crate) engine: Arc<Engine>,
    /// Its name.
    pub(crate) node: NodeId,
    /// The shards, by number, in the order of their names.
    pub(crate) order: Arc<[usize]>,
}

impl LoadReports {
    /// Reports to the shard at `link` whenever the shard asks, even if the shard refuses reports. Returns the error of the
    /// connection of gRPC once that is lost.
    pub(crate) async fn run(&self, link: &ShardLink) -> Error {
        if let Err(status) = self.tell(link).await {
            tracing::debug!(shard = link.address, %status, "the shard is not told how this store is");
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
        // There is room for the first one.
        let _ = reports.try_send(name);
        let outbound = stream::poll_fn(move |cx| queued.poll_recv(cx));
        let mut orders = link.client().watch(outbound).await?.into_inner();
        let started = Instant::now();
        let now = || Time::ZERO + started.elapsed();
        let mut reporter = Reporter::default();
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
                    reporter.watch(now(), millis(order.interval_ms), millis(order.duration_ms));
                }
                () = due => {
                    if let Some(load) = reporter.measured(now(), self.engine.load(&self.order))
                        && reports.try_send(encode_load(load)).is_err()
                    {
                        // The shard does not read.
                        reporter.was_not_told();
                    }
                }
            }
        }
    }
}

fn millis(count: u64) -> std::time::Duration {
    std::time::Duration::from_millis(count)
}
