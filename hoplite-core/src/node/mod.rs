//! One store's object table, as a pure state machine.

mod message;

pub use message::*;

use crate::time::Time;

/// Placeholder until the table lands.
#[derive(Debug, Default)]
pub struct Node;

impl Node {
    /// The next time at which something is due.
    pub fn next_deadline(&self) -> Option<Time> {
        None
    }
}
