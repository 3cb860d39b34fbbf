use super::super::super::super::random::Random;
use super::super::super::super::rounds;
use super::super::groups::{UNKNOWN, alike};
use super::super::schedule::Lost;

/// Most landmarks of a set, which has at least twice as many nodes. More would take more echoes and
/// memory, but no more rounds.
const MAX_LANDMARKS: usize = 64;

#[derive(Debug)]
pub(super) struct Set {
    pub(super) nodes: Vec<u32>,
    landmarks: usize,
    round_trips_ns: Vec<u32>,
}

impl Set {
    /// Chooses one landmark from each section of the node list, because similar names often mean
    /// one rack.
    pub(super) fn new(mut nodes: Vec<u32>, random: &mut Random) -> Self {
        let count = (nodes.len() / 2).clamp(1, MAX_LANDMARKS);
        for part in 0..count {
            let (start, end) = (nodes.len() * part / count, nodes.len() * (part + 1) / count);
            nodes.swap(part, start + random.index(end - start));
        }
        let round_trips_ns = vec![UNKNOWN; nodes.len() * count];
        Self { nodes, landmarks: count, round_trips_ns }
    }

    fn others(&self) -> usize {
        self.nodes.len() - self.landmarks
    }

    pub(super) fn rounds(&self) -> u64 {
        (self.others() + rounds::count(self.landmarks as u32) as usize) as u64
    }

    /// Each landmark meets the other nodes in turn, then the landmarks meet each other.
    pub(super) fn pairs(&self, round: u64) -> Vec<(u32, u32)> {
        let (round, others) = (round as usize, self.others());
        if round < others {
            let other = |landmark: usize| self.nodes[self.landmarks + (round + landmark) % others];
            (0..self.landmarks.min(others)).map(|index| (self.nodes[index], other(index))).collect()
        } else if (round as u64) < self.rounds() {
            let node = |position: u32| self.nodes[position as usize];
            let pairs = rounds::pairs(self.landmarks as u32, (round - others) as u32);
            pairs.map(|(a, b)| (node(a), node(b))).collect()
        } else {
            Vec::new()
        }
    }

    pub(super) fn echoed(&mut self, a: usize, b: usize, round_trip_ns: u32) {
        for (landmark, node) in [(a, b), (b, a)] {
            if landmark < self.landmarks {
                self.round_trips_ns[node * self.landmarks + landmark] = round_trip_ns;
            }
        }
    }

    pub(super) fn divided(mut self, lost: &Lost, most: usize) -> Vec<Vec<u32>> {
        // A landmark's round trip to its closest node stands for that to itself.
        for landmark in 0..self.landmarks {
            let column = self.round_trips_ns.iter().skip(landmark).step_by(self.landmarks);
            let closest = column.min().copied().unwrap_or(UNKNOWN);
            self.round_trips_ns[landmark * self.landmarks + landmark] = closest;
        }
        let rows = self.nodes.iter().copied().zip(self.round_trips_ns.chunks(self.landmarks));
        let mut left: Vec<(u32, &[u32])> =
            rows.filter(|(node, _)| !lost.contains_key(node)).collect();
        left.sort_unstable_by_key(|(node, _)| *node);
        let rows: Vec<&[u32]> = left.iter().map(|(_, row)| *row).collect();
        let groups = alike(&rows, most).into_iter();
        groups.map(|group| group.into_iter().map(|index| left[index].0).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_node_meets_each_landmark_once_and_is_in_one_pair_per_round() {
        for count in [129_u32, 140, 400] {
            let set = Set::new((0..count).collect(), &mut Random::new(count.into()));
            let landmarks: BTreeSet<u32> = set.nodes[..set.landmarks].iter().copied().collect();
            assert_eq!(landmarks.len(), 64);
            assert_eq!(set.nodes.iter().copied().collect::<BTreeSet<u32>>().len(), count as usize);
            let mut met = BTreeSet::new();
            for round in 0..set.rounds() {
                let pairs = set.pairs(round);
                let nodes: BTreeSet<u32> = pairs.iter().flat_map(|(a, b)| [*a, *b]).collect();
                assert_eq!(nodes.len(), 2 * pairs.len(), "round {round}");
                assert!(pairs.into_iter().all(|(a, b)| met.insert((a.min(b), a.max(b)))));
            }
            let with_landmarks =
                |(a, b): &(u32, u32)| landmarks.contains(a) || landmarks.contains(b);
            assert!(met.iter().all(with_landmarks));
            assert_eq!(met.len(), 64 * 63 / 2 + 64 * (count as usize - 64));
            assert!(set.pairs(set.rounds()).is_empty());
        }
    }

    #[test]
    fn a_landmark_is_grouped_with_close_nodes() {
        let mut set = Set::new((0..200).collect(), &mut Random::new(1));
        let rack = |node: u32| node / 20;
        for round in 0..set.rounds() {
            for (a, b) in set.pairs(round) {
                let position =
                    |node: u32| set.nodes.iter().position(|other| *other == node).unwrap();
                let (a, b) = (position(a), position(b));
                let is_near = rack(set.nodes[a]) == rack(set.nodes[b]);
                set.echoed(a, b, if is_near { 40 } else { 80 });
            }
        }
        let lost = Lost::from([(7, super::super::super::SurveyLoss::Gone)]);
        let mut groups = set.divided(&lost, 99);
        groups.sort();
        let expected =
            (0..10).map(|rack| (20 * rack..20 * rack + 20).filter(|node| *node != 7).collect());
        assert_eq!(groups, expected.collect::<Vec<Vec<u32>>>());
    }
}
