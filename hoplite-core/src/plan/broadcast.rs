//! Sender selection for broadcast: who serves a receiver, and which waiting receiver takes a slot that became free.
//!
//! A broadcast is nothing but many `Get`s of one object, so there is no tree to plan ahead: each receiver is attached to
//! one location at the moment it asks, or at the moment a slot becomes free. With one slot per location, receivers that
//! arrive together make a chain, in which every node sends and receives the object once; with receivers that arrive one after
//! another, it makes a tree, because complete locations are preferred. How long a chain gets is decided in
//! [`chain`](super::chain).
//!
//! Source: Hoplite, section 4.3 ("Receiver-driven coordination") and figure 4. The topology term, the ageing of waiting
//! receivers and the treatment of senders that failed are ours.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::NodeId;
use crate::shard::{GrantReason, LocationState};
use crate::time::Time;

/// How long closer receivers may overtake a waiting one.
///
/// After that, receivers are served in the order of their arrival. 50 ms is what 64 MiB takes at 10 Gbit/s, so
/// locality wins among receivers that arrive together, and nobody is passed over for longer than about one transfer.
pub const AGED_AFTER: Duration = Duration::from_millis(50);

/// Most offers that are compared for a slot: with a topology, a slot goes to the closest of so many who wait.
pub const MAX_OFFERS: usize = 64;

/// What it costs to send from one node to another; only the order of costs matters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Topology {
    /// All links are alike.
    #[default]
    Uniform,
    /// The cost of each link is given.
    Matrix(CostMatrix),
}

/// The cost of links by pair of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CostMatrix {
    by_sender: BTreeMap<NodeId, BTreeMap<NodeId, u64>>,
    default_cost: u64,
}

impl CostMatrix {
    /// The matrix of `costs`, keyed by `(sender, receiver)`; a link that is not in it costs `default_cost`.
    pub fn new(costs: BTreeMap<(NodeId, NodeId), u64>, default_cost: u64) -> Self {
        let mut by_sender: BTreeMap<NodeId, BTreeMap<NodeId, u64>> = BTreeMap::new();
        for ((sender, receiver), cost) in costs {
            by_sender.entry(sender).or_default().insert(receiver, cost);
        }
        Self { by_sender, default_cost }
    }

    /// The cost of the link from `sender` to `receiver`.
    pub fn cost(&self, sender: &NodeId, receiver: &NodeId) -> u64 {
        let row = self.by_sender.get(sender);
        row.and_then(|row| row.get(receiver)).copied().unwrap_or(self.default_cost)
    }
}

impl Topology {
    /// The cost of the link from `sender` to `receiver`; zero is the cheapest there is.
    pub fn cost(&self, sender: &NodeId, receiver: &NodeId) -> u64 {
        match self {
            Self::Uniform => 0,
            Self::Matrix(matrix) => matrix.cost(sender, receiver),
        }
    }
}

/// A location with a free slot that may serve a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The node that has the copy.
    pub node: &'a NodeId,
    /// How much of the object it has.
    pub state: LocationState,
    /// When a copy that is not complete has bytes to pass on; of no matter for one that is.
    pub bytes_at: Time,
    /// The number of this location's latest grant, zero if it never had one. Numbers grow with each grant.
    pub last_grant: u64,
    /// Whether the receiver asked for another sender, if there is one.
    pub avoided: bool,
}

/// The sender that was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderChoice {
    /// The index of the sender among the candidates.
    pub index: usize,
    /// Why this sender was chosen.
    pub reason: GrantReason,
    /// What the link from the sender to the receiver costs.
    pub cost: u64,
}

