use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::context::Context;
use super::notice::Deadline;
use crate::id::{NodeId, ObjectId};
use crate::shard::RequestId;
use crate::time::Time;

/// Pause before a fetch's second retry: a few round trips to a busy shard. The first retry is at
/// once.
const FIRST_BACK_OFF: Duration = Duration::from_millis(50);
const MAX_BACK_OFF: Duration = Duration::from_secs(1);
/// Most senders that a query can name as avoided: the wire format's limit.
const MAX_AVOIDED: usize = 64;

/// Search for an object and its transfer, while a call or an order waits.
#[derive(Debug)]
struct Fetch {
    step: FetchStep,
    avoid: Vec<NodeId>,
    /// Number of failed transfers, from the last that brought bytes on.
    failures: u32,
    /// `true` if the store dropped bytes that a shard sent, for example without memory. The shard
    /// may then not list this store's copy, so the store publishes a later one there too.
    has_declined: bool,
}

impl Fetch {
    const fn new(step: FetchStep) -> Self {
        Self { step, avoid: Vec::new(), failures: 0, has_declined: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FetchStep {
    Querying(RequestId),
    WaitingForSpace {
        size_bytes: u64,
    },
    Pulling,
    /// Until a pause after failures ends, or until a collective should have made the object here.
    BackingOff {
        until: Time,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Fetches {
    by_id: BTreeMap<ObjectId, Fetch>,
    /// Fetches that pause after a transfer that brought no byte.
    stalled: BTreeSet<ObjectId>,
}

impl Fetches {
    pub(crate) fn step(&self, id: &ObjectId) -> Option<FetchStep> {
        self.by_id.get(id).map(|fetch| fetch.step)
    }

    pub(crate) fn contains(&self, id: &ObjectId) -> bool {
        self.by_id.contains_key(id)
    }

    pub(crate) fn avoided(&self, id: &ObjectId) -> &[NodeId] {
        self.by_id.get(id).map_or(&[], |fetch| &fetch.avoid)
    }

    pub(crate) fn query(&mut self, id: &ObjectId, request: RequestId) {
        let step = FetchStep::Querying(request);
        self.by_id.entry(id.clone()).or_insert_with(|| Fetch::new(step)).step = step;
    }

    /// Begins a fetch, unless one runs. It queries the directory at `until`, unless a coordinator's
    /// plan arrives first.
    pub(crate) fn expect(&mut self, ctx: &mut Context, id: &ObjectId, until: Time) {
        if !self.contains(id) {
            self.by_id.insert(id.clone(), Fetch::new(FetchStep::BackingOff { until }));
            ctx.schedule(until, Deadline::Retry(id.clone()));
        }
    }

    pub(crate) fn decline(&mut self, id: &ObjectId) {
        if let Some(fetch) = self.by_id.get_mut(id) {
            fetch.has_declined = true;
        }
    }

    pub(crate) fn has_declined(&self, id: &ObjectId) -> bool {
        self.by_id.get(id).is_some_and(|fetch| fetch.has_declined)
    }

    pub(crate) fn take_stalled(&mut self) -> Option<ObjectId> {
        self.stalled.pop_first()
    }

    pub(crate) fn pull(&mut self, id: &ObjectId) {
        self.stalled.remove(id);
        self.set_step(id, FetchStep::Pulling);
    }

    pub(crate) fn lack_space(&mut self, id: &ObjectId, size_bytes: u64) {
        self.set_step(id, FetchStep::WaitingForSpace { size_bytes });
    }

    fn set_step(&mut self, id: &ObjectId, step: FetchStep) {
        if let Some(fetch) = self.by_id.get_mut(id) {
            fetch.step = step;
        }
    }

    /// Notes a failed transfer. Returns `true` to query at once; otherwise schedules the next
    /// query.
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
        self.stalled.insert(id.clone());
        ctx.schedule(until, Deadline::Retry(id.clone()));
        false
    }

    pub(crate) fn remove(&mut self, ctx: &mut Context, id: &ObjectId) -> Option<FetchStep> {
        let step = self.by_id.remove(id)?.step;
        self.stalled.remove(id);
        if let FetchStep::BackingOff { until } = step {
            ctx.unschedule(until, Deadline::Retry(id.clone()));
        }
        Some(step)
    }
}

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
