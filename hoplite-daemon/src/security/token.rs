//! The secret that all daemons of a cluster share.
//!
//! The secret itself never leaves the process. What goes over the network are HMACs with it, each for one [`Purpose`], so
//! that none can be used for another.

use std::fmt;
use std::path::Path;

use ring::hmac;

use super::file::{self, FileError};

/// The shortest secret: one that cannot be found by trying if its bytes are random.
const MIN_TOKEN_BYTES: usize = 16;
/// The longest file: many times what a secret needs.
const MAX_TOKEN_BYTES: u64 = 4096;
/// The length of an HMAC-SHA-256.
pub const TAG_BYTES: usize = 32;

/// What calls of the control plane present, in front of the tag.
const BEARER: &str = "Bearer ";

/// What a tag is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The calls of the control plane.
    Control,
    /// The handshake of a connection of the data plane.
    Data,
    /// The comparison with what a person has typed; never leaves the process.
    Login,
}

impl Purpose {
    /// What is signed in front of the message. All are of the same length, so that no two messages can be mistaken for
    /// each other.
    const fn label(self) -> &'static [u8; 16] {
        match self {
            Self::Control => b"hoplite control\0",
            Self::Data => b"hoplite data 1\0\0",
            Self::Login => b"hoplite login\0\0\0",
        }
    }
}

/// Why a token cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file is not as it must be.
    #[error(transparent)]
    File(#[from] FileError),
    /// The secret could be guessed.
    #[error("a token has at least {MIN_TOKEN_BYTES} bytes, this one has {length_bytes}")]
    TooShort {
        /// Its length.
        length_bytes: usize,
    },
}

/// A secret. It cannot be read back, and is not printed.
#[derive(Clone)]
pub struct Token {
    key: hmac::Key,
}

impl Token {
    /// Reads the secret from a file. White space around it is not part of it.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        Self::new(file::read_private(path, MAX_TOKEN_BYTES)?.trim_ascii())
    }

    /// The secret `bytes`.
    ///
    /// # Errors
    /// [`TokenError::TooShort`].
    pub fn new(bytes: &[u8]) -> Result<Self, TokenError> {
        if bytes.len() < MIN_TOKEN_BYTES {
            return Err(TokenError::TooShort { length_bytes: bytes.len() });
        }
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, bytes) })
    }

    /// The tag of `message`.
    pub fn sign(&self, purpose: Purpose, message: &[u8]) -> [u8; TAG_BYTES] {
        let tag = hmac::sign(&self.key, &signed(purpose, message));
        tag.as_ref().try_into().expect("an HMAC-SHA-256 has 32 bytes")
    }

    /// Whether `tag` is the tag of `message`. Takes as long for each wrong tag.
    pub fn verify(&self, purpose: Purpose, message: &[u8], tag: &[u8]) -> bool {
        hmac::verify(&self.key, &signed(purpose, message), tag).is_ok()
    }

    /// Whether somebody who typed `secret` knows this token. Takes as long for each wrong one. White space around it is not
    /// part of it.
    pub fn is_known_as(&self, secret: &[u8]) -> bool {
        let typed = Self::new(secret.trim_ascii());
        typed.is_ok_and(|typed| self.verify(Purpose::Login, &[], &typed.sign(Purpose::Login, &[])))
    }

    /// What a call of the control plane presents as its `authorization`.
    pub fn bearer(&self) -> String {
        use std::fmt::Write;
        self.sign(Purpose::Control, &[]).iter().fold(BEARER.to_owned(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Whether `authorization` is what [`bearer`](Self::bearer) answers.
    pub fn is_bearer(&self, authorization: &[u8]) -> bool {
        let tag = authorization.strip_prefix(BEARER.as_bytes()).and_then(decode_hex);
        tag.is_some_and(|tag| self.verify(Purpose::Control, &[], &tag))
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

fn decode_hex(text: &[u8]) -> Option<[u8; TAG_BYTES]> {
    let mut bytes = [0; TAG_BYTES];
    if text.len() != 2 * TAG_BYTES {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"sixteen bytes ok";

    #[test]
    fn a_token_knows_its_own_tags_and_no_others() {
        let (token, other) = (Token::new(SECRET).unwrap(), Token::new(b"sixteen bytes no").unwrap());
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
    fn a_bearer_is_recognised_and_nothing_else_is() {
        let token = Token::new(SECRET).unwrap();
        let bearer = token.bearer();
        assert!(token.is_bearer(bearer.as_bytes()));
        for wrong in
            ["", "Bearer", "Bearer ", &bearer[..bearer.len() - 1], &bearer[7..], &format!("{bearer}0")]
        {
            assert!(!token.is_bearer(wrong.as_bytes()), "{wrong}");
        }
        assert!(!token.is_bearer(&bearer.as_bytes().iter().map(|_| 0xff).collect::<Vec<_>>()));
        let signs = format!("Bearer {}", "+1".repeat(TAG_BYTES));
        assert!(!token.is_bearer(signs.as_bytes()));
        assert!(!Token::new(b"sixteen bytes no").unwrap().is_bearer(bearer.as_bytes()));
    }

    #[test]
    fn who_types_the_secret_knows_it() {
        let token = Token::new(SECRET).unwrap();
        assert!(token.is_known_as(SECRET) && token.is_known_as(b" sixteen bytes ok\r\n"));
        for wrong in [
            &b""[..],
            b"sixteen bytes",
            b"sixteen bytes no",
            b"sixteen bytes okay",
            token.bearer().as_bytes(),
        ] {
            assert!(!token.is_known_as(wrong));
        }
    }

    #[test]
    fn nothing_of_it_is_printed() {
        let token = Token::new(SECRET).unwrap();
        assert_eq!(format!("{token:?} {token:#?}"), "Token(..) Token(..)");
        assert!(!token.bearer().contains("sixteen"));
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
        assert!(Token::read(&path).unwrap().is_bearer(Token::new(SECRET).unwrap().bearer().as_bytes()));
    }
}
