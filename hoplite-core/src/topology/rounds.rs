//! Rounds of a round-robin tournament. Each two nodes meet once, and each node is in at most one
//! pair of a round.
//!
//! Uses the circle method (Kirkman, 1847): n - 1 rounds for an even number of nodes. An odd number
//! takes n rounds, in which each node rests once.

/// Returns the number of rounds in which all nodes meet.
pub const fn count(nodes: u32) -> u32 {
    match nodes {
        0 | 1 => 0,
        nodes if nodes.is_multiple_of(2) => nodes - 1,
        nodes => nodes,
    }
}

/// Returns the pairs of a round.
pub fn pairs(nodes: u32, round: u32) -> impl Iterator<Item = (u32, u32)> {
    // With an even number of places, the last one is fixed. The others move by one place each
    // round. With an odd number of nodes, the last place is empty.
    let turning = count(nodes).max(1);
    let place = move |offset: u32| (round % turning + offset) % turning;
    let still = nodes.is_multiple_of(2).then(|| (place(0), turning));
    let across =
        (1..=(nodes.saturating_sub(1)) / 2).map(move |offset| (place(offset), place(turning - offset)));
    still.filter(|_| nodes > 0).into_iter().chain(across)
}
