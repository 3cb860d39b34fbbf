//! Attempts of collectives: the connection between coordinator and member, and the streams between members.
//!
//! The coordinator directs a member elsewhere as it does a hop: over a connection of its own, on which it says `Enlist` and later
//! `Commit` or `Stop`, and the member its reports. Members take from each other over pooled connections: a member asks with `Take`, and
//! the other one sends the blocks that its program gives, in order, as they become available. Both know which block is the last.

mod enlist;
mod exchange;
mod give;
mod member;
mod take;

pub(crate) use enlist::Decisions;
pub(crate) use exchange::Exchange;
pub(crate) use member::{Enlisted, MemberHost};
