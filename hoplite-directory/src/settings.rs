use std::net::{Ipv4Addr, SocketAddr};

use hoplite_core::id::IdError;
use hoplite_core::{ClusterId, Version};
use hoplite_daemon::http::HttpAddress;
use hoplite_daemon::{NotLoopback, Security, TimeSpan};
use hoplite_directory::{DEFAULT_CLUSTER, DirectoryConfig};
use hoplite_net::SecurityError;

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7401);

#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub(crate) struct Settings {
    /// Address and port to listen on; port 0 for any [default: 127.0.0.1:7401]
    #[arg(long, env = "HOPLITE_LISTEN", value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Newest version of the protocol to speak with other programs, for example to keep a cluster
    /// on one version during an upgrade [default: the newest that this program knows]
    #[arg(long, env = "HOPLITE_NEWEST_VERSION", value_name = "NUMBER")]
    newest_version: Option<Version>,
    /// Name of the cluster; stores of other clusters are refused [default: hoplite]
    #[arg(long, env = "HOPLITE_CLUSTER", value_name = "NAME")]
    cluster: Option<String>,
    /// Serve the dashboard for browsers: on a port of loopback, or on the address named. Users log
    /// in with the token [default: no dashboard]
    #[arg(long, env = "HOPLITE_DASHBOARD", value_name = "[ADDR:]PORT")]
    dashboard: Option<HttpAddress>,
    #[command(flatten)]
    security: Security,
    /// Time that a store may be away before its copies count as lost [default: 1s]
    #[arg(long, env = "HOPLITE_NODE_GRACE", value_name = "DURATION")]
    node_grace: Option<TimeSpan>,
    /// Time for which a deleted object is remembered, so that a late announcement does not bring it
    /// back [default: 30s]
    #[arg(long, env = "HOPLITE_TOMBSTONE_TTL", value_name = "DURATION")]
    tombstone_ttl: Option<TimeSpan>,
    /// Most objects that the shard knows at once [default: 1048576]
    #[arg(long, env = "HOPLITE_MAX_OBJECTS", value_name = "COUNT")]
    max_objects: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct DaemonConfig {
    pub(crate) listen: SocketAddr,
    pub(crate) dashboard: Option<SocketAddr>,
    pub(crate) directory: DirectoryConfig,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("the cluster's name cannot be used")]
    Cluster(#[source] IdError),
    #[error(transparent)]
    NotLoopback(#[from] NotLoopback),
    #[error(transparent)]
    Security(#[from] SecurityError),
    #[error("at least one object must be allowed")]
    NoObjects,
}

impl Settings {
    pub(crate) fn resolve(self) -> Result<DaemonConfig, SettingsError> {
        let listen = self.listen.unwrap_or(DEFAULT_LISTEN);
        self.security.check(listen)?;
        let dashboard = self.dashboard.map(|address| address.0);
        dashboard.map_or(Ok(()), |address| self.security.check(address))?;
        if self.max_objects == Some(0) {
            return Err(SettingsError::NoObjects);
        }
        let cluster = ClusterId::new(self.cluster.as_deref().unwrap_or(DEFAULT_CLUSTER));
        let mut directory = DirectoryConfig {
            cluster: cluster.map_err(SettingsError::Cluster)?,
            newest_version: self.newest_version.unwrap_or_default(),
            credentials: self.security.credentials()?,
            ..DirectoryConfig::default()
        };
        let limits = &mut directory.limits;
        limits.node_grace = self.node_grace.map_or(limits.node_grace, |span| span.0);
        limits.tombstone_ttl = self.tombstone_ttl.map_or(limits.tombstone_ttl, |span| span.0);
        limits.max_objects = self.max_objects.unwrap_or(limits.max_objects);
        Ok(DaemonConfig { listen, dashboard, directory })
    }
}

#[cfg(test)]
mod tests {
    use hoplite_core::Limits;

    use super::*;

    #[test]
    fn empty_settings_are_the_documented_defaults() {
        let plan = Settings::default().resolve().unwrap();
        assert_eq!(plan.listen.to_string(), "127.0.0.1:7401");
        assert_eq!(plan.directory.cluster.as_str(), "hoplite");
        assert_eq!(plan.directory.limits, Limits::default());
        assert_eq!(Limits::default().max_objects, 1_048_576);
    }

    #[test]
    fn a_listener_outside_loopback_needs_a_flag() {
        let open = Settings { listen: "0.0.0.0:1".parse().ok(), ..Settings::default() };
        assert!(matches!(open.clone().resolve(), Err(SettingsError::NotLoopback(_))));
        let page = Settings { dashboard: "0.0.0.0:1".parse().ok(), ..Settings::default() };
        assert!(matches!(page.resolve(), Err(SettingsError::NotLoopback(_))));
        assert!(
            Settings { security: Security { insecure: Some(true), ..Security::default() }, ..open }
                .resolve()
                .is_ok()
        );
    }

    #[test]
    fn names_and_limits_are_checked() {
        assert!(
            Settings { cluster: Some("a b".to_owned()), ..Settings::default() }.resolve().is_err()
        );
        assert!(Settings { max_objects: Some(0), ..Settings::default() }.resolve().is_err());
    }
}
