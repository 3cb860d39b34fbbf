//! A simulator of fabrics: which links flows take, what rate they get, and how long collectives take.
//!
//! * [`max_min`]: rates that are fair, and when flows end.
//! * [`network`]: BiGraph, fat-tree, torus, measured matrices, and the routes in them.
//! * [`collective`]: the flows of each step, the load of links, and the time.
//!
//! Times are floating point: they are estimates, and no order is chosen by them.

pub mod collective;
pub mod max_min;
pub mod network;
