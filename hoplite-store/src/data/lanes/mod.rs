//! Streams over several connections (lanes).
//!
//! The sender cuts the next frame in the order of offsets, and the first lane with room sends it,
//! so a slow lane never holds up the others. At the sender, each lane is a task that takes its turn
//! (`outgoing`, `serve`). The receiver reads the frames in order, with [`Incoming`].
//!
//! A stream begins on the connection of its request. The sender announces further lanes with
//! `Lanes`; the receiver opens connections, and sends `Lane` with the stream's key on each.
//! Receivers that offer no lanes never see these frames.
//!
//! A collective's stream ends without a frame, because both sides know its length. With lanes, each
//! connection ends with `End`.

mod incoming;

mod content;
mod outgoing;
mod serve;

pub(super) use content::{Content, Cursor, Gift};
pub(super) use incoming::{Event, Incoming};
pub(super) use outgoing::OutgoingStreams;
