use std::collections::{BTreeMap, BTreeSet};

use crate::topology::hdrm;
use crate::topology::place::{MAX_LEVELS, Path};

/// Orders members so that each group's members are adjacent, in order of appearance. A ring then
/// enters and leaves each group once.
pub(super) fn by_groups(paths: &[Path]) -> Vec<usize> {
    let mut met: [BTreeMap<&[u32], usize>; MAX_LEVELS] = Default::default();
    let mut key = |member: usize| {
        let levels = met.iter_mut().zip(1..);
        let first =
            levels.map(|(met, levels)| *met.entry(&paths[member][..levels]).or_insert(member));
        first.collect::<Vec<_>>()
    };
    let mut order: Vec<usize> = (0..paths.len()).collect();
    order.sort_by_cached_key(|member| key(*member));
    order
}

/// Slow links: the indices of the sending and the receiving member.
pub type SlowLinks = BTreeSet<(usize, usize)>;

/// Swaps members within their groups where this leaves fewer slow links on the ring.
///
/// Source: Cloud Collectives (Luo et al.) swaps the node at a ring's worst hop first.
pub(super) fn around_slow_links(
    mut order: Vec<usize>,
    paths: &[Path],
    slow: &SlowLinks,
) -> Vec<usize> {
    let count = order.len();
    let is_slow =
        |order: &[usize], place: usize| slow.contains(&(order[place], order[(place + 1) % count]));
    let slow_at = |order: &[usize], places: [usize; 2]| {
        let links: BTreeSet<usize> =
            places.into_iter().flat_map(|place| [(place + count - 1) % count, place]).collect();
        links.into_iter().filter(|place| is_slow(order, *place)).count()
    };
    for from in 0..count {
        for place in [(from + 1) % count, from] {
            if !is_slow(&order, from) {
                break;
            }
            let alike = (0..count).filter(|other| paths[order[*other]] == paths[order[place]]);
            let others: Vec<usize> = alike.filter(|other| *other != place).collect();
            let after_swap = |other: &usize| {
                let before = slow_at(&order, [place, *other]);
                let mut swapped = order.clone();
                swapped.swap(place, *other);
                let after = slow_at(&swapped, [place, *other]);
                (after < before).then(|| (before - after, *other))
            };
            let best = others
                .iter()
                .filter_map(after_swap)
                .max_by_key(|(gain, other)| (*gain, count - other));
            if let Some((_, other)) = best {
                order.swap(place, other);
            }
        }
    }
    order
}

/// Returns the radices of rings within and across groups, innermost first, for members ordered
/// [`by_groups`]. `None` unless the groups of each level are equally large.
pub(super) fn stages(paths: &[Path]) -> Option<Vec<usize>> {
    // The number of members in a group of each level, outermost first.
    let mut sizes = vec![paths.len()];
    for levels in 1..=MAX_LEVELS {
        let groups: Vec<usize> =
            paths.chunk_by(|a, b| a[..levels] == b[..levels]).map(<[Path]>::len).collect();
        sizes.extend(groups.first().filter(|first| groups.iter().all(|size| size == *first)));
    }
    sizes.push(1);
    let radices = sizes.windows(2).rev().map(|pair| pair[0] / pair[1]).filter(|radix| *radix > 1);
    let radices: Vec<usize> = radices.collect();
    (radices.len() > 1).then_some(radices)
}

/// Returns the members in the order of [`hdrm`]. `None` unless their innermost groups (switches)
/// form two halves, with equally many members in each group.
pub(super) fn by_hdrm(paths: &[Path]) -> Option<Vec<usize>> {
    let halves_of =
        |levels: usize| paths.iter().map(|path| &path[..levels]).collect::<BTreeSet<_>>();
    let halves = (1..MAX_LEVELS)
        .map(halves_of)
        .find(|groups| groups.len() > 1)
        .filter(|halves| halves.len() == 2)?;
    let mut switches: BTreeMap<Path, Vec<usize>> = BTreeMap::new();
    for (member, path) in paths.iter().enumerate() {
        switches.entry(*path).or_default().push(member);
    }
    let hosts = switches.values().next()?.len();
    let is_whole =
        switches.values().all(|members| members.len() == hosts) && paths.len().is_power_of_two();
    let mapping =
        hdrm::mapping(u32::try_from(hosts).ok()?, u32::try_from(switches.len()).ok()?).ok()?;
    let mut order = vec![0; paths.len()];
    for (half, ranks) in halves.iter().zip(&mapping) {
        let own: Vec<&Vec<usize>> = switches
            .iter()
            .filter(|(path, _)| path.starts_with(half))
            .map(|(_, members)| members)
            .collect();
        if !is_whole || own.len() != ranks.len() {
            return None;
        }
        for (member, rank) in own.into_iter().flatten().zip(ranks.iter().flatten()) {
            *order.get_mut(*rank as usize)? = *member;
        }
    }
    Some(order)
}
