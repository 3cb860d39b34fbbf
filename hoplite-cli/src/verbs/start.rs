use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::bail;
use hoplite_daemon::{Addresses, Security, launch};
use hoplite_net::Credentials;
use serde::Serialize;
use tokio::time::timeout;

use crate::arguments::{StoreArguments, parse_duration, parse_size};
use crate::cluster::{Background, Daemon, last_words, unless_interrupted};
use crate::output;

/// Data plane's port, which the guide names for firewalls.
const DATA_PORT: u16 = 7400;
const DIRECTORY_PORT: u16 = 7401;
/// Dashboard's port, or any free loopback port if taken.
const DASHBOARD: &str = "7402,0";

const EXAMPLES: &str = "Examples:
  hoplite start                                          a store for this machine alone, with a dashboard
  hoplite start --head --host 10.0.0.1                   the first node of a cluster, with the directory in its store
  hoplite start --address 10.0.0.1:7401 --host 10.0.0.2  another node of it
  hoplite start -- --token-file /etc/hoplite/token       with more flags of hoplite-store
  hoplite start --head -- --dashboard 10.0.0.1:7402 --metrics 9740
  hoplite start --head -- --directory-listen 127.0.0.1:0  the directory at another port than 7401
  hoplite stop                                           ends it

On other than loopback addresses the store wants to authenticate those who connect: see `hoplite-store --help`. Its environment
variables, such as HOPLITE_TOKEN_FILE and HOPLITE_TLS_CERT, count too. Its log and the number of its process are beside its socket.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Start the first node of a cluster, with the directory in its store at port 7401
    #[arg(long, conflicts_with = "address")]
    head: bool,
    /// Join the cluster with this directory: the addresses of all its shards
    #[arg(long, value_name = "HOST:PORT,...")]
    address: Option<String>,
    /// Address of this host for other nodes; required if the directory is on another machine
    #[arg(long, value_name = "ADDR", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Port for other stores [default: 7400, or any on loopback; none for a single store]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Shared memory, such as 8GiB [default: 30% of the usable memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Name of this node in the cluster [default: host name and process id]
    #[arg(long, value_name = "NAME")]
    node_id: Option<String>,
    /// Time limit for the store to find its directory and touch its memory
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    wait: Duration,
    /// Print the process, the addresses and the log as JSON
    #[arg(long)]
    json: bool,
    /// More flags of hoplite-store
    #[arg(last = true, value_name = "FLAGS")]
    store: Vec<OsString>,
}

impl Arguments {
    /// `true` if no other machine can reach the store.
    fn is_alone(&self) -> bool {
        self.host.is_loopback()
            && !self.has("--listen")
            && !self.has("--advertise")
            && std::env::var_os("HOPLITE_ADVERTISE").is_none()
    }

    fn has(&self, name: &str) -> bool {
        self.store.iter().any(|flag| {
            let flag = flag.to_string_lossy();
            flag.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        })
    }

    /// `true` if this command chooses a dashboard: the store has the directory, users can log in,
    /// and no flag, variable or file names another dashboard.
    fn has_dashboard(&self) -> bool {
        let is_set = |variable| std::env::var_os(variable).is_some();
        let is_elsewhere =
            self.address.is_some() || self.has("--directory") || is_set("HOPLITE_DIRECTORY");
        let is_named = self.has("--dashboard") || is_set("HOPLITE_DASHBOARD");
        let has_file = self.has("--config") || is_set("HOPLITE_CONFIG");
        // Without `--head`, an unusable secret only disables the dashboard.
        let can_log_in = |found: Result<Credentials, _>| self.head || found.is_ok();
        let has_login = || match self.security() {
            Some(security) => security.has_login() && can_log_in(security.credentials()),
            None => true,
        };
        !has_file && !is_elsewhere && !is_named && has_login()
    }

    /// Access settings of the environment; `None` if the flags name credentials.
    fn security(&self) -> Option<Security> {
        let is_named = self.has("--token-file") || self.has("--tls-cert");
        let flag = self.store.iter().rev().find_map(|flag| match flag.to_str()? {
            "--insecure" => Some(true),
            flag => flag.strip_prefix("--insecure=")?.parse().ok(),
        });
        let found = Security::from_environment();
        (!is_named).then(|| Security { insecure: flag.or(found.insecure), ..found })
    }

