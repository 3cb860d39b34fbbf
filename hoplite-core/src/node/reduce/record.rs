//! How reduces went, for those who ask.

use std::collections::VecDeque;

use super::Reductions;
use super::reduction::Reduction;
use crate::collective::ReduceRecord;
use crate::id::ObjectId;
use crate::plan::link::LinkEstimate;
use crate::time::Time;

/// Most reduces that a store remembers: what a person looks back on, at some 200 bytes each.
const MAX_RECORDS: usize = 256;

/// The latest reduces of a store, oldest first.
#[derive(Debug, Default)]
pub(super) struct Records(VecDeque<ReduceRecord>);

impl Records {
    /// How the latest reduce of this target went, if it is remembered.
    pub(super) fn latest(&self, target: &ObjectId) -> Option<&ReduceRecord> {
        self.0.iter().rev().find(|record| record.target == *target)
    }

    pub(super) fn push(&mut self, record: ReduceRecord) {
        if self.0.len() >= MAX_RECORDS {
            self.0.pop_front();
        }
        self.0.push_back(record);
    }
}

impl Reductions {
    /// How those go that are under way.
    pub(in crate::node) fn running(
        &self,
        link: LinkEstimate,
        now: Time,
    ) -> impl Iterator<Item = ReduceRecord> {
        self.by_target.values().map(move |reduction| reduction.record(link, now))
    }

    /// How the one goes that makes this target.
    pub(in crate::node) fn running_for(
        &self,
        target: &ObjectId,
        link: LinkEstimate,
        now: Time,
    ) -> Option<ReduceRecord> {
        let reduction = self.by_target.get(target)?;
        Some(ReduceRecord { is_running: true, ..reduction.record(link, now) })
    }
}

impl Reduction {
    /// How it goes, or went.
    pub(super) fn record(&self, link: LinkEstimate, now: Time) -> ReduceRecord {
        let plan = match &self.choice {
            None => "at the receiver, since all sources are there or small".to_owned(),
            Some(choice) => {
                let other = choice.runner_up.as_ref().map_or(String::new(), |(schedule, estimate)| {
                    format!("; the next best is a {schedule}, {estimate:.1?}")
                });
                let crossings = match choice.schedule.entry() {
                    Some(_) => format!("; objects between groups: {}", self.tree.crossings(self.own)),
                    None => String::new(),
                };
                let detours = self.detours.remark.map_or(String::new(), |remark| format!("; {remark}"));
                let (schedule, estimate) = (&choice.schedule, choice.estimate);
                format!("{schedule}, estimated to take {estimate:.1?}{other}{crossings}{detours}")
            }
        };
        let note = self.note.as_ref().map_or(String::new(), |note| format!("no session, since {note}; "));
        let plan = format!("{note}{plan}");
        ReduceRecord {
            target: self.request.target.clone(),
            op: self.request.op,
            reduced: (self.joined.len(), self.sources.len()),
            hops: self.tree.iter().filter(|(_, vertex)| !vertex.is_plain()).count(),
            plan,
            link,
            elapsed: now.since(self.started),
            mendings: self.faults.mendings,
            restarts: self.faults.restarts,
            is_running: false,
            position: None,
        }
    }
}
