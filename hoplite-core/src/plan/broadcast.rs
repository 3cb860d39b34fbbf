//! Chooses the senders of broadcasts.
//!
//! A broadcast is many `Get`s of one object. The shard attaches each receiver when its query
//! arrives or a slot becomes free:
//!
//! 1. The first receiver gets the only slot (right to pull) of the origin.
//! 2. Once granted a slot, a receiver counts as a location (a node with a copy). So the second
//!    receiver gets the first one's slot, and so on. Receivers that arrive together form a chain,
//!    which [`chain`](super::chain) limits.
//! 3. The shard searches the receiver's groups (host, rack, zone), from the innermost outwards, for
//!    free slots ([`choose_sender`]). Receivers that arrive one by one form a tree.
//! 4. A receiver waits briefly for busy copies in its group, and a farther receiver that has just
//!    begun gives its slot up (`shard/locality.rs`). So a large object enters each rack once
//!    (`plan/locality.rs`).
//!
//! Source: Hoplite, section 4.3 ("Receiver-driven coordination") and figure 4. Locality and the
//! treatment of failed senders are ours.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::id::NodeId;
use crate::time::Time;
use crate::vocabulary::directory::{GrantReason, LocationState};

/// Time after which a waiting receiver may use a far or failed sender: the time of 64 MiB at 10
/// Gbit/s.
pub const AGED_AFTER: Duration = Duration::from_millis(50);

/// A node whose copy may serve one more receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Candidate<'a> {
    pub node: &'a NodeId,
    pub state: LocationState,
    /// Estimated time from which an incomplete copy can forward bytes.
    pub bytes_at: Time,
    /// Number of the copy's latest grant, or zero. Later grants have larger numbers.
    pub last_grant: u64,
    /// `true` if this sender recently failed the receiver.
    pub avoided: bool,
    /// `true` if the link to the receiver is reported as slow.
    pub is_slow: bool,
}

/// A chosen sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderChoice {
    /// Sender's index among the candidates.
    pub index: usize,
    /// Reason of the choice, for `hoplite stat`.
    pub reason: GrantReason,
}

/// Chooses a sender among one group's candidates, in O(n).
///
/// Slow senders come after others, and avoided senders last. A complete copy beats an incomplete
/// one. Then the earliest bytes win, then the oldest grant, then the smallest [`NodeId`].
///
/// The caller omits the receiver and the nodes that pull from it ([`pulls_from`]). It tries groups
/// from the innermost outwards, so a close copy beats a far complete one.
pub fn choose_sender(candidates: &[Candidate<'_>]) -> Option<SenderChoice> {
    let class =
        |candidate: &Candidate<'_>| (candidate.avoided, candidate.state != LocationState::Complete);
    let bytes_at = |candidate: &Candidate<'_>| match candidate.state {
        LocationState::Complete => Time::ZERO,
        LocationState::Producing | LocationState::Partial => candidate.bytes_at,
    };
    let rank =
        |candidate: &Candidate<'_>| (class(candidate), bytes_at(candidate), candidate.last_grant);
    let without_links =
        candidates.iter().min_by_key(|candidate| (rank(candidate), candidate.node))?;
    let (index, best) = candidates.iter().enumerate().min_by_key(|(_, candidate)| {
        (candidate.avoided, candidate.is_slow, rank(candidate), candidate.node)
    })?;
    let others = candidates.iter().filter(|other| !other.avoided && other.is_slow == best.is_slow);
    let peers = others.clone().filter(|candidate| class(candidate) == class(best));
    let as_early = peers.clone().filter(|candidate| bytes_at(candidate) == bytes_at(best)).count();
    let reason = if best.avoided {
        GrantReason::AvoidedButOnly
    } else if best.is_slow {
        GrantReason::SlowButOnly
    } else if without_links.is_slow {
        GrantReason::FasterLink
    } else if peers.count() == 1 {
        if others.count() > 1 {
            GrantReason::CompleteBeforePartial
        } else {
            GrantReason::OnlyCandidate
        }
    } else if as_early == 1 {
        GrantReason::EarliestBytes
    } else {
        GrantReason::LeastRecentlyUsed
    };
    Some(SenderChoice { index, reason })
}

/// Returns `true` if `node` is `root`, or pulls from `root`, directly or through relays. If `root`
/// pulled from `node`, the transfers would form a cycle.
///
/// O(m log m) for the m nodes in `node`'s chain.
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

