//! A simulator of fabrics: which links flows take, what rate they get, and how long collectives take.
//!
//! * [`max_min`]: rates that are fair, and when flows end.
//! * [`network`]: BiGraph, fat-tree, torus, and the routes in them; [`measured`]: matrices, and uplinks that groups share.
//! * [`collective`]: the flows of each step, the load of links, and the time.
//!
//! Times are floating point: they are estimates, and no order is chosen by them.

pub mod collective;
mod link;
pub mod max_min;
pub mod measured;
pub mod network;
