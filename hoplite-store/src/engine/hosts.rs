use std::sync::Arc;
use std::time::Duration;

use hoplite_core::TraceContext;
use hoplite_core::collective::{AttemptId, CollectiveEvent, MembershipId, Plan};
use hoplite_core::error::Error;
use hoplite_core::id::{NodeId, ObjectId};
use hoplite_core::node::{DrainReport, Event, HostingId, ReduceRecord, ServeId};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{Engine, Verdict};
use crate::data::{
    Enlisted, Found, HopHost, HopRequest, Hosted, MemberHost, ServeRequest, ServeSource, Served,
};

struct Serve {
    engine: Arc<Engine>,
    serve: ServeId,
}

impl Drop for Serve {
    fn drop(&mut self) {
        let mut state = self.engine.lock();
        state.verdicts.remove(&self.serve);
        self.engine.apply_locked(&mut state, Event::ServeEnded { serve: self.serve });
    }
}

impl ServeSource for Engine {
    async fn serve(self: &Arc<Self>, request: ServeRequest) -> Option<Found> {
        let ServeRequest { peer, id, put, awaits_hop, trace } = request;
        let serve = Serve { engine: Arc::clone(self), serve: ServeId(self.next_number()) };
        let (verdict, decided) = oneshot::channel();
        {
            let mut state = self.lock();
            state.verdicts.insert(serve.serve, verdict);
            let event = Event::ServeRequested { serve: serve.serve, peer, id, put, awaits_hop };
            self.apply_caused(&mut state, event, trace);
        }
        let end = move || drop(serve);
        match decided.await.ok().flatten()? {
            Verdict::Memory(live) => Some(Found::Memory(Served::new(live, end))),
            Verdict::File { copy, size_bytes, record } => {
                self.spilled_copy(copy, size_bytes, record, end).map(Found::File)
            }
        }
    }

    fn has_slow_links(self: &Arc<Self>, peers: Vec<NodeId>) {
        self.apply(Event::SlowLinks { peers });
    }

    async fn drain(self: &Arc<Self>, timeout: Option<Duration>) -> (DrainReport, TaskTrackerToken) {
        self.drain_for_another(timeout).await
    }

    fn refused_version(self: &Arc<Self>, error: Error) {
        Self::refused_version(self, error);
    }
}

impl HopHost for Engine {
    fn host(self: &Arc<Self>, HopRequest { spec: hop, trace }: HopRequest) -> Hosted {
        let hosting = HostingId(self.next_number());
        let (sender, reports) = mpsc::channel(Hosted::MAX_REPORTS);
        {
            let mut state = self.lock();
            state.hostings.insert(hosting, sender);
            self.apply_caused(&mut state, Event::HopRequested { hosting, hop }, trace);
        }
        let engine = Arc::clone(self);
        Hosted::new(reports, move || {
            let mut state = engine.lock();
            state.hostings.remove(&hosting);
            engine.apply_locked(&mut state, Event::HopReleased { hosting });
        })
    }
}

impl MemberHost for Engine {
    fn enlist(self: &Arc<Self>, plan: Box<Plan>, trace: Option<TraceContext>) -> Enlisted {
        let membership = MembershipId::Elsewhere(self.next_number());
        let (sender, reports) = mpsc::channel(Enlisted::MAX_REPORTS);
        {
            let mut state = self.lock();
            state.memberships.insert(membership, sender);
            let event = Event::Collective(CollectiveEvent::Asked { membership, plan });
            self.apply_caused(&mut state, event, trace);
        }
        let (teller, leaver) = (Arc::clone(self), Arc::clone(self));
        let tell = move |decision| {
            teller.apply(Event::Collective(CollectiveEvent::Told { membership, decision }))
        };
        let leave = move || {
            let mut state = leaver.lock();
            state.memberships.remove(&membership);
            leaver
                .apply_locked(&mut state, Event::Collective(CollectiveEvent::Left { membership }));
        };
        Enlisted::new(reports, tell, leave)
    }

    fn reject(self: &Arc<Self>, target: ObjectId, attempt: AttemptId, error: Error) {
        self.apply(Event::Collective(CollectiveEvent::Rejected { target, attempt, error }));
    }

    fn how_made(&self, target: &ObjectId) -> Option<ReduceRecord> {
        Self::how_made(self, target)
    }
}
