//! `hoplite bench`: measures Hoplite and, in the same run, the machine's own speed.
//!
//! All but `kernels` and `shard` start a new cluster with prefaulted arenas. Except in `objects`
//! and `clients`, compared measurements alternate.

mod broadcast;
mod clients;
mod directory;
mod kernels;
mod local;
mod objects;
mod p2p;
mod reduce;
mod shard;

mod floor;
mod processor;
mod report;

use std::io::{self, Write};

use clap::Subcommand;

use crate::cluster::{Cluster, ClusterOptions, Pages, with_cluster};
use crate::output;
use report::Report;

const EXAMPLES: &str = "Examples:
  hoplite bench local
  hoplite bench objects --thousands 100
  hoplite bench clients --greedy 16
  hoplite bench p2p --size 256MiB --repetitions 3
  hoplite bench broadcast --receivers 3,7 --json
  hoplite bench reduce --nodes 4 --size 16MiB

Every measurement but those of the kernels and of the shard runs a cluster of its own on this machine, in memory that is \
faulted in, and discards its first, cold round (`objects`: of gets and lists). GB means 10^9 bytes.";

const SPARE_BYTES: u64 = 64 << 20;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    benchmark: Benchmark,
    /// Print JSON instead of a table
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Put and get on one node, beside a bare Unix socket and memcpy
    Local(local::Arguments),
    /// Many small objects in one store: calls, lists and memory
    Objects(objects::Arguments),
    /// Small puts of one client while many others put all the time
    Clients(clients::Arguments),
    /// From one node to another, beside one raw TCP stream and one gRPC call
    P2p(p2p::Arguments),
    /// One object to several nodes that arrive together, or one after another
    Broadcast(broadcast::Arguments),
    /// An array on each of several nodes into their sum, on one or all of them, beside one raw TCP
    /// stream and other ways
    Reduce(reduce::Arguments),
    /// The arithmetic of a reduce, on one core, beside the bandwidth of memory
    Kernels(kernels::Arguments),
    /// Speed of one shard of the directory on one core, and its memory per object
    Shard(shard::Arguments),
    /// Number of gets that one shard of the directory serves over gRPC, beside the same messages in
    /// process
    Directory(directory::Arguments),
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        let _ =
            writeln!(io::stderr(), "hoplite: this is a debug build: its measurements mean little");
    }
    let report = match arguments.benchmark {
        Benchmark::Local(arguments) => {
            let room = Room::for_one(1, arguments.size);
            in_cluster(room, move |cluster| local::measure(cluster, &arguments)).await?
        }
        Benchmark::Objects(arguments) => {
            in_cluster(arguments.room()?, move |cluster| objects::measure(cluster, &arguments))
                .await?
        }
        Benchmark::Clients(arguments) => {
            in_cluster(arguments.room()?, move |cluster| clients::measure(cluster, &arguments))
                .await?
        }
        Benchmark::P2p(arguments) => {
            let room = Room::for_one(2, arguments.size);
            in_cluster(room, move |cluster| p2p::measure(cluster, &arguments)).await?
        }
        Benchmark::Broadcast(arguments) => {
            let room = Room::for_one(arguments.nodes(), arguments.size);
            in_cluster(room, move |cluster| broadcast::measure(cluster, &arguments)).await?
        }
        Benchmark::Reduce(arguments) => {
            in_cluster(arguments.room(), move |cluster| reduce::measure(cluster, &arguments))
                .await?
        }
        Benchmark::Kernels(arguments) => kernels::measure(&arguments)?,
        Benchmark::Shard(arguments) => shard::measure(&arguments)?,
        Benchmark::Directory(arguments) => {
            let room = Room { nodes: 0, each_bytes: 0, first_bytes: 0 };
            in_cluster(room, move |cluster| directory::measure(cluster, &arguments)).await?
        }
    };
    let mut stdout = io::stdout().lock();
    if arguments.json {
        output::json(&mut stdout, &report)?;
    } else {
        report.print(&mut stdout)?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct Room {
    nodes: u32,
    /// Memory of each store except the first.
    each_bytes: u64,
    first_bytes: u64,
}

impl Room {
    fn for_one(nodes: u32, size_bytes: u64) -> Self {
        let bytes = size_bytes + SPARE_BYTES;
        Self { nodes, each_bytes: bytes, first_bytes: bytes }
    }
}

async fn in_cluster(
    room: Room,
    body: impl FnOnce(&Cluster) -> anyhow::Result<Report> + Send + 'static,
) -> anyhow::Result<Report> {
    let options = ClusterOptions {
        nodes: room.nodes,
        shards: 1,
        directory: None,
        memory_bytes: room.each_bytes,
        labels: Vec::new(),
        first_memory_bytes: Some(room.first_bytes),
        pages: Pages::AllAtStart,
        dashboard: false,
    };
    with_cluster(options, async |cluster| {
        let cluster = cluster.clone();
        // On another thread: this task must notice signals and the end of daemons.
        tokio::task::spawn_blocking(move || body(&cluster)).await?
    })
    .await
}
