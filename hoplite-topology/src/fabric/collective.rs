//! Collectives in steps that all nodes take together.
//!
//! All flows of a step carry equal bytes. With fair rates, the flows of the most loaded link end
//! last: a step takes latency + bytes * max(load / capacity) / rate.
//!
//! Source: EFLOPS, section VII-C and figure 16. The defaults follow from its times of HDRM for 256
//! KiB: 130 us on 64 nodes and 181 us on 1024.

use thiserror::Error;

use super::network::{Network, NetworkError, loads};
use hoplite_core::topology::hdrm::{self, HdrmError};

/// Default latency of a step.
pub const LATENCY_S: f64 = 6.273e-6;
/// Default rate of a host's link.
pub const BYTES_PER_SECOND: f64 = 9.433e9;

/// An algorithm for an allreduce of S bytes on n hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Algorithm {
    /// 2 (n - 1) steps of S / n bytes.
    Ring,
    /// 2 log2 n steps of S / 2, S / 4, ... bytes.
    HalvingDoubling,
    /// Rings in groups of p_0 ranks, then of p_1, ..., and back: 2 sum (p_i - 1) steps.
    Hierarchical(Vec<u32>),
}

/// Consecutive steps that take the same time.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Steps {
    /// Number of steps.
    pub count: u32,
    pub bytes: f64,
    /// Flows on the most loaded link, divided by its relative capacity.
    pub load: f64,
    /// Time of one step.
    pub seconds: f64,
}

/// A simulation's result.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Outcome {
    pub steps: Vec<Steps>,
    /// Time of all steps.
    pub seconds: f64,
}

/// Reason why a simulation is impossible.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SimulationError {
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Hdrm(#[from] HdrmError),
    #[error("halving-doubling needs a power of two of ranks, not {ranks}")]
    NotAPowerOfTwo { ranks: usize },
    #[error("the product of the factors is {product}, not {ranks} ranks")]
    Factors { product: u64, ranks: usize },
    #[error("HDRM needs a BiGraph")]
    NoBiGraph,
    #[error("the order is not a permutation of the {hosts} hosts")]
    NotAPermutation { hosts: u32 },
    #[error("the allreduce would take longer than a number can express")]
    TooLong,
}

/// Simulates an allreduce with rank r at host `order[r]`. A step takes `latency_s`, or the largest
/// measured latency of its flows.
///
/// # Errors
/// Fails for an invalid network or order, an infinite time, or an unfit number of ranks.
pub fn allreduce(
    network: &Network,
    algorithm: &Algorithm,
    order: &[u32],
    bytes: f64,
    latency_s: f64,
    bytes_per_second: f64,
) -> Result<Outcome, SimulationError> {
    network.check()?;
    check_order(network.hosts(), order)?;
    let ranks = order.len();
    let step = |flows: &[(u32, u32)], count: u32, bytes: f64| {
        let relative = |(link, load)| load / network.capacity(link, 1e12 / bytes_per_second);
        let load = loads(network, flows).into_iter().map(relative).fold(0.0, f64::max);
        let latencies = flows.iter().filter_map(|&(from, to)| network.latency_s(from, to));
        let latency_s = latencies.reduce(f64::max).unwrap_or(latency_s);
        Steps { count, bytes, load, seconds: latency_s + bytes * load / bytes_per_second }
    };
    let steps: Vec<Steps> = match algorithm {
        _ if ranks == 1 => Vec::new(),
        Algorithm::Ring => {
            let flows: Vec<_> =
                (0..ranks).map(|rank| (order[rank], order[(rank + 1) % ranks])).collect();
            vec![step(&flows, 2 * (ranks as u32 - 1), bytes / ranks as f64)]
        }
        Algorithm::HalvingDoubling if ranks.is_power_of_two() => (0..ranks.ilog2())
            .map(|bit| {
                let flows: Vec<_> =
                    (0..ranks).map(|rank| (order[rank], order[rank ^ 1 << bit])).collect();
                step(&flows, 2, bytes / f64::from(2_u32 << bit))
            })
            .collect(),
        Algorithm::HalvingDoubling => return Err(SimulationError::NotAPowerOfTwo { ranks }),
        Algorithm::Hierarchical(factors) => {
            let product = factors
                .iter()
                .fold(1_u64, |product, &factor| product.saturating_mul(factor.into()));
            if product != ranks as u64 {
                return Err(SimulationError::Factors { product, ranks });
            }
            let mut stride = 1;
            let groups = factors.iter().map(|&factor| factor as usize).filter(|&factor| factor > 1);
            let stages = groups.map(|factor| {
                let next = |rank: usize| {
                    let digit = rank / stride % factor;
                    rank - digit * stride + (digit + 1) % factor * stride
                };
                let flows: Vec<_> =
                    (0..ranks).map(|rank| (order[rank], order[next(rank)])).collect();
                stride *= factor;
                step(&flows, 2 * (factor as u32 - 1), bytes / stride as f64)
            });
            stages.collect()
        }
    };
    // `Iterator::sum` of no steps would return -0.
    let seconds = steps.iter().fold(0.0, |sum, step| sum + f64::from(step.count) * step.seconds);
    if !(seconds.is_finite() && steps.iter().all(|step| step.load.is_finite())) {
        return Err(SimulationError::TooLong);
    }
    Ok(Outcome { steps, seconds })
}

/// Returns the host of each rank on a BiGraph, for HDRM (halving-doubling with rank mapping).
///
/// # Errors
/// Fails for other networks, or if HDRM has no mapping for this size.
pub fn hdrm_order(network: &Network) -> Result<Vec<u32>, SimulationError> {
    let Network::BiGraph { hosts_per_switch, switches, .. } = network else {
        return Err(SimulationError::NoBiGraph);
    };
    let halves = hdrm::mapping(*hosts_per_switch, *switches)?;
    let mut order = vec![0; (hosts_per_switch * switches) as usize];
    for (half, of_half) in (0..).zip(&halves) {
        for (switch, ranks) in (0..).zip(of_half) {
            for (slot, &rank) in (0..).zip(ranks) {
                order[rank as usize] = (2 * switch + half) * hosts_per_switch + slot;
            }
        }
    }
    Ok(order)
}

fn check_order(hosts: u32, order: &[u32]) -> Result<(), SimulationError> {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    let is_permutation = sorted.into_iter().eq(0..hosts);
    if is_permutation { Ok(()) } else { Err(SimulationError::NotAPermutation { hosts }) }
}
