//! Who may reach a daemon, and how daemons prove to each other that they belong to one cluster.
//!
//! * `token`: a secret that all of them share.
//! * `private_file`: reads what nobody else may read.
//! * `bearer`: what calls of the control plane carry.
//! * `half_open`: bounds the connections that have not proven anything yet.

mod bearer;
mod half_open;
mod private_file;
mod token;

use std::net::SocketAddr;
use std::path::PathBuf;

pub use bearer::Bearer;
pub use half_open::{HalfOpen, HalfOpenPlace};
pub use private_file::PrivateFileError;
pub use token::{Purpose, TAG_BYTES, Token, TokenError};

/// What is set about who may reach a daemon.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct Security {
    /// A file with a secret that all daemons of the cluster share; others are refused. Only its owner may have access to it
    #[arg(long, env = "HOPLITE_TOKEN_FILE", value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// Listen on other than loopback addresses although nobody is authenticated
    #[arg(
        long, env = "HOPLITE_INSECURE", value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub insecure: Option<bool>,
}

/// What a daemon proves with, to its peers, that it belongs to the cluster; and what it demands of them.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// The secret that all daemons of the cluster share.
    pub token: Option<Token>,
}

impl Credentials {
    /// What to add to the calls of a client of the control plane.
    pub fn bearer(&self) -> Bearer {
        Bearer::new(self.token.as_ref())
    }
}

/// Why the credentials cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecurityError {
    /// The token cannot be used.
    #[error("the token cannot be used")]
    Token(#[from] TokenError),
}

/// A daemon is to listen where other machines can reach it, and nobody said that this is meant.
#[derive(Debug, thiserror::Error)]
#[error(
    "{address} can be reached from other machines: say who may use it, with --token-file, \
     or say --insecure if everybody who can reach it may"
)]
pub struct NotLoopback {
    /// The address that other machines can reach.
    pub address: SocketAddr,
}

impl Security {
    /// Whether a daemon may listen on `address`.
    ///
    /// # Errors
    /// [`NotLoopback`].
    pub fn check(&self, address: SocketAddr) -> Result<(), NotLoopback> {
        let is_authenticated = self.token_file.is_some();
        if address.ip().to_canonical().is_loopback() || is_authenticated || self.insecure == Some(true) {
            Ok(())
        } else {
            Err(NotLoopback { address })
        }
    }

    /// Reads the files that are named.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn credentials(&self) -> Result<Credentials, SecurityError> {
        Ok(Credentials { token: self.token_file.as_deref().map(Token::read).transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_than_loopback_needs_to_be_meant() {
        for (address, is_loopback) in [
            ("127.0.0.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
        ] {
            let address = address.parse().unwrap();
            let allows = |security: Security| security.check(address).is_ok();
            assert_eq!(allows(Security::default()), is_loopback, "{address}");
            assert_eq!(allows(Security { insecure: Some(false), ..Security::default() }), is_loopback);
            assert!(allows(Security { insecure: Some(true), ..Security::default() }), "{address}");
            assert!(allows(Security { token_file: Some("token".into()), ..Security::default() }));
        }
    }
}
