//! The addresses at which other stores reach this store.
//!
//! A host's address may change, which ends the host's sessions. So the store resolves its
//! configured names before each session with a shard; if that fails, it reports the last known
//! address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
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

/// One address for each network card; the first is the main address, which the directory knows.
#[derive(Debug, Clone)]
pub(crate) struct Advertised {
    rails: Arc<[Rail]>,
}

#[derive(Debug)]
struct Rail {
    /// Configured `HOST:PORT`; `None` to report the data plane's address.
    name: Option<String>,
    listened: SocketAddr,
    address: Mutex<SocketAddr>,
}

impl Advertised {
    /// Finds the address of each name, or without names, uses `listened`, the addresses of the data
    /// plane. A single listener may have several names.
    ///
    /// # Errors
    /// The name that is not `HOST:PORT`, or cannot be looked up.
    pub(crate) async fn find(
        names: &[String],
        listened: &[SocketAddr],
    ) -> Result<Self, (String, io::Error)> {
        let mut rails = Vec::new();
        for number in 0..names.len().max(listened.len()) {
            let listened = listened[number.min(listened.len() - 1)];
            let name = names.get(number).cloned();
            let address = match &name {
                Some(name) => {
                    look_up(name, listened).await.map_err(|error| (name.clone(), error))?
                }
                None => listened,
            };
            rails.push(Rail { name, listened, address: Mutex::new(address) });
        }
        Ok(Self { rails: rails.into() })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.rails[0].address()
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.rails.iter().map(Rail::address).collect()
    }

    /// Advertised address of a connection that was accepted at `local`.
    pub(crate) fn address_of(&self, local: SocketAddr) -> SocketAddr {
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        let is_at = |rail: &&Rail| rail.listened == local || rail.address().ip() == local.ip();
        self.rails.iter().find(is_at).map_or_else(|| self.address(), Rail::address)
    }

    /// Returns this host's IP address of each network card.
    pub(crate) fn own(&self) -> Vec<IpAddr> {
        let own = |rail: &Rail| {
            let listened = rail.listened.ip();
            if listened.is_unspecified() { rail.address().ip() } else { listened }
        };
        self.rails.iter().map(own).collect()
    }

    /// Looks up all names again. Returns the main address.
    pub(crate) async fn now(&self) -> SocketAddr {
        join_all(self.rails.iter().map(Rail::look_up_again)).await;
        self.address()
    }
}

impl Rail {
    fn address(&self) -> SocketAddr {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look_up_again(&self) {
        let last = self.address();
        let Some(name) = &self.name else { return };
        match look_up(name, self.listened).await {
            Ok(address) => {
                if address != last {
                    tracing::info!(name, %address, before = %last, "the address of this store has changed");
                }
                *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
            }
            Err(error) => {
                warn_repeated!(name, %error, address = %last, "cannot look up this store's name; its last known address stays in use");
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

    fn parsed(addresses: &[&str]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    fn named(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    async fn find(names: &[&str], listened: &[&str]) -> Advertised {
        Advertised::find(&named(names), &parsed(listened)).await.unwrap()
    }

    #[tokio::test]
    async fn names_are_looked_up_and_addresses_taken_as_they_are() {
        let listened = ["127.0.0.1:5"];
        assert_eq!(find(&[], &listened).await.now().await.to_string(), "127.0.0.1:5");
        let known = find(&["localhost:7"], &listened).await;
        assert_eq!(
            (known.address(), known.now().await.to_string()),
            (known.now().await, "127.0.0.1:7".to_owned())
        );
        assert_eq!(find(&["10.1.2.3:4"], &listened).await.address().to_string(), "10.1.2.3:4");
        for wrong in ["", "localhost", "10.1.2.3", "localhost:port", "no such name:1"] {
            let found = Advertised::find(&named(&["10.1.2.3:4", wrong]), &parsed(&listened)).await;
            assert_eq!(found.err().map(|(name, _)| name), Some(wrong.to_owned()));
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

    #[tokio::test]
    async fn each_network_card_has_an_address() {
        let both = find(&[], &["10.0.0.1:5", "10.1.0.1:6"]).await;
        assert_eq!(both.addresses(), parsed(&["10.0.0.1:5", "10.1.0.1:6"]));
        assert_eq!(both.address_of("10.1.0.1:6".parse().unwrap()).to_string(), "10.1.0.1:6");
        assert_eq!(both.own(), ["10.0.0.1", "10.1.0.1"].map(|ip| ip.parse::<IpAddr>().unwrap()));

        let names = ["10.0.0.1:5", "10.1.0.1:5"];
        let one = find(&names, &["0.0.0.0:5"]).await;
        assert_eq!(one.addresses(), parsed(&names));
        assert_eq!(one.address_of("10.1.0.1:5".parse().unwrap()).to_string(), "10.1.0.1:5");
        let mapped = "[::ffff:10.1.0.1]:5".parse().unwrap();
        assert_eq!(one.address_of(mapped).to_string(), "10.1.0.1:5");
        assert_eq!(one.address_of("10.9.0.1:5".parse().unwrap()), one.address(), "the main one");
        assert_eq!(one.own(), both.own());

        let behind = find(&["1.2.3.4:5", "1.2.3.5:5"], &["10.0.0.1:5", "10.1.0.1:5"]).await;
        assert_eq!(behind.address_of("10.1.0.1:5".parse().unwrap()).to_string(), "1.2.3.5:5");
        assert_eq!(behind.own(), both.own());
    }

    fn found_before(name: &str, listened: &str, address: &str) -> Advertised {
        let rail = Rail {
            name: Some(name.to_owned()),
            listened: listened.parse().unwrap(),
            address: Mutex::new(address.parse().unwrap()),
        };
        Advertised { rails: [rail].into() }
    }
}
