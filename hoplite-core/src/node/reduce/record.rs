//! How reduces went, for those who ask.

use std::time::Duration;

use super::super::Node;
use super::Reduction;
use crate::id::ObjectId;
use crate::plan::reduce::Link;
use crate::reduce::ReduceOp;

/// Most reduces that a store remembers: what a person looks back on, at some 200 bytes each.
const MOST_RECORDS: usize = 256;

/// How a reduce was planned, and how it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReduceRecord {
    /// What it made.
    pub target: ObjectId,
    /// The operation.
    pub op: ReduceOp,
    /// How many sources were reduced, of how many.
    pub reduced: (usize, usize),
    /// How many nodes combined something, beside the receiver.
    pub hops: usize,
    /// Why it was planned so: the schedule and what it was expected to take, and the best of the others.
    pub plan: String,
    /// What the links were taken for.
    pub link: Link,
    /// How long it took, from the call to the last byte.
    pub elapsed: Duration,
    /// How often it was mended.
    pub mendings: u32,
    /// How often the target had to be begun anew.
    pub restarts: u32,
}

impl Node {
    pub(super) fn record_reduce(&mut self, reduction: &Reduction) {
        if self.reduce_records.len() >= MOST_RECORDS {
            self.reduce_records.pop_front();
        }
        let plan = match &reduction.choice {
            None => "at the receiver, since all sources are there or small".to_owned(),
            Some(choice) => {
                let other = choice.runner_up.as_ref().map_or(String::new(), |(schedule, estimate)| {
                    format!("; the next best is a {schedule}, {estimate:.1?}")
                });
                format!("{}, estimated to take {:.1?}{other}", choice.schedule, choice.estimate)
            }
        };
        self.reduce_records.push_back(ReduceRecord {
            target: reduction.request.target.clone(),
            op: reduction.request.op,
            reduced: (reduction.joined.len(), reduction.sources.len()),
            hops: reduction.tree.iter().filter(|(_, vertex)| !vertex.is_plain()).count(),
            plan,
            link: self.ctx.link(),
            elapsed: self.ctx.now().since(reduction.started),
            mendings: reduction.faults.mendings,
            restarts: reduction.faults.restarts,
        });
    }
}
