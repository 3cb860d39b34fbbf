//! Finds pairs of nodes slower than others in their groups, as over a bad cable.

use std::collections::BTreeMap;

use hoplite_core::topology::Links;
use hoplite_core::topology::cluster::Dendrogram;

/// A pair is slow above this percentage of the usual cost.
const SLOW_PERCENT: u64 = 150;
const MIN_PAIRS: usize = 3;

/// A slow pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowPair {
    /// Node with the smaller index.
    pub low: u32,
    /// Node with the larger index.
    pub high: u32,
    /// Cost of a message in picoseconds.
    pub cost_ps: u64,
    /// Median cost in picoseconds between the innermost groups of the two nodes.
    pub usual_ps: u64,
}

type Pair = (u64, u32, u32);

/// Returns the pairs slower than others in the same group, or between the same groups, worst first.
pub fn slow_pairs(links: Links<'_>, dendrogram: &Dendrogram) -> Vec<SlowPair> {
    let innermost = dendrogram.levels().last().copied().unwrap_or(u64::MAX);
    let groups = dendrogram.groups(innermost);
    let mut between: BTreeMap<(u32, u32), Vec<Pair>> = BTreeMap::new();
    for high in 1..links.len() as u32 {
        for low in 0..high {
            let (a, b) = (groups[low as usize], groups[high as usize]);
            between.entry((a.min(b), a.max(b))).or_default().push((
                links.whole(low, high),
                low,
                high,
            ));
        }
    }
    let mut slow = Vec::new();
    for mut pairs in between.into_values().filter(|pairs| pairs.len() >= MIN_PAIRS) {
        pairs.sort_unstable();
        let usual_ps = pairs[(pairs.len() - 1) / 2].0;
        let is_slow = |cost_ps: u64| {
            u128::from(cost_ps) * 100 > u128::from(usual_ps) * u128::from(SLOW_PERCENT)
        };
        let found = pairs.into_iter().filter(|(cost_ps, ..)| is_slow(*cost_ps));
        slow.extend(found.map(|(cost_ps, low, high)| SlowPair { low, high, cost_ps, usual_ps }));
    }
    slow.sort_by_key(|pair| {
        let ratio = u128::from(pair.cost_ps) * 1000 / u128::from(pair.usual_ps.max(1));
        (std::cmp::Reverse(ratio), pair.low, pair.high)
    });
    slow
}

#[cfg(test)]
mod tests {
    use super::*;
    use hoplite_core::topology::{Link, Matrix};

    fn slow(hosts: usize, own: &[((usize, usize), u32)]) -> Vec<SlowPair> {
        let names = (0..hosts).map(|host| host.to_string()).collect();
        let matrix = Matrix::from_links(names, |high, low| {
            let usual = if high * 2 / hosts == low * 2 / hosts { 10_000 } else { 40_000 };
            let own = own.iter().find(|(pair, _)| *pair == (low, high));
            Ok(Link { alpha_ns: own.map_or(usual, |(_, alpha_ns)| *alpha_ns), ps_per_byte: 0 })
        })
        .unwrap();
        let links = Links::new(&matrix, 0).unwrap();
        slow_pairs(links, &Dendrogram::new(links))
    }

    #[test]
    fn racks_are_not_slow() {
        assert_eq!(slow(8, &[]), []);
        assert_eq!(slow(2, &[((0, 1), 1_000_000)]), [], "a single pair has no usual cost");
    }

    #[test]
    fn the_worst_pair_comes_first() {
        let found = slow(8, &[((0, 1), 100_000), ((2, 7), 80_000), ((1, 6), 55_000)]);
        let pairs: Vec<(u32, u32)> = found.iter().map(|pair| (pair.low, pair.high)).collect();
        assert_eq!(pairs, [(0, 1), (2, 7)]);
        assert_eq!((found[0].cost_ps, found[0].usual_ps), (100_000_000, 10_000_000));
    }
}
