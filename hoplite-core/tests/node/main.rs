//! The store's object table, with scripted clients, shards and senders. A [checker](checker) tests
//! the invariants of `hoplite_core::node` in every run.

mod batches;
mod calls;
mod cases;
mod causes;
mod checker;
mod conflicts;
mod drain;
mod gets;
mod harness;
mod hops;
mod how_made;
mod ledger;
mod lifetimes;
mod members;
mod parts;
mod properties;
mod puts;
mod quotas;
mod recovery;
mod reduce_failures;
mod reduces;
mod reducing;
mod rejections;
mod replicas;
mod returning;
mod shards;
mod space;
mod spill;
mod spill_reads;
mod versions;