/// Chooses the sender for `receiver`, or `None` if there is no candidate.
///
/// Every other sender beats one that the receiver asked to avoid; a complete copy beats a partial one; among equals the
/// closest by `topology` wins, then, if they are not complete, the one that has bytes first, then the one granted longest ago,
/// then the smallest [`NodeId`]. So the order is total and does not depend on the order of the candidates. O(n) for n
/// candidates.
///
/// The caller leaves out the receiver itself and those that pull from it, as [`pulls_from`] says.
///
/// Source: Hoplite, section 4.3.
pub fn choose_sender(
    receiver: &NodeId,
    candidates: &[Candidate<'_>],
    topology: &Topology,
) -> Option<SenderChoice> {
    let cost = |candidate: &Candidate<'_>| topology.cost(candidate.node, receiver);
    let class = |candidate: &Candidate<'_>| (candidate.avoided, candidate.state != LocationState::Complete);
    let bytes_at = |candidate: &Candidate<'_>| match candidate.state {
        LocationState::Complete => Time::ZERO,
        LocationState::Producing | LocationState::Partial => candidate.bytes_at,
    };
    let (index, best) = candidates.iter().enumerate().min_by_key(|(_, candidate)| {
        (class(candidate), cost(candidate), bytes_at(candidate), candidate.last_grant, candidate.node)
    })?;
    let peers = candidates.iter().filter(|candidate| class(candidate) == class(best));
    let as_close = peers.clone().filter(|candidate| cost(candidate) == cost(best));
    let as_early = as_close.clone().filter(|candidate| bytes_at(candidate) == bytes_at(best)).count();
    let reason = if best.avoided {
        GrantReason::AvoidedButOnly
    } else if candidates.len() == 1 {
        GrantReason::OnlyCandidate
    } else if peers.count() == 1 {
        // The others are partial or avoided: this one is alone in its class.
        if candidates.iter().any(|other| !other.avoided && class(other) != class(best)) {
            GrantReason::CompleteBeforePartial
        } else {
            GrantReason::OnlyCandidate
        }
    } else if as_close.count() == 1 {
        GrantReason::Closest
    } else if as_early == 1 {
        GrantReason::EarliestBytes
    } else {
        GrantReason::LeastRecentlyUsed
    };
    Some(SenderChoice { index, reason, cost: cost(best) })
}

/// Chooses which waiting receiver is served next.
///
/// `offers` are in the order of arrival: how long each receiver has waited, and what [`choose_sender`] gives it now, if
/// anything: the cost of its link, and whatever the caller wants to have back. The first receiver that has waited for
/// [`AGED_AFTER`] and can be served wins; if there is none, the one with the cheapest link, then the one that came first. So
/// a receiver can be overtaken only during its first [`AGED_AFTER`], and with a uniform topology never. Offers are evaluated
/// lazily, since the first one usually wins, and at most [`MAX_OFFERS`] are compared.
pub fn choose_waiter<T>(offers: impl IntoIterator<Item = (Duration, Option<(u64, T)>)>) -> Option<T> {
    let mut best: Option<(u64, T)> = None;
    let some = offers.into_iter().filter_map(|(waited, offer)| Some((waited, offer?)));
    for (waited, (cost, offer)) in some.take(MAX_OFFERS) {
        if waited >= AGED_AFTER {
            return Some(offer);
        }
        if best.as_ref().is_none_or(|(cheapest, _)| cost < *cheapest) {
            best = Some((cost, offer));
        }
        // Aged receivers come first in the order of arrival, so nobody after this one can beat a cost of zero.
        if cost == 0 {
            break;
        }
    }
    best.map(|(_, offer)| offer)
}

/// Whether `node` pulls from `root`, directly or through others, or is `root` itself, given the senders of each node.
///
/// A grant from such a node to `root` would close a cycle in which nobody ever gets a new byte. O(m log m) for m nodes
/// between `node` and the end of its chain.
pub fn pulls_from<N: Ord + Copy, I: IntoIterator<Item = N>>(
    node: N,
    root: N,
    senders_of: impl Fn(N) -> I,
) -> bool {
    let mut found = BTreeSet::from([node]);
    let mut open = vec![node];
    while let Some(next) = open.pop() {
        if next == root {
            return true;
        }
        open.extend(senders_of(next).into_iter().filter(|sender| found.insert(*sender)));
    }
    false
}

