//! Groups nodes that may be close, by similar round trips to the same landmarks.
//!
//! A node may join a group if only few of its round trips differ, and these are longer, as by
//! delayed packets. Later echoes within groups separate distant nodes.

pub(super) const UNKNOWN: u32 = u32::MAX;
/// Round trips are alike if the longer is at most this percentage of the shorter. Between two
/// levels of a network, the ratio is about 150%.
const ALIKE_PERCENT: u64 = 125;
/// At most one in this many round trips of a node may be longer than its group's round trips.
const PER_DELAY: usize = 16;
/// Groups up to this size may join another one, because delays may have separated them.
const MAX_DELAYED: usize = 2;

/// Groups nodes whose `rows` of round trips to the landmarks are alike, into at most `most` groups,
/// at least one.
pub(super) fn alike(rows: &[&[u32]], most: usize) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (node, row) in rows.iter().enumerate() {
        let found = groups.iter().position(|group| are_alike(rows[group[0]], row));
        if found.is_none() && groups.len() < most {
            groups.push(vec![node]);
            continue;
        }
        let closest = || {
            let of_group = |index: &usize| differences(rows[groups[*index][0]], row);
            (0..groups.len()).min_by_key(of_group).unwrap_or(0)
        };
        let group = found.unwrap_or_else(closest);
        groups[group].push(node);
    }
    let (mut large, small): (Vec<_>, Vec<_>) =
        groups.into_iter().partition(|group| group.len() > MAX_DELAYED);
    let mut alone = Vec::new();
    for group in small {
        let row = rows[group[0]];
        let delays = large.iter().enumerate().filter_map(|(index, large)| {
            let delays = delays(rows[large[0]], row)?;
            (delays * PER_DELAY <= row.len()).then_some((delays, index))
        });
        match delays.min() {
            Some((_, index)) => large[index].extend(group),
            None => alone.push(group),
        }
    }
    large.extend(alone);
    large
}

fn are_alike(one: &[u32], other: &[u32]) -> bool {
    one.iter().zip(other).all(|(one, other)| is_alike(*one, *other))
}

fn differences(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).filter(|(one, other)| !is_alike(**one, **other)).count()
}

fn delays(usual: &[u32], row: &[u32]) -> Option<usize> {
    let mut delays = 0;
    for (&usual, &seen) in usual.iter().zip(row).filter(|(usual, seen)| !is_alike(**usual, **seen))
    {
        if seen < usual {
            return None;
        }
        delays += 1;
    }
    Some(delays)
}

const fn is_alike(a: u32, b: u32) -> bool {
    let (less, more) = if a < b { (a, b) } else { (b, a) };
    more == UNKNOWN || more as u64 * 100 <= less as u64 * ALIKE_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(rows: &[Vec<u32>], most: usize) -> Vec<Vec<usize>> {
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        let mut groups = alike(&rows, most);
        groups.iter_mut().for_each(|group| group.sort_unstable());
        groups.sort();
        groups
    }

    fn near(landmark: usize) -> Vec<u32> {
        (0..16).map(|index| if index == landmark { 40 } else { 80 }).collect()
    }

    #[test]
    fn nodes_with_similar_round_trips_are_one_group() {
        let mut rows = vec![near(0), near(1), near(0), near(99), near(1), near(99)];
        rows[2][0] = 45;
        assert_eq!(sorted(&rows, 9), [vec![0, 2], vec![1, 4], vec![3, 5]]);
        rows.truncate(2);
        rows[1][0] = UNKNOWN;
        rows[1][1] = UNKNOWN;
        assert_eq!(sorted(&rows, 9), [[0, 1]]);
    }

    #[test]
    fn a_node_with_one_delay_stays_in_its_group() {
        let mut rows: Vec<Vec<u32>> =
            (0..8).map(|node| near(if node < 4 { 0 } else { 99 })).collect();
        rows[1][7] = 300;
        rows[6][7] = 300;
        assert_eq!(sorted(&rows, 9), [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
        rows[1][8] = 300;
        rows[6][3] = 40;
        assert_eq!(sorted(&rows, 9), [vec![0, 2, 3], vec![1], vec![4, 5, 7], vec![6]]);
    }

    #[test]
    fn the_number_of_groups_is_bounded() {
        let rows: Vec<Vec<u32>> = (0..8).map(|node| vec![100 << node; 2]).collect();
        assert_eq!(sorted(&rows, 8).len(), 8);
        assert!(sorted(&rows, 3).len() <= 3);
        assert_eq!(sorted(&rows, 1), [(0..8).collect::<Vec<_>>()]);
        assert!(sorted(&[], 3).is_empty());
    }
}
