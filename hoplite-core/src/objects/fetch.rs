//! Fetches: how far each is, which senders it avoids, and when it tries again.

use std::collections::BTreeMap;
use std::time::Duration;

use super::context::Context;
use super::notice::Deadline;
use crate::id::{NodeId, ObjectId};
use crate::shard::RequestId;
use crate::time::Time;

/// The pause before the second retry of a fetch; the first is at once. A few round trips to a shard that is busy.
const FIRST_BACK_OFF: Duration = Duration::from_millis(50);
/// Longest pause between two attempts to fetch an object: shorter than a hang that a person
/// notices.
const MAX_BACK_OFF: Duration = Duration::from_secs(1);
/// Most senders that a query queries to avoid: the limit of the wire format.
const MAX_AVOIDED: usize = 64;

/// An object that is being fetched. There is one as long as somebody here waits for the object, or a pull runs.
#[derive(Debug)]
struct Fetch {
    step: FetchStep,
    /// Senders that failed lately.
    avoid: Vec<NodeId>,
    /// Attempts in a row that brought no byte.
    failures: u32,
    /// A shard was told, since this began, that an answer to an earlier fetch was declined. It may have answered this one
    /// before it heard so, and takes the copy for gone then.
    has_declined: bool,
}

impl Fetch {
    const fn new(step: FetchStep) -> Self {
        Self { step, avoid: Vec::new(), failures: 0, has_declined: false }
    }
}

/// The event for which a fetch waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FetchStep {
    /// The directory's answer.
    Querying(RequestId),
    /// Room for an object of this size.
    WaitingForSpace { size_bytes: u64 },
    /// The end of a pull.
    Pulling,
    /// The end of a pause after failures, or of the time in which the object is expected without being asked for.
    BackingOff { until: Time },
}

/// All fetches of a store.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    by_id: BTreeMap<ObjectId, Fetch>,
}

impl Fetches {
    /// Returns the event for which the fetch of `id` waits, if there is a fetch.
    pub(crate) fn step(&self, id: &ObjectId) -> Option<FetchStep> {
        self.by_id.get(id).map(|fetch| fetch.step)
    }

    pub(crate) fn contains(&self, id: &ObjectId) -> bool {
        self.by_id.contains_key(id)
    }

    /// The senders that a fetch avoids, since they failed lately.
    pub(crate) fn avoided(&self, id: &ObjectId) -> &[NodeId] {
        self.by_id.get(id).map_or(&[], |fetch| &fetch.avoid)
    }

    /// Notes the query for a sender; begins a fetch if there is none.
    pub(crate) fn query(&mut self, id: &ObjectId, request: RequestId) {
        let step = FetchStep::Querying(request);
        self.by_id.entry(id.clone()).or_insert_with(|| Fetch::new(step)).step = step;
    }

    /// Begins a fetch, unless there is one, that queries the directory only then.
    pub(crate) fn expect(&mut self, ctx: &mut Context, id: &ObjectId, until: Time) {
        if !self.contains(id) {
            self.by_id.insert(id.clone(), Fetch::new(FetchStep::BackingOff { until }));
            ctx.schedule(until, Deadline::Retry(id.clone()));
        }
    }

    /// A shard is told that an answer with the bytes is declined.
    pub(crate) fn decline(&mut self, id: &ObjectId) {
        if let Some(fetch) = self.by_id.get_mut(id) {
            fetch.has_declined = true;
        }
    }

    /// Returns `true` if that was so since the fetch of `id` began.
    pub(crate) fn has_declined(&self, id: &ObjectId) -> bool {
        self.by_id.get(id).is_some_and(|fetch| fetch.has_declined)
    }

    /// A pull runs.
    pub(crate) fn pull(&mut self, id: &ObjectId) {
        self.set_step(id, FetchStep::Pulling);
    }

    /// There is no room for the object, which has this size.
    pub(crate) fn lack_space(&mut self, id: &ObjectId, size_bytes: u64) {
        self.set_step(id, FetchStep::WaitingForSpace { size_bytes });
    }

    fn set_step(&mut self, id: &ObjectId, step: FetchStep) {
        if let Some(fetch) = self.by_id.get_mut(id) {
            fetch.step = step;
        }
    }

    /// A pull has failed, maybe because of its sender. Answers whether to try again at once; if not, a deadline is set.
    pub(crate) fn failed(
        &mut self,
        ctx: &mut Context,
        id: &ObjectId,
        bad_sender: Option<&NodeId>,
        brought_bytes: bool,
    ) -> bool {
        let Some(fetch) = self.by_id.get_mut(id) else { return false };
        fetch.failures = if brought_bytes { 1 } else { fetch.failures + 1 };
        if let Some(sender) = bad_sender.filter(|sender| !fetch.avoid.contains(sender)) {
            if fetch.avoid.len() >= MAX_AVOIDED {
                fetch.avoid.remove(0);
            }
            fetch.avoid.push(sender.clone());
        }
        if fetch.failures <= 1 {
            return true;
        }
        let until = ctx.now() + back_off(fetch.failures);
        fetch.step = FetchStep::BackingOff { until };
        ctx.schedule(until, Deadline::Retry(id.clone()));
        false
    }

    /// Forgets a fetch. Returns the event for which it waited.
    pub(crate) fn remove(&mut self, ctx: &mut Context, id: &ObjectId) -> Option<FetchStep> {
        let step = self.by_id.remove(id)?.step;
        if let FetchStep::BackingOff { until } = step {
            ctx.unschedule(until, Deadline::Retry(id.clone()));
        }
        Some(step)
    }
}

/// Returns the time to wait before the next attempt after `failures` in a row: doubling, up to a limit.
pub(crate) fn back_off(failures: u32) -> Duration {
    FIRST_BACK_OFF.saturating_mul(1 << failures.saturating_sub(2).min(10)).min(MAX_BACK_OFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_up_to_a_second() {
        assert_eq!(back_off(2), Duration::from_millis(50));
        assert_eq!(back_off(3), Duration::from_millis(100));
        assert_eq!(back_off(7), Duration::from_secs(1));
        assert_eq!(back_off(u32::MAX), Duration::from_secs(1));
    }
}
