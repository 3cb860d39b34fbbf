//! Programs of collectives, run by an interpreter that interleaves the streams at random.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

mod interpreter;
mod orders;
mod programs;
