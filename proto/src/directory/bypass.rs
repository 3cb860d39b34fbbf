//! How a connection begins that carries the messages of a session past gRPC.

use std::fmt;

/// What comes first: it begins like no greeting of HTTP/2 or TLS.
const PREFACE: [u8; 16] = *b"Hoplite bypass 1";
/// The first byte of such a connection.
pub const FIRST_BYTE: u8 = PREFACE[0];
/// How long a key is: nobody guesses it.
pub const KEY_BYTES: usize = 32;
/// How long the opening is: the preface and the key.
pub const OPENING_BYTES: usize = PREFACE.len() + KEY_BYTES;

/// Names a session that such a connection may carry, once. Known to the store alone that opened the session.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BypassKey(pub [u8; KEY_BYTES]);

impl fmt::Debug for BypassKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BypassKey")
    }
}

impl BypassKey {
    /// The key that a welcome offers; `None` if it offers none, or something else.
    pub fn of_welcome(offered: &[u8]) -> Option<Self> {
        offered.try_into().ok().map(Self)
    }

    /// What the store says first.
    pub fn opening(&self) -> [u8; OPENING_BYTES] {
        let mut opening = [0; OPENING_BYTES];
        let (preface, key) = opening.split_at_mut(PREFACE.len());
        preface.copy_from_slice(&PREFACE);
        key.copy_from_slice(&self.0);
        opening
    }

    /// The key that somebody says first; `None` if he says something else.
    pub fn of_opening(opening: &[u8; OPENING_BYTES]) -> Option<Self> {
        opening.strip_prefix(&PREFACE).and_then(Self::of_welcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings_name_their_key() {
        let key = BypassKey([7; KEY_BYTES]);
        let mut opening = key.opening();
        assert_eq!(opening[0], FIRST_BYTE);
        assert_eq!(BypassKey::of_opening(&opening), Some(key));
        opening[15] ^= 1;
        assert_eq!(BypassKey::of_opening(&opening), None);
        assert_eq!(BypassKey::of_welcome(&[7; 31]), None);
        assert_eq!(BypassKey::of_welcome(b""), None);
    }
}
