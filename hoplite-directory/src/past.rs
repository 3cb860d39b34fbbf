//! Latest reduces and collectives with their schedules over time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::load::CombinationLoad;
use hoplite_core::time::Time;

/// Added to times, for steps before the shard's start.
pub(crate) const BEFORE_START: Duration = Duration::from_secs(30 * 86_400);
/// Most combinations, each mostly below 1 KiB.
const MAX_STEPS: usize = 4096;

/// A combination of inputs at a node.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) node: NodeId,
    pub(crate) began: Time,
    pub(crate) ended: Time,
    pub(crate) load: CombinationLoad,
}

/// Steps that made a target, earliest first.
#[derive(Debug, Clone)]
pub(crate) struct PastReduce {
    pub(crate) steps: Vec<Arc<Step>>,
}

type Key = (PutId, NodeId, u64);

#[derive(Debug, Default)]
pub(crate) struct Past {
    steps: BTreeMap<(Time, Key), Arc<Step>>,
    known: BTreeSet<Key>,
}

impl Past {
    /// Records reports of `node`, which may repeat combinations.
    pub(crate) fn push(&mut self, now: Time, node: &NodeId, loads: Vec<CombinationLoad>) {
        for load in loads {
            let key = (load.put, node.clone(), load.number);
            if !self.known.insert(key.clone()) {
                continue;
            }
            let ended = now.before(load.age);
            let step = Step { node: node.clone(), began: ended.before(load.took), ended, load };
            self.steps.insert((ended, key), Arc::new(step));
            if self.steps.len() > MAX_STEPS
                && let Some(((_, oldest), _)) = self.steps.pop_first()
            {
                self.known.remove(&oldest);
            }
        }
    }

    /// Returns the latest reduces and collectives, newest first; `target` selects its own.
    pub(crate) fn latest(&self, target: Option<&ObjectId>, limit: usize) -> Vec<PastReduce> {
        let (hops, last): (Vec<&Arc<Step>>, Vec<&Arc<Step>>) =
            self.steps.values().partition(|step| step.load.output.is_of_hop());
        let hops = hops.into_iter().map(|step| (&step.load.output, step)).collect();
        let mut reduces: BTreeMap<PutId, Vec<&Arc<Step>>> = BTreeMap::new();
        for step in last {
            if target.is_none_or(|target| step.load.output == *target) {
                reduces.entry(step.load.put).or_default().push(step);
            }
        }
        let mut ended: Vec<Vec<&Arc<Step>>> = reduces.into_values().collect();
        ended.sort_by_key(|steps| std::cmp::Reverse(steps.iter().map(|step| step.ended).max()));
        ended.into_iter().take(limit).map(|steps| PastReduce::new(steps, &hops)).collect()
    }
}

impl PastReduce {
    fn new(last: Vec<&Arc<Step>>, hops: &BTreeMap<&ObjectId, &Arc<Step>>) -> Self {
        let mut steps = last;
        let mut found = BTreeSet::new();
        let mut next = 0;
        while let Some(step) = steps.get(next) {
            let inputs = step.load.senders.iter().filter_map(|sender| sender.hop.as_ref());
            let new = inputs.filter_map(|hop| hops.get(hop).copied());
            let new: Vec<&Arc<Step>> = new.filter(|hop| found.insert(&hop.load.output)).collect();
            steps.extend(new);
            next += 1;
        }
        steps.sort_by_key(|step| step.began);
        Self { steps: steps.into_iter().cloned().collect() }
    }

    /// Returns a step that made the target, with a schedule if known.
    pub(crate) fn main(&self) -> Option<&Step> {
        let steps = || self.steps.iter().map(|step| &**step);
        let last = || steps().filter(|step| !step.load.output.is_of_hop());
        last().find(|step| !step.load.plan.is_empty()).or_else(|| last().next())
    }

    pub(crate) fn began(&self) -> Option<Time> {
        self.steps.first().map(|step| step.began)
    }

