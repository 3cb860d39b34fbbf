//! The latest grants per object, for tools.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::id::{NodeId, ObjectId};
use crate::time::Time;
use crate::vocabulary::directory::{GrantId, GrantReason, PullOutcome};

pub(super) const MAX_GRANTS_PER_OBJECT: usize = 64;
/// Most remembered grants: about 16 MiB.
pub(super) const MAX_GRANTS: usize = 1 << 16;

/// A grant (a sender for a receiver), as tools show it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct GrantRecord {
    pub receiver: NodeId,
    pub sender: NodeId,
    pub reason: GrantReason,
    pub at: Time,
    /// `None` while the pull runs, or if the receiver was lost.
    pub outcome: Option<PullOutcome>,
    pub ended: Option<Time>,
}

impl GrantRecord {
    pub(super) const fn begun(
        receiver: NodeId,
        sender: NodeId,
        reason: GrantReason,
        at: Time,
    ) -> Self {
        Self { receiver, sender, reason, at, outcome: None, ended: None }
    }
}

#[derive(Debug, Default)]
pub(super) struct GrantHistory {
    by_object: BTreeMap<ObjectId, VecDeque<(GrantId, GrantRecord)>>,
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

    pub(super) fn conclude(
        &mut self,
        now: Time,
        grant: GrantId,
        receiver: &NodeId,
        outcome: PullOutcome,
    ) {
        let records = self.order.get(&grant).and_then(|id| self.by_object.get_mut(id));
        let Some(records) = records else { return };
        let record = records.iter_mut().rev().find(|(number, _)| *number == grant);
        if let Some((_, record)) = record
            && record.receiver == *receiver
        {
            record.outcome.get_or_insert(outcome);
            record.ended.get_or_insert(now);
        }
    }

    pub(super) fn latest(
        &self,
        limit: usize,
    ) -> Vec<(&ObjectId, &VecDeque<(GrantId, GrantRecord)>)> {
        let mut seen = BTreeSet::new();
        let ids = self.order.values().rev().filter(|id| seen.insert(*id)).take(limit);
        ids.filter_map(|id| self.by_object.get_key_value(id)).collect()
    }

    /// Returns at most `limit` grants with `node` as receiver or sender, latest first. Searches
    /// only the latest `examined` grants.
    pub(super) fn of_node(
        &self,
        node: &NodeId,
        limit: usize,
        examined: usize,
    ) -> Vec<(GrantId, ObjectId, GrantRecord)> {
        let all = self.order.iter().rev().take(examined);
        let of_node = all.filter_map(|(grant, id)| {
            let records = self.by_object.get(id)?;
            let index = records.binary_search_by_key(grant, |(number, _)| *number).ok()?;
            let record = &records.get(index)?.1;
            let is_part = record.receiver == *node || record.sender == *node;
            is_part.then(|| (*grant, id.clone(), record.clone()))
        });
        of_node.take(limit).collect()
    }

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
            ended: None,
        };
        let mut history = GrantHistory::default();
        let first = ObjectId::new("first").unwrap();
        for number in 0..100 {
            history.record(&first, GrantId(number), record(number));
        }
        assert_eq!(history.of(&first).len(), MAX_GRANTS_PER_OBJECT);
        assert_eq!(history.of(&first)[0].at, Time::from_micros(36));

        let at = Time::from_micros;
        history.conclude(
            at(200),
            GrantId(99),
            &NodeId::new("other").unwrap(),
            PullOutcome::Corrupt,
        );
        history.conclude(at(201), GrantId(99), &receiver, PullOutcome::Complete);
        history.conclude(at(202), GrantId(99), &receiver, PullOutcome::Cancelled);
        let last = &history.of(&first)[63];
        assert_eq!((last.outcome, last.ended), (Some(PullOutcome::Complete), Some(at(201))));
        assert_eq!(history.latest(10).len(), 1);
        let of_receiver = history.of_node(&receiver, 10, 5);
        assert_eq!(
            of_receiver.iter().map(|(grant, ..)| grant.0).collect::<Vec<_>>(),
            [99, 98, 97, 96, 95]
        );
        assert_eq!(
            history.of_node(&NodeId::new("s").unwrap(), 2, 100).len(),
            2,
            "senders count, too"
        );
        assert!(history.of_node(&NodeId::new("other").unwrap(), 2, 100).is_empty());

        for number in 100..100 + u64::try_from(MAX_GRANTS).unwrap() {
            history.record(
                &ObjectId::new(number.to_le_bytes()).unwrap(),
                GrantId(number),
                record(number),
            );
        }
        assert_eq!(history.order.len(), MAX_GRANTS);
        assert!(history.of(&first).is_empty() && !history.by_object.contains_key(&first));
    }
}
