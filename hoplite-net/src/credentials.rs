use std::fmt;
use std::path::PathBuf;

use super::secret::{self, SecretError};
use super::tls::{Tls, TlsError};
use super::token::{Token, TokenError};

/// Secrets with which programs and daemons authenticate each other.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// Secret of the cluster, or of the user.
    pub token: Option<Token>,
    /// Certificates; `None` without TLS.
    pub tls: Option<Tls>,
    /// File of the user's secret, if `token` is from it.
    pub secret_of_user: Option<PathBuf>,
}

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
    /// Returns credentials with this user's secret, created at first use.
    pub fn of_user() -> Result<Self, SecretError> {
        let (path, token) = secret::of_user()?;
        Ok(Self { token: Some(token), tls: None, secret_of_user: Some(path) })
    }
}

/// Reason why credentials are unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecurityError {
    /// An unusable token.
    #[error("the token cannot be used")]
    Token(#[from] TokenError),
    /// No token is named, and the user's secret is unusable.
    #[error("no token is named, and the secret of this user cannot be used")]
    Secret(#[from] SecretError),
    /// Unusable certificates.
    #[error("TLS cannot be used")]
    Tls(#[from] TlsError),
    /// Some TLS files are missing.
    #[error("--tls-cert, --tls-key and --tls-ca go together, and --tls-name with them")]
    Incomplete,
}
