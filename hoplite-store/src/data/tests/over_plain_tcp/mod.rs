//! The suite over TCP, with bytes going straight between arenas and sockets.

use hoplite_net::TransportKind;

fn transport() -> TransportKind {
    TransportKind::Plain
}

#[path = "../suite.rs"]
mod suite;
