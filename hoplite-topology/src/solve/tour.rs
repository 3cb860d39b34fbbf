//! Searches rings: 2-opt and Or-opt moves among near neighbours, then kicks. A kick exchanges two
//! short adjacent segments; it is undone if the ring is longer after further moves.
//!
//! Sources: Bentley, "Fast algorithms for geometric traveling salesman problems" (1992), for
//! neighbour lists and the queue; Martin, Otto and Felten (1991) for kicks; Helsgaun (2000) for
//! costs with 1-tree multipliers.

use std::collections::VecDeque;

use hoplite_core::topology::matrix::Links;
use hoplite_core::topology::random::Random;

/// Number of near nodes that moves try; 8 to 16 are usual (Johnson and McGeoch, 1997).
const NEIGHBOURS: usize = 10;
const MAX_SEGMENT: usize = 3;
/// Most nodes of an exchanged segment: short segments keep improvements local.
const MAX_KICK: usize = 50;

/// A move that removes the edges (a, b) and (c, d), and adds (a, c) and (b, d).
type TwoEdges = [u32; 4];

#[derive(Debug)]
pub(super) struct Tour<'a> {
    links: Links<'a>,
    multipliers: Vec<i64>,
    order: Vec<u32>,
    positions: Vec<u32>,
    neighbours: Vec<u32>,
    width: usize,
    queue: VecDeque<u32>,
    is_queued: Vec<bool>,
    cost: u128,
    log: Vec<TwoEdges>,
    random: Random,
}

impl<'a> Tour<'a> {
    pub(super) fn new(links: Links<'a>, order: &[u32], multipliers: Vec<i64>, seed: u64) -> Self {
        let nodes = order.len();
        let mut positions = vec![0; nodes];
        for (position, &node) in order.iter().enumerate() {
            positions[node as usize] = position as u32;
        }
        let hop = |index: usize| u128::from(links.whole(order[index], order[(index + 1) % nodes]));
        let width = NEIGHBOURS.min(nodes - 1);
        let mut tour = Self {
            links,
            neighbours: near(links, &multipliers, width),
            multipliers,
            order: order.to_vec(),
            positions,
            width,
            queue: order.iter().copied().collect(),
            is_queued: vec![true; nodes],
            cost: (0..nodes).map(hop).sum(),
            log: Vec::new(),
            random: Random::new(seed),
        };
        tour.improve();
        tour
    }

    pub(super) fn order(&self) -> &[u32] {
        &self.order
    }

    pub(super) const fn cost(&self) -> u128 {
        self.cost
    }

    /// Exchanges two random adjacent segments, then improves. Undoes all if the ring got longer.
    pub(super) fn kick(&mut self) {
        let nodes = self.order.len();
        let limit = MAX_KICK.min((nodes - 2) / 2);
        let (first, second) = (1 + self.random.index(limit), 1 + self.random.index(limit));
        let start = self.random.index(nodes);
        let at = |offset: usize| self.order[(start + offset) % nodes];
        let (a, b, c) = (at(0), at(1), at(first));
        let (d, e, f) = (at(first + 1), at(first + second), at(first + second + 1));
        self.log.clear();
        let before = self.cost;
        self.cost = self.cost + self.long(a, d) + self.long(e, b) + self.long(c, f)
            - self.long(a, b)
            - self.long(c, d)
            - self.long(e, f);
        self.insert([a, b, c, d], [e, f]);
        for node in [a, b, c, d, e, f] {
            self.enqueue(node);
        }
        self.improve();
        if self.cost > before {
            while let Some([a, b, c, d]) = self.log.pop() {
                self.exchange(a, c, b, d);
            }
            self.cost = before;
        }
    }

    fn long(&self, a: u32, b: u32) -> u128 {
        self.links.whole(a, b).into()
    }

    /// Returns an edge's cost plus its nodes' multipliers, which change all rings equally.
    fn reduced(&self, a: u32, b: u32) -> i64 {
        self.links.whole(a, b) as i64 + self.multipliers[a as usize] + self.multipliers[b as usize]
    }

    fn neighbour(&self, node: u32, index: usize) -> u32 {
        self.neighbours[node as usize * self.width + index]
    }

    fn beside(&self, node: u32, ahead: bool) -> u32 {
        let position = self.positions[node as usize] as usize;
        let last = self.order.len() - 1;
        if ahead {
            self.order[if position == last { 0 } else { position + 1 }]
        } else {
            self.order[if position == 0 { last } else { position - 1 }]
        }
    }

    fn enqueue(&mut self, node: u32) {
        if !std::mem::replace(&mut self.is_queued[node as usize], true) {
            self.queue.push_back(node);
        }
    }

    fn improve(&mut self) {
        while let Some(node) = self.queue.pop_front() {
            self.is_queued[node as usize] = false;
            while self.improve_two(node) || self.improve_segment(node) {}
        }
    }

