//! Streams over several connections (lanes).
//!
//! The sender cuts the next frame in the order of offsets, and the first lane with room sends it, so
//! a slow lane never holds up the others. At the sender, each lane is a task that takes its turn
//! (`outgoing`, `serve`). The receiver reads the frames in order, with [`Incoming`].
//!
//! A stream begins on the connection of its request. The sender decides on more lanes and announces
//! them with `Lanes`. The receiver opens connections and says `Lane` on each, with the key of the
//! stream. A receiver that does not offer lanes never sees any of this.
//!
//! The stream of a collective ends without a word, because both sides know its length. With lanes,
//! each of its connections ends with `End` like the other streams.

mod incoming;

mod content;
mod outgoing;
mod serve;

pub(super) use content::{Content, Cursor, Gift};
pub(super) use incoming::{Event, Incoming};
pub(super) use outgoing::OutgoingStreams;
