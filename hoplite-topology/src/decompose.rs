//! BlueConnect: an allreduce of a hierarchy of networks as a reduce-scatter in each level, innermost first, and an allgather in each,
//! outermost first.
//!
//! With P = p0 p1 ... pk nodes, stage i has rings of p_i nodes (or halving and doubling, where p_i is a power of two) for S / (p0 ... p_(i-1))
//! bytes each, and as many of them at once as levels below divide the nodes. In all, 2 S (P - 1) / P bytes per node.
//!
//! Source: BlueConnect, equations 1 to 10. The bandwidth of a stage is the least over j <= i, as in the expanded form; the compact
//! equations leave out j = i. Seconds are floating point, as estimates of what is not measured in integers.

use thiserror::Error;

/// The levels of a hierarchy, and the factors within a level; networks have two or three.
pub const MAX_LEVELS: usize = 8;
/// The number of nodes that a shard takes.
pub const MAX_NODES: u64 = 65_536;

/// The network of one level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// How many elements of the level below it joins.
    pub nodes: u32,
    /// The capacity above one element of the level below.
    pub bytes_per_second: f64,
}

/// One reduce-scatter and the allgather that mirrors it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// The nodes of each ring.
    pub nodes: u32,
    /// The bytes that each ring scatters.
    pub bytes: f64,
    /// The bandwidth that each ring gets of the links that it crosses.
    pub bytes_per_second: f64,
    /// The time of reduce-scatter and allgather together.
    pub seconds: f64,
}

/// A way to do an allreduce, and the time that it takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Decomposition {
    /// The stages, innermost first.
    pub stages: Vec<Stage>,
    /// The time of all stages.
    pub seconds: f64,
}

/// The reason for which there is no plan.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum DecomposeError {
    /// No level, or too many.
    #[error("{levels} levels are given; there are 1 to {MAX_LEVELS}")]
    LevelCount {
        /// The number of levels.
        levels: usize,
    },
    /// A level joins nothing.
    #[error("level {level} joins no nodes")]
    EmptyLevel {
        /// The index of the level, counted from zero.
        level: usize,
    },
    /// The levels do not multiply to the ranks.
    #[error("the levels multiply to {product}, not to {ranks} ranks")]
    Product {
        /// The product of the levels.
        product: u64,
        /// The number of ranks.
        ranks: u64,
    },
    /// More than [`MAX_NODES`] or fewer than one.
    #[error("{ranks} ranks; there are 1 to {MAX_NODES}")]
    RankCount {
        /// The number of ranks.
        ranks: u64,
    },
    /// There are not as many bandwidths as levels.
    #[error("{bandwidths} bandwidths are given for {levels} levels")]
    BandwidthCount {
        /// How many bandwidths there are.
        bandwidths: usize,
        /// The number of levels.
        levels: usize,
    },
    /// A bandwidth is not above zero, or a latency or size is below it, or not finite.
    #[error("{what} of {value} is out of range")]
    OutOfRange {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        value: f64,
    },
}

/// Tr of equation 1: reduce-scatter by a ring of p nodes, p - 1 steps.
fn ring_seconds(nodes: u32, bytes: f64, latency_s: f64, bytes_per_second: f64) -> f64 {
    let nodes = f64::from(nodes);
    (nodes - 1.0) * latency_s + (nodes - 1.0) / nodes * bytes / bytes_per_second
}

/// The better of equations 1 and 2, as equation 3 has it: halving in log2 p steps where p is a power of two.
fn scatter_seconds(nodes: u32, bytes: f64, latency_s: f64, bytes_per_second: f64) -> f64 {
    if !nodes.is_power_of_two() {
        return ring_seconds(nodes, bytes, latency_s, bytes_per_second);
    }
    let carried = (f64::from(nodes) - 1.0) / f64::from(nodes) * bytes / bytes_per_second;
    f64::from(nodes.ilog2()) * latency_s + carried
}

/// How stages share the links above them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fabric {
    /// A tree of switches (equation 9): rings of stage i cross the levels below, where all inner elements run one each.
    Tree,
    /// A torus (equation 10): each dimension has its own links, which the nodes of the first one share.
    Torus,
}

