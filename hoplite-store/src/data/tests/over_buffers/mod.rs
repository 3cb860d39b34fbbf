//! A transport that copies all bytes through buffers changes nothing.

use hoplite_net::TransportKind;

fn transport() -> TransportKind {
    TransportKind::Buffered
}

#[path = "../suite.rs"]
mod suite;
