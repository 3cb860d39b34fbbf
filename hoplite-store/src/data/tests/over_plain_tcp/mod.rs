//! Runs the suite over TCP, with bytes straight between arenas and sockets.

use hoplite_net::TransportKind;

fn transport() -> TransportKind {
    TransportKind::Plain
}

#[path = "../suite.rs"]
mod suite;
