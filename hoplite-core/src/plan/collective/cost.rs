//! Chooses the cheapest schedule for given members, bytes and links.

use std::collections::BTreeMap;
use std::time::Duration;

use super::order::{SlowLinks, around_slow_links, by_groups, by_hdrm, stages};
use super::schedule::{ALIGNMENT_BYTES, Schedule};
use crate::link::Uplink;
use crate::plan::Choice;
use crate::plan::link::LinkEstimate;
use crate::topology::place::{Path, groups_of, is_in};

/// Estimated time of a step besides its transfer: two wake-ups, a checksum, a system call.
const STEP_OVERHEAD: Duration = Duration::from_micros(100);
/// The estimate assumes that a slow link is slower by this factor.
const SLOWER_TIMES: f64 = 2.0;
/// Smallest frame. A frame costs two system calls and a wake-up: about 20 us.
const MIN_FRAME_BYTES: u64 = 16 << 10;
/// Largest frame. The second-level cache should hold a frame until it is combined.
const MAX_FRAME_BYTES: u64 = 256 << 10;
/// Number of frames in a member's part. The member combines a frame while the next ones travel.
const FRAMES_PER_PART: u64 = 4;

/// Setting for the schedules of allreduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SchedulePreference {
    /// Cheapest schedule.
    #[default]
    Auto,
    /// One ring.
    Ring,
    /// Halving-doubling.
    HalvingDoubling,
    /// Halving-doubling in the order of [HDRM](crate::topology::hdrm), so that a step's streams
    /// share no link. Node labels must describe two sets of switches with equally many hosts.
    Hdrm,
    /// Rings within groups, then rings across groups. Node labels must describe groups of equal
    /// size.
    Hierarchical,
}

/// A schedule, and the order of the members in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrangement {
    /// Index of the member at each rank.
    pub order: Vec<usize>,
    /// Chosen schedule.
    pub choice: Choice<Schedule>,
    /// Reason why the cheapest schedule was not chosen, or an assumption of the estimate, or
    /// empty.
    pub remark: String,
}

/// Returns the bytes of a frame when `members` members exchange `size_bytes`.
pub fn frame_bytes(members: usize, size_bytes: u64) -> u64 {
    let part_bytes = size_bytes / members.max(1) as u64;
    let frame_bytes = (part_bytes / FRAMES_PER_PART).clamp(MIN_FRAME_BYTES, MAX_FRAME_BYTES);
    // No element spans two frames.
    frame_bytes / ALIGNMENT_BYTES * ALIGNMENT_BYTES
}

