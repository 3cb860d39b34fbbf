//! The types that all other modules use: names, errors, limits, places, requests, messages.
//!
//! This module has no state machine, and imports no other module of this crate.

pub mod agreement;
pub mod block;
pub mod call;
pub mod checksum;
pub mod directory;
pub mod dtype;
pub mod error;
pub mod fault;
pub mod id;
pub mod lifetime;
pub mod limits;
pub mod link;
pub mod load;
pub mod local;
pub mod metadata;
pub mod missing;
pub(crate) mod number;
pub mod op;
pub mod place;
pub mod placement;
pub mod problem;
pub mod quota;
pub mod reduce;
pub mod tally;
pub mod text;
pub mod time;
pub mod trace;
pub mod version;