/// Chooses the node whose copy is pinned when no pinned copy is left.
///
/// Both shards of an id must agree, so the smallest [`NodeId`] with a complete copy wins.
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
        Candidate { node, state, bytes_at: Time::ZERO, last_grant, avoided: false, is_slow: false }
    }

    fn chosen(candidates: &[Candidate<'_>]) -> (String, GrantReason) {
        let choice = choose_sender(candidates).unwrap();
        (candidates[choice.index].node.to_string(), choice.reason)
    }

    #[test]
    fn no_candidates_give_no_choice() {
        assert_eq!(choose_sender(&[]), None);
    }

    #[test]
    fn a_complete_copy_beats_a_partial_one() {
        let (a, b) = (node("a"), node("b"));
        let candidates =
            [candidate(&b, LocationState::Partial, 0), candidate(&a, LocationState::Complete, 9)];
        assert_eq!(chosen(&candidates), ("a".into(), GrantReason::CompleteBeforePartial));
    }

    #[test]
    fn a_slow_link_is_the_last_resort_but_for_a_sender_that_failed() {
        let (a, b, c) = (node("a"), node("b"), node("c"));
        let slow = Candidate { is_slow: true, ..candidate(&a, LocationState::Complete, 0) };
        let partial = candidate(&b, LocationState::Partial, 9);
        let avoided = Candidate { avoided: true, ..candidate(&c, LocationState::Complete, 0) };
        assert_eq!(chosen(&[slow, partial]), ("b".into(), GrantReason::FasterLink));
        assert_eq!(chosen(&[slow, avoided]), ("a".into(), GrantReason::SlowButOnly));
        let (slow_partial, complete) = (
            Candidate { is_slow: true, ..candidate(&a, LocationState::Partial, 0) },
            candidate(&c, LocationState::Complete, 0),
        );
        let choice = chosen(&[slow_partial, complete]);
        assert_eq!(
            choice,
            ("c".into(), GrantReason::OnlyCandidate),
            "slow links do not change the choice"
        );
    }

    #[test]
    fn among_equally_close_ones_the_least_recently_granted_wins() {
        let (a, b, c) = (node("a"), node("b"), node("c"));
        let mut candidates = [
            candidate(&c, LocationState::Complete, 3),
            candidate(&b, LocationState::Complete, 3),
            candidate(&a, LocationState::Complete, 7),
        ];
        assert_eq!(chosen(&candidates), ("b".into(), GrantReason::LeastRecentlyUsed));
        candidates[2].last_grant = 0;
        assert_eq!(chosen(&candidates), ("a".into(), GrantReason::LeastRecentlyUsed));
    }

    #[test]
    fn an_avoided_sender_is_the_last_resort() {
        let (a, b) = (node("a"), node("b"));
        let avoided = Candidate { avoided: true, ..candidate(&a, LocationState::Complete, 0) };
        let other = candidate(&b, LocationState::Partial, 5);
        assert_eq!(chosen(&[avoided, other]), ("b".into(), GrantReason::OnlyCandidate));
        assert_eq!(chosen(&[avoided]), ("a".into(), GrantReason::AvoidedButOnly));
    }

    #[test]
    fn the_unfinished_copy_with_the_earliest_bytes_wins() {
        let (a, b, c) = (node("a"), node("b"), node("c"));
        let at = |node, micros| Candidate {
            bytes_at: Time::from_micros(micros),
            ..candidate(node, LocationState::Partial, 0)
        };
        assert_eq!(
            chosen(&[at(&a, 9), at(&b, 5), at(&c, 7)]),
            ("b".into(), GrantReason::EarliestBytes)
        );
        let complete = [a, b].map(|name| (name, LocationState::Complete));
        let complete = [
            Candidate {
                bytes_at: Time::from_micros(9),
                ..candidate(&complete[0].0, complete[0].1, 1)
            },
            Candidate {
                bytes_at: Time::from_micros(5),
                ..candidate(&complete[1].0, complete[1].1, 2)
            },
        ];
        assert_eq!(chosen(&complete), ("a".into(), GrantReason::LeastRecentlyUsed));
    }

    #[test]
    fn pulls_from_follows_links_and_stops_at_cycles() {
        let links = [(2, 1), (3, 2), (4, 1), (6, 5), (1, 3)];
        let senders_of =
            |node| links.into_iter().filter(move |link| link.0 == node).map(|link| link.1);
        let behind =
            |root| (1..=7).filter(|node| pulls_from(*node, root, senders_of)).collect::<Vec<_>>();
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
            specs in prop::collection::vec((0_u8..3, 0_u64..3, any::<bool>(), any::<bool>(), 0_u64..3), 1..8),
            rotation in 0_usize..8,
        ) {
            let names: Vec<NodeId> = (0..specs.len()).map(|number| node(&format!("n{number}"))).collect();
            let states = [LocationState::Producing, LocationState::Partial, LocationState::Complete];
            let mut candidates: Vec<Candidate<'_>> = specs
                .iter()
                .zip(&names)
                .map(|((state, last_grant, avoided, is_slow, bytes_at), node)| Candidate {
                    node,
                    state: states[usize::from(*state)],
                    bytes_at: Time::from_micros(*bytes_at),
                    last_grant: *last_grant,
                    avoided: *avoided,
                    is_slow: *is_slow,
                })
                .collect();
            let pick = |candidates: &[Candidate<'_>]| {
                let choice = choose_sender(candidates).unwrap();
                (candidates[choice.index].node.clone(), choice.reason)
            };
            let before = pick(&candidates);
            let middle = rotation % candidates.len();
            candidates.rotate_left(middle);
            prop_assert_eq!(pick(&candidates), before);
        }
    }
}
