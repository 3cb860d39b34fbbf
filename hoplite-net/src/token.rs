//! Secret of a cluster's daemons.
//!
//! Only its HMACs, each for a [`Purpose`], leave the process.

use std::fmt;
use std::path::Path;

use aws_lc_rs::hmac;

use super::file::{self, FileError};

/// This many random bytes cannot be guessed.
const MIN_TOKEN_BYTES: usize = 16;
const MAX_TOKEN_BYTES: u64 = 4096;
/// Length of a tag, an HMAC-SHA-256, in bytes.
pub const TAG_BYTES: usize = 32;

/// Purpose of a tag, part of the signed message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Authentication on the control plane.
    Control,
    /// Authentication on the data plane.
    Data,
    /// Derives a connection's keys; the tag never leaves the process.
    Keys,
    /// Compares a typed secret; the tag never leaves the process.
    Login,
}

impl Purpose {
    /// Labels have equal lengths, so no message has two purposes.
    const fn label(self) -> &'static [u8; 16] {
        match self {
            Self::Control => b"hoplite control2",
            Self::Data => b"hoplite data 2\0\0",
            Self::Keys => b"hoplite keys\0\0\0\0",
            Self::Login => b"hoplite login\0\0\0",
        }
    }
}

/// Reason why a token is unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file is missing, too long, or not private.
    #[error(transparent)]
    File(#[from] FileError),
    /// The token is short enough to guess.
    #[error("a token has at least {MIN_TOKEN_BYTES} bytes, this one has {length_bytes}")]
    TooShort {
        /// Length of the token.
        length_bytes: usize,
    },
}

/// Secret key of a cluster's daemons. No caller can read or print it.
#[derive(Clone)]
pub struct Token {
    key: hmac::Key,
}

impl Token {
    /// Reads a token from a file, without surrounding white space.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let bytes = file::read_private(path, MAX_TOKEN_BYTES)?;
        if file::begins_with_byte_order_mark(&bytes) {
            tracing::warn!(
                path = %path.display(),
                "the token file begins with a byte-order mark, which is part of the token: without the mark it is another token"
            );
        }
        Self::new(bytes.trim_ascii())
    }

    /// Makes a token from the bytes of a secret.
    pub fn new(bytes: &[u8]) -> Result<Self, TokenError> {
        if bytes.len() < MIN_TOKEN_BYTES {
            return Err(TokenError::TooShort { length_bytes: bytes.len() });
        }
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, bytes) })
    }

    /// Tag (HMAC) of `message` for `purpose`.
    pub fn sign(&self, purpose: Purpose, message: &[u8]) -> [u8; TAG_BYTES] {
        let tag = hmac::sign(&self.key, &signed(purpose, message));
        tag.as_ref().try_into().expect("an HMAC-SHA-256 has 32 bytes")
    }

    /// Checks a tag in constant time.
    pub fn verify(&self, purpose: Purpose, message: &[u8], tag: &[u8]) -> bool {
        hmac::verify(&self.key, &signed(purpose, message), tag).is_ok()
    }

    /// Returns `true` if a typed secret, without surrounding white space, is this token, in
    /// constant time.
    pub fn is_known_as(&self, secret: &[u8]) -> bool {
        let typed = Self::new(secret.trim_ascii());
        typed.is_ok_and(|typed| self.verify(Purpose::Login, &[], &typed.sign(Purpose::Login, &[])))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

fn signed(purpose: Purpose, message: &[u8]) -> Vec<u8> {
    [purpose.label(), message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"sixteen bytes ok";

    #[test]
    fn a_token_knows_its_own_tags_and_no_others() {
        let (token, other) =
            (Token::new(SECRET).unwrap(), Token::new(b"sixteen bytes no").unwrap());
        let tag = token.sign(Purpose::Data, b"message");
        assert!(token.verify(Purpose::Data, b"message", &tag));
        assert!(!token.verify(Purpose::Control, b"message", &tag));
        assert!(!token.verify(Purpose::Data, b"another", &tag));
        assert!(!other.verify(Purpose::Data, b"message", &tag));
        for wrong in [&[][..], &tag[..31], &[0; TAG_BYTES], &[tag, tag].concat()] {
            assert!(!token.verify(Purpose::Data, b"message", wrong));
        }
    }

    #[test]
    fn a_typed_secret_matches_without_surrounding_white_space() {
        let token = Token::new(SECRET).unwrap();
        assert!(token.is_known_as(SECRET) && token.is_known_as(b" sixteen bytes ok\r\n"));
        for wrong in [&b""[..], b"sixteen bytes", b"sixteen bytes no", b"sixteen bytes okay"] {
            assert!(!token.is_known_as(wrong));
        }
    }

    #[test]
    fn a_token_is_never_printed() {
        let token = Token::new(SECRET).unwrap();
        assert_eq!(format!("{token:?} {token:#?}"), "Token(..) Token(..)");
    }

    #[test]
    fn short_secrets_are_refused_and_white_space_does_not_count() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("token");
        let write = |text: &str| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        };
        write("fifteen bytes..\n\n  ");
        assert!(matches!(Token::read(&path), Err(TokenError::TooShort { length_bytes: 15 })));
        write(" sixteen bytes ok\n");
        assert!(Token::read(&path).unwrap().is_known_as(SECRET));
    }
}