/// Predicts the time of an allreduce. `paths` are the members' groups by rank; without paths, all
/// links are alike.
///
/// A ring of p members that divides s bytes takes 2(p-1) steps of L + s/(pB), with latency L and
/// bandwidth B. If a part exceeds a frame and the B L bytes on the way, steps overlap, and the
/// latency counts once for reducing and once for gathering. Streams out of a group share its
/// uplink. Streams over `slow` links take twice as long.
pub fn estimate(
    schedule: &Schedule,
    size_bytes: u64,
    link: LinkEstimate,
    paths: &[Path],
    slow: &SlowLinks,
) -> Duration {
    let rate = link.bytes_per_second.max(1) as f64;
    let latency = (link.latency + STEP_OVERHEAD).as_secs_f64();
    let frame_bytes = frame_bytes(schedule.members(), size_bytes) as f64;
    let times = |streams: Vec<(usize, usize)>| {
        let is_slow = streams.iter().any(|stream| slow.contains(stream));
        let slower = if is_slow { SLOWER_TIMES } else { 1.0 };
        slower * sharing(paths, link.uplink, streams.into_iter())
    };
    let mut left_bytes = size_bytes as f64;
    let mut seconds = 0.0;
    if schedule.is_folded() {
        seconds = 2.0 * (left_bytes / rate * times(schedule.folds().collect()) + latency);
    }
    for (stage, radix) in schedule.radices().iter().enumerate() {
        let part_bytes = left_bytes / *radix as f64;
        let steps = radix.saturating_sub(1) as f64;
        let is_overlapped = part_bytes >= frame_bytes + rate * latency;
        let bytes = steps * part_bytes / rate * times(schedule.transfers(stage).collect());
        let waits = if is_overlapped { latency.min(steps * latency) } else { steps * latency };
        seconds += 2.0 * (bytes + waits);
        left_bytes = part_bytes;
    }
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Returns the factor by which the busiest uplink slows these streams down.
fn sharing(paths: &[Path], uplink: Uplink, streams: impl Iterator<Item = (usize, usize)>) -> f64 {
    let mut shared: BTreeMap<Path, [f64; 2]> = BTreeMap::new();
    for (sender, receiver) in streams {
        let (Some(sender), Some(receiver)) = (paths.get(sender), paths.get(receiver)) else {
            return 1.0;
        };
        for (direction, inside, outside) in [(0, sender, receiver), (1, receiver, sender)] {
            for group in groups_of(*inside).filter(|group| !is_in(*outside, *group)) {
                shared.entry(group).or_default()[direction] += 1.0;
            }
        }
    }
    let times =
        shared.iter().flat_map(|(group, both)| both.map(|streams| streams / uplink.links(*group)));
    times.fold(1.0, f64::max)
}

/// Chooses a ring for a reduce_scatter or allgather, with each group's members side by side.
pub fn arrange_parts(
    paths: &[Path],
    slow: &SlowLinks,
    size_bytes: u64,
    link: LinkEstimate,
) -> Arrangement {
    let usual_order = by_groups(paths);
    let order = around_slow_links(usual_order.clone(), paths, slow);
    let ordered: Vec<Path> = order.iter().map(|member| paths[*member]).collect();
    let schedule = Schedule::ring(paths.len());
    let slow = by_rank(&order, slow);
    let estimate = estimate(&schedule, size_bytes, link, &ordered, &slow) / 2;
    let remark = remark_on_links(&schedule, &slow, order != usual_order).to_owned();
    Arrangement { order, choice: Choice { schedule, estimate, runner_up: None }, remark }
}

fn by_rank(order: &[usize], slow: &SlowLinks) -> SlowLinks {
    let ranks: BTreeMap<usize, usize> =
        order.iter().enumerate().map(|(rank, member)| (*member, rank)).collect();
    slow.iter().filter_map(|(from, to)| Some((*ranks.get(from)?, *ranks.get(to)?))).collect()
}

fn remark_on_links(schedule: &Schedule, slow: &SlowLinks, is_around: bool) -> &'static str {
    let transfers = (0..schedule.radices().len()).flat_map(|stage| schedule.transfers(stage));
    if transfers.chain(schedule.folds()).any(|stream| slow.contains(&stream)) {
        "over a slow link"
    } else if is_around {
        "around slow links"
    } else {
        ""
    }
}

/// Chooses the order of the members and the schedule of an allreduce. The ring wins ties.
pub fn arrange(
    paths: &[Path],
    slow: &SlowLinks,
    size_bytes: u64,
    link: LinkEstimate,
    preference: SchedulePreference,
) -> Arrangement {
    let members = paths.len();
    let is_flat = paths.windows(2).all(|pair| pair[0] == pair[1]);
    let usual_order = by_groups(paths);
    let order = around_slow_links(usual_order.clone(), paths, slow);
    let slow_ranks = by_rank(&order, slow);
    let ordered: Vec<Path> =
        if is_flat { Vec::new() } else { order.iter().map(|member| paths[*member]).collect() };
    let (ring, halving_doubling) = (Schedule::ring(members), Schedule::halving_doubling(members));
    let along_groups = stages(&ordered);
    let hierarchical =
        along_groups.as_ref().and_then(|radices| Schedule::hierarchical(members, radices));
    let mut candidates = vec![ring.clone()];
    candidates.extend(Schedule::hierarchical(members, &prime_factors(members)));
    candidates.push(halving_doubling.clone());
    if let Some(radices) = along_groups {
        let split: Vec<usize> = radices.iter().flat_map(|radix| prime_factors(*radix)).collect();
        candidates.extend(Schedule::hierarchical(members, &split));
        candidates.extend(
            joined(&radices).filter_map(|radices| Schedule::hierarchical(members, &radices)),
        );
    }
    let mut ranked: Vec<(Schedule, Duration)> = Vec::new();
    for schedule in candidates {
        let time = estimate(&schedule, size_bytes, link, &ordered, &slow_ranks);
        if !ranked.iter().any(|(other, _)| *other == schedule) {
            ranked.push((schedule, time));
        }
    }
    ranked.sort_by_key(|(_, estimate)| *estimate);
    let by_hdrm = (preference == SchedulePreference::Hdrm).then(|| by_hdrm(paths)).flatten();
    let forced = match preference {
        SchedulePreference::Auto => None,
        SchedulePreference::Ring => Some(ring),
        SchedulePreference::HalvingDoubling => Some(halving_doubling),
        SchedulePreference::Hdrm => by_hdrm.is_some().then_some(halving_doubling),
        SchedulePreference::Hierarchical => hierarchical,
    };
    let remark = match (preference, &forced, is_flat) {
        (SchedulePreference::Auto, _, true) => "",
        (SchedulePreference::Auto, _, false) if link.uplink.is_measured() => "uplinks as measured",
        (SchedulePreference::Auto, _, false) => "an uplink is taken for as fast as one host",
        (_, Some(_), _) => "as the setting says",
        (_, None, _) => "what the setting says does not fit the places of the members",
    };
    let is_around = by_hdrm.is_none() && order != usual_order;
    let (order, slow_ranks) = match &by_hdrm {
        Some(by_hdrm) => (by_hdrm.clone(), by_rank(by_hdrm, slow)),
        None => (order, slow_ranks),
    };
    if let Some(forced) = forced {
        // In HDRM's order, no two streams of a step share a link.
        let shared = if by_hdrm.is_some() { &[] } else { &ordered[..] };
        let time = estimate(&forced, size_bytes, link, shared, &slow_ranks);
        ranked.retain(|(other, _)| *other != forced);
        ranked.insert(0, (forced, time));
    }
    let mut ranked = ranked.into_iter();
    let (schedule, estimate) = ranked.next().unwrap_or((Schedule::ring(members), Duration::ZERO));
    let remarks = [remark, remark_on_links(&schedule, &slow_ranks, is_around)];
    let remarks = remarks.into_iter().filter(|remark| !remark.is_empty());
    let remark = remarks.collect::<Vec<_>>().join(", ");
    let choice = Choice { schedule, estimate, runner_up: ranked.next() };
    Arrangement { order, choice, remark }
}

