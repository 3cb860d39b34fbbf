//! The schedule for thousands of nodes.
//!
//! 1. Landmarks: each node exchanges echoes with the same 64 landmarks. Nodes with similar round
//!    trips form a group. A large group is divided again by its own landmarks, and is cut if it
//!    stays large.
//! 2. Within groups: all pairs exchange echoes. A group is split if some pairs are 1.5 times as far
//!    apart as others.
//! 3. Between groups: three pairs stand for all pairs of two groups.
//! 4. Trains: each node and the next of its group, then one pair of each group and the next.
//! 5. Trains under load: rounds within groups, and as many rounds of pairs of all nodes.
//!
//! Sources: GNP (Ng and Zhang, Infocom 2002) finds positions by landmarks. The groups are ours.

mod map;
mod set;

use std::collections::BTreeMap;

use super::super::super::blocks::{BlockLink, MAX_BLOCKS, triangle_index, triangle_len};
use super::super::super::cluster::Dendrogram;
use super::super::super::matrix::{Link, Links};
use super::super::super::random::Random;
use super::super::super::rounds;
use super::super::Probes;
use super::groups::UNKNOWN;
use super::messages::{MAX_NODES, SurveyError, SurveyOptions};
use super::schedule::{Lost, Map, SurveySchedule, Task};
use set::Set;

/// Enough echoes per pair to separate levels of a network.
const LANDMARK_PROBES: u32 = 32;
/// Most divisions of a set by round trips to new landmarks. Each costs a node a round of echoes.
const MAX_DIVISIONS: u32 = 8;
/// If landmarks leave more than this percentage of a set in one part, the part is cut into equal
/// groups.
const MAX_LEFT_PERCENT: usize = 95;
/// Largest group in which each pair is measured.
const MAX_GROUP: usize = 128;
/// Most groups before the cuts, which add one group per 128 nodes, and one per set.
const MAX_GROUPS: usize = MAX_BLOCKS - 2 * MAX_NODES.div_ceil(MAX_GROUP);
const REPRESENTATIVES: usize = 3;
/// Number of rounds in which many pairs measure rates at once, half of them within groups.
const LOADED_ROUNDS: u64 = 48;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begin,
    Divide,
    Within,
    Between,
    Trains,
    Loaded,
    Over,
}

#[derive(Debug, Default)]
struct Group {
    nodes: Vec<u32>,
    round_trips_ns: Vec<u32>,
    gap: Option<u32>,
    near: Vec<u64>,
    far: Vec<u64>,
    /// Group from which this one was split. Nodes of groups with the same origin have already
    /// measured each other.
    origin: u32,
}

#[derive(Debug)]
pub(super) struct Landmarks {
    options: SurveyOptions,
    nodes: usize,
    stage: Stage,
    first: u64,
    rounds: u64,
    divisions: u32,
    sets: Vec<Set>,
    groups: Vec<Group>,
    /// For each node, the number of its set (after the divisions, of its group), and its index
    /// there.
    positions: Vec<Option<(u32, u32)>>,
    between_ns: Vec<[u32; REPRESENTATIVES]>,
    trains: Vec<(u32, u32)>,
    node_gaps: Vec<Option<u32>>,
    /// Times per byte under load between two groups, by their numbers, the larger first, in
    /// picoseconds.
    loaded: BTreeMap<(u32, u32), Vec<u64>>,
}

impl Group {
    fn new(mut nodes: Vec<u32>) -> Self {
        nodes.sort_unstable();
        let round_trips_ns = vec![UNKNOWN; triangle_len(nodes.len())];
        Self { nodes, round_trips_ns, ..Self::default() }
    }

    fn present<'a>(&'a self, lost: &'a Lost) -> impl Iterator<Item = u32> + 'a {
        self.nodes.iter().copied().filter(|node| !lost.contains_key(node))
    }
}

