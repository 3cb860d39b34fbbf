//! The schedule in which each pair of nodes is measured.
//!
//! 1. Echoes: the rounds of a tournament.
//! 2. Trains: each node with the next one, or all pairs.
//! 3. Trains under load: the rounds of six different tournaments.

use super::super::super::blocks::{triangle_index, triangle_len};
use super::super::super::matrix::Matrix;
use super::super::super::random::Random;
use super::super::super::rounds;
use super::messages::{Bandwidth, SurveyError, SurveyOptions};
use super::schedule::{Lost, Map, SurveySchedule, Task, link_of, loaded_gap};

const LOADED_PASSES: u32 = 6;

#[derive(Debug, Clone, Default)]
struct Pair {
    round_trip_ns: Option<u64>,
    ps_per_byte: Option<u32>,
    loaded_ps_per_byte: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct AllPairs {
    options: SurveyOptions,
    nodes: u32,
    pairs: Vec<Pair>,
    node_gaps: Vec<Option<u32>>,
    order: Vec<u32>,
}

impl AllPairs {
    pub(super) fn new(nodes: u32, options: SurveyOptions) -> Self {
        Self {
            options,
            nodes,
            pairs: vec![Pair::default(); triangle_len(nodes as usize)],
            node_gaps: vec![None; nodes as usize],
            order: (0..nodes).collect(),
        }
    }

    fn rounds(&self) -> u64 {
        rounds::count(self.nodes).into()
    }

    fn trains(&self) -> u64 {
        let nodes = u64::from(self.nodes);
        match self.options.bandwidth {
            Bandwidth::Nodes if nodes > 2 => nodes,
            Bandwidth::Nodes | Bandwidth::Pairs => nodes * (nodes - 1) / 2,
        }
    }

    fn train(&self, index: u64) -> (u32, u32) {
        match self.options.bandwidth {
            Bandwidth::Nodes => (index as u32, (index as u32 + 1) % self.nodes),
            // By rounds, so that a node is not measured several times in a row.
            Bandwidth::Pairs => {
                let per_round = u64::from(self.nodes / 2);
                let mut pairs = rounds::pairs(self.nodes, (index / per_round) as u32);
                pairs.nth((index % per_round) as usize).unwrap_or((0, 1))
            }
        }
    }
}

impl SurveySchedule for AllPairs {
    fn step(
        &mut self,
        step: u64,
        _lost: &Lost,
        random: &mut Random,
    ) -> Option<(Task, Vec<(u32, u32)>)> {
        let (rounds, trains) = (self.rounds(), self.trains());
        Some(match step {
            _ if step < rounds => (
                Task::Echoes(self.options.probes),
                rounds::pairs(self.nodes, step as u32).collect(),
            ),
            _ if step < rounds + trains => (Task::Train, vec![self.train(step - rounds)]),
            _ if step < self.steps() => {
                let round = ((step - rounds - trains) % rounds) as u32;
                if round == 0 {
                    random.shuffle(&mut self.order);
                }
                let node = |position: u32| self.order[position as usize];
                let pairs = rounds::pairs(self.nodes, round).map(|(a, b)| (node(a), node(b)));
                (Task::Loaded, pairs.collect())
            }
            _ => return None,
        })
    }

    fn steps(&self) -> u64 {
        let loaded = if self.options.loaded { u64::from(LOADED_PASSES) * self.rounds() } else { 0 };
        self.rounds() + self.trains() + loaded
    }

    fn echoed(&mut self, (a, b): (u32, u32), round_trip_ns: Option<u64>) {
        let pair = &mut self.pairs[index(a, b)];
        pair.round_trip_ns = round_trip_ns.or(pair.round_trip_ns);
    }

    fn carried(&mut self, (a, b): (u32, u32), ps_per_byte: u32, is_loaded: bool) {
        let pair = &mut self.pairs[index(a, b)];
        if is_loaded {
            pair.loaded_ps_per_byte.push(ps_per_byte.into());
            return;
        }
        pair.ps_per_byte = pair.ps_per_byte.max(Some(ps_per_byte));
        for node in [a, b] {
            let gap = &mut self.node_gaps[node as usize];
            *gap = Some(gap.map_or(ps_per_byte, |gap| gap.min(ps_per_byte)));
        }
    }

    fn gap(&self, a: u32, b: u32) -> Option<u32> {
        let pair = &self.pairs[index(a, b)];
        let of_nodes = self.node_gaps[a as usize].max(self.node_gaps[b as usize]);
        // The pair's own measurement comes first: other pairs may cross another uplink.
        pair.ps_per_byte.max(loaded_gap(&pair.loaded_ps_per_byte)).or(of_nodes)
    }

    fn map(
        &self,
        names: Vec<String>,
        kept: &[u32],
        assumed_ps_per_byte: u32,
    ) -> Result<Map, SurveyError> {
        // A node's worst round trip stands for unmeasured pairs.
        let mut worst: Vec<Option<u64>> = vec![None; self.nodes as usize];
        for (low, &a) in kept.iter().enumerate() {
            for &b in &kept[low + 1..] {
                let round_trip_ns = self.pairs[index(a, b)].round_trip_ns;
                for node in [a, b] {
                    worst[node as usize] = worst[node as usize].max(round_trip_ns);
                }
            }
        }
        let worst_of_all =
            worst.iter().copied().max().flatten().ok_or(SurveyError::NothingMeasured)?;
        let mut guessed = Vec::new();
        let matrix = Matrix::from_links(names, |high, low| {
            let (a, b) = (kept[high], kept[low]);
            let round_trip_ns = self.pairs[index(a, b)].round_trip_ns.unwrap_or_else(|| {
                guessed.push((low as u32, high as u32));
                worst[a as usize].max(worst[b as usize]).unwrap_or(worst_of_all)
            });
            Ok(link_of(round_trip_ns, self.gap(a, b).unwrap_or(assumed_ps_per_byte)))
        });
        // Names were checked, so only their number can be wrong.
        let matrix = matrix.map_err(|_| SurveyError::TooFewNodes { count: kept.len() })?;
        Ok(Map { matrix, guessed, estimated: 0 })
    }
}

const fn index(a: u32, b: u32) -> usize {
    triangle_index(a as usize, b as usize)
}
