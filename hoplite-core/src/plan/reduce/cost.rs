//! Which schedule is the cheapest for so many vertices, so large objects, and such links.

use std::time::Duration;

use super::schedule::Schedule;
use crate::plan::Choice;
use crate::plan::broadcast::Topology;
use crate::plan::link::LinkEstimate;

/// More dimensions than this have no shape of their own: 2^16 vertices are more than a shard takes nodes.
const MAX_DIMENSIONS: u32 = 16;

/// Most streams that a receiver takes in at once by plan. Each needs a connection, and a frame's worth of memory.
const MAX_STREAMS: usize = 64;

/// How long a reduce takes by this schedule: inflow * S/B + depth * L, see [`Schedule`].
pub fn estimate(schedule: &Schedule, vertices: usize, size_bytes: u64, link: LinkEstimate) -> Duration {
    let seconds = schedule.busiest_inflow(vertices) as f64 * link.transfer_seconds(size_bytes)
        + schedule.depth(vertices) as f64 * link.hop_seconds(size_bytes);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Chooses the cheapest schedule for `vertices` vertices beside the receiver, for objects of `size_bytes`.
///
/// By their [`estimate`]. A star is considered up to 64 vertices. If the links are not alike, only chains are considered: they can
/// be laid along the topology. Among equals the plainest wins: chain, star, more dimensions, tree.
///
/// Source: Hoplite, appendix A: between one and two dimensions this is the test n B L > S.
pub fn choose(vertices: usize, size_bytes: u64, link: LinkEstimate, topology: &Topology) -> Choice<Schedule> {
    let mut candidates = vec![Schedule::chain(vertices)];
    let is_flat = *topology == Topology::Uniform;
    if is_flat && vertices <= MAX_STREAMS {
        candidates.push(Schedule::Star);
    }
    let dimensions = vertices.max(2).ilog2().min(MAX_DIMENSIONS);
    candidates.extend((2..=dimensions).map(|dimensions| Schedule::chain_of_chains(vertices, dimensions)));
    if is_flat {
        candidates.push(Schedule::Tree { vertices });
    }
    let estimated = |schedule: Schedule| {
        let time = estimate(&schedule, vertices, size_bytes, link);
        (schedule, time)
    };
    let mut ranked: Vec<(Schedule, Duration)> = candidates.into_iter().map(estimated).collect();
    // Stable, so that among equals the plainer one stays in front.
    ranked.sort_by_key(|(_, estimate)| *estimate);
    let mut ranked = ranked.into_iter();
    let (schedule, estimate) = ranked.next().unwrap_or((Schedule::Star, Duration::ZERO));
    Choice { runner_up: ranked.find(|(other, _)| *other != schedule), schedule, estimate }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::broadcast::CostMatrix;

    fn link(megabits: u64, latency_us: u64) -> LinkEstimate {
        LinkEstimate { bytes_per_second: megabits * 125_000, latency: Duration::from_micros(latency_us) }
    }

    #[test]
    fn large_objects_go_along_a_chain_and_small_ones_along_a_tree() {
        let flat = Topology::Uniform;
        assert_eq!(choose(16, 64 << 20, link(200, 100), &flat).schedule, Schedule::chain(16));
        assert_eq!(choose(16, 1 << 20, link(200, 100), &flat).schedule, Schedule::chain(16));
        assert_eq!(choose(16, 128 << 10, link(10_000, 125), &flat).schedule, Schedule::Tree { vertices: 16 });
        assert_eq!(choose(1, 1 << 30, link(200, 100), &flat).schedule, Schedule::chain(1));
        assert_eq!(choose(3, 4096, link(10_000, 125), &flat).schedule, Schedule::Star);
    }

    #[test]
    fn two_dimensions_win_when_n_times_b_times_l_exceeds_s() {
        let racks = Topology::Matrix(CostMatrix::default());
        let chosen = |vertices, size_bytes, link| choose(vertices, size_bytes, link, &racks).schedule;
        // 64 nodes, 1 GB/s, 1 ms and the block's 1 ms: n B L = 128 MB.
        let link = link(8000, 1000);
        assert_eq!(chosen(64, 1 << 30, link), Schedule::chain(64));
        assert_eq!(chosen(64, 64 << 20, link), Schedule::chain_of_chains(64, 2));
        // Recursively: the chains of 8 are broken down too when 8 B L is still more than S.
        assert!(matches!(chosen(64, 2 << 20, link), Schedule::Chain { lengths } if lengths.len() > 2));
    }

    #[test]
    fn the_runner_up_differs_and_is_not_cheaper() {
        for vertices in 1..40 {
            let choice = choose(vertices, 1 << 20, LinkEstimate::default(), &Topology::Uniform);
            let (other, estimate) = choice.runner_up.unwrap();
            assert!(other != choice.schedule && estimate >= choice.estimate);
        }
    }
}
