use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use hoplite_daemon::metrics::Metrics;
use hoplite_directory::{Listener, Listeners};
use hoplite_net::{InProcess, Route};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Directory, StoreConfig};
use crate::error::StoreError;

const IN_PROCESS: &str = "in-process:0";

pub(crate) struct EmbeddedDirectory {
    pub(crate) shards: Vec<String>,
    pub(crate) route: Route,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) dashboard: Option<SocketAddr>,
    pub(crate) failure: DirectoryFailure,
}

pub(crate) type DirectoryFailure = oneshot::Receiver<hoplite_directory::DirectoryError>;

/// Starts any embedded directory.
pub(crate) async fn start_directory(
    config: &StoreConfig,
    metrics: Option<Metrics>,
    stop: &CancellationToken,
    tasks: &TaskTracker,
) -> Result<EmbeddedDirectory, StoreError> {
    let (failed, failure) = oneshot::channel();
    let (listen, dashboard) = match &config.directory {
        Directory::Shards(shards) if shards.is_empty() => return Err(StoreError::NoShards),
        Directory::Shards(shards) => {
            return Ok(EmbeddedDirectory {
                shards: shards.clone(),
                route: Route::Network,
                address: None,
                dashboard: None,
                failure,
            });
        }
        Directory::Embedded { listen, dashboard } => (*listen, dashboard),
    };
    let (control, route, address) = match listen {
        Some(address) => {
            let (listener, address) = bind(address).await?;
            (Listener::Tcp(listener), Route::Network, Some(address))
        }
        None => {
            let (connect, listener) = InProcess::new();
            (Listener::InProcess(listener), Route::InProcess(connect), None)
        }
    };
    let (dashboard, dashboard_address) = bind_first_free(dashboard).await?.unzip();
    let listeners = Listeners { control, dashboard };
    let directory = hoplite_directory::DirectoryConfig {
        cluster: config.cluster.clone(),
        newest_version: config.newest_version,
        limits: config.limits.clone(),
        credentials: config.credentials.clone(),
        tracer: config.tracer.clone(),
    };
    let stop = stop.clone();
    tasks.spawn(async move {
        if let Err(error) = hoplite_directory::run(directory, metrics, listeners, stop).await {
            let _ = failed.send(error);
        }
    });
    let shards =
        vec![address.map_or_else(|| IN_PROCESS.to_owned(), |address| own(address).to_string())];
    Ok(EmbeddedDirectory { shards, route, address, dashboard: dashboard_address, failure })
}

/// Replaces the unspecified address, which no certificate can name, by loopback.
fn own(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        let is_v4 = address.is_ipv4();
        address.set_ip(if is_v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    address
}

/// Listens on the first free address; `None` without addresses. Fails if no address is free, and at
/// once for any other error.
async fn bind_first_free(
    addresses: &[SocketAddr],
) -> Result<Option<(TcpListener, SocketAddr)>, StoreError> {
    let mut failure = None;
    for address in addresses {
        match bind(*address).await {
            Ok(bound) => return Ok(Some(bound)),
            Err(error) if is_in_use(&error) => failure = Some(error),
            Err(error) => return Err(error),
        }
    }
    failure.map_or(Ok(None), Err)
}

fn is_in_use(error: &StoreError) -> bool {
    matches!(error, StoreError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StoreError> {
    let error = |source| StoreError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(error)?;
    let bound = listener.local_addr().map_err(error)?;
    Ok((listener, bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_in_use_is_skipped_and_an_impossible_one_is_an_error() {
        let (_listener, taken) = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (free, elsewhere) = ("127.0.0.1:0".parse().unwrap(), "192.0.2.1:1".parse().unwrap());
        assert!(bind_first_free(&[]).await.unwrap().is_none());
        assert_ne!(bind_first_free(&[taken, free]).await.unwrap().unwrap().1, taken);
        assert!(is_in_use(&bind_first_free(&[taken, taken]).await.unwrap_err()));
        assert!(!is_in_use(&bind_first_free(&[elsewhere, free]).await.unwrap_err()));
    }
}