/// Returns the ring sizes of all schedules that merge adjacent levels of groups, because levels
/// with fast uplinks need no separate rings. The unmerged schedule comes first, one ring last.
fn joined(radices: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    (0..1_u32 << (radices.len() - 1)).map(|joints| {
        let mut stages: Vec<usize> = Vec::new();
        for (index, radix) in radices.iter().enumerate() {
            match stages.last_mut().filter(|_| index > 0 && joints >> (index - 1) & 1 == 1) {
                Some(stage) => *stage *= radix,
                None => stages.push(*radix),
            }
        }
        stages
    })
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
    use crate::topology::place::EVERYWHERE;

    const LINK: LinkEstimate = LinkEstimate {
        bytes_per_second: 25_000_000,
        latency: Duration::from_micros(100),
        uplink: Uplink::measured(0),
    };

    fn choose(members: usize, size_bytes: u64) -> Choice<Schedule> {
        let chosen = arrange(
            &vec![EVERYWHERE; members],
            &SlowLinks::new(),
            size_bytes,
            LINK,
            SchedulePreference::Auto,
        );
        assert_eq!((chosen.order, chosen.remark), ((0..members).collect(), String::new()));
        chosen.choice
    }

    #[test]
    fn large_data_use_a_ring_and_small_data_use_halving_doubling() {
        for members in [2, 3, 5, 8, 16, 61, 256] {
            assert_eq!(choose(members, 64 << 20).schedule, Schedule::ring(members));
        }
        assert_eq!(choose(16, 32 << 10).schedule, Schedule::halving_doubling(16));
        assert_eq!(choose(12, 32 << 10).schedule.radices(), [2, 2, 3]);
        assert_eq!(choose(61, 1 << 10).schedule, Schedule::halving_doubling(61));
    }

    #[test]
    fn a_ring_of_much_data_is_estimated_at_the_limit() {
        let seconds =
            estimate(&Schedule::ring(16), 64 << 20, LINK, &[], &SlowLinks::new()).as_secs_f64();
        let limit = 2.0 * (64 << 20) as f64 * 15.0 / 16.0 / 25e6;
        assert!((limit..limit * 1.01).contains(&seconds), "{seconds} s, limit {limit} s");
    }

    #[test]
    fn all_combinations_of_stages_are_considered() {
        let all: Vec<_> = joined(&[4, 3, 2]).collect();
        assert_eq!(all, [vec![4, 3, 2], vec![12, 2], vec![4, 6], vec![24]]);
    }

    #[test]
    fn the_runner_up_differs_and_is_not_cheaper() {
        for members in 4..40 {
            let choice = choose(members, 1 << 20);
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
