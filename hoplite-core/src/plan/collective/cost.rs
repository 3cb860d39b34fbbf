//! Which schedule is the cheapest for so many members, so much data, and such links.

use std::time::Duration;

use super::schedule::{ALIGNMENT_BYTES, Schedule};
use crate::plan::Choice;
use crate::plan::link::LinkEstimate;

/// What a step costs beside the link: two wake-ups, a checksum, a call of the kernel. Measured where 16 stores share 2 cores.
const STEP_OVERHEAD: Duration = Duration::from_micros(100);
/// The shortest frame: it costs two system calls and a wake-up, some 20 us.
const MIN_FRAME_BYTES: u64 = 16 << 10;
/// The longest frame: it waits in memory until it is checked and combined, which the second-level cache should hold.
const MAX_FRAME_BYTES: u64 = 256 << 10;
/// How many frames the part of a member is divided into, so that it travels while it is combined.
const FRAMES_PER_PART: u64 = 4;

/// How long the frames of a session are.
pub fn frame_bytes(members: usize, size_bytes: u64) -> u64 {
    let part_bytes = size_bytes / members.max(1) as u64;
    let frame_bytes = (part_bytes / FRAMES_PER_PART).clamp(MIN_FRAME_BYTES, MAX_FRAME_BYTES);
    // Parts are of whole units, and no element lies in two frames.
    frame_bytes / ALIGNMENT_BYTES * ALIGNMENT_BYTES
}

/// How long an allreduce takes by this schedule.
///
/// A ring of p members that divides s bytes takes 2(p-1) steps of L + s/(pB). If a part is longer than a frame and what is under
/// way on a link, steps overlap, and the latency is paid once in each direction.
pub fn estimate(schedule: &Schedule, size_bytes: u64, link: LinkEstimate) -> Duration {
    let rate = link.bytes_per_second.max(1) as f64;
    let latency = (link.latency + STEP_OVERHEAD).as_secs_f64();
    let frame_bytes = frame_bytes(schedule.members(), size_bytes) as f64;
    let mut left_bytes = size_bytes as f64;
    let mut seconds = if schedule.is_folded() { 2.0 * (left_bytes / rate + latency) } else { 0.0 };
    for radix in schedule.radices() {
        let part_bytes = left_bytes / *radix as f64;
        let steps = radix.saturating_sub(1) as f64;
        let is_overlapped = part_bytes >= frame_bytes + rate * latency;
        let stage = steps * part_bytes / rate;
        let waits = if is_overlapped { latency.min(steps * latency) } else { steps * latency };
        seconds += 2.0 * (stage + waits);
        left_bytes = part_bytes;
    }
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Chooses the cheapest schedule of an allreduce, where all links are alike. Among equals the ring wins.
pub fn choose(members: usize, size_bytes: u64, link: LinkEstimate) -> Choice<Schedule> {
    let mut candidates = vec![Schedule::ring(members)];
    candidates.extend(Schedule::hierarchical(members, &prime_factors(members)));
    candidates.push(Schedule::halving_doubling(members));
    let mut ranked: Vec<(Schedule, Duration)> = Vec::new();
    for schedule in candidates {
        let time = estimate(&schedule, size_bytes, link);
        if !ranked.iter().any(|(other, _)| *other == schedule) {
            ranked.push((schedule, time));
        }
    }
    // Stable, so that among equals the plainer one stays in front.
    ranked.sort_by_key(|(_, estimate)| *estimate);
    let mut ranked = ranked.into_iter();
    let (schedule, estimate) = ranked.next().unwrap_or((Schedule::ring(members), Duration::ZERO));
    Choice { schedule, estimate, runner_up: ranked.next() }
}

fn prime_factors(number: usize) -> Vec<usize> {
    let (mut rest, mut factors) = (number, Vec::new());
    for factor in 2..=number {
        while rest.is_multiple_of(factor) {
            factors.push(factor);
            rest /= factor;
        }
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkEstimate =
        LinkEstimate { bytes_per_second: 25_000_000, latency: Duration::from_micros(100) };

    #[test]
    fn large_data_go_round_a_ring_and_small_ones_by_halving() {
        for members in [2, 3, 5, 8, 16, 61, 256] {
            assert_eq!(choose(members, 64 << 20, LINK).schedule, Schedule::ring(members));
        }
        assert_eq!(choose(16, 32 << 10, LINK).schedule, Schedule::halving_doubling(16));
        assert_eq!(choose(12, 32 << 10, LINK).schedule.radices(), [2, 2, 3]);
        assert_eq!(choose(61, 1 << 10, LINK).schedule, Schedule::halving_doubling(61));
    }

    #[test]
    fn a_ring_of_much_data_is_estimated_at_the_limit() {
        let seconds = estimate(&Schedule::ring(16), 64 << 20, LINK).as_secs_f64();
        let limit = 2.0 * (64 << 20) as f64 * 15.0 / 16.0 / 25e6;
        assert!((limit..limit * 1.01).contains(&seconds), "{seconds} s, limit {limit} s");
    }

    #[test]
    fn the_runner_up_differs_and_is_not_cheaper() {
        for members in 4..40 {
            let choice = choose(members, 1 << 20, LINK);
            let (other, estimate) = choice.runner_up.unwrap();
            assert!(other != choice.schedule && estimate >= choice.estimate);
        }
    }

    #[test]
    fn frames_are_neither_too_short_nor_too_long() {
        assert_eq!(frame_bytes(16, 1 << 20), 16 << 10);
        assert_eq!(frame_bytes(4, 1 << 20), 64 << 10);
        assert_eq!(frame_bytes(4, 1 << 30), 256 << 10);
        assert!((2..100).all(|members| frame_bytes(members, 2 << 20).is_multiple_of(64)));
    }
}
