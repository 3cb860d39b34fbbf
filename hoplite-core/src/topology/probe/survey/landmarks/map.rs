//! Builds a survey's matrix from groups, representatives and trains.

use std::collections::BTreeMap;

use super::super::super::super::blocks::{BlockLink, Blocks};
use super::super::super::super::matrix::{Link, Matrix};
use super::super::groups::UNKNOWN;
use super::super::messages::SurveyError;
use super::super::schedule::{Map, SurveySchedule, link_of, loaded_gap};
use super::Landmarks;

/// If fewer rates under load are known between two groups, the rates of these groups to all others
/// count instead.
const MIN_LOADED: usize = 4;

impl Landmarks {
    pub(super) fn map_of(
        &self,
        names: Vec<String>,
        kept: &[u32],
        assumed_ps_per_byte: u32,
    ) -> Result<Map, SurveyError> {
        let near: Vec<Option<u32>> =
            self.groups.iter().map(|group| loaded_gap(&group.near)).collect();
        let far: Vec<Option<u32>> =
            self.groups.iter().map(|group| loaded_gap(&group.far)).collect();
        let firsts: BTreeMap<u32, u32> = (0..kept.len() as u32)
            .rev()
            .filter_map(|index| Some((self.group_of(kept[index as usize])?, index)))
            .collect();
        let worst = self.worst(&firsts);
        let worst_of_all =
            worst.iter().copied().max().flatten().ok_or(SurveyError::NothingMeasured)?;
        let (mut guessed, mut estimated) = (Vec::new(), 0);
        let mut sizes = vec![0_u64; self.groups.len()];
        for group in kept.iter().filter_map(|node| self.group_of(*node)) {
            sizes[group as usize] += 1;
        }
        let matrix = self.matrix(names, kept, |block_link| {
            let (round_trip_ns, gap, [a, b], [high, low]) = match block_link {
                BlockLink::Within(high, low) => {
                    let [a, b] = [high, low].map(|index| kept[index as usize]);
                    let group = self.group_of(a).unwrap_or_default();
                    let gap = self.gap(a, b).max(near[group as usize]);
                    (self.within_ns(a, b), gap, [group; 2], [high, low])
                }
                BlockLink::Between(a, b) => {
                    let pairs = sizes[a as usize] * sizes[b as usize];
                    estimated += pairs.saturating_sub(self.samples_ns(a, b).count() as u64);
                    (
                        self.between_ns(a, b),
                        self.far_gap(a, b, &far),
                        [a, b],
                        [a, b].map(|group| firsts[&group]),
                    )
                }
            };
            let round_trip_ns = round_trip_ns.unwrap_or_else(|| {
                guessed.push((low.min(high), low.max(high)));
                worst[a as usize].max(worst[b as usize]).unwrap_or(worst_of_all)
            });
            link_of(round_trip_ns.into(), gap.unwrap_or(assumed_ps_per_byte))
        });
        let matrix = matrix.ok_or(SurveyError::TooFewNodes { count: kept.len() })?;
        Ok(Map { matrix, guessed, estimated })
    }

    /// Builds a matrix with one link per two groups. `link` gets the indices of two nodes of a
    /// group, or two groups' numbers.
    pub(super) fn matrix(
        &self,
        names: Vec<String>,
        kept: &[u32],
        mut link: impl FnMut(BlockLink) -> Link,
    ) -> Option<Matrix> {
        let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
        let mut groups = Vec::new();
        let mut block_of = Vec::with_capacity(kept.len());
        for &node in kept {
            let group = self.group_of(node)?;
            let number = *numbers.entry(group).or_insert_with(|| {
                groups.push(group);
                groups.len() as u32 - 1
            });
            block_of.push(number);
        }
        let blocks = Blocks::new(&block_of).ok()?;
        let links = blocks.links().map(|block_link| {
            link(match block_link {
                BlockLink::Between(a, b) => {
                    BlockLink::Between(groups[a as usize], groups[b as usize])
                }
                within => within,
            })
        });
        let links = links.collect();
        Matrix::from_blocks(names, blocks, links).ok()
    }

    fn far_gap(&self, a: u32, b: u32, far: &[Option<u32>]) -> Option<u32> {
        let [one, other] = [a, b].map(|group| group as usize);
        let loaded = self.loaded.get(&(a.max(b), a.min(b))).filter(|gaps| gaps.len() >= MIN_LOADED);
        let loaded = loaded.map_or(far[one].max(far[other]), |gaps| loaded_gap(gaps));
        self.idle_far_gap(a, b).max(loaded)
    }

    /// Returns each group's worst round trip, which stands for unmeasured pairs.
    fn worst(&self, firsts: &BTreeMap<u32, u32>) -> Vec<Option<u32>> {
        let mut worst: Vec<Option<u32>> = vec![None; self.groups.len()];
        for &group in firsts.keys() {
            let within = self.groups[group as usize].round_trips_ns.iter().copied();
            worst[group as usize] = within.filter(|known| *known != UNKNOWN).max();
        }
        for &high in firsts.keys() {
            for &low in firsts.keys().take_while(|low| **low < high) {
                let round_trip_ns = self.between_ns(high, low);
                for group in [high, low] {
                    worst[group as usize] = worst[group as usize].max(round_trip_ns);
                }
            }
        }
        worst
    }
}
