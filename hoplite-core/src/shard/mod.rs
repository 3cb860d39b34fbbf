//! One shard of the directory, as a pure state machine.

mod message;

pub use message::*;
