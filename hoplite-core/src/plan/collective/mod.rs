//! The programs of the members of a collective: the ranges that each gives to and takes from each other one.
//!
//! A collective that runs in an *attempt* has members, in the order of their ranks, and a [`Program`] for each of
//! them: steps that give a range of the data to one member, or take one from another and combine it with what is there, or
//! replace that. Each member makes its own from the [`Schedule`], so that only the schedule travels. Whoever runs programs
//! need not know which schedule they are of.
//!
//! A member gives to each other one over one stream, and takes over another. Within a stream, steps are done in order; across
//! streams, a step waits for those before it that touch the same bytes, byte by byte. So a ring needs no turns: it clocks
//! itself, since a member can give no more than what it had and what it has taken.
//!
//! # Invariants
//! * At the end, each member has each byte that the collective promises it, to which each member contributed once.
//! * A step never overwrites bytes that an earlier one gives before their receiver has verified them. Nobody needs to check
//!   that: a final value cannot exist before all who contribute to it have been heard. So a stream that broke can go on from
//!   where its receiver is.
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
