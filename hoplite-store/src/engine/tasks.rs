use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use hoplite_core::TraceContext;
use hoplite_core::collective::{CollectiveEvent, EnlistmentId, Plan, Report};
use hoplite_core::node::{CombineId, CombineOutcome, CopyId, Event, HopId, HopReport, PullId};
use tokio_util::sync::CancellationToken;

use super::{Engine, RuntimePuller, State};
use crate::copies::LiveCopy;
use crate::data::{
    CombineRequest, CompareRequest, Decisions, Exchange, HopRequest, Peer, PullRequest,
};

/// Most input bytes combined under the engine's lock.
const MAX_LITTLE_BYTES: u64 = 64 << 10;

impl Engine {
    pub(super) fn spawn_pull(
        self: &Arc<Self>,
        pull: PullId,
        live: Arc<LiveCopy>,
        request: PullRequest,
        cancelled: CancellationToken,
    ) {
        let engine = Arc::clone(self);
        let RuntimePuller { puller, runtime } = self.puller_for(live.size_bytes());
        let puller = Arc::clone(puller);
        let task = async move {
            let started = Instant::now();
            let (valid_bytes, outcome) = puller.pull(&request, &live, &cancelled).await;
            let seconds = started.elapsed().as_secs_f64();
            tracing::debug!(id = %request.id, sender = %request.sender, ?outcome, valid_bytes, seconds, "pull ended");
            let mut state = engine.lock();
            state.pulls.remove(&pull);
            engine.apply_locked(&mut state, Event::Measured { link: engine.link() });
            engine.apply_locked(&mut state, Event::PullEnded { pull, valid_bytes, outcome });
        };
        self.tasks.spawn_on(task, runtime);
    }

    /// Combines small local inputs before it returns, so that messages about the result's start and
    /// end leave together.
    pub(super) fn start_combine(
        self: &Arc<Self>,
        state: &mut State,
        combine: CombineId,
        live: Arc<LiveCopy>,
        request: CombineRequest,
    ) {
        let RuntimePuller { puller, runtime } = self.puller_for(live.size_bytes());
        let (puller, cancelled) = (Arc::clone(puller), self.stop.child_token());
        let is_little = request.is_local()
            && request.inputs.len() as u64 * live.size_bytes() <= MAX_LITTLE_BYTES;
        let mut work = Box::pin({
            let cancelled = cancelled.clone();
            async move {
                let started = Instant::now();
                let (valid_bytes, outcome) = puller.combine(&request, &live, &cancelled).await;
                let seconds = started.elapsed().as_secs_f64();
                tracing::debug!(?combine, ?outcome, valid_bytes, seconds, "combination ended");
                // The node may free the copies once it knows the end.
                drop((request, live));
                Event::CombineEnded { combine, valid_bytes, outcome }
            }
        });
        if is_little {
            let _entered = runtime.enter();
            if let Some(ended) = work.as_mut().now_or_never() {
                return state.done.push_back(ended);
            }
        }
        state.combines.insert(combine, cancelled);
        let engine = Arc::clone(self);
        let task = async move {
            let ended = work.await;
            let mut state = engine.lock();
            state.combines.remove(&combine);
            engine.apply_locked(&mut state, Event::Measured { link: engine.link() });
            engine.apply_locked(&mut state, ended);
        };
        self.tasks.spawn_on(task, runtime);
    }

    pub(super) fn spawn_hop(
        self: &Arc<Self>,
        hop: HopId,
        host: Peer,
        request: HopRequest,
        ended: CancellationToken,
    ) {
        let engine = Arc::clone(self);
        let RuntimePuller { puller, runtime } = self.puller_for(request.spec.size_bytes);
        let puller = Arc::clone(puller);
        let task = async move {
            let report = |report| engine.hop_reported(hop, report);
            engine.stop.run_until_cancelled(puller.direct(&request, &host, &ended, &report)).await;
        };
        self.tasks.spawn_on(task, runtime);
    }

    /// Ignores a report about a hop that has ended.
    fn hop_reported(self: &Arc<Self>, hop: HopId, report: HopReport) {
        tracing::debug!(?hop, ?report, "hop reported");
        let mut state = self.lock();
        let is_wanted = match report {
            HopReport::Complete => state.hops.contains_key(&hop),
            HopReport::Failed(_) => state.hops.remove(&hop).is_some(),
        };
        if is_wanted {
            self.apply_locked(&mut state, Event::HopReported { hop, report });
        }
    }

    pub(super) fn spawn_compare(
        self: &Arc<Self>,
        copy: CopyId,
        live: Arc<LiveCopy>,
        request: CompareRequest,
    ) {
        let engine = Arc::clone(self);
        let RuntimePuller { puller, runtime } = self.puller_for(live.size_bytes());
        let puller = Arc::clone(puller);
        let task = async move {
            let equal = puller.compare(&request, &live, &engine.stop).await;
            tracing::debug!(id = %request.id, ?equal, "compared with an earlier put of the same id");
            engine.apply(Event::Compared { copy, equal });
        };
        self.tasks.spawn_on(task, runtime);
    }

    pub(super) fn spawn_exchange(
        self: &Arc<Self>,
        combine: CombineId,
        live: Arc<LiveCopy>,
        exchange: Arc<Exchange>,
        cancelled: CancellationToken,
    ) {
        let engine = Arc::clone(self);
        let RuntimePuller { puller, runtime } = self.puller_for(exchange.plan().most_bytes());
        let puller = Arc::clone(puller);
        let task = async move {
            let filled = || engine.apply(Event::Collective(CollectiveEvent::Filled { combine }));
            let outcome = puller.exchange(&exchange, &live, &cancelled, filled).await;
            let valid_bytes =
                if outcome == CombineOutcome::Complete { live.size_bytes() } else { 0 };
            tracing::debug!(?combine, ?outcome, "exchange ended");
            drop((exchange, live));
            let mut state = engine.lock();
            state.combines.remove(&combine);
            engine.apply_locked(&mut state, Event::Measured { link: engine.link() });
            engine.apply_locked(&mut state, Event::CombineEnded { combine, valid_bytes, outcome });
        };
        self.tasks.spawn_on(task, runtime);
    }

    pub(super) fn spawn_enlistment(
        self: &Arc<Self>,
        enlistment: EnlistmentId,
        plan: Box<Plan>,
        decisions: Decisions,
        trace: Option<TraceContext>,
    ) {
        let engine = Arc::clone(self);
        let RuntimePuller { puller, runtime } = self.puller_for(plan.most_bytes());
        let puller = Arc::clone(puller);
        let task = async move {
            let report = |report| engine.member_reported(enlistment, report);
            engine.stop.run_until_cancelled(puller.enlist(&plan, decisions, trace, &report)).await;
        };
        self.tasks.spawn_on(task, runtime);
    }

    fn member_reported(self: &Arc<Self>, enlistment: EnlistmentId, report: Report) {
        tracing::debug!(?enlistment, ?report, "a member reported");
        let mut state = self.lock();
        let is_wanted = match report {
            Report::Filled => state.enlistments.contains_key(&enlistment),
            Report::Done | Report::Failed(_) => state.enlistments.remove(&enlistment).is_some(),
        };
        if is_wanted {
            let event = CollectiveEvent::Reported { enlistment, report };
            self.apply_locked(&mut state, Event::Collective(event));
        }
    }
}
