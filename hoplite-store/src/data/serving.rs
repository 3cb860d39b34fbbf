use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::error::Error;
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::node::{DrainReport, Hop, HopReport};
use hoplite_core::trace::TraceContext;
use hoplite_proto::v1;
use tokio::sync::mpsc;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::copies::LiveCopy;
use crate::spill::SpilledCopy;

pub(crate) trait ServeSource: Send + Sync + 'static {
    /// Finds the requested copy, and may wait for it; `None` if there is none. Dropping the future
    /// withdraws the request.
    fn serve(self: &Arc<Self>, request: ServeRequest)
    -> impl Future<Output = Option<Found>> + Send;

    /// Records the peers with slow links. Links to other peers are no longer slow.
    fn has_slow_links(self: &Arc<Self>, peers: Vec<NodeId>);

    /// Moves the store's objects to other stores. Without a timeout, only reports the progress. The
    /// token delays the store's exit until the caller has sent the report.
    fn drain(
        self: &Arc<Self>,
        timeout: Option<Duration>,
    ) -> impl Future<Output = (DrainReport, TaskTrackerToken)> + Send;

    fn refused_version(self: &Arc<Self>, error: Error);
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServeRequest {
    pub(crate) peer: NodeId,
    pub(crate) id: ObjectId,
    pub(crate) put: PutId,
    /// `true` to wait for an object that this store may make later.
    pub(crate) awaits_hop: bool,
    pub(crate) trace: Option<TraceContext>,
}

#[derive(Debug)]
pub(crate) enum Found {
    Memory(Served),
    File(SpilledCopy),
}

impl Found {
    pub(crate) fn size_bytes(&self) -> u64 {
        match self {
            Self::Memory(served) => served.size_bytes(),
            Self::File(spilled) => spilled.size_bytes,
        }
    }

    pub(crate) fn in_memory(self) -> Option<Served> {
        match self {
            Self::Memory(served) => Some(served),
            Self::File(_) => None,
        }
    }
}

/// The right to read a copy until dropped.
pub(crate) struct Served {
    live: Arc<LiveCopy>,
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Served {
    /// Calls `end` when the reader no longer touches the copy's memory.
    pub(crate) fn new(live: Arc<LiveCopy>, end: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { live, end: Some(Box::new(end)) }
    }
}

impl std::ops::Deref for Served {
    type Target = LiveCopy;

    fn deref(&self) -> &LiveCopy {
        &self.live
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Served").field(&self.live).finish()
    }
}

#[derive(Debug)]
pub(super) enum Ending {
    Complete,
    /// The store has no such copy, or the copy has failed.
    NoCopy,
    Refused(Error),
}

pub(super) fn end_message(ending: Ending) -> v1::End {
    let (outcome, error) = match ending {
        Ending::Complete => (v1::end::Outcome::Complete, None),
        Ending::NoCopy => (v1::end::Outcome::NoCopy, None),
        Ending::Refused(error) => (v1::end::Outcome::Refused, Some(error)),
    };
    let error = error.as_ref().map(hoplite_proto::error::encode);
    v1::End { outcome: outcome.into(), error, failed_input: None }
}

pub(crate) trait HopHost: Send + Sync + 'static {
    /// Begins a hop, which ends when the result is dropped.
    fn host(self: &Arc<Self>, request: HopRequest) -> Hosted;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HopRequest {
    pub(crate) spec: Hop,
    pub(crate) trace: Option<TraceContext>,
}

pub(crate) struct Hosted {
    /// At most two reports: `Complete`, and then `Failed`.
    reports: mpsc::Receiver<HopReport>,
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Hosted {
    pub(crate) const MAX_REPORTS: usize = 2;

    pub(crate) fn new(
        reports: mpsc::Receiver<HopReport>,
        end: impl FnOnce() + Send + Sync + 'static,
    ) -> Self {
        Self { reports, end: Some(Box::new(end)) }
    }

    /// Returns `None` after the last report. Cancel safe.
    pub(crate) async fn next_report(&mut self) -> Option<HopReport> {
        self.reports.recv().await
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}
