//! Rounds of a round-robin tournament: each two nodes meet once, and no node is in two pairs of a round.
//!
//! By the circle method (Kirkman, 1847): n - 1 rounds for an even number of nodes, n for an odd one, in which each node rests once.

/// Returns the number of rounds that it takes until all nodes have met.
pub const fn count(nodes: u32) -> u32 {
    match nodes {
        0 | 1 => 0,
        nodes if nodes.is_multiple_of(2) => nodes - 1,
        nodes => nodes,
    }
}

/// The pairs of a round.
pub fn pairs(nodes: u32, round: u32) -> impl Iterator<Item = (u32, u32)> {
    // The last of an even number of seats stands still; the others turn by one place each round. For an odd number it is empty.
    let turning = count(nodes).max(1);
    let seat = move |offset: u32| (round % turning + offset) % turning;
    let still = nodes.is_multiple_of(2).then(|| (seat(0), turning));
    let across =
        (1..=(nodes.saturating_sub(1)) / 2).map(move |offset| (seat(offset), seat(turning - offset)));
    still.filter(|_| nodes > 0).into_iter().chain(across)
}
