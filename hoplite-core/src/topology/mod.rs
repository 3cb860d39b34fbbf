//! The topology of the network: what links cost, and which nodes are close to each other.
//!
//! * [`matrix`]: the cost of a message between each two nodes; exact integers. [`blocks`]: how that of thousands is kept.
//! * [`cluster`], [`place`]: groups of close nodes, from measurements and from labels; [`keys`]: whether labels fit together.
//! * [`hdrm`]: ranks of halving-doubling on a BiGraph without conflicts.
//! * [`rounds`], [`probe`]: who probes whom when, what its samples say, and the matrix of a probe.
//! * [`measured`]: what a probe tells daemons.
//! * [`live`]: estimates from real transfers; [`reported`]: which links are slow, by what nodes say.
//!
//! # From a label or a probe to a decision
//!
//! 1. A node's place comes from the labels in its `Hello`, or from a probe. In a probe ([`probe`]), pairs of nodes exchange echoes and
//!    trains of bytes; the result is a matrix.
//! 2. A probe that is applied gives shards [`measured`] places: groups of nodes without labels, groups within labelled ones, and what
//!    an uplink carries. They are soft state with a version. Each store keeps its own place and tells it to a shard that missed the
//!    probe.
//! 3. A shard prefers senders in the receiver's group, and lets one receiver of a group fetch from elsewhere (`shard/vicinity.rs`).
//! 4. A reduce combines in each rack first, and the racks' results make a chain (`plan/reduce/tree.rs`).
//! 5. An allreduce puts its members in the order of their groups, and may run stages of rings along them (`plan/collective/`).
//! 6. Stores watch real transfers ([`live`]) and tell shards of links that stay slow. Shards then choose other senders
//!    (`shard/slow.rs`); rings and reduces go around these links.
//!
//! Nothing here measures: matrices come from a prober or a file.
//!
//! Sources: Cloud Collectives (Luo et al.), EFLOPS (Dong et al., HPCA 2020), BlueConnect (Cho et al., SysML 2019).

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
