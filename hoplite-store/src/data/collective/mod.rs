//! Sessions of collectives: the connection between coordinator and member, and the streams between members.
//!
//! The coordinator directs a member elsewhere as it does a hop: over a connection of its own, on which it says `Enlist` and later
//! `Commit` or `Stop`, and the member how far it is. Members take from each other over pooled connections: one asks with `Take`, and
//! what the other one's program gives to it comes as blocks, in order, as it becomes available. Both know which block is the last.

mod enlist;
mod exchange;
mod give;
mod member;
mod take;

pub(crate) use enlist::Decisions;
pub(crate) use exchange::Exchange;
pub(crate) use member::{Enlisted, MemberHost};