    fn command(&self, background: &Background, has_dashboard: bool) -> Command {
        let mut command = Command::new(launch::program("hoplite-store"));
        let any_or = |port| if self.host.is_loopback() { 0 } else { port };
        command.arg("--print-addresses");
        let has_peers =
            self.head || self.address.is_some() || self.port.is_some() || !self.host.is_loopback();
        if has_peers && !self.has("--listen") {
            let data = SocketAddr::new(self.host, self.port.unwrap_or_else(|| any_or(DATA_PORT)));
            command.arg("--listen").arg(data.to_string());
        }
        command.arg("--socket").arg(background.socket());
        if let Some(address) = &self.address {
            command.arg("--directory").arg(address);
        } else if self.head && !self.has("--directory-listen") {
            let directory = SocketAddr::new(self.host, DIRECTORY_PORT);
            command.arg("--directory-listen").arg(directory.to_string());
        }
        if has_dashboard {
            command.arg("--dashboard").arg(DASHBOARD);
        }
        if let Some(memory) = self.memory {
            command.arg("--memory").arg(memory.to_string());
        }
        if let Some(node) = &self.node_id {
            command.arg("--node-id").arg(node);
        }
        command.args(&self.store).env("NO_COLOR", "1");
        // Keeps Ctrl-C away from the store.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        command
    }
}