    fn improve_two(&mut self, a: u32) -> bool {
        for ahead in [true, false] {
            let b = self.beside(a, ahead);
            let removed = self.reduced(a, b);
            for index in 0..self.width {
                let c = self.neighbour(a, index);
                let gain = removed - self.reduced(a, c);
                if gain <= 0 {
                    break;
                }
                let d = self.beside(c, ahead);
                let gain = gain + self.reduced(c, d) - self.reduced(b, d);
                if gain > 0 && c != b && d != a {
                    self.gained(gain);
                    self.exchange_logged([a, b, c, d]);
                    for node in [a, b, c, d] {
                        self.enqueue(node);
                    }
                    return true;
                }
            }
        }
        false
    }

    fn improve_segment(&mut self, a: u32) -> bool {
        for ahead in [true, false] {
            let before = self.beside(a, !ahead);
            let mut end = a;
            let mut segment = [a; MAX_SEGMENT];
            for length in 0..MAX_SEGMENT.min(self.order.len() - 3) {
                if length > 0 {
                    end = self.beside(end, ahead);
                }
                segment[length] = end;
                let after = self.beside(end, ahead);
                let removed = self.reduced(before, a);
                let closed = self.reduced(end, after) - self.reduced(before, after);
                for index in 0..self.width {
                    let c = self.neighbour(a, index);
                    let gain = removed - self.reduced(a, c);
                    // A shortening move has an end at which the added edge is cheaper than the
                    // removed one (Lin, Kernighan, 1973).
                    if gain <= 0 {
                        break;
                    }
                    if segment[..=length].contains(&c) {
                        continue;
                    }
                    for side in [true, false] {
                        let f = self.beside(c, side);
                        if segment[..=length].contains(&f) {
                            continue;
                        }
                        let gain = gain + closed + self.reduced(c, f) - self.reduced(end, f);
                        if gain > 0 {
                            self.gained(gain);
                            if side == ahead {
                                self.insert([before, a, end, after], [c, f]);
                            } else {
                                self.insert_reversed([before, a, end, after], [f, c]);
                            }
                            for node in [before, a, end, after, c, f] {
                                self.enqueue(node);
                            }
                            return true;
                        }
                    }
                }
            }
        }
        false
    }

    fn gained(&mut self, gain: i64) {
        self.cost -= u128::from(gain.unsigned_abs());
    }

    /// Moves a segment from between `before` and `after` to between c and f, `first` next to c. In
    /// the direction from `first` to `last`, f follows c.
    fn insert(&mut self, [before, first, last, after]: [u32; 4], [c, f]: [u32; 2]) {
        self.insert_reversed([before, first, last, after], [c, f]);
        self.exchange_logged([c, last, first, f]);
    }

    /// Like [`insert`](Self::insert), with `last` next to c and `first` next to f.
    fn insert_reversed(&mut self, [before, first, last, after]: [u32; 4], [c, f]: [u32; 2]) {
        self.exchange_logged([before, first, c, f]);
        self.exchange_logged([before, c, after, last]);
    }

    fn exchange_logged(&mut self, [a, b, c, d]: TwoEdges) {
        self.log.push([a, b, c, d]);
        self.exchange(a, b, c, d);
    }

    /// Makes the move of [`TwoEdges`]. In one direction of the ring, b follows a and d follows c.
    fn exchange(&mut self, a: u32, b: u32, c: u32, d: u32) {
        if self.beside(a, true) == b && self.beside(c, true) == d {
            self.reverse(b, c);
        } else {
            self.reverse(a, d);
        }
    }

    /// Reverses a path, or the rest of the ring if shorter.
    fn reverse(&mut self, from: u32, to: u32) {
        let nodes = self.order.len();
        let mut start = self.positions[from as usize] as usize;
        let mut end = self.positions[to as usize] as usize;
        let mut length = (end + nodes - start) % nodes + 1;
        if 2 * length > nodes {
            (start, end) = ((end + 1) % nodes, (start + nodes - 1) % nodes);
            length = nodes - length;
        }
        for _ in 0..length / 2 {
            self.order.swap(start, end);
            self.positions[self.order[start] as usize] = start as u32;
            self.positions[self.order[end] as usize] = end as u32;
            start = if start + 1 == nodes { 0 } else { start + 1 };
            end = if end == 0 { nodes - 1 } else { end - 1 };
        }
    }
}

fn near(links: Links<'_>, multipliers: &[i64], width: usize) -> Vec<u32> {
    let nodes = links.len() as u32;
    let mut neighbours = Vec::with_capacity(links.len() * width);
    for node in 0..nodes {
        let cost = |other: u32| links.whole(node, other) as i64 + multipliers[other as usize];
        let mut others: Vec<(i64, u32)> =
            (0..nodes).filter(|&other| other != node).map(|other| (cost(other), other)).collect();
        if width < others.len() {
            others.select_nth_unstable(width);
            others.truncate(width);
        }
        others.sort_unstable();
        neighbours.extend(others.into_iter().map(|(_, other)| other));
    }
    neighbours
}
