//! The programs of the members of a collective.
//!
//! The members of an *attempt* are ordered by rank. The [`Program`] of a member has steps: each
//! gives a range of the data to another member, or takes a range from one and combines it with the
//! local bytes, or replaces those. Only the [`Schedule`] travels. Each member derives its program
//! from it, and the executor of programs knows no schedules.
//!
//! Each pair of members uses one stream in each direction. Steps of a stream are done in order. A
//! step waits for earlier steps of other streams that touch the same bytes, byte by byte. So a ring
//! needs no turns: a member gives only bytes that it has.
//!
//! # Invariants
//! * At the end, each member has each byte that the collective promises, and each member
//!   contributed to the byte once.
//! * A step never overwrites bytes that an earlier step still gives. No check is needed: a final
//!   value cannot exist before all contributions have arrived. So a broken stream can resume where
//!   its receiver is.
//! * The steps of all members can be done in some order, whatever the streams' speeds.

mod cost;
mod order;
mod program;
mod schedule;

pub use crate::vocabulary::agreement::Collective;
pub use cost::{Arrangement, SchedulePreference, arrange, arrange_parts, estimate, frame_bytes};
pub use order::SlowLinks;
pub use program::{Program, Step, Taking};
pub use schedule::{MAX_MEMBERS, Schedule, program_of_pairs, program_of_parts, rank_of_part};
