//! Reduce, and what is composed of reduces and gets: gather, allgather, allreduce.
//!
//! * [`reduce`]: one call, which the store performs together with those of the other nodes.
//! * [`gather`]: many gets in flight at once. An allgather is a put and a gather.
//! * [`allreduce`]: a reduce and a get of its target; in segments, if the object is large.
//!
//! There is no broadcast here: many gets of one object are one.

mod allreduce;
mod gather;
mod reduce;

pub use allreduce::allreduce_ids;