impl Landmarks {
    pub(super) fn new(nodes: u32, options: SurveyOptions) -> Self {
        let nodes = nodes as usize;
        Self {
            options,
            nodes,
            stage: Stage::Begin,
            first: 0,
            rounds: 0,
            divisions: 0,
            sets: Vec::new(),
            groups: Vec::new(),
            positions: vec![None; nodes],
            between_ns: Vec::new(),
            trains: Vec::new(),
            node_gaps: vec![None; nodes],
            loaded: BTreeMap::new(),
        }
    }

    fn advance(&mut self, lost: &Lost, random: &mut Random) {
        self.first += self.rounds;
        match self.stage {
            Stage::Begin => self.sort(vec![(0..self.nodes as u32).collect()], random),
            Stage::Divide => {
                let mut nodes = Vec::new();
                let sets = std::mem::take(&mut self.sets);
                let mut others = self.groups.len() + sets.len();
                for set in sets {
                    let most = (MAX_GROUPS + 1).saturating_sub(others).max(1);
                    let size = set.nodes.len();
                    let parts = set.divided(lost, most);
                    others = (others + parts.len()).saturating_sub(1);
                    for part in parts {
                        let is_divided = part.len() * 100 <= size * MAX_LEFT_PERCENT;
                        if is_divided && self.divisions < MAX_DIVISIONS {
                            nodes.push(part);
                        } else {
                            self.cut(part);
                        }
                    }
                }
                self.sort(nodes, random);
            }
            Stage::Within => {
                self.number_origins();
                let groups = self.parts(lost);
                self.between_ns = self.met_between(groups.as_ref().unwrap_or(&self.groups));
                if let Some(groups) = groups {
                    self.groups = groups;
                    self.locate_groups();
                }
                (self.stage, self.rounds) =
                    (Stage::Between, rounds::count(self.groups.len() as u32).into());
            }
            Stage::Between => {
                let rings = self.groups.iter().flat_map(|group| {
                    ring(group.nodes.len()).map(|(a, b)| (group.nodes[a], group.nodes[b]))
                });
                self.trains = rings.collect();
                let rounds = self.trains.len() + ring(self.groups.len()).count();
                (self.stage, self.rounds) = (Stage::Trains, rounds as u64);
            }
            Stage::Trains => (self.stage, self.rounds) = (Stage::Loaded, self.loaded_rounds()),
            Stage::Loaded | Stage::Over => (self.stage, self.rounds) = (Stage::Over, 0),
        }
    }

    fn sort(&mut self, parts: Vec<Vec<u32>>, random: &mut Random) {
        for part in parts {
            if part.len() > MAX_GROUP {
                self.sets.push(Set::new(part, random));
            } else if !part.is_empty() {
                self.groups.push(Group::new(part));
            }
        }
        self.divisions += 1;
        if self.sets.is_empty() {
            self.locate_groups();
            let rounds = self.groups.iter().map(|group| rounds::count(group.nodes.len() as u32));
            (self.stage, self.rounds) = (Stage::Within, rounds.max().unwrap_or(0).into());
        } else {
            self.positions.fill(None);
            for (number, set) in self.sets.iter().enumerate() {
                for (position, &node) in set.nodes.iter().enumerate() {
                    self.positions[node as usize] = Some((number as u32, position as u32));
                }
            }
            let rounds = self.sets.iter().map(Set::rounds).max();
            (self.stage, self.rounds) = (Stage::Divide, rounds.unwrap_or(0));
        }
    }

    fn cut(&mut self, nodes: Vec<u32>) {
        let pieces = nodes.len().div_ceil(MAX_GROUP);
        let bound = |piece: usize| nodes.len() * piece / pieces;
        let pieces =
            (0..pieces).map(|piece| Group::new(nodes[bound(piece)..bound(piece + 1)].to_vec()));
        self.groups.extend(pieces);
    }

