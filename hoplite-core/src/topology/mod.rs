//! The topology of the network: the cost of links, and groups of close nodes.
//!
//! * [`matrix`]: the exact cost of a message between each pair of nodes. [`blocks`]: a compact form
//!   for thousands of nodes.
//! * [`cluster`], [`place`]: groups of close nodes, from measurements and from labels. [`keys`]:
//!   checks that nodes use the same label keys.
//! * [`hdrm`]: a mapping of halving-doubling to a BiGraph without conflicts.
//! * [`rounds`], [`probe`]: the schedule of probes, the statistics of their samples, and the
//!   resulting matrix.
//! * [`measured`]: the result of a probe, as daemons use it.
//! * [`live`]: estimates from real transfers. [`reported`]: slow links, by the reports of nodes.
//!
//! # From a label or a probe to a decision
//!
//! 1. A node's place comes from the labels in its `Hello`, or from a probe. In a probe ([`probe`]),
//!    pairs of nodes exchange echoes and trains of bytes. The result is a matrix.
//! 2. A probe that is applied gives shards [`measured`] places: groups of nodes without labels,
//!    groups within labelled groups, and the capacity of uplinks. Places are soft state with a
//!    version. Each store keeps its own place, and sends it to a shard that missed the probe.
//! 3. A shard prefers senders in the receiver's group, and lets one receiver of a group fetch from
//!    elsewhere (`shard/locality.rs`).
//! 4. A reduce combines in each rack first, and the racks' results form a chain
//!    (`plan/reduce/tree.rs`).
//! 5. An allreduce orders its members by their groups, and may run stages of rings along them
//!    (`plan/collective/`).
//! 6. Stores watch real transfers ([`live`]), and report lasting slow links to shards. Shards then
//!    choose other senders (`shard/slow.rs`), and rings and reduces avoid these links.
//!
//! This module measures nothing. Matrices come from a prober or a file.
//!
//! Sources: Cloud Collectives (Luo et al.), EFLOPS (Dong et al., HPCA 2020), BlueConnect (Cho et
//! al., SysML 2019).

pub mod blocks;
pub mod error;
pub mod matrix;

pub mod cluster;
pub mod keys;

pub mod random;

pub mod hdrm;

pub mod live;
pub mod measured;
pub mod probe;
pub mod reported;
pub mod rounds;

pub use crate::vocabulary::place::{self, Place};
pub use error::TopologyError;
pub use matrix::{Link, Links, Matrix};
