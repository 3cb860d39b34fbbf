//! The address at which other stores reach this store.
//!
//! A host's address may change, which ends the host's sessions. So the store resolves its
//! configured name before each session with a shard; if that fails, it reports the last known
//! address.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hoplite_daemon::warn_repeated;
use hoplite_net::{Tls, TlsError};
use tokio::net::lookup_host;
use tokio::time::timeout;

const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks that the certificate contains the IP address, or the name that all daemons share: other
/// stores require one.
pub(crate) fn check_certificate(tls: &Tls, address: SocketAddr) -> Result<(), TlsError> {
    tls.check_reached_at(&address.ip().to_canonical().to_string())
}

#[derive(Debug, Clone)]
pub(crate) struct Advertised {
    /// Configured `HOST:PORT`; `None` to report the data plane's address.
    name: Option<String>,
    listened: SocketAddr,
    address: Arc<Mutex<SocketAddr>>,
}

impl Advertised {
    /// Without a name, uses `listened`, the address of the data plane.
    ///
    /// # Errors
    /// `name` is not `HOST:PORT`, or cannot be looked up.
    pub(crate) async fn find(name: Option<String>, listened: SocketAddr) -> io::Result<Self> {
        let address = match &name {
            Some(name) => look_up(name, listened).await?,
            None => listened,
        };
        Ok(Self { name, listened, address: Arc::new(Mutex::new(address)) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn now(&self) -> SocketAddr {
        let last = self.address();
        let Some(name) = &self.name else { return last };
        match look_up(name, self.listened).await {
            Ok(address) => {
                if address != last {
                    tracing::info!(name, %address, before = %last, "the address of this store has changed");
                }
                *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
                address
            }
            Err(error) => {
                warn_repeated!(name, %error, address = %last, "cannot look up this store's name; its last known address stays in use");
                last
            }
        }
    }
}

/// Prefers an address of the same family (IPv4 or IPv6) as `like`.
async fn look_up(name: &str, like: SocketAddr) -> io::Result<SocketAddr> {
    let found =
        timeout(LOOKUP_TIMEOUT, lookup_host(name)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let found: Vec<_> = found.collect();
    let alike = found.iter().find(|address| address.is_ipv4() == like.is_ipv4());
    alike.or(found.first()).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_are_looked_up_and_addresses_taken_as_they_are() {
        let listened = "127.0.0.1:5".parse().unwrap();
        let find = async |name: &str| Advertised::find(Some(name.to_owned()), listened).await;
        assert_eq!(Advertised::find(None, listened).await.unwrap().now().await, listened);
        let named = find("localhost:7").await.unwrap();
        assert_eq!(
            (named.address(), named.now().await.to_string()),
            (named.now().await, "127.0.0.1:7".to_owned())
        );
        assert_eq!(find("10.1.2.3:4").await.unwrap().address().to_string(), "10.1.2.3:4");
        for wrong in ["", "localhost", "10.1.2.3", "localhost:port", "no such name:1"] {
            assert!(find(wrong).await.is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_name_that_is_gone_stays_what_it_was() {
        let gone = found_before("host.invalid:9", "127.0.0.1:9", "127.0.0.1:9");
        assert_eq!(gone.now().await, gone.address());
        assert_eq!(gone.address().to_string(), "127.0.0.1:9");
    }

    #[tokio::test]
    async fn an_address_is_of_the_kind_that_the_store_listens_at() {
        let found = found_before("localhost:7", "127.0.0.1:7", "[2001:db8::1]:7");
        assert_eq!(found.now().await.to_string(), "127.0.0.1:7");
        assert_eq!(found.address().to_string(), "127.0.0.1:7");
    }

    fn found_before(name: &str, listened: &str, address: &str) -> Advertised {
        let address = Arc::new(Mutex::new(address.parse().unwrap()));
        Advertised { name: Some(name.to_owned()), listened: listened.parse().unwrap(), address }
    }
}