/// The time of one reduce-scatter and allgather per stage: stage i is over `factors[i]` nodes, in a network of `bytes_per_second[i]`.
///
/// # Errors
///
/// If the lengths differ or a number is out of range.
pub fn estimate(
    factors: &[u32],
    bytes_per_second: &[f64],
    latency_s: f64,
    bytes: f64,
    fabric: Fabric,
) -> Result<Decomposition, DecomposeError> {
    let levels = check(factors, bytes_per_second, latency_s, bytes)?;
    let mut left = bytes;
    let stage = |(level, of): (usize, &Level)| {
        let bytes_per_second = bandwidth(&levels, level, fabric);
        let seconds = 2.0 * scatter_seconds(of.nodes, left, latency_s, bytes_per_second);
        let stage = Stage { nodes: of.nodes, bytes: left, bytes_per_second, seconds };
        left /= f64::from(of.nodes);
        stage
    };
    let stages: Vec<Stage> = levels.iter().enumerate().map(stage).collect();
    Ok(Decomposition { seconds: sum(&stages), stages })
}

/// The time of a ring over all ranks, which crosses the slowest level (equation 6).
///
/// # Errors
///
/// If the lengths differ or a number is out of range.
pub fn one_ring(
    factors: &[u32],
    bytes_per_second: &[f64],
    latency_s: f64,
    bytes: f64,
) -> Result<f64, DecomposeError> {
    let levels = check(factors, bytes_per_second, latency_s, bytes)?;
    let ranks = levels.iter().map(|level| level.nodes).product();
    let slowest = levels.iter().map(|level| level.bytes_per_second).fold(f64::INFINITY, f64::min);
    Ok(2.0 * ring_seconds(ranks, bytes, latency_s, slowest))
}

/// The time of all stages. Of none, `Iterator::sum` would say -0.
fn sum(stages: &[Stage]) -> f64 {
    stages.iter().fold(0.0, |sum, stage| sum + stage.seconds)
}

/// Finds the cheapest plan: each level of the network is one stage or several, whose nodes multiply to those of the level. Factors of
/// one level do not divide its bandwidth; the levels below do.
///
/// # Errors
///
/// If the lengths differ or a number is out of range.
pub fn best(
    factors: &[u32],
    bytes_per_second: &[f64],
    latency_s: f64,
    bytes: f64,
) -> Result<Decomposition, DecomposeError> {
    let levels = check(factors, bytes_per_second, latency_s, bytes)?;
    let mut stages = Vec::new();
    let mut left = bytes;
    // A stage's bandwidth depends on the levels up to its own, and its bytes on their nodes: not on how the levels below are split.
    // So each level's best split is part of the best plan.
    for (level, of) in levels.iter().enumerate() {
        stages.extend(split(&levels, level, latency_s, left));
        left /= f64::from(of.nodes);
    }
    Ok(Decomposition { seconds: sum(&stages), stages })
}

/// The bandwidth of one ring of a level: over the levels up to it, the least of the capacity divided by the rings that share it.
fn bandwidth(levels: &[Level], level: usize, fabric: Fabric) -> f64 {
    let mut least = f64::INFINITY;
    let mut rings = 1.0;
    for (index, of) in levels[..=level].iter().enumerate() {
        let sharing = match fabric {
            Fabric::Tree => rings,
            Fabric::Torus if index == 0 => 1.0,
            Fabric::Torus => f64::from(levels[0].nodes),
        };
        least = least.min(of.bytes_per_second / sharing);
        rings *= f64::from(of.nodes);
    }
    least
}

