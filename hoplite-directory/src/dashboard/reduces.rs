//! JSON of running and past reduces and collectives.

use std::time::Duration;

use hoplite_core::id::{NodeId, ObjectId};
use hoplite_core::load::{ReduceLoad, Sender};
use hoplite_core::time::Time;
use hoplite_proto::dashboard::query::to_hex;
use serde::Serialize;

use super::rows::millis;
use crate::past::{PastReduce, Step};
use crate::watch::Loads;

const MAX_REDUCES: usize = 200;
const MAX_PAST: usize = 100;
const MAX_SCHEDULES: usize = 4;
const MAX_STEPS: usize = 128;

#[derive(Serialize)]
pub(super) struct Reduces {
    telling: usize,
    reduces: Vec<Reduce>,
    past: Vec<Past>,
}

#[derive(Serialize)]
struct Reduce {
    key: String,
    target: String,
    coordinator: String,
    op: String,
    joined: u64,
    sources: u64,
    plan: String,
    elapsed_ms: u64,
}

#[derive(Serialize)]
struct Past {
    key: String,
    target: String,
    op: String,
    plan: String,
    size_bytes: u64,
    steps: usize,
    failed: usize,
    age_us: u64,
    took_us: u64,
}

impl Reduces {
    pub(super) fn new(loads: &Loads) -> Self {
        let (now, past) = loads.past(None, MAX_PAST);
        let loads = loads.all();
        let all = loads
            .iter()
            .flat_map(|(node, load)| load.reduces.iter().map(move |reduce| (node, reduce)));
        let reduce = |(node, reduce): (&NodeId, &ReduceLoad)| Reduce {
            key: to_hex(reduce.target.as_bytes()),
            target: reduce.target.readable(),
            coordinator: node.to_string(),
            op: reduce.op.clone(),
            joined: reduce.joined,
            sources: reduce.sources,
            plan: reduce.plan.clone(),
            elapsed_ms: millis(reduce.elapsed),
        };
        Self {
            telling: loads.len(),
            reduces: all.take(MAX_REDUCES).map(reduce).collect(),
            past: past.iter().filter_map(|reduce| Past::new(now, reduce)).collect(),
        }
    }
}

impl Past {
    fn new(now: Time, reduce: &PastReduce) -> Option<Self> {
        let Step { load, .. } = reduce.main()?;
        let began = reduce.began()?;
        Some(Self {
            key: to_hex(load.output.as_bytes()),
            target: load.output.readable(),
            op: load.op.clone(),
            plan: load.plan.clone(),
            size_bytes: load.size_bytes,
            steps: reduce.steps.len(),
            failed: reduce.steps.iter().filter(|step| !step.load.is_complete).count(),
            age_us: micros(now.since(began)),
            took_us: micros(reduce.ended()?.since(began)),
        })
    }
}

/// A target's latest reduces and collectives, newest first.
#[derive(Serialize)]
pub(super) struct Schedules {
    target: String,
    schedules: Vec<Schedule>,
}

#[derive(Serialize)]
struct Schedule {
    #[serde(flatten)]
    reduce: Past,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    node: String,
    senders: Vec<String>,
    more_senders: u64,
    /// `true` for an intermediate result.
    hop: bool,
    size_bytes: u64,
    after_us: u64,
    took_us: u64,
    complete: bool,
}

impl Schedules {
    pub(super) fn new(target: &ObjectId, loads: &Loads) -> Self {
        let (now, past) = loads.past(Some(target), MAX_SCHEDULES);
        let schedule = |reduce: &PastReduce| {
            let began = reduce.began()?;
            let rows = reduce.steps.iter().take(MAX_STEPS).map(|step| Row::new(began, step));
            Some(Schedule { reduce: Past::new(now, reduce)?, rows: rows.collect() })
        };
        Self { target: target.readable(), schedules: past.iter().filter_map(schedule).collect() }
    }
}

impl Row {
    fn new(began: Time, step: &Step) -> Self {
        let Step { node, load, .. } = step;
        Self {
            node: node.to_string(),
            senders: load.senders.iter().map(|Sender { node, .. }| node.to_string()).collect(),
            more_senders: load.all_senders.saturating_sub(load.senders.len() as u64),
            hop: load.output.is_of_hop(),
            size_bytes: load.size_bytes,
            after_us: micros(step.began.since(began)),
            took_us: micros(step.ended.since(step.began)),
            complete: load.is_complete,
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
