//! A simulator of fabrics: routes ([`network`], [`measured`]), fair rates ([`max_min`]), and the
//! times of collectives ([`collective`]).
//!
//! Times are floating-point estimates, which choose no order.

pub mod collective;
mod link;
pub mod max_min;
pub mod measured;
pub mod network;