    fn locate_groups(&mut self) {
        self.positions.fill(None);
        for (number, group) in self.groups.iter().enumerate() {
            for (position, &node) in group.nodes.iter().enumerate() {
                self.positions[node as usize] = Some((number as u32, position as u32));
            }
        }
    }

    fn number_origins(&mut self) {
        self.groups.iter_mut().zip(0..).for_each(|(group, number)| group.origin = number);
    }

    /// Returns the round trips that nodes in different parts of a group have already measured.
    fn met_between(&self, parts: &[Group]) -> Vec<[u32; REPRESENTATIVES]> {
        let mut between = vec![[UNKNOWN; REPRESENTATIVES]; triangle_len(parts.len())];
        for high in 1..parts.len() {
            for low in (0..high).filter(|low| parts[*low].origin == parts[high].origin) {
                let pairs = parts[high].nodes.iter().zip(&parts[low].nodes);
                let met = pairs.filter_map(|(a, b)| self.within_ns(*a, *b));
                let samples = &mut between[triangle_index(high, low)];
                samples.iter_mut().zip(met).for_each(|(sample, met)| *sample = met);
            }
        }
        between
    }

    /// Splits groups in which nodes are far apart, at the innermost level that does not give too
    /// many groups; `None` if no level fits.
    fn parts(&self, lost: &Lost) -> Option<Vec<Group>> {
        let kept: Vec<u32> = (0..self.nodes as u32)
            .filter(|node| self.positions[*node as usize].is_some() && !lost.contains_key(node))
            .collect();
        let worst = self.groups.iter().flat_map(|group| &group.round_trips_ns);
        let worst =
            worst.copied().filter(|round_trip_ns| *round_trip_ns != UNKNOWN).max().unwrap_or(0);
        let link = |alpha_ns| Link { alpha_ns, ps_per_byte: 0 };
        let names = kept.iter().map(u32::to_string).collect();
        let matrix = self.matrix(names, &kept, |link_of| {
            link(match link_of {
                BlockLink::Within(a, b) => {
                    self.within_ns(kept[a as usize], kept[b as usize]).unwrap_or(worst)
                }
                // Larger than any measurement, so that groups never merge.
                BlockLink::Between(..) => UNKNOWN,
            })
        });
        let matrix = matrix?;
        let dendrogram = Dendrogram::new(Links::new(&matrix, 0).ok()?);
        let parts = dendrogram.levels().into_iter().rev().map(|level| dendrogram.groups(level));
        let count = |parts: &[u32]| parts.iter().max().map_or(0, |last| *last as usize + 1);
        let most = MAX_BLOCKS.min(kept.len() / 2).max(self.groups.len());
        let part_of = parts.into_iter().find(|parts| count(parts) <= most)?;
        let mut parts = vec![Vec::new(); count(&part_of)];
        for (&node, part) in kept.iter().zip(part_of) {
            parts[part as usize].push(node);
        }
        let parted = parts.into_iter().map(|nodes| {
            let origin = self.group_of(nodes[0]).unwrap_or_default();
            let mut group = Group { origin, ..Group::new(nodes) };
            for high in 1..group.nodes.len() {
                for low in 0..high {
                    let round_trip_ns = self.within_ns(group.nodes[high], group.nodes[low]);
                    group.round_trips_ns[triangle_index(high, low)] =
                        round_trip_ns.unwrap_or(UNKNOWN);
                }
            }
            group
        });
        Some(parted.collect())
    }

    fn within_ns(&self, a: u32, b: u32) -> Option<u32> {
        let ((group, a), (_, b)) = (self.positions[a as usize]?, self.positions[b as usize]?);
        let round_trips_ns = &self.groups[group as usize].round_trips_ns;
        Some(round_trips_ns[triangle_index(a as usize, b as usize)])
            .filter(|known| *known != UNKNOWN)
    }