/// `true` if all shards' addresses resolve, and none to loopback.
fn serves_others(shards: &str) -> bool {
    let serves_others = |shard: &str| {
        let found = shard.to_socket_addrs();
        found.is_ok_and(|mut found| !found.any(|address| address.ip().is_loopback()))
    };
    shards.split(',').map(str::trim).all(serves_others)
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    if let Some(shards) = arguments.address.as_deref().filter(|shards| serves_others(shards))
        && arguments.is_alone()
    {
        bail!(
            "the directory at {shards} serves other machines, whose stores cannot reach this one at {}: say with --host which \
             address of this machine they can",
            arguments.host
        );
    }
    let background = Background::of(store.socket());
    let _preparation = background.prepare()?;
    if let Some(running) = background.running()? {
        bail!(
            "a store runs already: process {}, socket {}; `hoplite stop` ends it",
            running.pid,
            background.socket().display()
        );
    }
    background.keep_log();
    let mut daemon = Daemon::spawn(
        "hoplite-store",
        arguments.command(&background, arguments.has_dashboard()),
        background.log(),
    )?;
    let ready = async {
        let addresses = daemon.addresses().await?;
        daemon.ready().await?;
        background.record(daemon.pid()?)?;
        anyhow::Ok(addresses)
    };
    let started = unless_interrupted(async {
        match timeout(arguments.wait, ready).await {
            Ok(started) => started,
            Err(_) => bail!(
                "the store was not ready within {}: {}; log: {}",
                humantime::format_duration(arguments.wait),
                last_words(&background.log()),
                background.log().display()
            ),
        }
    })
    .await;
    match started {
        Ok(addresses) => {
            let pid = daemon.pid()?;
            daemon.leave();
            let report = Report::new(&background, pid, &addresses, &arguments);
            Ok(report.print(&mut io::stdout().lock(), arguments.json)?)
        }
        Err(error) => {
            daemon.stop().await;
            background.forget();
            Err(error)
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    node: String,
    process: u32,
    socket: PathBuf,
    data: Option<SocketAddr>,
    directory: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    dashboard: Option<SocketAddr>,
    login: Option<PathBuf>,
    #[serde(skip)]
    is_https: bool,
    log: PathBuf,
}

impl Report {
    fn new(
        background: &Background,
        process: u32,
        addresses: &Addresses,
        arguments: &Arguments,
    ) -> Self {
        let from_environment = Security::from_environment();
        let credentials =
            addresses.dashboard.and_then(|_| arguments.security()?.credentials().ok());
        let login = credentials.and_then(|credentials| {
            let token = credentials.token.and(from_environment.token_file);
            credentials.secret_of_user.or(token)
        });
        Self {
            login,
            is_https: arguments.has("--tls-cert") || from_environment.tls_cert.is_some(),
            node: addresses.node.clone().unwrap_or_default(),
            process,
            socket: background.socket().to_owned(),
            data: addresses.data,
            directory: addresses.directory,
            metrics: addresses.metrics,
            dashboard: addresses.dashboard,
            log: background.log(),
        }
    }

    fn print(&self, out: &mut impl Write, json: bool) -> io::Result<()> {
        if json {
            return output::json(out, self);
        }
        writeln!(out, "store      {}, process {}", self.node, self.process)?;
        writeln!(out, "socket     {}", self.socket.display())?;
        let addresses =
            [("data", self.data), ("directory", self.directory), ("metrics", self.metrics)];
        for (name, address) in addresses {
            if let Some(address) = address {
                writeln!(out, "{name:<11}{address}")?;
            }
        }
        if let Some(dashboard) = self.dashboard {
            let scheme = if self.is_https { "https" } else { "http" };
            write!(out, "dashboard  {scheme}://{dashboard}/")?;
            match &self.login {
                Some(file) => writeln!(out, "  (log in with the text in {})", file.display())?,
                None => writeln!(out)?,
            }
        }
        writeln!(out, "log        {}", self.log.display())?;
        writeln!(out, "`hoplite status` shows how it is; `hoplite stop` ends it.")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn arguments(line: &str) -> Arguments {
        Line::try_parse_from(line.split(' ')).unwrap().arguments
    }

    fn flags(line: &str) -> String {
        let command = arguments(line).command(&Background::of("/s/store.sock".into()), false);
        let flags: Vec<_> =
            command.get_args().map(|flag| flag.to_string_lossy().into_owned()).collect();
        flags.join(" ")
    }

    #[test]
    fn a_directory_serves_others_if_no_shard_is_on_loopback() {
        for (shards, expected) in [
            ("192.0.2.1:7401", true),
            ("192.0.2.1:1,127.0.0.1:1", false),
            ("localhost:1", false),
            ("[::1]:1", false),
        ] {
            assert_eq!(serves_others(shards), expected, "{shards}");
        }
    }

    #[test]
    fn a_store_with_the_directory_and_a_login_has_a_dashboard() {
        for (line, expected) in [
            ("start --head", true),
            ("start --head -- --insecure=false", true),
            ("start --head -- --insecure", false),
            ("start --head -- --config a", false),
            ("start -- --insecure --directory-listen 127.0.0.1:0", false),
            ("start -- --token-file a --insecure=true", true),
            ("start -- --tls-cert=a --directory-listen 127.0.0.1:0", true),
            ("start --head -- --dashboard 1", false),
            ("start --address a:1", false),
            ("start -- --token-file=a --directory=a:1", false),
        ] {
            assert_eq!(arguments(line).has_dashboard(), expected, "{line}");
        }
        let background = Background::of("/s/store.sock".into());
        let command = arguments("start").command(&background, true);
        let last: Vec<_> = command.get_args().skip(3).map(|flag| flag.to_string_lossy()).collect();
        assert_eq!(last, ["--dashboard", DASHBOARD]);
    }

    #[test]
    fn the_store_is_told_what_was_said() {
        let socket = "--socket /s/store.sock";
        assert_eq!(flags("start"), format!("--print-addresses {socket}"));
        assert_eq!(
            flags("start --port 5"),
            format!("--print-addresses --listen 127.0.0.1:5 {socket}")
        );
        assert_eq!(
            flags("start --head --host 10.0.0.1 --memory 1MiB -- --dashboard 1"),
            format!(
                "--print-addresses --listen 10.0.0.1:7400 {socket} --directory-listen 10.0.0.1:7401 --memory 1048576 --dashboard 1"
            )
        );
        assert_eq!(
            flags("start --address a:1,b:2 --host ::1 --port 5 --node-id n -- --insecure"),
            format!(
                "--print-addresses --listen [::1]:5 {socket} --directory a:1,b:2 --node-id n --insecure"
            )
        );
        assert_eq!(
            flags(
                "start --head -- --dashboard=0 --directory-listen 127.0.0.1:0 --listen=127.0.0.1:0"
            ),
            format!(
                "--print-addresses {socket} --dashboard=0 --directory-listen 127.0.0.1:0 --listen=127.0.0.1:0"
            )
        );
        assert!(Line::try_parse_from(["start", "--head", "--address", "a:1"]).is_err());
    }
}
