//! The credentials of a program: its proofs for daemons of the cluster, and its requirements on
//! them.

use std::fmt;
use std::path::PathBuf;

use super::secret::{self, SecretError};
use super::tls::{Tls, TlsError};
use super::token::{Token, TokenError};

/// The secrets with which a daemon proves that it belongs to the cluster, and checks its peers.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// The secret that all daemons of the cluster share.
    pub token: Option<Token>,
    /// The certificates.
    pub tls: Option<Tls>,
    /// The file of the secret if it is the user's secret.
    pub secret_of_user: Option<PathBuf>,
}

/// The rule about who may connect to the ports of a daemon.
impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.tls, &self.token, &self.secret_of_user) {
            (_, Some(_), Some(path)) => {
                write!(f, "programs with the secret of this user, {}", path.display())
            }
            (Some(_), Some(_), None) => f.write_str("programs with a certificate and the token"),
            (Some(_), None, _) => f.write_str("programs with a certificate"),
            (None, Some(_), None) => f.write_str("programs with the token"),
            (None, None, _) => f.write_str("everybody who reaches the port"),
        }
    }
}

impl Credentials {
    /// Returns the secret of this user. The first use creates it.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn of_user() -> Result<Self, SecretError> {
        let (path, token) = secret::of_user()?;
        Ok(Self { token: Some(token), tls: None, secret_of_user: Some(path) })
    }
}

/// The reason for which the credentials cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecurityError {
    /// The token cannot be used.
    #[error("the token cannot be used")]
    Token(#[from] TokenError),
    /// No token is named, and the user's secret cannot be used.
    #[error("no token is named, and the secret of this user cannot be used")]
    Secret(#[from] SecretError),
    /// The certificates cannot be used.
    #[error("TLS cannot be used")]
    Tls(#[from] TlsError),
    /// Only some of the files for TLS are named.
    #[error("--tls-cert, --tls-key and --tls-ca go together, and --tls-name with them")]
    Incomplete,
}
