//! Runs the suite over a transport that copies all bytes through buffers.

use hoplite_net::TransportKind;

fn transport() -> TransportKind {
    TransportKind::Buffered
}

#[path = "../suite.rs"]
mod suite;
