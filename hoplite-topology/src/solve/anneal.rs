//! Searches by annealing, for costs that are sums of maxima.
//!
//! A move swaps two ranks or aligned blocks of 2^k ranks, or reverses a range. A worse order is
//! accepted with a probability that falls with the temperature. Each round starts from the best
//! order at half of the previous round's temperature, and ends with improvements only.
//!
//! Source: Cloud Collectives, section IV-C.

use crate::cost::Evaluator;
use hoplite_core::topology::random::Random;

/// `done` at the end of a search, for [`Search::advance`](super::Search::advance).
pub const WHOLE: u32 = 1_000_000;
const ROUND: u32 = WHOLE / 5;
/// Last fifth of each round, which rejects worse orders.
const QUIET: u32 = ROUND / 5;
/// Number of swaps whose mean difference sets the first temperature.
const SAMPLES: u32 = 64;

#[derive(Debug)]
pub(super) struct Anneal<'a> {
    evaluator: Evaluator<'a>,
    energy: u128,
    best: Vec<u32>,
    best_cost: u128,
    best_energy: u128,
    hottest: u128,
    round: u32,
    random: Random,
}

impl<'a> Anneal<'a> {
    pub(super) fn new(mut evaluator: Evaluator<'a>, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let nodes = evaluator.order().len();
        let energy = evaluator.energy();
        let mut differences = 0;
        for _ in 0..SAMPLES {
            evaluator.swap(random.index(nodes), random.index(nodes));
            differences += evaluator.energy().abs_diff(energy);
            evaluator.undo();
        }
        Self {
            best: evaluator.order().to_vec(),
            best_cost: evaluator.cost(),
            best_energy: energy,
            evaluator,
            energy,
            hottest: differences / u128::from(SAMPLES) / 4,
            round: 0,
            random,
        }
    }

    pub(super) fn best(&self) -> &[u32] {
        &self.best
    }

    pub(super) const fn best_cost(&self) -> u128 {
        self.best_cost
    }

    pub(super) fn step(&mut self, done: u32) {
        let round = done / ROUND;
        if round != self.round {
            self.round = round;
            self.start_again();
        }
        let allowed = self.allowed(done % ROUND);
        self.change();
        let energy = self.evaluator.energy();
        if energy > self.energy + allowed {
            self.evaluator.undo();
            return;
        }
        self.evaluator.commit();
        self.energy = energy;
        if (self.evaluator.cost(), energy) < (self.best_cost, self.best_energy) {
            self.best_energy = energy;
            self.best_cost = self.evaluator.cost();
            self.best.copy_from_slice(self.evaluator.order());
        }
    }

    fn start_again(&mut self) {
        for rank in 0..self.best.len() {
            let at = self.evaluator.order().iter().position(|node| *node == self.best[rank]);
            self.evaluator.swap(rank, at.expect("both are orders of the same nodes"));
        }
        self.evaluator.commit();
        self.energy = self.evaluator.energy();
    }

    /// Returns the most energy that the next move may add (Metropolis et al., 1953).
    fn allowed(&mut self, gone: u32) -> u128 {
        if gone >= ROUND - QUIET {
            return 0;
        }
        let start = self.hottest >> self.round;
        let left = u128::from(ROUND - QUIET - gone);
        let temperature = start * left * left / u128::from(ROUND - QUIET).pow(2);
        (temperature * u128::from(exponential(self.random.next_number()))) >> 16
    }

    fn change(&mut self) {
        let nodes = self.evaluator.order().len();
        let (a, b) = (self.random.index(nodes), self.random.index(nodes));
        match self.random.below(8) {
            0 => {
                // Swaps two blocks of 2, 4, ... ranks.
                let exponent =
                    1 + self.random.below(u64::from(nodes.ilog2().saturating_sub(1)).max(1));
                let length = 1_usize << exponent;
                let blocks = nodes / length;
                if blocks >= 2 {
                    let (a, b) = (a % blocks, b % blocks);
                    self.evaluator.swap_blocks(a * length, b * length, length);
                }
            }
            1 => self.evaluator.reverse(a.min(b), a.max(b) + 1),
            _ => self.evaluator.swap(a, b),
        }
    }
}

/// Returns -ln(u) in units of 1/65536, for u uniform in (0, 1], by linear interpolation between
/// powers of two. All machines compute the same.
fn exponential(bits: u64) -> u32 {
    const LN_2: u64 = 45_426;
    let zeros = bits.leading_zeros();
    let mantissa = if zeros >= 63 { 0 } else { (bits << (zeros + 1)) >> 48 };
    let logarithm = (u64::from(zeros) + 1) * 65_536 - mantissa;
    ((logarithm * LN_2) >> 16) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_numbers_have_a_mean_of_one() {
        let mut random = Random::new(1);
        let sum: u64 = (0..100_000).map(|_| u64::from(exponential(random.next_number()))).sum();
        let mean = sum / 100_000;
        assert!((63_000..69_000).contains(&mean), "{mean}");
    }
}
