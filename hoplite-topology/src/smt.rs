//! Questions to an external SMT solver such as z3, which may prove an optimum.
//!
//! Each pair of a rank and a node is a Boolean. Queries work for up to about 12 nodes.
//!
//! Source: Cloud Collectives, section IV-C.

use std::fmt::Write;

use crate::cost::{Model, pair_of_trees, stages};
use crate::error::Error;
use hoplite_core::topology::Links;

/// Most nodes: the query grows with their fourth power.
pub const MAX_NODES: usize = 16;

/// A solver's answer about cheaper orders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A cheaper order.
    Order(Vec<u32>),
    /// No order is cheaper.
    NoneCheaper,
    /// The solver gave up.
    Unknown,
}

/// Writes a query in SMT-LIB 2: is there an order that costs less than `below_ps`?
///
/// # Errors
/// Fails for too many nodes, or an unfit model. Chains and hierarchies are not supported.
pub fn query(links: Links<'_>, model: &Model, below_ps: u128) -> Result<String, Error> {
    let nodes = links.len();
    if nodes > MAX_NODES {
        return Err(Error::TooManyForSolver { count: nodes });
    }
    let mut text = String::from("(set-logic QF_LIA)\n(set-option :produce-models true)\n");
    permutation(&mut text, nodes);
    let mut terms = Vec::new();
    match model {
        Model::Ring => {
            for rank in 0..nodes {
                let hop = declare(&mut text, format!("c_{rank}"));
                at_least(&mut text, &hop, links, [rank, (rank + 1) % nodes], 1, "0");
                terms.push(hop);
            }
        }
        Model::HalvingDoubling | Model::BCube(_) => {
            for (index, stage) in stages(model, nodes)?.iter().enumerate() {
                let slowest = declare(&mut text, format!("c_{index}"));
                for (a, b) in (0..nodes).flat_map(|a| (0..a).map(move |b| (a, b))) {
                    if stage.are_peers(a, b) {
                        at_least(&mut text, &slowest, links, [a, b], stage.parts, "0");
                    }
                }
                terms.push(slowest);
            }
        }
        Model::DoubleBinaryTree | Model::NcclTree => {
            let worse = declare(&mut text, "cost".to_owned());
            for (tree, parents) in pair_of_trees(model, nodes).iter().enumerate() {
                // For each rank, the time from its receipt until all ranks below it have received.
                let below: Vec<String> =
                    (0..nodes).map(|rank| declare(&mut text, format!("t_{tree}_{rank}"))).collect();
                for (rank, parent) in parents.iter().enumerate() {
                    match parent {
                        Some(parent) => {
                            let above = *parent as usize;
                            at_least(
                                &mut text,
                                &below[above],
                                links,
                                [above, rank],
                                2,
                                &below[rank],
                            );
                        }
                        None => _ = writeln!(text, "(assert (>= {worse} {}))", below[rank]),
                    }
                }
            }
            terms.push(worse);
        }
        Model::Chain | Model::Hierarchical(_) => {
            return Err(Error::UnknownModel { text: model.to_string() });
        }
    }
    let _ = writeln!(
        text,
        "(assert (< (+ 0 {}) {below_ps}))\n(check-sat)\n(get-model)",
        terms.join(" ")
    );
    Ok(text)
}

fn declare(text: &mut String, name: String) -> String {
    let _ = writeln!(text, "(declare-const {name} Int)\n(assert (>= {name} 0))");
    name
}

/// Asserts that each rank r is at exactly one node i, with Booleans x_r_i.
fn permutation(text: &mut String, nodes: usize) {
    let name = |rank: usize, node: usize| format!("x_{rank}_{node}");
    for (rank, node) in (0..nodes).flat_map(|rank| (0..nodes).map(move |node| (rank, node))) {
        let _ = writeln!(text, "(declare-const {} Bool)", name(rank, node));
    }
    for index in 0..nodes {
        let of_rank: Vec<String> = (0..nodes).map(|node| name(index, node)).collect();
        let of_node: Vec<String> = (0..nodes).map(|rank| name(rank, index)).collect();
        for names in [of_rank, of_node] {
            let _ = writeln!(text, "(assert (or {}))", names.join(" "));
            for (a, b) in (0..nodes).flat_map(|a| (0..a).map(move |b| (a, b))) {
                let _ = writeln!(text, "(assert (or (not {}) (not {})))", names[a], names[b]);
            }
        }
    }
}

/// Asserts that variable `name` is at least `more` plus the cost of a message from rank `a` to `b`
/// with 1 / `parts` of the bytes.
fn at_least(
    text: &mut String,
    name: &str,
    links: Links<'_>,
    [a, b]: [usize; 2],
    parts: u64,
    more: &str,
) {
    for (i, j) in (0..links.len()).flat_map(|i| (0..links.len()).map(move |j| (i, j))) {
        if i != j {
            let cost = links.part(i as u32, j as u32, parts);
            let _ = writeln!(
                text,
                "(assert (=> (and x_{a}_{i} x_{b}_{j}) (>= {name} (+ {cost} {more}))))"
            );
        }
    }
}

/// Reads an SMT solver's answer to [`query`].
///
/// # Errors
/// Fails if the answer is `sat`, but gives a rank no node.
pub fn answer(text: &str, nodes: usize) -> Result<Answer, Error> {
    let mut words = text
        .split(|c: char| c.is_whitespace() || c == '(' || c == ')')
        .filter(|word| !word.is_empty());
    match words.next() {
        Some("sat") => {}
        Some("unsat") => return Ok(Answer::NoneCheaper),
        _ => return Ok(Answer::Unknown),
    }
    let mut order = vec![None; nodes];
    let mut last = None;
    for word in words {
        if let Some((rank, node)) = word.strip_prefix("x_").and_then(|name| name.split_once('_')) {
            last = rank.parse::<usize>().ok().zip(node.parse::<u32>().ok());
        } else if let ("true", Some((rank, node))) = (word, last)
            && let Some(entry) = order.get_mut(rank)
        {
            *entry = Some(node);
        }
    }
    let entries = order.into_iter().enumerate();
    let order: Result<_, _> =
        entries.map(|(rank, node)| node.ok_or(Error::NoModel { rank })).collect();
    Ok(Answer::Order(order?))
}
