use std::net::SocketAddr;
use std::path::PathBuf;

use hoplite_net::{Credentials, SecurityError, Tls, TlsFiles, Token};

/// Settings of access to a daemon.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct Security {
    /// File with the secret that all daemons of the cluster share, accessible only to its owner
    /// [default: the secret of this user, unless there are certificates or --insecure]
    #[arg(long, env = "HOPLITE_TOKEN_FILE", value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// Certificate of this daemon, PEM: use TLS with all other daemons. Read again when it changes
    #[arg(long, env = "HOPLITE_TLS_CERT", value_name = "PATH")]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate, PEM, accessible only to its owner
    #[arg(long, env = "HOPLITE_TLS_KEY", value_name = "PATH")]
    pub tls_key: Option<PathBuf>,
    /// Authority of the certificates of all daemons of the cluster, PEM
    #[arg(long, env = "HOPLITE_TLS_CA", value_name = "PATH")]
    pub tls_ca: Option<PathBuf>,
    /// Name in the certificate of every daemon [default: the host or address of the daemon]
    #[arg(long, env = "HOPLITE_TLS_NAME", value_name = "NAME")]
    pub tls_name: Option<String>,
    /// Require no token, and permit addresses other than loopback
    #[arg(
        long, env = "HOPLITE_INSECURE", value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub insecure: Option<bool>,
}

/// Other machines could reach the address, against the settings.
#[derive(Debug, thiserror::Error)]
#[error(
    "{address} can be reached from other machines: say who may use it, with --token-file, or with \
     --tls-cert, --tls-key and --tls-ca; or say --insecure if everybody who can reach it may"
)]
pub struct NotLoopback {
    /// Reachable address.
    pub address: SocketAddr,
}

impl Security {
    /// Reads the settings of clients from the environment.
    pub fn from_environment() -> Self {
        let path = |variable| {
            std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
        };
        Self {
            token_file: path("HOPLITE_TOKEN_FILE"),
            tls_cert: path("HOPLITE_TLS_CERT"),
            tls_key: path("HOPLITE_TLS_KEY"),
            tls_ca: path("HOPLITE_TLS_CA"),
            tls_name: std::env::var("HOPLITE_TLS_NAME").ok().filter(|name| !name.is_empty()),
            insecure: Some(
                std::env::var("HOPLITE_INSECURE").is_ok_and(|insecure| insecure == "true"),
            ),
        }
    }

    /// Refuses an address beyond loopback without a token, certificates or `--insecure`.
    pub fn check(&self, address: SocketAddr) -> Result<(), NotLoopback> {
        let is_authenticated = self.token_file.is_some() || self.tls_cert.is_some();
        if address.ip().to_canonical().is_loopback()
            || is_authenticated
            || self.insecure == Some(true)
        {
            Ok(())
        } else {
            Err(NotLoopback { address })
        }
    }

    /// `true` if the dashboard requires a login.
    pub const fn has_login(&self) -> bool {
        self.token_file.is_some() || self.tls_cert.is_some() || !matches!(self.insecure, Some(true))
    }

    /// Reads the files that the settings name. Without them and without `--insecure`, reads the
    /// secret that this user's programs share.
    pub fn credentials(&self) -> Result<Credentials, SecurityError> {
        let named = self.named_credentials()?;
        if named.token.is_some() || named.tls.is_some() || self.insecure == Some(true) {
            return Ok(named);
        }
        Ok(Credentials::of_user()?)
    }

    /// Like [`credentials`](Self::credentials), but never reads the user's secret: for a program
    /// without network ports.
    pub fn named_credentials(&self) -> Result<Credentials, SecurityError> {
        let token = self.token_file.as_deref().map(Token::read).transpose()?;
        let tls = match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (Some(cert), Some(key), Some(ca)) => {
                let files = TlsFiles { cert: cert.clone(), key: key.clone(), ca: ca.clone() };
                Some(Tls::read(files, self.tls_name.as_deref())?)
            }
            (None, None, None) if self.tls_name.is_none() => None,
            _ => return Err(SecurityError::Incomplete),
        };
        Ok(Credentials { token, tls, secret_of_user: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_outside_loopback_needs_a_flag() {
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
            assert_eq!(
                allows(Security { insecure: Some(false), ..Security::default() }),
                is_loopback
            );
            assert!(allows(Security { insecure: Some(true), ..Security::default() }), "{address}");
            assert!(allows(Security { token_file: Some("token".into()), ..Security::default() }));
            assert!(allows(Security { tls_cert: Some("cert".into()), ..Security::default() }));
        }
    }
}