/// The cheapest split of a level whose nodes take in so many bytes each: shortest paths over the divisors of its nodes. Among
/// equals the one with the larger first factors.
fn split(levels: &[Level], level: usize, latency_s: f64, bytes: f64) -> Vec<Stage> {
    let nodes = levels[level].nodes;
    let bytes_per_second = bandwidth(levels, level, Fabric::Tree);
    let divisors: Vec<u32> = (1..=nodes).filter(|divisor| nodes.is_multiple_of(*divisor)).collect();
    // For each divisor: the time of rings whose factors multiply to it, and the last of these stages.
    let mut cheapest: Vec<(f64, Option<Stage>)> = vec![(0.0, None)];
    for &to in &divisors[1..] {
        let mut best = (f64::MAX, None);
        for (index, &from) in
            divisors.iter().enumerate().filter(|(_, from)| **from < to && to.is_multiple_of(**from))
        {
            let (nodes, bytes) = (to / from, bytes / f64::from(from));
            let seconds = 2.0 * scatter_seconds(nodes, bytes, latency_s, bytes_per_second);
            // Splits that differ by rounding alone are as good as the one with fewer stages, which comes first.
            if cheapest[index].0 + seconds < best.0 * (1.0 - 1e-12) {
                let stage = Stage { nodes, bytes, bytes_per_second, seconds };
                best = (cheapest[index].0 + seconds, Some(stage));
            }
        }
        cheapest.push(best);
    }
    let mut stages = Vec::new();
    let mut at = nodes;
    while let Some(stage) = divisors.binary_search(&at).ok().and_then(|index| cheapest[index].1) {
        stages.push(stage);
        at /= stage.nodes;
    }
    stages.reverse();
    stages
}

/// The groups of each stage and the part of the bytes that each rank ends with, counted in P parts (figure 4).
///
/// Rank = sum of digit_i times the product of the factors before it.
pub fn schedule(factors: &[u32]) -> (Vec<Vec<Vec<u32>>>, Vec<u32>) {
    let ranks: u32 = factors.iter().product();
    let mut stride = 1;
    let mut stages = Vec::new();
    for &factor in factors {
        let first = (0..ranks).filter(|rank| rank / stride % factor == 0);
        let group = |first: u32| (0..factor).map(|digit| first + digit * stride).collect();
        stages.push(first.map(group).collect());
        stride *= factor;
    }
    let part = |rank: u32| {
        let (mut part, mut parts, mut rest) = (0, ranks, rank);
        for &factor in factors {
            parts /= factor;
            part += parts * (rest % factor);
            rest /= factor;
        }
        part
    };
    (stages, (0..ranks).map(part).collect())
}

fn check(
    factors: &[u32],
    bytes_per_second: &[f64],
    latency_s: f64,
    bytes: f64,
) -> Result<Vec<Level>, DecomposeError> {
    if factors.is_empty() || factors.len() > MAX_LEVELS {
        return Err(DecomposeError::LevelCount { levels: factors.len() });
    }
    if bytes_per_second.len() != factors.len() {
        let (bandwidths, levels) = (bytes_per_second.len(), factors.len());
        return Err(DecomposeError::BandwidthCount { bandwidths, levels });
    }
    if let Some(level) = factors.iter().position(|&nodes| nodes == 0) {
        return Err(DecomposeError::EmptyLevel { level });
    }
    let ranks = factors.iter().fold(1_u64, |ranks, &nodes| ranks.saturating_mul(nodes.into()));
    if ranks > MAX_NODES {
        return Err(DecomposeError::RankCount { ranks });
    }
    for &value in bytes_per_second {
        if !(value.is_finite() && value > 0.0) {
            return Err(DecomposeError::OutOfRange { what: "a bandwidth", value });
        }
    }
    for (what, value) in [("a latency", latency_s), ("a size", bytes)] {
        if !(value.is_finite() && value >= 0.0) {
            return Err(DecomposeError::OutOfRange { what, value });
        }
    }
    // More than any plan takes, whose rings share a link with no more than all ranks.
    let slowest = bytes_per_second.iter().copied().fold(f64::INFINITY, f64::min);
    let seconds = 2.0 * f64::from(MAX_LEVELS as u32) * ranks as f64 * (latency_s + bytes / slowest);
    if !seconds.is_finite() {
        return Err(DecomposeError::OutOfRange { what: "a time", value: seconds });
    }
    let levels = factors.iter().zip(bytes_per_second);
    Ok(levels.map(|(&nodes, &bytes_per_second)| Level { nodes, bytes_per_second }).collect())
}

/// Checks that the levels have as many nodes as there are ranks.
///
/// # Errors
///
/// If they have not.
pub fn check_ranks(factors: &[u32], ranks: u64) -> Result<(), DecomposeError> {
    let product = factors.iter().fold(1_u64, |product, &nodes| product.saturating_mul(nodes.into()));
    if product == ranks { Ok(()) } else { Err(DecomposeError::Product { product, ranks }) }
}
