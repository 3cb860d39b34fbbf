//! BlueConnect: an allreduce on a hierarchy of networks. It is a reduce-scatter in each level,
//! innermost first, and an allgather in each level, outermost first.
//!
//! For P = p0 p1 ... pk nodes, stage i has rings of p_i nodes, each with S / (p0 ... p_(i-1))
//! bytes. If p_i is a power of two, halving and doubling replaces the ring. The number of
//! concurrent rings is the product of the other factors. In total, each node sends 2 S (P - 1) / P
//! bytes.
//!
//! Source: BlueConnect, equations 1 to 10. The bandwidth of a stage is the minimum over j <= i, as
//! in the expanded form. The compact equations leave out j = i. Seconds are floating point, because
//! they are estimates.

use thiserror::Error;

/// Most levels of a hierarchy, and most factors within a level. Networks have two or three.
pub const MAX_LEVELS: usize = 8;
/// Most nodes, as of a shard.
pub const MAX_NODES: u64 = 65_536;

/// The network of one level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// The number of elements of the level below that one element joins.
    pub nodes: u32,
    /// The capacity of the link above one element of the level below.
    pub bytes_per_second: f64,
}

/// One reduce-scatter, and the allgather that mirrors it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// The nodes of each ring.
    pub nodes: u32,
    /// The bytes that each ring scatters.
    pub bytes: f64,
    /// The share of the links' bandwidth that each ring gets.
    pub bytes_per_second: f64,
    /// The time of reduce-scatter and allgather together.
    pub seconds: f64,
}

/// A plan of an allreduce, and its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Decomposition {
    /// The stages, innermost first.
    pub stages: Vec<Stage>,
    /// The time of all stages.
    pub seconds: f64,
}

/// The reason why there is no plan.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum DecomposeError {
    /// There is no level, or there are too many.
    #[error("there are {levels} levels instead of 1 to {MAX_LEVELS}")]
    LevelCount {
        /// The number of levels.
        levels: usize,
    },
    /// A level joins nothing.
    #[error("level {level} joins no nodes")]
    EmptyLevel {
        /// The index of the level, from zero.
        level: usize,
    },
    /// The product of the levels differs from the number of ranks.
    #[error("the levels multiply to {product}, not to {ranks} ranks")]
    Product {
        /// The product of the levels.
        product: u64,
        /// The number of ranks.
        ranks: u64,
    },
    /// There are more than [`MAX_NODES`] ranks, or none.
    #[error("there are {ranks} ranks instead of 1 to {MAX_NODES}")]
    RankCount {
        /// The number of ranks.
        ranks: u64,
    },
    /// The number of bandwidths differs from the number of levels.
    #[error("there are {bandwidths} bandwidths for {levels} levels")]
    BandwidthCount {
        /// The number of bandwidths.
        bandwidths: usize,
        /// The number of levels.
        levels: usize,
    },
    /// A bandwidth is not above zero, a latency or size is below zero, or a number is not finite.
    #[error("{what} of {value} is out of range")]
    OutOfRange {
        /// The name of the number.
        what: &'static str,
        /// The value of the number.
        value: f64,
    },
}

/// Returns Tr of equation 1: a reduce-scatter by a ring of p nodes in p - 1 steps.
fn ring_seconds(nodes: u32, bytes: f64, latency_s: f64, bytes_per_second: f64) -> f64 {
    let nodes = f64::from(nodes);
    (nodes - 1.0) * latency_s + (nodes - 1.0) / nodes * bytes / bytes_per_second
}

/// Returns the better of equations 1 and 2, as in equation 3: halving in log2 p steps if p is a
/// power of two.
fn scatter_seconds(nodes: u32, bytes: f64, latency_s: f64, bytes_per_second: f64) -> f64 {
    if !nodes.is_power_of_two() {
        return ring_seconds(nodes, bytes, latency_s, bytes_per_second);
    }
    let carried = (f64::from(nodes) - 1.0) / f64::from(nodes) * bytes / bytes_per_second;
    f64::from(nodes.ilog2()) * latency_s + carried
}

/// The sharing of links by stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fabric {
    /// A tree of switches (equation 9). Rings of stage i cross the levels below, and each inner
    /// element runs one ring.
    Tree,
    /// A torus (equation 10). Each dimension has its own links, which the nodes of the first
    /// dimension share.
    Torus,
}

