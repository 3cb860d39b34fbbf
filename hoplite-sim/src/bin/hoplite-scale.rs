//! Simulates collectives of thousands of nodes with [`hoplite_sim::scale`].
#![forbid(unsafe_code)]
#![recursion_limit = "256"]

use std::io::{self, Write};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use hoplite_sim::scale::{Arrivals, Cost, Experiment, FlowCap, Outcome, Workload};
use serde_json::{Value, json};

const EXAMPLES: &str = "Examples:
  hoplite-scale --nodes 100,1000,10000
  hoplite-scale --workload reduce --arrivals staggered --failures 1
  hoplite-scale --nodes 10000 --workload broadcast,reduce --size-mib 1024 --json

The simulation itself gives the same result on every computer. How long decisions took is measured on this one, and \
says little in a debug build.";

/// Simulates collectives of thousands of nodes. The real stores and shards decide, over a model of
/// the network.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Arguments {
    /// The number of nodes, including the first one
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "100,1000", value_parser = clap::value_parser!(u32).range(2..=65_000))]
    nodes: Vec<u32>,
    /// The collectives to run
    #[arg(long, value_delimiter = ',', default_value = "broadcast,reduce")]
    workload: Vec<WorkloadName>,
    /// The arrival of the nodes
    #[arg(long, value_delimiter = ',', default_value = "together")]
    arrivals: Vec<ArrivalsName>,
    /// The time between the first and the last arrival, in milliseconds [default: ten times the
    /// transfer time of one object]
    #[arg(long, value_name = "MS")]
    spread_ms: Option<u64>,
    /// The share of nodes that fail during the run, in percent
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_value = "0", value_parser = percentage)]
    failures: Vec<f64>,
    /// The number of racks in the nodes' labels, in turn; links stay alike [default: no labels]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    racks: usize,
    /// The number of receivers that one copy serves at once; the daemons allow one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    slots: u32,
    /// The highest rate of one connection [default: the rate of a link]
    #[arg(long, value_name = "MBIT/S", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    flow_cap_mbit: Option<u64>,
    /// The most connections (lanes) of one stream, with a flow cap
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    max_lanes: u32,
    /// Measure a second run, after the first one has taught shards the time of a hop, and stores
    /// their lanes
    #[arg(long, conflicts_with_all = ["failures", "arrivals"])]
    repeated: bool,
    /// The seed of the failures
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// The number of shards of the directory
    #[arg(long, value_name = "K", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    shards: u32,
    /// The size of each object
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    size_mib: u64,
    /// The rate of a link in each direction
    #[arg(long, value_name = "MBIT/S", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate_mbit: u64,
    /// The latency from one node to another
    #[arg(long, value_name = "US", default_value_t = 100, value_parser = clap::value_parser!(u64).range(..=10_000_000))]
    latency_us: u64,
    /// The number of messages that a shard handles per second
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    shard_rate: u32,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum WorkloadName {
    /// All nodes except the first get an object of the first node
    Broadcast,
    /// The first node reduces an object of each node
    Reduce,
    /// A reduce whose result all nodes get while it grows
    Allreduce,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ArrivalsName {
    /// All nodes at once
    Together,
    /// One node after the other
    Staggered,
}

fn percentage(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.0..=90.0).contains(&number) {
        Ok(number)
    } else {
        Err("it is between 0 and 90".to_owned())
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut out = io::stdout().lock();
    let mut found = Vec::new();
    if !arguments.json {
        print_heading(&mut out, &arguments)?;
    }
    for experiment in experiments(&arguments) {
        let (outcome, cost) = experiment.run();
        if arguments.json {
            found.push(as_json(&experiment, &outcome, cost));
        } else {
            print_row(&mut out, &experiment, &outcome, cost)?;
        }
    }
    if arguments.json {
        let build = if cfg!(debug_assertions) { "debug" } else { "release" };
        serde_json::to_writer_pretty(&mut out, &json!({ "build": build, "experiments": found }))?;
        writeln!(out)?;
    }
    Ok(())
}

fn experiments(arguments: &Arguments) -> Vec<Experiment> {
    let mut experiments = Vec::new();
    for workload in &arguments.workload {
        for arrivals in &arguments.arrivals {
            for failures_percent in &arguments.failures {
                for nodes in &arguments.nodes {
                    experiments.push(experiment(
                        arguments,
                        *workload,
                        *arrivals,
                        *failures_percent,
                        *nodes,
                    ));
                }
            }
        }
    }
    experiments
}

fn experiment(
    arguments: &Arguments,
    workload: WorkloadName,
    arrivals: ArrivalsName,
    failures_percent: f64,
    nodes: u32,
) -> Experiment {
    let base = Experiment {
        nodes: nodes as usize,
        shards: arguments.shards as usize,
        workload: match workload {
            WorkloadName::Broadcast => Workload::Broadcast,
            WorkloadName::Reduce => Workload::Reduce,
            WorkloadName::Allreduce => Workload::Allreduce,
        },
        failures_percent,
        racks: arguments.racks,
        slots: arguments.slots,
        flow_cap: arguments.flow_cap_mbit.map(|megabits| FlowCap {
            bytes_per_second: megabits * 125_000,
            max_lanes: arguments.max_lanes as usize,
        }),
        is_repeated: arguments.repeated,
        seed: arguments.seed,
        size_bytes: arguments.size_mib << 20,
        bytes_per_second: arguments.rate_mbit * 125_000,
        latency: Duration::from_micros(arguments.latency_us),
        shard_service: Duration::from_secs(1) / arguments.shard_rate,
        ..Experiment::default()
    };
    let spread =
        arguments.spread_ms.map_or_else(|| base.transfer_time(10.0), Duration::from_millis);
    let arrivals = match arrivals {
        ArrivalsName::Together => Arrivals::Together,
        ArrivalsName::Staggered => Arrivals::Staggered(spread),
    };
    Experiment { arrivals, ..base }
}

fn print_heading(out: &mut impl Write, arguments: &Arguments) -> io::Result<()> {
    writeln!(
        out,
        "{} MiB, links of {} Mbit/s and {} us, {} shards of {} messages/s, seed {}",
        arguments.size_mib,
        arguments.rate_mbit,
        arguments.latency_us,
        arguments.shards,
        arguments.shard_rate,
        arguments.seed
    )?;
    writeln!(out)?;
    writeln!(
        out,
        "{:<9} {:>6} {:<9} {:>5} {:>6} {:>6} {:>10} {:>10} {:>6} {:>10} {:>7} {:>8} {:>6} {:>8} {:>9} {:>8} {:>7}",
        "WORKLOAD",
        "NODES",
        "ARRIVALS",
        "FAIL%",
        "DONE",
        "UNDONE",
        "TIME MS",
        "BOUND MS",
        "RATIO",
        "LONGEST MS",
        "MSGS/OP",
        "SHARD",
        "BUSY%",
        "QUEUE",
        "US/MSG",
        "COORD MS",
        "WALL S"
    )
}

fn print_row(
    out: &mut impl Write,
    experiment: &Experiment,
    outcome: &Outcome,
    cost: Cost,
) -> io::Result<()> {
    let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
    let busiest = outcome.busiest_shard();
    writeln!(
        out,
        "{:<9} {:>6} {:<9} {:>5} {:>6} {:>6} {:>10.1} {:>10.1} {:>6.2} {:>10.1} {:>7.1} {:>8} {:>6.1} {:>8} {:>9.2} {:>8.1} {:>7.1}",
        workload_name(experiment),
        experiment.nodes,
        arrivals_name(experiment),
        experiment.failures_percent,
        outcome.done,
        outcome.undone,
        milliseconds(outcome.completion),
        milliseconds(outcome.bound),
        outcome.times_bound(),
        milliseconds(outcome.longest),
        outcome.messages_per_operation(),
        busiest.received,
        100.0 * busiest.busy.as_secs_f64() / outcome.completion.as_secs_f64(),
        busiest.longest_queue,
        cost.shard_message.as_secs_f64() * 1e6,
        milliseconds(cost.coordinator),
        cost.wall.as_secs_f64(),
    )?;
    if let Some(plan) = &outcome.plan {
        let (mendings, restarts) = (outcome.mendings, outcome.restarts);
        writeln!(out, "          {plan}; repaired {mendings} times, restarted {restarts} times")?;
    }
    if let Some(error) = &outcome.error {
        writeln!(out, "          {error}")?;
    }
    Ok(())
}

const fn workload_name(experiment: &Experiment) -> &'static str {
    match experiment.workload {
        Workload::Broadcast => "broadcast",
        Workload::Reduce => "reduce",
        Workload::Allreduce => "allreduce",
    }
}