    fn samples_ns(&self, a: u32, b: u32) -> impl Iterator<Item = u32> + '_ {
        let samples = &self.between_ns[triangle_index(a as usize, b as usize)];
        samples.iter().copied().filter(|known| *known != UNKNOWN)
    }

    fn between_ns(&self, a: u32, b: u32) -> Option<u32> {
        let mut samples: Vec<u32> = self.samples_ns(a, b).collect();
        samples.sort_unstable();
        samples.get(samples.len() / 2).copied()
    }

    fn group_of(&self, node: u32) -> Option<u32> {
        Some(self.positions[node as usize]?.0)
    }

    fn loaded_rounds(&self) -> u64 {
        if self.options.loaded { LOADED_ROUNDS } else { 0 }
    }

    fn round(&self, round: u64, lost: &Lost, random: &mut Random) -> (Task, Vec<(u32, u32)>) {
        match self.stage {
            Stage::Divide => {
                let probes = match self.options.probes {
                    Probes::Count(count) => count.min(LANDMARK_PROBES),
                    Probes::Auto => LANDMARK_PROBES,
                };
                let pairs = self.sets.iter().flat_map(|set| set.pairs(round));
                (Task::Echoes(Probes::Count(probes)), pairs.collect())
            }
            Stage::Within => {
                let pairs = self.groups.iter().flat_map(|group| {
                    let nodes = group.nodes.len() as u32;
                    let is_over = round >= rounds::count(nodes).into();
                    let pairs = rounds::pairs(if is_over { 0 } else { nodes }, round as u32);
                    pairs.map(|(a, b)| (group.nodes[a as usize], group.nodes[b as usize]))
                });
                (Task::Echoes(self.options.probes), pairs.collect())
            }
            Stage::Between => {
                let groups = rounds::pairs(self.groups.len() as u32, round as u32);
                let origin = |group: u32| self.groups[group as usize].origin;
                let pairs = groups.filter(|(a, b)| origin(*a) != origin(*b)).flat_map(|(a, b)| {
                    let [a, b] = [a, b].map(|group| {
                        self.groups[group as usize].present(lost).collect::<Vec<u32>>()
                    });
                    // Each round uses other nodes, because one may be slow.
                    let turn = move |nodes: &[u32], index: usize| {
                        nodes[(round as usize * REPRESENTATIVES + index) % nodes.len()]
                    };
                    let count = REPRESENTATIVES.min(a.len()).min(b.len());
                    (0..count).map(move |index| (turn(&a, index), turn(&b, index)))
                });
                (Task::Echoes(self.options.probes), pairs.collect())
            }
            Stage::Trains => {
                let index = round as usize;
                let pair = self.trains.get(index).copied().or_else(|| {
                    let (a, b) = ring(self.groups.len()).nth(index - self.trains.len())?;
                    let first = |group: usize| self.groups[group].present(lost).next();
                    Some((first(a)?, first(b)?))
                });
                (Task::Train, pair.into_iter().collect())
            }
            Stage::Loaded => {
                let mut pairs = Vec::new();
                let mut meet = |mut nodes: Vec<u32>| {
                    random.shuffle(&mut nodes);
                    pairs.extend(nodes.chunks_exact(2).map(|pair| (pair[0], pair[1])));
                };
                let present = |group: &Group| group.present(lost).collect::<Vec<u32>>();
                if round.is_multiple_of(2) {
                    self.groups.iter().map(present).for_each(&mut meet);
                } else {
                    meet(self.groups.iter().flat_map(present).collect());
                }
                (Task::Loaded, pairs)
            }
            Stage::Begin | Stage::Over => (Task::Train, Vec::new()),
        }
    }

    fn idle_far_gap(&self, a: u32, b: u32) -> Option<u32> {
        self.groups[a as usize].gap.max(self.groups[b as usize].gap)
    }
}

