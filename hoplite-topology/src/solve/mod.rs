//! Search for a cheap order of ranks.
//!
//! A [`Search`] has no clock: its caller requests moves, and passes the elapsed share of the time.
//! The same seed and calls find the same order.
//!
//! Source: Cloud Collectives, section IV-C. Rings are travelling salesman problems, for which
//! better methods exist.

mod anneal;
mod bound;
mod exact;
mod tour;

use anneal::Anneal;
pub use anneal::WHOLE;
use bound::{OneTree, lower_bound};
use tour::Tour;

use crate::cost::{Evaluator, Model};
use crate::error::Error;
use hoplite_core::topology::Links;
use hoplite_core::topology::cluster::Dendrogram;
use hoplite_core::topology::random::Random;

/// Share of a ring's search that improves the lower bound, whose multipliers (a cost per node) help
/// to choose moves.
const BOUND_SHARE: u32 = WHOLE / 4;

/// A search's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// A better order may exist.
    Searching,
    /// The best order is optimal.
    Proved,
}

/// A search for the order of ranks in which a collective costs least.
#[derive(Debug)]
pub struct Search<'a> {
    links: Links<'a>,
    best: Vec<u32>,
    best_cost: u128,
    bound: u128,
    method: Method<'a>,
    random: Random,
}

#[derive(Debug)]
enum Method<'a> {
    Done,
    Bound(Box<OneTree<'a>>),
    Tour(Box<Tour<'a>>),
    Anneal(Box<Anneal<'a>>),
}

impl<'a> Search<'a> {
    /// Prepares a search, which ends at once in small cases: see `exact::MAX_RING`,
    /// `exact::MAX_CHAIN` and `exact::MAX_NODES_OF_OTHER_MODELS`.
    ///
    /// # Errors
    /// Fails if the model does not fit the number of nodes.
    pub fn new(links: Links<'a>, model: &Model, seed: u64) -> Result<Self, Error> {
        let identity: Vec<u32> = (0..links.len() as u32).collect();
        let start = Evaluator::new(links, model, &identity)?;
        let (best, best_cost) = (identity, start.cost());
        let random = Random::new(seed);
        let mut search = Self { links, best, best_cost, bound: 0, method: Method::Done, random };
        if let Some(order) = exact::optimum(links, model, start) {
            search.best_cost = Evaluator::new(links, model, &order)?.cost();
            search.best = order;
            search.bound = search.best_cost;
            return Ok(search);
        }
        let dendrogram = Dendrogram::new(links);
        search.bound = lower_bound(links, model, &dendrogram);
        let by_ends = dendrogram.leaves_by_ends(links);
        for order in [by_ends, dendrogram.leaves_by_size()] {
            let cost = Evaluator::new(links, model, &order)?.cost();
            search.offer(&order, cost);
        }
        if search.status() == Status::Searching {
            search.method = match model {
                Model::Ring => Method::Bound(Box::new(OneTree::new(links, search.best_cost))),
                _ => {
                    let evaluator = Evaluator::new(links, model, &search.best)?;
                    Method::Anneal(Box::new(Anneal::new(evaluator, search.random.next_number())))
                }
            };
        }
        Ok(search)
    }

    /// Makes about `moves` moves. `done` is the elapsed share of time, in units of 1 / [`WHOLE`].
    pub fn advance(&mut self, moves: u32, done: u32) -> Status {
        match &mut self.method {
            Method::Done => {}
            Method::Bound(one_tree) => {
                let is_over = !one_tree.step() || done >= BOUND_SHARE;
                self.bound = self.bound.max(one_tree.bound());
                if is_over {
                    let seed = self.random.next_number();
                    let tour = Tour::new(self.links, &self.best, one_tree.multipliers(), seed);
                    self.method = Method::Tour(Box::new(tour));
                }
            }
            Method::Tour(tour) => {
                for _ in 0..moves {
                    tour.kick();
                }
                if tour.cost() < self.best_cost {
                    self.best_cost = tour.cost();
                    self.best = tour.order().to_vec();
                }
            }
            Method::Anneal(anneal) => {
                for _ in 0..moves {
                    anneal.step(done);
                }
                if anneal.best_cost() < self.best_cost {
                    self.best_cost = anneal.best_cost();
                    self.best = anneal.best().to_vec();
                }
            }
        }
        if self.status() == Status::Proved {
            self.method = Method::Done;
        }
        self.status()
    }

    /// Best order.
    pub fn best(&self) -> &[u32] {
        &self.best
    }

    /// Cost of the best order in picoseconds.
    pub const fn best_cost(&self) -> u128 {
        self.best_cost
    }

    /// Lower bound of any order's cost in picoseconds.
    pub const fn lower_bound(&self) -> u128 {
        self.bound
    }

    /// [`Status::Proved`] if the best order is optimal.
    pub const fn status(&self) -> Status {
        if self.best_cost == self.bound { Status::Proved } else { Status::Searching }
    }

    fn offer(&mut self, order: &[u32], cost: u128) {
        if cost < self.best_cost {
            self.best_cost = cost;
            self.best = order.to_vec();
        }
    }
}
