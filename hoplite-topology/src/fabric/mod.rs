//! A simulator of fabrics: the routes of flows, their rates, and the times of collectives.
//!
//! * [`max_min`]: fair rates, and the ends of flows.
//! * [`network`]: BiGraph, fat-tree, torus, and their routes. [`measured`]: matrices, and uplinks
//!   that groups share.
//! * [`collective`]: the flows of each step, the load of links, and the time.
//!
//! Times are floating point, because they are estimates that choose no order.

pub mod collective;
mod link;
pub mod max_min;
pub mod measured;
pub mod network;