impl SurveySchedule for Landmarks {
    fn step(
        &mut self,
        step: u64,
        lost: &Lost,
        random: &mut Random,
    ) -> Option<(Task, Vec<(u32, u32)>)> {
        while step >= self.first + self.rounds {
            if self.stage == Stage::Over {
                return None;
            }
            self.advance(lost, random);
        }
        Some(self.round(step - self.first, lost, random))
    }

    fn steps(&self) -> u64 {
        let groups = self.groups.len().max(self.nodes / MAX_GROUP) as u64;
        let trains = self.nodes as u64 + groups;
        let to_come = match self.stage {
            Stage::Begin | Stage::Divide => {
                MAX_GROUP as u64 + groups + trains + self.loaded_rounds()
            }
            Stage::Within => groups + trains + self.loaded_rounds(),
            Stage::Between => trains + self.loaded_rounds(),
            Stage::Trains => self.loaded_rounds(),
            Stage::Loaded | Stage::Over => 0,
        };
        self.first + self.rounds + to_come
    }

    fn echoed(&mut self, (a, b): (u32, u32), round_trip_ns: Option<u64>) {
        let Some(round_trip_ns) = round_trip_ns else { return };
        let (Some((group, a)), Some((other, b))) =
            (self.positions[a as usize], self.positions[b as usize])
        else {
            return;
        };
        let round_trip_ns = u32::try_from(round_trip_ns).unwrap_or(UNKNOWN).min(UNKNOWN - 1);
        match self.stage {
            Stage::Divide => {
                self.sets[group as usize].echoed(a as usize, b as usize, round_trip_ns)
            }
            Stage::Within => {
                let pair = triangle_index(a as usize, b as usize);
                self.groups[group as usize].round_trips_ns[pair] = round_trip_ns;
            }
            Stage::Between => {
                let samples = &mut self.between_ns[triangle_index(group as usize, other as usize)];
                if let Some(sample) = samples.iter_mut().find(|sample| **sample == UNKNOWN) {
                    *sample = round_trip_ns;
                }
            }
            _ => {}
        }
    }

    fn carried(&mut self, (a, b): (u32, u32), ps_per_byte: u32, is_loaded: bool) {
        let (Some(group), Some(other)) = (self.group_of(a), self.group_of(b)) else { return };
        let (one, two) = (group as usize, other as usize);
        if is_loaded {
            let gap = u64::from(ps_per_byte);
            if group == other {
                self.groups[one].near.push(gap);
            } else {
                self.groups[one].far.push(gap);
                self.groups[two].far.push(gap);
                self.loaded.entry((group.max(other), group.min(other))).or_default().push(gap);
            }
            return;
        }
        let least = |gap: &mut Option<u32>| {
            *gap = Some(gap.map_or(ps_per_byte, |gap| gap.min(ps_per_byte)))
        };
        if group == other {
            [a, b].into_iter().for_each(|node| least(&mut self.node_gaps[node as usize]));
        } else {
            [one, two].into_iter().for_each(|group| least(&mut self.groups[group].gap));
        }
    }

    fn gap(&self, a: u32, b: u32) -> Option<u32> {
        let (group, other) = (self.group_of(a)?, self.group_of(b)?);
        if group == other {
            self.node_gaps[a as usize].max(self.node_gaps[b as usize])
        } else {
            self.idle_far_gap(group, other)
        }
    }

    fn map(
        &self,
        names: Vec<String>,
        kept: &[u32],
        assumed_ps_per_byte: u32,
    ) -> Result<Map, SurveyError> {
        if matches!(self.stage, Stage::Begin | Stage::Divide | Stage::Within) {
            return Err(SurveyError::NothingMeasured);
        }
        self.map_of(names, kept, assumed_ps_per_byte)
    }
}

fn ring(count: usize) -> impl Iterator<Item = (usize, usize)> {
    let pairs = match count {
        0 | 1 => 0,
        2 => 1,
        count => count,
    };
    (0..pairs).map(move |index| (index, (index + 1) % count))
}
