//! A simulator of fabrics. Times are floating-point estimates, which choose no order.

pub mod collective;
mod link;
pub mod max_min;
pub mod measured;
pub mod network;
