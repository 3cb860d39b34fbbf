//! The topology of the network: the cost of links, and groups of close nodes.
//!
//! The path from a label or a probe to a decision:
//!
//! 1. A node's [`place`], i.e. its groups such as zone and rack, comes from labels in its `Hello`,
//!    or from a [`probe`], which makes a [`matrix`].
//! 2. An applied probe gives shards [`measured`] places. Each store keeps its own place, and sends
//!    it to shards that missed the probe.
//! 3. A shard prefers senders in the receiver's group (`shard/locality.rs`).
//! 4. A reduce combines in each rack first (`plan/reduce/tree.rs`).
//! 5. An allreduce orders its members by group (`plan/collective/`).
//! 6. Stores report lasting slow links ([`live`]). Shards (`shard/slow.rs`), rings and reduces
//!    avoid them.
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
