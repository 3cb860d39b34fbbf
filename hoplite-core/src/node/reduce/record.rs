//! How reduces went, for those who ask.

use std::collections::VecDeque;
use std::time::Duration;

use super::Reductions;
use super::reduction::Reduction;
use crate::id::ObjectId;
use crate::node::CopyId;
use crate::plan::link::LinkEstimate;
use crate::reduce::ReduceOp;
use crate::time::Time;

/// Most reduces that a store remembers: what a person looks back on, at some 200 bytes each.
const MAX_RECORDS: usize = 256;

/// How a reduce was planned, and how it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReduceRecord {
    /// The object that it made.
    pub target: ObjectId,
    /// The operation.
    pub op: ReduceOp,
    /// The number of sources that were reduced, of how many.
    pub reduced: (usize, usize),
    /// The number of nodes that combined something, beside the receiver.
    pub hops: usize,
    /// The reason for which it was planned so: the schedule and what it was expected to take, and the best of the others.
    pub plan: String,
    /// What the links were taken for.
    pub link: LinkEstimate,
    /// The time that it took, from the call to the last byte.
    pub elapsed: Duration,
    /// How often it was mended.
    pub mendings: u32,
    /// How often the target had to be begun anew.
    pub restarts: u32,
    /// `true` if it still goes on.
    pub is_running: bool,
    /// How far this store is, if it is a member of a session that makes the target.
    pub position: Option<Position>,
}

impl ReduceRecord {
    /// Returns `true` if this store was a member of a session that has not made the target.
    pub fn has_failed(&self) -> bool {
        let short = |position: &Position| position.final_bytes < position.size_bytes;
        !self.is_running && self.position.as_ref().is_some_and(short)
    }
}

/// How far a member of a session is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// Which member it is, in the order of the schedule, from 0.
    pub member: usize,
    /// Of so many.
    pub members: usize,
    /// What it does, or how it ended.
    pub stage: String,
    /// What it fills. What moves bytes knows how far, as long as that grows.
    pub copy: Option<CopyId>,
    /// How many bytes of what is made are final here.
    pub final_bytes: u64,
    /// The size of what is made.
    pub size_bytes: u64,
}

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
