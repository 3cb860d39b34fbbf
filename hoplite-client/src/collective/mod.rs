//! Reduce, and what is composed of puts, reduces and gets: gather, allgather, allreduce, all_to_all, barrier.
//!
//! * [`reduce`]: one call, which the store performs together with those of the other nodes.
//! * [`gather`]: many gets in flight at once. An allgather is a put and a gather.
//! * [`allreduce`]: a call that all participants make; rank 0's store has the others make the target with it.
//! * [`all_to_all`]: each participant puts one object with its parts for all, which the stores exchange. All go on together.
//! * [`barrier`]: a reduce of nothing, and a get of its target.
//! * [`parts`]: reduce_scatter and allgather as calls of that kind.
//!
//! There is no broadcast here: many gets of one object are one.

mod all_to_all;
mod allreduce;
mod barrier;
mod gather;
mod participant;
mod parts;
mod reduce;
