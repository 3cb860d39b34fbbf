//! The requests of the data plane to the store, for copies and hops that other stores want.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use hoplite_core::error::Error;
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::node::{Hop, HopReport};
use hoplite_core::trace::TraceContext;
use hoplite_proto::v1;
use tokio::sync::mpsc;

use crate::copies::LiveCopy;

/// Decides whether another store is served, and from what.
pub(crate) trait ServeSource: Send + Sync + 'static {
    /// Finds the copy, maybe after a while; `None` if there is none.
    ///
    /// Dropping the future withdraws the request.
    fn serve(self: &Arc<Self>, request: ServeRequest) -> impl Future<Output = Option<Served>> + Send;

    /// Notes that only the links to these peers have been slow for long.
    fn has_slow_links(self: &Arc<Self>, peers: Vec<NodeId>);

    /// Notes that a peer of an incompatible version was refused.
    fn refused_version(self: &Arc<Self>, error: Error);
}

/// A request of another store for a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServeRequest {
    /// The peer, by the name that it gave in the handshake.
    pub(crate) peer: NodeId,
    /// The object that a peer asks for.
    pub(crate) id: ObjectId,
    /// The put of the object.
    pub(crate) put: PutId,
    /// `true` if it is the output of a hop, which may not have begun yet.
    pub(crate) awaits_hop: bool,
    /// The span that has caused this.
    pub(crate) trace: Option<TraceContext>,
}

/// The right to read a copy, for as long as this is not dropped.
pub(crate) struct Served {
    live: Arc<LiveCopy>,
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Served {
    /// A serve of `live`. `end` is called when it is over, when nothing touches the copy's memory for it any more.
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

/// The end of a serve, as the receiver learns it.
#[derive(Debug)]
pub(super) enum Ending {
    /// All bytes were sent.
    Complete,
    /// There is no such copy, or it has failed.
    NoCopy,
    /// The request is refused, for this reason.
    Refused(Error),
}

/// The message that tells a receiver how its serve ended.
pub(super) fn end_message(ending: Ending) -> v1::End {
    let (outcome, error) = match ending {
        Ending::Complete => (v1::end::Outcome::Complete, None),
        Ending::NoCopy => (v1::end::Outcome::NoCopy, None),
        Ending::Refused(error) => (v1::end::Outcome::Refused, Some(error)),
    };
    let error = error.as_ref().map(hoplite_proto::error::encode);
    v1::End { outcome: outcome.into(), error, failed_input: None }
}

/// Performs hops for coordinators elsewhere.
pub(crate) trait HopHost: Send + Sync + 'static {
    /// Begins a hop, which ends when the returned value is dropped.
    fn host(self: &Arc<Self>, request: HopRequest) -> Hosted;
}

/// A hop for a coordinator elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HopRequest {
    /// The hop.
    pub(crate) spec: Hop,
    /// The span that has caused this.
    pub(crate) trace: Option<TraceContext>,
}

/// A hop that is performed for a coordinator, for as long as this is not dropped.
pub(crate) struct Hosted {
    /// Its reports: at most `Complete`, and then `Failed`.
    reports: mpsc::Receiver<HopReport>,
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Hosted {
    /// Most reports that a hop makes.
    pub(crate) const MAX_REPORTS: usize = 2;

    /// A hop that tells how it goes through `reports`. `end` is called when it is needed no longer.
    pub(crate) fn new(
        reports: mpsc::Receiver<HopReport>,
        end: impl FnOnce() + Send + Sync + 'static,
    ) -> Self {
        Self { reports, end: Some(Box::new(end)) }
    }

    /// Waits for the next report; `None` if there are no more.
    ///
    /// # Cancel safety
    /// Cancel safe.
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
