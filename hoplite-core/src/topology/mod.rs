//! The topology of the network: what links cost, and which order of ranks makes collectives cheap on them.
//!
//! * [`matrix`]: the cost of a message between each two nodes; exact integers. [`blocks`]: how that of thousands is kept.
//! * [`cost`]: what collectives cost in a given order of ranks.
//! * [`cluster`], [`place`]: groups of close nodes, from measurements and from labels; [`keys`]: whether labels
//!   fit together; [`slow`]: pairs that do not fit in.
//! * [`solve`]: the search for a cheap order, with a lower bound; [`smt`]: the same as a question to an external solver.
//! * [`hdrm`]: ranks of halving-doubling on a BiGraph without conflicts.
//! * [`decompose`]: BlueConnect's allreduce by levels, and its times.
//! * [`rounds`], [`probe`]: who probes whom when, what its samples say, and the matrix of a probe.
//! * [`measured`]: what a probe tells daemons.
//! * [`live`]: estimates from real transfers; [`reported`]: which links are slow, by what nodes say.
//! * [`fabric`]: a simulator of switches and links.
//!
//! Nothing here measures: matrices come from a prober or a file.
//!
//! Sources: Cloud Collectives (Luo et al.), EFLOPS (Dong et al., HPCA 2020), BlueConnect (Cho et al., SysML 2019).

pub mod blocks;
pub mod error;
pub mod matrix;

pub mod cost;

pub mod cluster;
pub mod keys;
pub mod place;
pub mod slow;

pub mod random;
pub mod smt;
pub mod solve;

pub mod decompose;
pub mod hdrm;

pub mod live;
pub mod measured;
pub mod probe;
pub mod reported;
pub mod rounds;

pub mod fabric;

pub use cost::Model;
pub use error::TopologyError;
pub use matrix::{Link, Links, Matrix};
pub use place::Place;
