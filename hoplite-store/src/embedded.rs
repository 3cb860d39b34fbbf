//! The shard of the directory that runs in the store's process, if one is to.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use hoplite_daemon::metrics::Metrics;
use hoplite_directory::Listeners;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Directory, StoreConfig};
use crate::error::StoreError;

/// Where the shards are, and what of the directory runs in this process.
pub(crate) struct EmbeddedDirectory {
    /// The addresses of all shards.
    pub(crate) shards: Vec<String>,
    /// Where the one in here listens.
    pub(crate) address: Option<SocketAddr>,
    /// Where its dashboard is.
    pub(crate) dashboard: Option<SocketAddr>,
    pub(crate) failure: DirectoryFailure,
}

pub(crate) type DirectoryFailure = oneshot::Receiver<hoplite_directory::DirectoryError>;

/// Starts the embedded directory, if there is to be one, and tells where the shards are.
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
            return Ok(EmbeddedDirectory { shards: shards.clone(), address: None, dashboard: None, failure });
        }
        Directory::Embedded { listen, dashboard } => (*listen, *dashboard),
    };
    let (control, address) = bind(listen).await?;
    let dashboard = match dashboard {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let (dashboard, dashboard_address) = dashboard.unzip();
    let listeners = Listeners { control, dashboard };
    let directory = hoplite_directory::DirectoryConfig {
        cluster: config.cluster.clone(),
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
    // Its own store reaches it at an address that certificates can be for, though it listens on all.
    let mut own = address;
    if own.ip().is_unspecified() {
        own.set_ip(if own.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    let (shards, dashboard) = (vec![own.to_string()], dashboard_address);
    Ok(EmbeddedDirectory { shards, address: Some(address), dashboard, failure })
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StoreError> {
    let error = |source| StoreError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(error)?;
    let bound = listener.local_addr().map_err(error)?;
    Ok((listener, bound))
}
