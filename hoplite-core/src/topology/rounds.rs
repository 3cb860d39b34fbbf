//! Rounds of a round-robin tournament: each two nodes meet once, each node at most once per round.
//!
//! The circle method (Kirkman, 1847) takes n - 1 rounds for an even number of nodes, else n.

/// Returns the number of rounds until each two nodes have been a pair.
pub const fn count(nodes: u32) -> u32 {
    match nodes {
        0 | 1 => 0,
        nodes if nodes.is_multiple_of(2) => nodes - 1,
        nodes => nodes,
    }
}

/// Returns the pairs of a round.
pub fn pairs(nodes: u32, round: u32) -> impl Iterator<Item = (u32, u32)> {
    // The last node of an even number stays, and the others move by one position each round. With
    // an odd number, the last position is empty.
    let turning = count(nodes).max(1);
    let place = move |offset: u32| (round % turning + offset) % turning;
    let still = nodes.is_multiple_of(2).then(|| (place(0), turning));
    let across = (1..=(nodes.saturating_sub(1)) / 2)
        .map(move |offset| (place(offset), place(turning - offset)));
    still.filter(|_| nodes > 0).into_iter().chain(across)
}
