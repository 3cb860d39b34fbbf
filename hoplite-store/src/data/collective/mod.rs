//! Attempts of collectives: the connection between coordinator and member, and the streams between
//! members.
//!
//! The coordinator directs a remote member over a separate connection, as in a hop: it sends
//! `Enlist` and later `Commit` or `Stop`, and the member sends its reports. Members take from each
//! other over pooled connections: the taker sends `Take`, and the giver sends the blocks of its
//! program, in order. Both know the last block.

mod enlist;
mod exchange;
mod give;
mod member;
mod take;

pub(crate) use enlist::Decisions;
pub(crate) use exchange::Exchange;
pub(crate) use member::{Enlisted, MemberHost};