/// Orders the nodes that could hold the copy that must survive; the first is promoted.
///
/// The smallest [`NodeId`] wins among complete copies. Both shards of an id decide this on their own, and must agree, so
/// the choice depends on nothing else.
pub fn choose_survivor<'a>(complete: impl IntoIterator<Item = &'a NodeId>) -> Option<&'a NodeId> {
    complete.into_iter().min()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn candidate(node: &NodeId, state: LocationState, last_grant: u64) -> Candidate<'_> {
        Candidate { node, state, bytes_at: Time::ZERO, last_grant, avoided: false }
    }

    fn matrix(costs: &[(&str, &str, u64)], default_cost: u64) -> Topology {
        let costs = costs.iter().map(|(from, to, cost)| ((node(from), node(to)), *cost)).collect();
        Topology::Matrix(CostMatrix::new(costs, default_cost))
    }

    fn chosen(receiver: &str, candidates: &[Candidate<'_>], topology: &Topology) -> (String, GrantReason) {
        let choice = choose_sender(&node(receiver), candidates, topology).unwrap();
        (candidates[choice.index].node.to_string(), choice.reason)
    }

    #[test]
    fn nobody_serves_without_candidates() {
        assert_eq!(choose_sender(&node("r"), &[], &Topology::Uniform), None);
    }

    #[test]
    fn a_complete_copy_beats_a_closer_partial_one() {
        let (a, b) = (node("a"), node("b"));
        let topology = matrix(&[("b", "r", 1)], 100);
        let candidates =
            [candidate(&b, LocationState::Partial, 0), candidate(&a, LocationState::Complete, 9)];
        assert_eq!(chosen("r", &candidates, &topology), ("a".into(), GrantReason::CompleteBeforePartial));
    }

    #[test]
    fn the_closest_of_equals_wins() {
        let (a, b, c) = (node("a"), node("b"), node("c"));
        let topology = matrix(&[("b", "r", 1)], 100);
        let candidates = [&a, &b, &c].map(|node| candidate(node, LocationState::Complete, 0));
        assert_eq!(chosen("r", &candidates, &topology), ("b".into(), GrantReason::Closest));
        // Links have a direction.
        assert_eq!(topology.cost(&node("r"), &b), 100);
    }

    #[test]
    fn among_equally_close_ones_the_least_recently_granted_wins() {
        let (a, b, c) = (node("a"), node("b"), node("c"));
        let mut candidates = [
            candidate(&c, LocationState::Complete, 3),
            candidate(&b, LocationState::Complete, 3),
            candidate(&a, LocationState::Complete, 7),
        ];
        assert_eq!(
            chosen("r", &candidates, &Topology::Uniform),
            ("b".into(), GrantReason::LeastRecentlyUsed)
        );
        candidates[2].last_grant = 0;
        assert_eq!(
            chosen("r", &candidates, &Topology::Uniform),
            ("a".into(), GrantReason::LeastRecentlyUsed)
        );
    }

    #[test]
    fn an_avoided_sender_is_the_last_resort() {
        let (a, b) = (node("a"), node("b"));
        let avoided = Candidate { avoided: true, ..candidate(&a, LocationState::Complete, 0) };
        let other = candidate(&b, LocationState::Partial, 5);
        assert_eq!(
            chosen("r", &[avoided, other], &Topology::Uniform),
            ("b".into(), GrantReason::OnlyCandidate)
        );
        assert_eq!(chosen("r", &[avoided], &Topology::Uniform), ("a".into(), GrantReason::AvoidedButOnly));
    }

    #[test]
    fn the_closest_waiter_is_served_until_another_has_aged() {
        let offer = |waited_ms, cost: u64| (Duration::from_millis(waited_ms), Some(cost));
        let index = |offers: &[(Duration, Option<u64>)]| {
            let offers = offers.iter().enumerate();
            choose_waiter(offers.map(|(index, (waited, cost))| (*waited, cost.map(|cost| (cost, index)))))
        };
        assert_eq!(index(&[offer(49, 9), offer(30, 4), offer(20, 4)]), Some(1));
        assert_eq!(index(&[offer(50, 9), offer(30, 4)]), Some(0));
        assert_eq!(index(&[(Duration::from_secs(1), None), offer(30, 4)]), Some(1));
        assert_eq!(index(&[offer(10, 0), offer(9, 0)]), Some(0));
        assert_eq!(index(&[(Duration::ZERO, None)]), None);
    }

    #[test]
    fn of_copies_that_are_not_complete_the_one_with_the_earliest_bytes_wins() {
        let (a, b, c) = (node("a"), node("b"), node("c"));
        let at = |node, micros| Candidate {
            bytes_at: Time::from_micros(micros),
            ..candidate(node, LocationState::Partial, 0)
        };
        let topology = matrix(&[("a", "near", 1)], 100);
        let candidates = [at(&a, 9), at(&b, 5), at(&c, 7)];
        assert_eq!(chosen("r", &candidates, &Topology::Uniform), ("b".into(), GrantReason::EarliestBytes));
        assert_eq!(chosen("near", &candidates, &topology), ("a".into(), GrantReason::Closest));
        let complete = [a, b].map(|name| (name, LocationState::Complete));
        let complete = [
            Candidate { bytes_at: Time::from_micros(9), ..candidate(&complete[0].0, complete[0].1, 1) },
            Candidate { bytes_at: Time::from_micros(5), ..candidate(&complete[1].0, complete[1].1, 2) },
        ];
        assert_eq!(chosen("r", &complete, &Topology::Uniform), ("a".into(), GrantReason::LeastRecentlyUsed));
    }

    #[test]
    fn who_pulls_from_whom_is_found_along_the_links_also_in_cycles() {
        let links = [(2, 1), (3, 2), (4, 1), (6, 5), (1, 3)];
        let senders_of = |node| links.into_iter().filter(move |link| link.0 == node).map(|link| link.1);
        let behind = |root| (1..=7).filter(|node| pulls_from(*node, root, senders_of)).collect::<Vec<_>>();
        assert_eq!(behind(1), [1, 2, 3, 4]);
        assert_eq!(behind(5), [5, 6]);
        assert_eq!(behind(7), [7]);
    }

    #[test]
    fn the_survivor_has_the_smallest_name() {
        let nodes = [node("c"), node("a"), node("b")];
        assert_eq!(choose_survivor(&nodes), Some(&nodes[1]));
    }

    proptest! {
        #[test]
        fn the_choice_does_not_depend_on_the_order_of_candidates(
            specs in prop::collection::vec((0_u8..3, 0_u64..3, any::<bool>(), 0_u64..3, 0_u64..3), 1..8),
            rotation in 0_usize..8,
        ) {
            let names: Vec<NodeId> = (0..specs.len()).map(|number| node(&format!("n{number}"))).collect();
            let states = [LocationState::Producing, LocationState::Partial, LocationState::Complete];
            let costs = specs.iter().zip(&names).map(|(spec, name)| ((name.clone(), node("r")), spec.3)).collect();
            let topology = Topology::Matrix(CostMatrix::new(costs, 0));
            let mut candidates: Vec<Candidate<'_>> = specs
                .iter()
                .zip(&names)
                .map(|((state, last_grant, avoided, _, bytes_at), node)| Candidate {
                    node,
                    state: states[usize::from(*state)],
                    bytes_at: Time::from_micros(*bytes_at),
                    last_grant: *last_grant,
                    avoided: *avoided,
                })
                .collect();
            let pick = |candidates: &[Candidate<'_>]| {
                let choice = choose_sender(&node("r"), candidates, &topology).unwrap();
                (candidates[choice.index].node.clone(), choice.reason, choice.cost)
            };
            let before = pick(&candidates);
            let middle = rotation % candidates.len();
            candidates.rotate_left(middle);
            prop_assert_eq!(pick(&candidates), before);
        }
    }
}
