//! Names under which browsers may reach this process.
//!
//! A hostile page can resolve its own name to this machine's address (DNS rebinding) and read local
//! servers. Servers therefore refuse unknown names in `Host`. With TLS, browsers refuse the
//! certificate.

use std::net::IpAddr;
use std::sync::OnceLock;

use hyper::{Request, Uri, header};

const MAX_NAMES: usize = 64;
const MAX_NAME_BYTES: usize = 253;

static ALLOWED: OnceLock<Vec<String>> = OnceLock::new();

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct HostSettings {
    /// Host names under which browsers and Prometheus may reach --metrics and --dashboard without
    /// TLS, in addition to addresses, localhost and the name of this machine
    #[arg(long, env = "HOPLITE_HTTP_HOSTS", value_name = "NAME,...", value_delimiter = ',')]
    http_hosts: Option<Vec<String>>,
}

#[derive(Debug, thiserror::Error)]
#[error("--http-hosts takes up to {MAX_NAMES} host names, without ports")]
pub(crate) struct NotHosts;

impl HostSettings {
    /// Sets further host names for browsers. Later calls have no effect.
    pub(crate) fn allow(self) -> Result<(), NotHosts> {
        let names = self.http_hosts.unwrap_or_default();
        let names: Vec<_> =
            names.iter().map(|name| normal(name)).filter(|name| !name.is_empty()).collect();
        let is_name = |name: &String| {
            name.len() <= MAX_NAME_BYTES
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        };
        if names.len() > MAX_NAMES || !names.iter().all(is_name) {
            return Err(NotHosts);
        }
        let _ = ALLOWED.set(names);
        Ok(())
    }
}

pub(super) fn are_known<B>(request: &Request<B>) -> bool {
    let in_headers = request.headers().get_all(header::HOST).iter();
    let mut in_headers = in_headers.map(|host| host.to_str().ok()?.parse::<Uri>().ok());
    let allowed = ALLOWED.get().map_or(&[][..], Vec::as_slice);
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_known = |uri: &Uri| uri.host().is_some_and(|host| is_own(host, &own, allowed));
    in_headers.all(|host| host.as_ref().is_some_and(is_known))
        && (request.uri().authority().is_none() || is_known(request.uri()))
}

fn is_own(host: &str, own: &str, allowed: &[String]) -> bool {
    let host = normal(host.trim_start_matches('[').trim_end_matches(']'));
    let own = normal(own);
    let is_own = !own.is_empty() && (host == own || own.split('.').next() == Some(&host));
    host == "localhost" || host.parse::<IpAddr>().is_ok() || is_own || allowed.contains(&host)
}

fn normal(name: &str) -> String {
    let name = name.trim();
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_own_names_are_known_and_others_are_not() {
        let allowed = ["metrics.example".to_owned()];
        let known = |host: &str| is_own(host, "Node-1.cluster.example", &allowed);
        for host in [
            "127.0.0.1",
            "10.1.2.3",
            "[::1]",
            "::1",
            "localhost",
            "LOCALHOST.",
            "node-1",
            "node-1.cluster.example",
            "Metrics.Example",
        ] {
            assert!(known(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "node-1.evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "cluster",
        ] {
            assert!(!known(host), "{host}");
        }
        assert!(!is_own("", "", &[]));
    }

    #[test]
    fn each_name_of_a_request_counts() {
        let known = |uri: &str, hosts: &[&str]| {
            let request = Request::get(uri);
            let request =
                hosts.iter().fold(request, |request, host| request.header(header::HOST, *host));
            are_known(&request.body(()).unwrap())
        };
        assert!(known("/metrics", &[]) && known("/metrics", &["127.0.0.1:9740"]));
        assert!(known("/", &["[::1]:7402"]) && known("http://localhost/", &["localhost"]));
        for (uri, hosts) in [
            ("/", &["evil.example:9740"][..]),
            ("/", &[""]),
            ("/", &["a b"]),
            ("/", &["localhost", "evil.example"]),
            ("http://evil.example/", &["localhost"]),
            ("http://evil.example/", &[]),
        ] {
            assert!(!known(uri, hosts), "{uri} {hosts:?}");
        }
    }

    #[test]
    fn only_names_can_be_allowed() {
        for wrong in ["a b", "host:9740", "http://host", "*"] {
            let settings = HostSettings { http_hosts: Some(vec![wrong.to_owned()]) };
            assert!(settings.allow().is_err(), "{wrong}");
        }
        assert!(HostSettings { http_hosts: Some(vec!["a".to_owned(); 65]) }.allow().is_err());
    }
}
