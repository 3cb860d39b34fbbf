//! Programs of collectives, with randomly interleaved streams.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

mod interpreter;
mod orders;
mod programs;
