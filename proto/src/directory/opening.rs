//! First bytes of a connection to a shard.
//!
//! After a [`Preface`], both sides exchange `Opening` messages, each after its length and before
//! its CRC-32C (four bytes each, little-endian):
//!
//! 1. The connecting side sends its hello; the shard answers with its hello or a refusal.
//! 2. With tokens, the connecting side sends its proof; the shard answers with its proof or a
//!    refusal.
//!
//! Then all bytes travel in records (`hoplite-net/src/record.rs`). A connection without a preface
//! is plain gRPC.

/// Length of a preface.
pub const PREFACE_BYTES: usize = 16;
/// Longest message of an opening, in bytes.
pub const MAX_OPENING_BYTES: usize = 4096;

/// Purpose of a connection, in its first bytes. HTTP/2 and TLS begin otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preface {
    /// The connection carries gRPC.
    Grpc,
    /// The connection carries a session's frames.
    Direct,
}

impl Preface {
    /// Preface's bytes.
    pub const fn bytes(self) -> &'static [u8; PREFACE_BYTES] {
        match self {
            Self::Grpc => b"grpc/hoplite 1\r\n",
            Self::Direct => b"direct/hoplite1\n",
        }
    }

    /// Returns the preface with these bytes.
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