/// Estimates the time of one reduce-scatter and one allgather per stage. Stage i has `factors[i]`
/// nodes in a network of `bytes_per_second[i]`.
///
/// # Errors
///
/// Fails if the lengths differ, or if a number is out of range.
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

/// Estimates the time of a ring over all ranks, which crosses the slowest level (equation 6).
///
/// # Errors
///
/// Fails if the lengths differ, or if a number is out of range.
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

/// Returns the time of all stages. For no stages, `Iterator::sum` would return -0.
fn sum(stages: &[Stage]) -> f64 {
    stages.iter().fold(0.0, |sum, stage| sum + stage.seconds)
}

/// Finds the cheapest plan. Each level of the network has one or more stages, whose product is the
/// number of nodes of the level. The factors of one level do not divide its bandwidth; the levels
/// below do.
///
/// # Errors
///
/// Fails if the lengths differ, or if a number is out of range.
pub fn best(
    factors: &[u32],
    bytes_per_second: &[f64],
    latency_s: f64,
    bytes: f64,
) -> Result<Decomposition, DecomposeError> {
    let levels = check(factors, bytes_per_second, latency_s, bytes)?;
    let mut stages = Vec::new();
    let mut left = bytes;
    // A stage's bandwidth depends on the levels up to its own, and its bytes on their nodes.
    // Neither depends on the splits of the levels below. So the best split of each level is part of
    // the best plan.
    for (level, of) in levels.iter().enumerate() {
        stages.extend(split(&levels, level, latency_s, left));
        left /= f64::from(of.nodes);
    }
    Ok(Decomposition { seconds: sum(&stages), stages })
}

/// Returns the bandwidth of one ring of a level: the minimum of capacity divided by sharing rings,
/// over the levels up to it.
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

/// Returns the cheapest split of a level whose nodes each have `bytes` bytes, as a shortest path
/// over the divisors of its nodes. At equal times, the split with the larger first factors wins.
fn split(levels: &[Level], level: usize, latency_s: f64, bytes: f64) -> Vec<Stage> {
    let nodes = levels[level].nodes;
    let bytes_per_second = bandwidth(levels, level, Fabric::Tree);
    let divisors: Vec<u32> = (1..=nodes).filter(|divisor| nodes.is_multiple_of(*divisor)).collect();
    // For each divisor: the smallest time of stages with this product, and the last of these
    // stages.
    let mut cheapest: Vec<(f64, Option<Stage>)> = vec![(0.0, None)];
    for &to in &divisors[1..] {
        let mut best = (f64::MAX, None);
        for (index, &from) in
            divisors.iter().enumerate().filter(|(_, from)| **from < to && to.is_multiple_of(**from))
        {
            let (nodes, bytes) = (to / from, bytes / f64::from(from));
            let seconds = 2.0 * scatter_seconds(nodes, bytes, latency_s, bytes_per_second);
            // If splits differ only by rounding, the one with fewer stages wins, because it comes
            // first.
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

/// Returns the groups of each stage, and the part of the bytes that each rank ends with, counted in
/// P parts (figure 4).
///
/// A rank is the sum of each digit_i times the product of the factors before it.
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
    // An upper bound of the time of any plan, whose rings share a link with at most all ranks.
    let slowest = bytes_per_second.iter().copied().fold(f64::INFINITY, f64::min);
    let seconds = 2.0 * f64::from(MAX_LEVELS as u32) * ranks as f64 * (latency_s + bytes / slowest);
    if !seconds.is_finite() {
        return Err(DecomposeError::OutOfRange { what: "a time", value: seconds });
    }
    let levels = factors.iter().zip(bytes_per_second);
    Ok(levels.map(|(&nodes, &bytes_per_second)| Level { nodes, bytes_per_second }).collect())
}

/// Checks that the product of the levels is the number of ranks.
///
/// # Errors
///
/// Fails if the numbers differ.
pub fn check_ranks(factors: &[u32], ranks: u64) -> Result<(), DecomposeError> {
    let product = factors.iter().fold(1_u64, |product, &nodes| product.saturating_mul(nodes.into()));
    if product == ranks { Ok(()) } else { Err(DecomposeError::Product { product, ranks }) }
}
