use std::future::pending;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use hoplite_daemon::Security;
use serde::Serialize;

use crate::arguments::parse_size;
use crate::cluster::{
    Cluster, ClusterOptions, DEFAULT_MEMORY, LabelInTurn, Pages, is_orderly, with_cluster,
};

const EXAMPLES: &str = "Examples:
  hoplite up --nodes 4 --dir /tmp/cluster
  hoplite up --nodes 8 --labels rack=0,1           node-0, node-2, .. are in rack 0, the others in rack 1
  hoplite --socket /tmp/cluster/node-0.sock put x file
  hoplite --socket /tmp/cluster/node-3.sock get x -o copy

Prints the line `ready` on standard output when all nodes are up, and ends all of them on SIGINT or SIGTERM.
If a store is drained, the others go on.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Number of stores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    nodes: u32,
    /// Number of directory shards
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    shards: u32,
    /// Directory for the sockets node-0.sock, node-1.sock, ... [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Memory of each store
    #[arg(long, value_name = "SIZE", default_value = DEFAULT_MEMORY, value_parser = parse_size)]
    memory: u64,
    /// Label of the stores and its values, which the stores take in turn, such as rack=0,1;
    /// repeatable
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = parse_label)]
    labels: Vec<LabelInTurn>,
    /// Print the nodes as one line of JSON when all are ready, instead of `ready`
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report<'c> {
    nodes: Vec<Node<'c>>,
    directory: &'c [String],
    dashboard: Option<SocketAddr>,
    logs: PathBuf,
}

#[derive(Debug, Serialize)]
struct Node<'c> {
    node: &'c str,
    socket: &'c Path,
    process: u32,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let options = ClusterOptions {
        nodes: arguments.nodes,
        shards: arguments.shards,
        directory: arguments.dir,
        memory_bytes: arguments.memory,
        labels: arguments.labels,
        first_memory_bytes: None,
        pages: Pages::OnUse,
        dashboard: Security::from_environment().has_login(),
    };
    let outcome = with_cluster(options, async |cluster| {
        announce(cluster, arguments.json)?;
        pending::<anyhow::Result<()>>().await
    })
    .await;
    match outcome {
        Err(error) if is_orderly(&error) => Ok(()),
        other => other,
    }
}

fn parse_label(text: &str) -> Result<LabelInTurn, String> {
    let (key, values) = text.split_once('=').ok_or("write it as KEY=VALUE,...")?;
    Ok(LabelInTurn { key: key.to_owned(), values: values.split(',').map(str::to_owned).collect() })
}

fn announce(cluster: &Cluster, json: bool) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let logs = cluster.directory.join("logs");
    if json {
        let nodes = cluster.nodes.iter();
        let nodes =
            nodes.map(|node| Node { node: &node.name, socket: &node.socket, process: node.pid });
        let nodes = nodes.collect();
        let report =
            Report { nodes, directory: &cluster.shards, dashboard: cluster.dashboard, logs };
        serde_json::to_writer(&mut stdout, &report).map_err(io::Error::from)?;
        writeln!(stdout)?;
        return stdout.flush();
    }
    let mut stderr = io::stderr().lock();
    for node in &cluster.nodes {
        writeln!(
            stderr,
            "{}  --socket {}  (process {})",
            node.name,
            node.socket.display(),
            node.pid
        )?;
    }
    writeln!(stderr, "directory  {}; logs in {}", cluster.shards.join(","), logs.display())?;
    if let Some(dashboard) = cluster.dashboard {
        let scheme = if std::env::var_os("HOPLITE_TLS_CERT").is_some() { "https" } else { "http" };
        writeln!(stderr, "dashboard  {scheme}://{dashboard}/")?;
    }
    drop(stderr);
    writeln!(stdout, "ready")?;
    stdout.flush()
}