const fn arrivals_name(experiment: &Experiment) -> &'static str {
    match experiment.arrivals {
        Arrivals::Together => "together",
        Arrivals::Staggered(_) => "staggered",
    }
}

fn as_json(experiment: &Experiment, outcome: &Outcome, cost: Cost) -> Value {
    let shards = outcome.shards.iter().map(|shard| {
        json!({
            "received": shard.received,
            "sent": shard.sent,
            "busy_s": shard.busy.as_secs_f64(),
            "longest_queue": shard.longest_queue,
        })
    });
    let counts = outcome.counts;
    json!({
        "workload": workload_name(experiment),
        "nodes": experiment.nodes,
        "arrivals": arrivals_name(experiment),
        "spread_s": experiment.last_arrival().as_secs_f64(),
        "failures_percent": experiment.failures_percent,
        "racks": experiment.racks,
        "slots": experiment.slots,
        "flow_cap_bytes_per_second": experiment.flow_cap.map(|cap| cap.bytes_per_second),
        "max_lanes": experiment.flow_cap.map(|cap| cap.max_lanes),
        "repeated": experiment.is_repeated,
        "seed": experiment.seed,
        "size_bytes": experiment.size_bytes,
        "bytes_per_second": experiment.bytes_per_second,
        "latency_s": experiment.latency.as_secs_f64(),
        "shard_service_s": experiment.shard_service.as_secs_f64(),
        "completion_s": outcome.completion.as_secs_f64(),
        "bound_s": outcome.bound.as_secs_f64(),
        "times_bound": outcome.times_bound(),
        "longest_s": outcome.longest.as_secs_f64(),
        "done": outcome.done,
        "undone": outcome.undone,
        "crashed": counts.crashes,
        "error": outcome.error,
        "plan": outcome.plan,
        "mendings": outcome.mendings,
        "restarts": outcome.restarts,
        "operations": outcome.operations,
        "messages_per_operation": outcome.messages_per_operation(),
        "messages": counts.messages,
        "grants": counts.grants,
        "pulls": counts.pulls,
        "failed_pulls": counts.failed_pulls,
        "hops": counts.hops,
        "failed_hops": counts.failed_hops,
        "combinations": counts.combinations,
        "failed_combinations": counts.failed_combinations,
        "events": counts.events,
        "shards": shards.collect::<Vec<_>>(),
        "measured": {
            "wall_s": cost.wall.as_secs_f64(),
            "shard_message_s": cost.shard_message.as_secs_f64(),
            "coordinator_s": cost.coordinator.as_secs_f64(),
        },
    })
}
