//! Mutual authentication with a shared token.
//!
//! Each side sends a hello with a nonce, then an HMAC-SHA-256 over its role and both hellos. So a
//! proof is useless on another connection, for other names, or in the other direction. The
//! connecting side proves first, so that a caller without the token gets no proof to test guesses.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

use super::token::{Purpose, TAG_BYTES, Token};

/// Length of a nonce in bytes. Random nonces of this length never repeat.
pub const NONCE_BYTES: usize = 32;

const FIRST_VERSION_WITH_NEWEST: u32 = 9;

/// Side that proves its knowledge of the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prover {
    /// Side that connected.
    Connecting = 1,
    /// Side that listens.
    Accepting = 2,
}

/// Fields of a hello that the proofs cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelloFields<'a> {
    /// Side's oldest protocol version.
    pub version: u32,
    /// Newest protocol version. The proofs cover it if both sides speak at least
    /// `FIRST_VERSION_WITH_NEWEST`.
    pub newest: u32,
    /// Name of the side's cluster.
    pub cluster: &'a str,
    /// Name of the store; empty for other programs.
    pub node: &'a str,
    /// Random bytes, which the peer's proof covers.
    pub nonce: &'a [u8],
    /// Store's addresses that proofs cover: an accepting store's are useless elsewhere.
    pub bound_to: &'a [u8],
}

/// Hellos of a connection's two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hellos<'a> {
    /// Hello of the connecting side.
    pub connecting: HelloFields<'a>,
    /// Hello of the accepting side.
    pub accepting: HelloFields<'a>,
}

/// Returns a random nonce.
pub fn nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    let filled = getrandom(&mut nonce, GetRandomFlags::empty())?;
    if filled == NONCE_BYTES { Ok(nonce) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

impl Hellos<'_> {
    /// Tag by which `prover` shows that it knows `token`.
    pub fn proof(&self, token: &Token, purpose: Purpose, prover: Prover) -> [u8; TAG_BYTES] {
        token.sign(purpose, &self.statement(prover as u8))
    }

    /// Checks the tag of [`proof`](Self::proof) in constant time.
    pub fn is_proven(&self, token: &Token, purpose: Purpose, prover: Prover, proof: &[u8]) -> bool {
        token.verify(purpose, &self.statement(prover as u8), proof)
    }

    pub(super) fn secret(&self, token: &Token) -> [u8; TAG_BYTES] {
        token.sign(Purpose::Keys, &self.statement(0))
    }

    /// Lengths precede texts, so that the signed bytes have one interpretation.
    fn statement(&self, prover: u8) -> Vec<u8> {
        let mut bytes = vec![prover];
        for hello in [&self.connecting, &self.accepting] {
            bytes.extend_from_slice(&hello.version.to_le_bytes());
            for field in
                [hello.cluster.as_bytes(), hello.node.as_bytes(), hello.nonce, hello.bound_to]
            {
                bytes.extend_from_slice(&(field.len() as u64).to_le_bytes());
                bytes.extend_from_slice(field);
            }
        }
        let newest = [self.connecting.newest, self.accepting.newest];
        if newest.iter().all(|newest| *newest >= FIRST_VERSION_WITH_NEWEST) {
            bytes.extend(newest.into_iter().flat_map(u32::to_le_bytes));
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello<'a>(node: &'a str, nonce: &'a [u8]) -> HelloFields<'a> {
        HelloFields { version: 6, newest: 9, cluster: "c", node, nonce, bound_to: b"127.0.0.1:1" }
    }

    #[test]
    fn a_proof_is_for_one_side_of_one_connection() {
        let token = Token::new(b"sixteen bytes ok").unwrap();
        let hellos = Hellos { connecting: hello("a", &[1; 32]), accepting: hello("b", &[2; 32]) };
        let proof = hellos.proof(&token, Purpose::Data, Prover::Connecting);
        assert!(hellos.is_proven(&token, Purpose::Data, Prover::Connecting, &proof));
        assert!(
            !hellos.is_proven(&token, Purpose::Data, Prover::Accepting, &proof),
            "it is reflected"
        );
        assert!(!hellos.is_proven(&token, Purpose::Control, Prover::Connecting, &proof));
        let other = Token::new(b"sixteen bytes no").unwrap();
        assert!(!hellos.is_proven(&other, Purpose::Data, Prover::Connecting, &proof));
        let changes: [fn(&mut HelloFields<'_>); 7] = [
            |hello| hello.version += 1,
            |hello| hello.newest += 1,
            |hello| hello.newest = 0,
            |hello| hello.cluster = "d",
            |hello| hello.node = "c",
            |hello| hello.nonce = &[3; 32],
            |hello| hello.bound_to = b"127.0.0.1:2",
        ];
        for (number, change) in changes.into_iter().enumerate() {
            for side in [Prover::Connecting, Prover::Accepting] {
                let mut changed = hellos;
                match side {
                    Prover::Connecting => change(&mut changed.connecting),
                    Prover::Accepting => change(&mut changed.accepting),
                }
                let is_proven =
                    changed.is_proven(&token, Purpose::Data, Prover::Connecting, &proof);
                assert!(!is_proven, "change {number} of the side {side:?}");
                assert_ne!(changed.secret(&token), hellos.secret(&token));
            }
        }
    }

    #[test]
    fn a_proof_without_a_newest_version_is_unchanged() {
        let old = |node| HelloFields { newest: 0, ..hello(node, &[1; 32]) };
        let both = Hellos { connecting: old("a"), accepting: old("b") };
        let one = Hellos { accepting: hello("b", &[1; 32]), ..both };
        assert_eq!(one.statement(1), both.statement(1));
    }

    #[test]
    fn fields_cannot_be_shifted() {
        let with = |cluster, node| HelloFields { cluster, ..hello(node, &[1; 32]) };
        let one = Hellos { connecting: with("ab", "c"), accepting: with("x", "y") };
        let two = Hellos { connecting: with("a", "bc"), accepting: with("x", "y") };
        assert_ne!(one.statement(1), two.statement(1));
    }
}
