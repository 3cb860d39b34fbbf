//! The latest grants per object, for `hoplite stat` and the log.

use std::collections::{BTreeMap, VecDeque};

use crate::id::{NodeId, ObjectId};
use crate::time::Time;
use crate::vocabulary::directory::{GrantId, GrantReason, PullOutcome};

/// Most grants that a shard remembers per object.
pub(super) const MAX_GRANTS_PER_OBJECT: usize = 64;
/// Most grants that a shard remembers in total: about 16 MiB.
pub(super) const MAX_GRANTS: usize = 1 << 16;

/// One grant, as tools show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantRecord {
    /// The node that pulls.
    pub receiver: NodeId,
    /// The node that serves.
    pub sender: NodeId,
    /// The reason for the choice of the sender.
    pub reason: GrantReason,
    /// The time of the grant.
    pub at: Time,
    /// The outcome of the pull; `None` while the pull runs, or if the receiver was lost.
    pub outcome: Option<PullOutcome>,
}

/// The latest grants, including grants of objects that are gone.
#[derive(Debug, Default)]
pub(super) struct GrantHistory {
    by_object: BTreeMap<ObjectId, VecDeque<(GrantId, GrantRecord)>>,
    /// All remembered grants, oldest first.
    order: BTreeMap<GrantId, ObjectId>,
}

impl GrantHistory {
    pub(super) fn record(&mut self, id: &ObjectId, grant: GrantId, record: GrantRecord) {
        let records = self.by_object.entry(id.clone()).or_default();
        records.push_back((grant, record));
        self.order.insert(grant, id.clone());
        if records.len() > MAX_GRANTS_PER_OBJECT
            && let Some((oldest, _)) = records.pop_front()
        {
            self.order.remove(&oldest);
        }
        if self.order.len() > MAX_GRANTS
            && let Some((_, id)) = self.order.pop_first()
            && let Some(records) = self.by_object.get_mut(&id)
        {
            records.pop_front();
            if records.is_empty() {
                self.by_object.remove(&id);
            }
        }
    }

    /// Records the outcome of a grant to `receiver`. Later outcomes of the same grant are ignored.
    pub(super) fn conclude(&mut self, grant: GrantId, receiver: &NodeId, outcome: PullOutcome) {
        let records = self.order.get(&grant).and_then(|id| self.by_object.get_mut(id));
        let Some(records) = records else { return };
        let record = records.iter_mut().rev().find(|(number, _)| *number == grant);
        if let Some((_, record)) = record
            && record.receiver == *receiver
        {
            record.outcome.get_or_insert(outcome);
        }
    }

    /// Returns the grants of `id`, oldest first.
    pub(super) fn of(&self, id: &ObjectId) -> Vec<GrantRecord> {
        let records = self.by_object.get(id).into_iter().flatten();
        records.map(|(_, record)| record.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_bounded_per_object_and_in_all() {
        let receiver = NodeId::new("r").unwrap();
        let record = |at| GrantRecord {
            receiver: receiver.clone(),
            sender: NodeId::new("s").unwrap(),
            reason: GrantReason::OnlyCandidate,
            at: Time::from_micros(at),
            outcome: None,
        };
        let mut history = GrantHistory::default();
        let first = ObjectId::new("first").unwrap();
        for number in 0..100 {
            history.record(&first, GrantId(number), record(number));
        }
        assert_eq!(history.of(&first).len(), MAX_GRANTS_PER_OBJECT);
        assert_eq!(history.of(&first)[0].at, Time::from_micros(36));

        history.conclude(GrantId(99), &NodeId::new("other").unwrap(), PullOutcome::Corrupt);
        history.conclude(GrantId(99), &receiver, PullOutcome::Complete);
        history.conclude(GrantId(99), &receiver, PullOutcome::Cancelled);
        assert_eq!(history.of(&first)[63].outcome, Some(PullOutcome::Complete));

        for number in 100..100 + u64::try_from(MAX_GRANTS).unwrap() {
            history.record(&ObjectId::new(number.to_le_bytes()).unwrap(), GrantId(number), record(number));
        }
        assert_eq!(history.order.len(), MAX_GRANTS);
        assert!(history.of(&first).is_empty() && !history.by_object.contains_key(&first));
    }
}
