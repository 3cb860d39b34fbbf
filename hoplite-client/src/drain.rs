use std::pin::pin;
use std::time::Duration;

use hoplite_core::Operation;
use hoplite_core::node::{self, DrainReport, Inspection, Response};
use hoplite_proto::local::{self, Request};
use tokio::time::timeout;

use crate::begun::REPORT_TIMEOUT;
use crate::client::{Client, PROGRESS_INTERVAL};
use crate::connection::Connection;
use crate::error::Result;

/// Pause between queries for another store's progress; each also queries the directory.
const REMOTE_PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

impl Client {
    /// Moves the store's pinned copies, which it must keep, to other stores. Calls
    /// `report_progress` a few times a second. After success, the store stops; after a failure, it
    /// accepts puts again.
    ///
    /// # Errors
    /// `PermissionDenied` unless the client is root or the store's user.
    pub async fn drain(
        &self,
        limit: Duration,
        report_progress: impl FnMut(&DrainReport),
    ) -> Result<DrainReport> {
        let call = self.begin_report().await?;
        let drain = [node::Request::Drain { timeout: limit }, node::Request::DrainProgress];
        drained(&call.connection, drain, limit, PROGRESS_INTERVAL, report_progress).await
    }

    /// Drains the store with this name or data plane address, as [`Client::drain`] does.
    ///
    /// # Errors
    /// `PermissionDenied` unless the client is root or the user of this node's store.
    /// `InvalidRequest` if the store `node` is too old, or not connected to the directory.
    /// `VersionMismatch` if this node's store is too old. `Unavailable` if the connection to `node`
    /// breaks.
    pub async fn drain_node(
        &self,
        node: &str,
        limit: Duration,
        report_progress: impl FnMut(&DrainReport),
    ) -> Result<DrainReport> {
        let call = self.begin_report().await?;
        if call.connection.node().as_str() == node {
            return self.drain(limit, report_progress).await;
        }
        let drain = [Some(limit), None].map(|timeout| {
            node::Request::Inspect(Inspection::DrainNode { node: node.to_owned(), timeout })
        });
        drained(&call.connection, drain, limit, REMOTE_PROGRESS_INTERVAL, report_progress).await
    }

    /// Returns the progress of a drain of this node's store, or of `node`. Starts no drain.
    ///
    /// # Errors
    /// As for [`Client::drain_node`]. Every client may query this node's store.
    pub async fn drain_progress(&self, node: Option<&str>) -> Result<DrainReport> {
        let call = self.begin_report().await?;
        let connection = &call.connection;
        let request = match node.filter(|node| connection.node().as_str() != *node) {
            Some(node) => node::Request::Inspect(Inspection::DrainNode {
                node: node.to_owned(),
                timeout: None,
            }),
            None => node::Request::DrainProgress,
        };
        let answer =
            connection.call(Request::Node(request), Operation::Connect, REPORT_TIMEOUT).await?;
        drain_report(answer).ok_or_else(|| connection.unexpected())
    }
}

async fn drained(
    connection: &Connection,
    [request, progress]: [node::Request; 2],
    limit: Duration,
    interval: Duration,
    mut report_progress: impl FnMut(&DrainReport),
) -> Result<DrainReport> {
    let wait_limit = limit.saturating_add(REPORT_TIMEOUT);
    let call =
        |request| connection.call(Request::Node(request), Operation::Connect, REPORT_TIMEOUT);
    let mut drain = pin!(connection.call(Request::Node(request), Operation::Connect, wait_limit));
    loop {
        let answer = match timeout(interval, &mut drain).await {
            Ok(answer) => return drain_report(answer?).ok_or_else(|| connection.unexpected()),
            Err(_) => call(progress.clone()).await,
        };
        // The last query for the progress may fail, because a drained store stops.
        if let Ok(report) = answer.map(drain_report)
            && let Some(report) = report
        {
            report_progress(&report);
        }
    }
}

fn drain_report(response: local::Response) -> Option<DrainReport> {
    match response {
        local::Response::Node(Response::Drain(report)) => Some(report),
        _ => None,
    }
}
