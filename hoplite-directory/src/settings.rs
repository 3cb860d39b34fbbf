//! What can be set, and what it defaults to.

use std::net::{Ipv4Addr, SocketAddr};

use hoplite_core::{ClusterId, Error};
use hoplite_directory::config::TimeSpan;
use hoplite_directory::{DEFAULT_CLUSTER, DirectoryConfig, layer_settings};
use serde::Deserialize;

/// Where a shard listens unless it is told otherwise.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7401);
const DEFAULT_LOG: &str = "info";

/// One layer of settings: flags and environment, or a file.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Settings {
    /// Address and port to listen on; port 0 for any [default: 127.0.0.1:7401]
    #[arg(long, env = "HOPLITE_LISTEN", value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Name of the cluster; stores of other clusters are refused [default: hoplite]
    #[arg(long, env = "HOPLITE_CLUSTER", value_name = "NAME")]
    cluster: Option<String>,
    /// Listen on other than loopback addresses although nobody is authenticated
    #[arg(
        long, env = "HOPLITE_INSECURE", value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    insecure: Option<bool>,
    /// How long a store may be away before its copies count as lost [default: 1s]
    #[arg(long, env = "HOPLITE_NODE_GRACE", value_name = "DURATION")]
    node_grace: Option<TimeSpan>,
    /// How long a deleted object is remembered, so that a late announcement does not bring it back [default: 30s]
    #[arg(long, env = "HOPLITE_TOMBSTONE_TTL", value_name = "DURATION")]
    tombstone_ttl: Option<TimeSpan>,
    /// Most objects that the shard knows at once [default: 1048576]
    #[arg(long, env = "HOPLITE_MAX_OBJECTS", value_name = "COUNT")]
    max_objects: Option<usize>,
    /// What to log on standard error, as for RUST_LOG: debug, or info,hoplite_directory=debug [default: info]
    #[arg(long, env = "HOPLITE_LOG", value_name = "FILTER")]
    log: Option<String>,
}

/// What the daemon does: the settings with everything filled in.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// What the shard is told.
    pub(crate) directory: DirectoryConfig,
    /// What is logged.
    pub(crate) log: String,
}

/// Why settings cannot be followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("the cluster's name cannot be used")]
    Cluster(#[source] Error),
    #[error(
        "{listen} can be reached from other machines, and authentication by token or TLS is not available yet: \
         say --insecure if everybody who can reach it may use it"
    )]
    NotLoopback { listen: SocketAddr },
    #[error("at least one object must be allowed")]
    NoObjects,
}

impl Settings {
    /// These settings, and where they are unset those of `lower`.
    pub(crate) fn over(self, lower: Self) -> Self {
        layer_settings!(Settings: self, lower =>
            listen, cluster, insecure, node_grace, tombstone_ttl, max_objects, log)
    }

    /// Fills in the defaults and checks what is left.
    pub(crate) fn resolve(self) -> Result<Plan, SettingsError> {
        let listen = self.listen.unwrap_or(DEFAULT_LISTEN);
        if !listen.ip().to_canonical().is_loopback() && self.insecure != Some(true) {
            return Err(SettingsError::NotLoopback { listen });
        }
        if self.max_objects == Some(0) {
            return Err(SettingsError::NoObjects);
        }
        let cluster = ClusterId::new(self.cluster.as_deref().unwrap_or(DEFAULT_CLUSTER));
        let mut directory = DirectoryConfig {
            cluster: cluster.map_err(SettingsError::Cluster)?,
            ..DirectoryConfig::default()
        };
        let limits = &mut directory.limits;
        limits.node_grace = self.node_grace.map_or(limits.node_grace, |span| span.0);
        limits.tombstone_ttl = self.tombstone_ttl.map_or(limits.tombstone_ttl, |span| span.0);
        limits.max_objects = self.max_objects.unwrap_or(limits.max_objects);
        Ok(Plan { listen, directory, log: self.log.unwrap_or_else(|| DEFAULT_LOG.to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    use hoplite_core::Limits;

    use super::*;

    #[test]
    fn nothing_set_means_the_documented_defaults() {
        let plan = Settings::default().resolve().unwrap();
        assert_eq!(plan.listen.to_string(), "127.0.0.1:7401");
        assert_eq!(plan.directory.cluster.as_str(), "hoplite");
        assert_eq!(plan.directory.limits, Limits::default());
        assert_eq!(Limits::default().max_objects, 1_048_576);
    }

    #[test]
    fn other_than_loopback_needs_to_be_meant() {
        for (listen, is_loopback) in [
            ("127.0.0.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
        ] {
            let settings = Settings { listen: listen.parse().ok(), ..Settings::default() };
            assert_eq!(settings.clone().resolve().is_ok(), is_loopback, "{listen}");
            let refused = Settings { insecure: Some(false), ..settings.clone() };
            assert_eq!(refused.resolve().is_ok(), is_loopback, "{listen}");
            assert!(Settings { insecure: Some(true), ..settings }.resolve().is_ok());
        }
    }

    #[test]
    fn names_and_limits_are_checked() {
        assert!(Settings { cluster: Some("a b".to_owned()), ..Settings::default() }.resolve().is_err());
        assert!(Settings { max_objects: Some(0), ..Settings::default() }.resolve().is_err());
    }
}
