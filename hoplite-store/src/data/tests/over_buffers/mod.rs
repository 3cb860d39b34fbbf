//! The suite over a transport that copies all bytes through buffers, which must not change anything.

use hoplite_net::TransportKind;

fn transport() -> TransportKind {
    TransportKind::Buffered
}

#[path = "../suite.rs"]
mod suite;
