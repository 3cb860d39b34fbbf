//! Cost of collectives, and cheap orders of ranks. No daemon uses this crate.
//!
//! * [`cost`]: the cost for a given order.
//! * [`solve`]: the search for a cheap order. [`smt`], [`solver`]: the same with an external
//!   solver.
//! * [`slow`]: slow pairs of nodes.
//! * [`decompose`]: BlueConnect's allreduce by levels.
//! * [`fabric`]: a simulator of switches and links.
//! * [`files`], [`svg`]: input and drawings.
//!
//! [`hoplite_core::topology`] has the parts that daemons use, and names the papers.
#![forbid(unsafe_code)]

pub mod cost;
mod error;

pub mod slow;
pub mod smt;
pub mod solve;

pub mod decompose;
pub mod fabric;

pub mod files;
pub mod solver;
pub mod svg;

pub use cost::Model;
pub use error::Error;
