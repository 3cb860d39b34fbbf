//! The cost of collectives on a network, and cheap orders of ranks. No daemon uses this crate.
//!
//! * [`cost`]: the cost of collectives for a given order of ranks.
//! * [`solve`]: the search for a cheap order, with a lower bound. [`smt`]: the same search as a
//!   question to an external solver, which [`solver`] runs.
//! * [`slow`]: pairs of nodes that are slower than their groups explain.
//! * [`decompose`]: BlueConnect's allreduce by levels, and its times.
//! * [`fabric`]: a simulator of switches and links.
//! * [`files`]: matrices and orders in files. [`svg`]: drawings.
//!
//! Matrices, groups of nodes and the mapping of halving-doubling to a BiGraph are in
//! [`hoplite_core::topology`], because daemons use them, too.
//!
//! Sources: Cloud Collectives (Luo et al.), EFLOPS (Dong et al., HPCA 2020), BlueConnect (Cho et
//! al., SysML 2019).
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
