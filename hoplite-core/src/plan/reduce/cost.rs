//! Chooses the cheapest schedule for a reduce.

use std::time::Duration;

use super::schedule::{Entry, ReduceSchedule};
use crate::plan::Choice;
use crate::plan::link::LinkEstimate;

/// Most dimensions of a chain: a shard accepts 2^16 nodes.
const MAX_DIMENSIONS: u32 = 16;

/// Most streams into one vertex, each with a connection and memory for a frame.
const MAX_STREAMS: usize = 64;

/// Returns the predicted time of a reduce: inflow * S/B + depth * L, see [`ReduceSchedule`].
pub fn estimate(
    schedule: &ReduceSchedule,
    vertices: usize,
    size_bytes: u64,
    link: LinkEstimate,
) -> Duration {
    let seconds = schedule.busiest_inflow(vertices) as f64 * link.transfer_seconds(size_bytes)
        + schedule.depth(vertices) as f64 * link.hop_seconds(size_bytes);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Chooses the schedule with the least predicted time for `vertices` vertices besides the receiver,
/// if all links are alike. On ties the simplest wins: chain, star, more dimensions, tree.
///
/// Source: Hoplite, appendix A. Its test n B L > S decides between one and two dimensions.
pub fn choose(vertices: usize, size_bytes: u64, link: LinkEstimate) -> Choice<ReduceSchedule> {
    let mut candidates = vec![ReduceSchedule::chain(vertices)];
    if vertices <= MAX_STREAMS {
        candidates.push(ReduceSchedule::Star);
    }
    candidates.extend(
        (2..=dimensions(vertices)).map(|count| ReduceSchedule::chain_of_chains(vertices, count)),
    );
    candidates.push(ReduceSchedule::Tree { vertices });
    cheapest(candidates, vertices, size_bytes, link)
}

/// Chooses the cheapest schedule in which each group sends one object to the next. The largest
/// group has `largest` vertices.
pub fn choose_for_groups(
    vertices: usize,
    (groups, largest): (usize, usize),
    size_bytes: u64,
    link: LinkEstimate,
) -> Choice<ReduceSchedule> {
    let through =
        ReduceSchedule::Groups { lengths: vec![vertices.max(1)], groups, entry: Entry::First };
    let within =
        (1..=dimensions(largest)).map(|count| ReduceSchedule::chain_of_chains(largest, count));
    let of_groups = within.filter_map(|within| match within {
        ReduceSchedule::Chain { lengths } => {
            Some(ReduceSchedule::Groups { lengths, groups, entry: Entry::Last })
        }
        _ => None,
    });
    cheapest([through].into_iter().chain(of_groups).collect(), vertices, size_bytes, link)
}

fn dimensions(vertices: usize) -> u32 {
    vertices.max(2).ilog2().min(MAX_DIMENSIONS)
}

fn cheapest(
    candidates: Vec<ReduceSchedule>,
    vertices: usize,
    size_bytes: u64,
    link: LinkEstimate,
) -> Choice<ReduceSchedule> {
    let estimated = |schedule: ReduceSchedule| {
        let time = estimate(&schedule, vertices, size_bytes, link);
        (schedule, time)
    };
    let mut ranked: Vec<(ReduceSchedule, Duration)> =
        candidates.into_iter().map(estimated).collect();
    ranked.sort_by_key(|(_, estimate)| *estimate);
    let mut ranked = ranked.into_iter();
    let (schedule, estimate) = ranked.next().unwrap_or((ReduceSchedule::Star, Duration::ZERO));
    Choice { runner_up: ranked.find(|(other, _)| *other != schedule), schedule, estimate }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(megabits: u64, latency_us: u64) -> LinkEstimate {
        LinkEstimate {
            bytes_per_second: megabits * 125_000,
            latency: Duration::from_micros(latency_us),
            ..LinkEstimate::default()
        }
    }

    #[test]
    fn large_objects_go_along_a_chain_and_small_ones_along_a_tree() {
        assert_eq!(choose(16, 64 << 20, link(200, 100)).schedule, ReduceSchedule::chain(16));
        assert_eq!(choose(16, 1 << 20, link(200, 100)).schedule, ReduceSchedule::chain(16));
        assert_eq!(
            choose(16, 128 << 10, link(10_000, 125)).schedule,
            ReduceSchedule::Tree { vertices: 16 }
        );
        assert_eq!(choose(1, 1 << 30, link(200, 100)).schedule, ReduceSchedule::chain(1));
        assert_eq!(choose(3, 4096, link(10_000, 125)).schedule, ReduceSchedule::Star);
    }

    #[test]
    fn two_blocks_go_along_a_short_chain() {
        assert_eq!(choose(3, 32 << 10, link(200, 100)).schedule, ReduceSchedule::chain(3));
        assert_eq!(choose(3, 32 << 10, link(1000, 100)).schedule, ReduceSchedule::chain(3));
        assert_eq!(
            choose(7, 32 << 10, link(200, 100)).schedule,
            ReduceSchedule::Tree { vertices: 7 }
        );
    }

    #[test]
    fn in_groups_two_dimensions_win_when_n_times_b_times_l_exceeds_s() {
        let chosen = |size_bytes, link| choose_for_groups(64, (4, 16), size_bytes, link).schedule;
        let link = link(8000, 1740);
        assert_eq!(chosen(1 << 30, link).entry(), Some(Entry::First));
        let of_groups = ReduceSchedule::Groups { lengths: vec![16], groups: 4, entry: Entry::Last };
        assert_eq!(chosen(64 << 20, link), of_groups);
        assert_eq!(of_groups.to_string(), "2D chain of 16 x 4 groups");
        assert!(
            matches!(chosen(2 << 20, link), ReduceSchedule::Groups { lengths, .. } if lengths.len() > 1)
        );
    }

    #[test]
    fn the_runner_up_differs_and_is_not_cheaper() {
        for vertices in 1..40 {
            let choice = choose(vertices, 1 << 20, LinkEstimate::default());
            let (other, estimate) = choice.runner_up.unwrap();
            assert!(other != choice.schedule && estimate >= choice.estimate);
        }
    }
}
