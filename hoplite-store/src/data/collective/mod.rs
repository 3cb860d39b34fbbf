//! Attempts of collectives, in which several stores (members) make an object together.
//!
//! The coordinator directs each remote member over a separate connection: it sends `Enlist` and
//! later `Commit` or `Stop`, and the member reports. Members exchange blocks over pooled
//! connections: the receiver sends `Take`, and the sender sends the blocks of its program (its
//! sequence of sends and receives), in order. Both know the last block.

mod enlist;
mod exchange;
mod member;
mod receive;
mod send;

pub(crate) use enlist::Decisions;
pub(crate) use exchange::Exchange;
pub(crate) use member::{Enlisted, MemberHost};