    pub(crate) fn ended(&self) -> Option<Time> {
        self.steps.iter().map(|step| step.ended).max()
    }
}

#[cfg(test)]
mod tests {
    use hoplite_core::load::Sender;

    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn step(
        number: u64,
        output: &ObjectId,
        put: u64,
        hops: &[(&str, Option<&ObjectId>)],
    ) -> CombinationLoad {
        let sender = |(name, hop): &(&str, Option<&ObjectId>)| Sender {
            node: node(name),
            hop: hop.cloned(),
        };
        CombinationLoad {
            number,
            output: output.clone(),
            put: PutId(put),
            op: "sum".to_owned(),
            plan: String::new(),
            senders: hops.iter().map(sender).collect(),
            all_senders: hops.len() as u64,
            size_bytes: 8,
            age: Duration::from_secs(1),
            took: Duration::from_secs(number),
            is_complete: true,
        }
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn nodes(reduce: &PastReduce) -> Vec<&str> {
        reduce.steps.iter().map(|step| step.node.as_str()).collect()
    }

    #[test]
    fn a_reduce_has_the_hops_that_led_to_its_target() {
        let (target, other) = (ObjectId::new("t").unwrap(), ObjectId::new("u").unwrap());
        let (first, second) = (ObjectId::of_hop(PutId(1)), ObjectId::of_hop(PutId(2)));
        let mut past = Past::default();
        past.push(at(10), &node("a"), vec![step(4, &first, 1, &[("x", None)])]);
        past.push(at(10), &node("b"), vec![step(3, &second, 2, &[("a", Some(&first))])]);
        let last = step(2, &target, 3, &[("b", Some(&second)), ("y", None)]);
        past.push(at(10), &node("c"), vec![last.clone(), step(3, &other, 4, &[("a", None)])]);
        past.push(at(11), &node("c"), vec![last]);
        let reduces = past.latest(Some(&target), 10);
        assert_eq!(reduces.len(), 1, "the repeated report adds nothing");
        assert_eq!(nodes(&reduces[0]), ["a", "b", "c"]);
        assert_eq!((reduces[0].began(), reduces[0].ended()), (Some(at(5)), Some(at(9))));
        assert_eq!(reduces[0].main().unwrap().load.output, target);
        assert_eq!(past.latest(None, 10).len(), 2);
        assert_eq!(past.latest(None, 1).len(), 1);
    }

    #[test]
    fn members_of_a_collective_stand_together() {
        let target = ObjectId::new("t").unwrap();
        let mut past = Past::default();
        for (name, number) in [("a", 1), ("b", 2)] {
            past.push(
                at(9),
                &node(name),
                vec![step(number, &target, 7, &[]), step(number, &target, 8, &[])],
            );
        }
        let reduces = past.latest(None, 10);
        assert_eq!(reduces.iter().map(nodes).collect::<Vec<_>>(), [["b", "a"], ["b", "a"]]);
    }

    #[test]
    fn the_oldest_steps_are_forgotten_even_if_they_are_reported_last() {
        let target = ObjectId::new("t").unwrap();
        let mut past = Past::default();
        for put in 0..MAX_STEPS as u64 {
            past.push(at(99), &node("a"), vec![step(1, &target, put, &[])]);
        }
        past.push(at(98), &node("a"), vec![step(1, &target, u64::MAX, &[])]);
        past.push(at(100), &node("a"), vec![step(1, &target, u64::MAX - 1, &[])]);
        assert_eq!((past.steps.len(), past.known.len()), (MAX_STEPS, MAX_STEPS));
        let latest = past.latest(None, usize::MAX);
        assert_eq!(latest.len(), MAX_STEPS);
        let puts: Vec<u64> = latest.iter().map(|one| one.steps[0].load.put.0).collect();
        assert_eq!(puts[0], u64::MAX - 1);
        assert!(!puts.contains(&u64::MAX), "it is older than the others");
    }
}
