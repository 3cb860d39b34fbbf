//! Who may reach a daemon.

use std::net::SocketAddr;

/// What is set about who may reach a daemon.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct Security {
    /// Listen on other than loopback addresses although nobody is authenticated
    #[arg(
        long, env = "HOPLITE_INSECURE", value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub insecure: Option<bool>,
}

/// A daemon is to listen where other machines can reach it, and nobody said that this is meant.
#[derive(Debug, thiserror::Error)]
#[error(
    "{address} can be reached from other machines, and authentication by token or TLS is not available yet: \
     say --insecure if everybody who can reach it may use it"
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
        if address.ip().to_canonical().is_loopback() || self.insecure == Some(true) {
            Ok(())
        } else {
            Err(NotLoopback { address })
        }
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
            let allows = |insecure| Security { insecure }.check(address).is_ok();
            assert_eq!(allows(None), is_loopback, "{address}");
            assert_eq!(allows(Some(false)), is_loopback, "{address}");
            assert!(allows(Some(true)), "{address}");
        }
    }
}
