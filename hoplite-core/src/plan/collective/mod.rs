//! The programs that the members (stores) of a collective perform.
//!
//! A member's [`Program`] has steps: each step sends a range of the data to another member, or
//! receives a range and combines it with the local bytes or replaces them. Only the [`Schedule`]
//! travels; each member derives its program from it.
//!
//! Each pair of members has one stream in each direction, with steps in order. A step waits, byte
//! by byte, for earlier steps of other streams on the same bytes.
//!
//! # Invariants
//!
//! * At the end, each member has all bytes that the operation promises, with one contribution of
//!   each member.
//! * A step never overwrites bytes that an earlier step still sends, because a final value cannot
//!   exist before all contributions have arrived. So a broken stream can resume.
//! * Steps never deadlock, whatever the streams' speeds.

mod cost;
mod order;
mod program;
mod schedule;

pub use crate::vocabulary::agreement::Collective;
pub use cost::{Arrangement, SchedulePreference, arrange, arrange_parts, estimate, frame_bytes};
pub use order::SlowLinks;
pub use program::{Program, ReceiveMode, Step};
pub use schedule::{MAX_MEMBERS, Schedule, program_of_pairs, program_of_parts, rank_of_part};
