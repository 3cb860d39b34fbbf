//! Reduce, and what is composed of reduces and gets: gather, allgather, allreduce.
//!
//! * [`reduce`]: one call, which the store performs together with those of the other nodes.
//! * [`gather`]: many gets in flight at once. An allgather is a put and a gather.
//! * [`allreduce`]: a call that all participants make; rank 0's store has the others make the target with it.
//!
//! There is no broadcast here: many gets of one object are one.

mod allreduce;
mod gather;
mod reduce;
