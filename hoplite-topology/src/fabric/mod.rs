//! A simulator of networks. Its times are floating-point estimates, which choose no order of ranks.

pub mod collective;
mod link;
pub mod max_min;
pub mod measured;
pub mod network;
