//! Halving-doubling with rank mapping (HDRM): maps ranks to a BiGraph, so that in each step all
//! pairs use separate links between the halves.
//!
//! A BiGraph has N switches in two halves, and M hosts per switch. Each switch is linked to all
//! switches of the other half. Halving-doubling on M N ranks has log2 (M N) steps of M N / 2 pairs.
//!
//! Source: EFLOPS, section V-B and algorithm 1. We read `B + i N` as `B + j N`, the swapped `r_i`
//! as `R_j`, and the shift of a half as a shift by N / 2 places.

use std::collections::BTreeMap;

use thiserror::Error;

/// Most switches of a BiGraph, for up to eight million ranks.
pub const MAX_SWITCHES: u32 = 1 << 12;

/// Ranks at each switch of a BiGraph's upper half, then of its lower half.
pub type Halves = [Vec<Vec<u32>>; 2];

/// Reason why ranks cannot be mapped to switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum HdrmError {
    #[error("a switch needs at least one host")]
    NoHosts,
    #[error(
        "{switches} switches are not a power of two of at least 2: some pairs would be within one half"
    )]
    SwitchesNotAPowerOfTwo { switches: u32 },
    #[error("{switches} switches are more than {MAX_SWITCHES}")]
    TooManySwitches { switches: u32 },
    #[error(
        "{hosts_per_switch} hosts at each of {switches} switches are more than {}: two pairs would share a link",
        switches / 2
    )]
    TooManyHosts { hosts_per_switch: u32, switches: u32 },
    #[error(
        "{ranks} ranks fill no part of {hosts_per_switch} x {switches}: use an even number up to {switches}, or a multiple of it"
    )]
    PartialSystem {
        /// Number of requested ranks.
        ranks: u32,
        hosts_per_switch: u32,
        switches: u32,
    },
}

/// First fault of a mapping of ranks to switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Conflict {
    #[error("rank {rank} has two places")]
    TwoPlaces { rank: u32 },
    #[error("rank {rank} has no place")]
    NoPlace { rank: u32 },
    #[error("in the step of distance {distance} ranks {} and {} are both in the {} half", pair[0], pair[1], half_name(*half))]
    WithinHalf {
        /// Difference between the ranks of `pair`.
        distance: u32,
        pair: [u32; 2],
        /// Half of the switches with both ranks: 0 for upper, 1 for lower.
        half: usize,
    },
    #[error(
        "in the step of distance {distance} ranks {} and {} share the link of upper switch {upper} and lower switch {lower} with ranks \
         {} and {}",
        pair[0], pair[1], other[0], other[1]
    )]
    SharedLink {
        /// Difference between the two ranks of `pair`, and of `other`.
        distance: u32,
        pair: [u32; 2],
        /// Another pair over the same link.
        other: [u32; 2],
        upper: usize,
        lower: usize,
    },
}

const fn half_name(half: usize) -> &'static str {
    if half == 0 { "upper" } else { "lower" }
}

/// Maps a rank to each host of a BiGraph.
///
/// # Errors
/// Fails unless `switches` is a power of two from 2 to [`MAX_SWITCHES`], and `hosts_per_switch` is
/// from 1 to half of `switches`.
pub fn mapping(hosts_per_switch: u32, switches: u32) -> Result<Halves, HdrmError> {
    check_system(hosts_per_switch, switches)?;
    mapping_of(hosts_per_switch, switches, hosts_per_switch * switches)
}

/// Acts as [`mapping`] for only `ranks` ranks, without unused switches.
///
/// # Errors
/// Fails like [`mapping`], or unless `ranks` is an even number up to `switches` or a multiple of
/// `switches`, and has enough hosts.
pub fn mapping_of(hosts_per_switch: u32, switches: u32, ranks: u32) -> Result<Halves, HdrmError> {
    check_system(hosts_per_switch, switches)?;
    let is_whole =
        if ranks <= switches { ranks.is_multiple_of(2) } else { ranks.is_multiple_of(switches) };
    if ranks == 0 || !is_whole || ranks > hosts_per_switch * switches {
        return Err(HdrmError::PartialSystem { ranks, hosts_per_switch, switches });
    }
    // Of the ranks 2i and 2i + 1, each half gets one. They are swapped if i has an odd number of
    // ones.
    let base = |half: u32, pair: u32| 2 * pair + (half ^ (pair.count_ones() & 1));
    let per_half = ranks.min(switches) / 2;
    let groups = ranks.div_ceil(switches);
    let switch = |half: u32, switch: u32| {
        let rank = |group: u32| {
            // Each further group repeats the base mapping, swapped by the same rule. Its upper half
            // is shifted, so that groups use different links.
            let from = half ^ (group.count_ones() & 1);
            let pair = if half == 0 { (switch + group) % per_half } else { switch };
            base(from, pair) + group * switches
        };
        (0..groups).map(rank).collect()
    };
    Ok([0, 1].map(|half| (0..per_half).map(|index| switch(half, index)).collect()))
}

fn check_system(hosts_per_switch: u32, switches: u32) -> Result<(), HdrmError> {
    if hosts_per_switch == 0 {
        return Err(HdrmError::NoHosts);
    }
    if switches < 2 || !switches.is_power_of_two() {
        return Err(HdrmError::SwitchesNotAPowerOfTwo { switches });
    }
    if switches > MAX_SWITCHES {
        return Err(HdrmError::TooManySwitches { switches });
    }
    if hosts_per_switch > switches / 2 {
        return Err(HdrmError::TooManyHosts { hosts_per_switch, switches });
    }
    Ok(())
}

/// Checks that each rank is at one switch, and that in each step of halving-doubling, all pairs
/// cross between the halves on separate links. Takes O(P log P) for P ranks.
///
/// A rank without a peer in a step rests.
///
/// # Errors
/// Returns the first conflict.
pub fn check(halves: &Halves) -> Result<(), Conflict> {
    let places = places(halves)?;
    let ranks = places.len() as u32;
    let mut distance = 1;
    while distance < ranks {
        let mut taken = BTreeMap::new();
        for rank in 0..ranks {
            let peer = rank ^ distance;
            if peer < rank || peer >= ranks {
                continue;
            }
            let pair = [rank, peer];
            let [(half, a), (other_half, b)] = pair.map(|rank| places[rank as usize]);
            if half == other_half {
                return Err(Conflict::WithinHalf { distance, pair, half });
            }
            let (upper, lower) = if half == 0 { (a, b) } else { (b, a) };
            if let Some(other) = taken.insert((upper, lower), pair) {
                return Err(Conflict::SharedLink { distance, pair, other, upper, lower });
            }
        }
        let Some(next) = distance.checked_mul(2) else { break };
        distance = next;
    }
    Ok(())
}

fn places(halves: &Halves) -> Result<Vec<(usize, usize)>, Conflict> {
    let mut places = BTreeMap::new();
    for (half, switches) in halves.iter().enumerate() {
        for (switch, ranks) in switches.iter().enumerate() {
            for &rank in ranks {
                if places.insert(rank, (half, switch)).is_some() {
                    return Err(Conflict::TwoPlaces { rank });
                }
            }
        }
    }
    match (0_u32..).zip(places.keys()).find(|(expected, rank)| expected != *rank) {
        Some((rank, _)) => Err(Conflict::NoPlace { rank }),
        None if places.is_empty() => Err(Conflict::NoPlace { rank: 0 }),
        None => Ok(places.into_values().collect()),
    }
}
