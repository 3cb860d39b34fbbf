//! The first bytes of a connection to a shard.
//!
//! A Hoplite program sends a [`Preface`]. Then both sides exchange `Opening` messages. Each one
//! stands between its length and its CRC-32C, both four bytes, little-endian:
//!
//! 1. The connecting side sends its hello; the shard answers with its hello or a refusal.
//! 2. If both have a token, the connecting side sends its proof; the shard answers with its proof
//!    or a refusal.
//!
//! Everything afterwards travels in checked records (`hoplite-net/src/record.rs`). A connection
//! without a preface is plain gRPC.

/// Length of a preface.
pub const PREFACE_BYTES: usize = 16;
/// Longest message of an opening: names, a nonce, and the text of a refusal.
pub const MAX_OPENING_BYTES: usize = 4096;

/// The purpose of a connection. HTTP/2 and TLS begin with other bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preface {
    /// Calls of gRPC.
    Grpc,
    /// The frames of one session: a direct connection.
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

    /// The preface in `bytes`, if any.
    pub fn of_bytes(bytes: &[u8; PREFACE_BYTES]) -> Option<Self> {
        [Self::Grpc, Self::Direct].into_iter().find(|preface| preface.bytes() == bytes)
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
}
