//! Streams over several connections, their lanes.
//!
//! The sender cuts frames in the order of offsets. The first lane that can send takes the next
//! frame, so a slow lane never holds up the others. The receiver reads the frames in order, with
//! [`Incoming`].
//!
//! A stream begins on the connection of its request. The sender requests further lanes with
//! `Lanes`. The receiver opens connections, and sends `Lane` with the stream's key on each.
//!
//! With one lane, a collective's stream ends without a frame, because both sides know its length.
//! With several, each lane ends with `End`.

mod incoming;
mod lane;

mod content;
mod outgoing;
mod serve;

pub(super) use content::{Content, Cursor, ProgramBlocks};
pub(super) use incoming::{Event, Incoming};
pub(super) use outgoing::OutgoingStreams;
