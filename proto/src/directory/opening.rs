//! The first bytes of a connection to a shard.
//!
//! A program of Hoplite sends a [`Preface`], then both sides exchange `Opening` messages, each between its length and its
//! CRC-32C, of four bytes each, little-endian:
//!
//! 1. The side that connects sends its hello, and the shard answers with its own, or with a refusal.
//! 2. If both have a token, the side that connects sends its proof, and the shard answers with its own, or with a
//!    refusal.
//!
//! Without TLS, everything after that travels in checked records (`hoplite-net/src/record.rs`). A connection
//! that begins with neither preface is one of plain gRPC.

use std::fmt;

/// Length of a preface.
pub const PREFACE_BYTES: usize = 16;
/// Longest message of an opening: names, a nonce, a key, and the text of a refusal.
pub const MAX_OPENING_BYTES: usize = 4096;
/// Length of a key: nobody guesses it.
pub const KEY_BYTES: usize = 32;

/// What a connection is for. HTTP/2 and TLS begin with other bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preface {
    /// Calls of gRPC.
    Grpc,
    /// The messages of one session.
    Direct,
}

impl Preface {
    /// The bytes that announce the connection.
    pub const fn bytes(self) -> &'static [u8; PREFACE_BYTES] {
        match self {
            Self::Grpc => b"grpc/hoplite 1\r\n",
            Self::Direct => b"direct/hoplite1\n",
        }
    }

    /// The preface that `bytes` are; `None` if they are something else.
    pub fn of_bytes(bytes: &[u8; PREFACE_BYTES]) -> Option<Self> {
        [Self::Grpc, Self::Direct].into_iter().find(|preface| preface.bytes() == bytes)
    }
}

/// Names a session that one direct connection may carry. Only the store that opened the session knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BypassKey(pub [u8; KEY_BYTES]);

impl fmt::Debug for BypassKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BypassKey")
    }
}

impl BypassKey {
    /// The key in a welcome or a hello; `None` if there is none, or something else.
    pub fn of_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefaces_are_told_apart_and_from_other_protocols() {
        for preface in [Preface::Grpc, Preface::Direct] {
            let mut bytes = *preface.bytes();
            assert_eq!(Preface::of_bytes(&bytes), Some(preface));
            bytes[15] ^= 1;
            assert_eq!(Preface::of_bytes(&bytes), None);
        }
        assert_eq!(Preface::of_bytes(b"PRI * HTTP/2.0\r\n"), None);
    }

    #[test]
    fn keys_have_one_length() {
        assert_eq!(BypassKey::of_bytes(&[7; KEY_BYTES]), Some(BypassKey([7; KEY_BYTES])));
        assert_eq!(BypassKey::of_bytes(&[7; 31]), None);
        assert_eq!(BypassKey::of_bytes(b""), None);
    }
}
