//! Reduce, and the calls composed of puts, reduces and gets: gather, allgather, allreduce,
//! all_to_all, barrier.
//!
//! * [`reduce`]: one call, which the stores perform together.
//! * [`gather`]: many concurrent gets. An allgather is a put and a gather.
//! * [`allreduce`]: a call that all participants make; rank 0's store coordinates the stores.
//! * [`all_to_all`]: each participant puts one object with its parts for all, and the stores
//!   exchange the parts.
//! * [`barrier`]: a reduce of empty objects, and a get of its target.
//! * [`parts`]: reduce_scatter, and allgather of equal objects.
//!
//! A broadcast needs no function: it is many gets of one object.

mod all_to_all;
mod allreduce;
mod barrier;
mod gather;
mod participant;
mod parts;
mod reduce;
