//! BlueConnect, an allreduce on a hierarchy of networks: reduce-scatters, innermost level first,
//! then allgathers in reverse.
//!
//! For S bytes on P = p0 p1 ... pk nodes, stage i has P / p_i concurrent rings of p_i nodes with
//! S / (p0 ... p_(i-1)) bytes each, or halving and doubling if p_i is a power of two. Each node
//! sends 2 S (P - 1) / P bytes.
//!
//! Source: BlueConnect, equations 1 to 10. A stage's bandwidth is the minimum over j <= i, as in
//! the expanded form; the compact one leaves out j = i.

use thiserror::Error;

/// Most levels of a hierarchy.
pub const MAX_LEVELS: usize = 8;
/// Most ranks, and most nodes in a directory.
pub const MAX_NODES: u64 = 65_536;

/// A level of a hierarchy of networks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// Number of elements of the next inner level (innermost: nodes) in one element.
    pub nodes: u32,
    /// Rate of the link from one element of the next inner level into this level.
    pub bytes_per_second: f64,
}

/// A reduce-scatter and its allgather, in rings of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Stage {
    pub nodes: u32,
    /// Bytes that each ring reduces and scatters.
    pub bytes: f64,
    /// Bandwidth of each ring.
    pub bytes_per_second: f64,
    /// Predicted time of the reduce-scatter and the allgather.
    pub seconds: f64,
}

/// Stages of an allreduce, and its predicted time.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Decomposition {
    pub stages: Vec<Stage>,
    /// Predicted time of all stages.
    pub seconds: f64,
}

/// Reason why an allreduce cannot be decomposed into stages.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum DecomposeError {
    #[error("there are {levels} levels instead of 1 to {MAX_LEVELS}")]
    LevelCount { levels: usize },
    #[error("level {level} joins no nodes")]
    EmptyLevel {
        /// Index of the level, from zero.
        level: usize,
    },
    #[error("the levels multiply to {product}, not to {ranks} ranks")]
    Product {
        /// Product of the levels' sizes.
        product: u64,
        ranks: u64,
    },
    #[error("there are {ranks} ranks instead of 1 to {MAX_NODES}")]
    RankCount { ranks: u64 },
    #[error("there are {bandwidths} bandwidths for {levels} levels")]
    BandwidthCount { bandwidths: usize, levels: usize },
    /// A number is not finite, is negative, or is a bandwidth of zero.
    #[error("{what} of {value} is out of range")]
    OutOfRange {
        /// Name of the number.
        what: &'static str,
        value: f64,
    },
}

fn ring_seconds(nodes: u32, bytes: f64, latency_s: f64, bytes_per_second: f64) -> f64 {
    let nodes = f64::from(nodes);
    (nodes - 1.0) * latency_s + (nodes - 1.0) / nodes * bytes / bytes_per_second
}

/// Predicts a reduce-scatter of p nodes: a ring, or halving if p is a power of two (BlueConnect,
/// equation 3).
fn scatter_seconds(nodes: u32, bytes: f64, latency_s: f64, bytes_per_second: f64) -> f64 {
    if !nodes.is_power_of_two() {
        return ring_seconds(nodes, bytes, latency_s, bytes_per_second);
    }
    let carried = (f64::from(nodes) - 1.0) / f64::from(nodes) * bytes / bytes_per_second;
    f64::from(nodes.ilog2()) * latency_s + carried
}

/// Topology of a hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fabric {
    /// A tree of switches (BlueConnect, equation 9). A ring of stage i crosses levels 0 to i, and
    /// shares each link with the rings of all other nodes below.
    Tree,
    /// A torus (BlueConnect, equation 10). Outside the first dimension, a link carries as many
    /// rings as the first dimension has nodes.
    Torus,
}

/// Predicts the time of an allreduce with one stage for each of `factors`.
///
/// # Errors
/// Fails if `factors` and `bytes_per_second` differ in length, or a number is out of range.
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

/// Predicts one ring over all ranks, at the slowest level's rate (BlueConnect, equation 6).
///
/// # Errors
/// As for [`estimate`].
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

fn sum(stages: &[Stage]) -> f64 {
    stages.iter().fold(0.0, |sum, stage| sum + stage.seconds)
}

/// Finds the fastest stages of an allreduce on a [`Fabric::Tree`], one or more for each level.
///
/// # Errors
/// As for [`estimate`].
pub fn best(
    factors: &[u32],
    bytes_per_second: &[f64],
    latency_s: f64,
    bytes: f64,
) -> Result<Decomposition, DecomposeError> {
    let levels = check(factors, bytes_per_second, latency_s, bytes)?;
    let mut stages = Vec::new();
    let mut left = bytes;
    // A stage depends only on the sizes of inner levels.
    for (level, of) in levels.iter().enumerate() {
        stages.extend(split(&levels, level, latency_s, left));
        left /= f64::from(of.nodes);
    }
    Ok(Decomposition { seconds: sum(&stages), stages })
}

/// Returns a ring's bandwidth: the smallest rate per sharing ring among the levels that the ring
/// crosses.
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

/// Returns the fastest stages whose ring sizes multiply to the level's nodes, by a shortest path
/// over the divisors. On ties, a larger last ring wins.
fn split(levels: &[Level], level: usize, latency_s: f64, bytes: f64) -> Vec<Stage> {
    let nodes = levels[level].nodes;
    let bytes_per_second = bandwidth(levels, level, Fabric::Tree);
    let divisors: Vec<u32> = (1..=nodes).filter(|divisor| nodes.is_multiple_of(*divisor)).collect();
    // For each divisor, the fastest stages whose sizes multiply to it: their time, and the last
    // stage.
    let mut cheapest: Vec<(f64, Option<Stage>)> = vec![(0.0, None)];
    for &to in &divisors[1..] {
        let mut best = (f64::MAX, None);
        for (index, &from) in
            divisors.iter().enumerate().filter(|(_, from)| **from < to && to.is_multiple_of(**from))
        {
            let (nodes, bytes) = (to / from, bytes / f64::from(from));
            let seconds = 2.0 * scatter_seconds(nodes, bytes, latency_s, bytes_per_second);
            // On ties within rounding, fewer stages win: they come first.
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

/// Returns the rings of each stage, and each rank's part after all reduce-scatters (BlueConnect,
/// figure 4). Stage i has rings of `factors[i]` ranks, adjacent in stage 0. The object has as many
/// equal parts as ranks.
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
    // An upper bound of any plan's time: at most `ranks` rings share a link.
    let slowest = bytes_per_second.iter().copied().fold(f64::INFINITY, f64::min);
    let seconds = 2.0 * f64::from(MAX_LEVELS as u32) * ranks as f64 * (latency_s + bytes / slowest);
    if !seconds.is_finite() {
        return Err(DecomposeError::OutOfRange { what: "a time", value: seconds });
    }
    let levels = factors.iter().zip(bytes_per_second);
    Ok(levels.map(|(&nodes, &bytes_per_second)| Level { nodes, bytes_per_second }).collect())
}

/// Checks that the product of the levels' sizes is the number of ranks.
///
/// # Errors
/// Fails if they differ.
pub fn check_ranks(factors: &[u32], ranks: u64) -> Result<(), DecomposeError> {
    let product =
        factors.iter().fold(1_u64, |product, &nodes| product.saturating_mul(nodes.into()));
    if product == ranks { Ok(()) } else { Err(DecomposeError::Product { product, ranks }) }
}
