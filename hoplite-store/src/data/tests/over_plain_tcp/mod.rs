//! The suite over TCP, with bytes going straight between arenas and sockets.

use crate::data::transport::TransportKind;

fn transport() -> TransportKind {
    TransportKind::Plain
}

#[path = "../suite.rs"]
mod suite;
