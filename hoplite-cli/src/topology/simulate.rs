use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use hoplite_core::topology::random::Random;
use hoplite_topology::fabric::collective::{
    self, Algorithm, BYTES_PER_SECOND, LATENCY_S, Outcome, SimulationError, allreduce,
};
use hoplite_topology::fabric::measured::MeasuredNetwork;
use hoplite_topology::fabric::network::{Network, Routing};
use serde::Serialize;

use super::{Levels, parse_levels, parse_number, seconds};
use crate::arguments::parse_size;
use crate::output::{self, Alignment, Table};
use hoplite_topology::files;
use hoplite_topology::svg::{self, Curve};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// bigraph, fat-tree, torus, or a matrix file
    #[arg(long, value_name = "FABRIC|FILE")]
    fabric: PathBuf,
    /// Number of nodes [default with a file: the nodes of the file]
    #[arg(long)]
    nodes: Option<u32>,
    /// Algorithm of the allreduce
    #[arg(long, value_enum)]
    collective: Collective,
    /// Bytes at each node
    #[arg(long, value_parser = parse_size)]
    size: u64,
    /// Groups of `hierarchical`, innermost first, such as 8x16 [default: the groups of the fabric]
    #[arg(long, value_parser = parse_levels)]
    levels: Option<Levels>,
    /// Nodes by rank: identity, shuffled:SEED, or a file [default: identity; the order of HDRM for
    /// hdrm]
    #[arg(long, value_name = "ORDER")]
    order: Option<String>,
    /// Bandwidth of the uplinks of a matrix file's groups, in links of a node: one number for all
    /// levels, or one for each level, outermost first [default: from the file, or from its rates if
    /// it was measured with --loaded]
    #[arg(long, value_delimiter = ',', value_parser = parse_bandwidth, value_name = "LINKS,...")]
    uplinks: Option<Vec<f64>>,
    /// Choice among equally short paths of a flow: modulo (by the receiver's number), ecmp:SEED (by
    /// a hash of both ends) or ideal (equal parts on all)
    #[arg(long, value_parser = parse_routing, default_value = "modulo")]
    routing: Routing,
    /// Latency of a step, in seconds; a matrix has its own [default: 6.273e-6, as in EFLOPS' figure
    /// 16]
    #[arg(long, value_parser = parse_number, value_name = "SECONDS", default_value_t = LATENCY_S, hide_default_value = true)]
    latency: f64,
    /// Bandwidth of a node's link, in bytes per second [default: 9.433e9, as in EFLOPS' figure 16]
    #[arg(long, value_parser = parse_bandwidth, value_name = "BYTES", default_value_t = BYTES_PER_SECOND, hide_default_value = true)]
    bandwidth: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw the time against the number of nodes, for all collectives, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Collective {
    /// A ring in rank order
    Ring,
    /// Halving-doubling
    Hd,
    /// Halving-doubling with HDRM's ranks, on a BiGraph
    Hdrm,
    /// Rings in groups, level by level
    Hierarchical,
}

impl Collective {
    fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Hd => "hd",
            Self::Hdrm => "hdrm",
            Self::Hierarchical => "hierarchical",
        }
    }
}

#[derive(Debug, Serialize)]
struct Simulation {
    fabric: String,
    nodes: u32,
    collective: &'static str,
    size_bytes: u64,
    seconds: f64,
    steps: Vec<Steps>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<Shared>,
}

#[derive(Debug, Serialize)]
struct Shared {
    groups: usize,
    /// An uplink's capacity at each level, outermost first, as a multiple of a node's link.
    uplinks: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Steps {
    count: u32,
    bytes: f64,
    load: f64,
    seconds: f64,
}

#[derive(Debug, thiserror::Error)]
#[error("--nodes is required for a {fabric}")]
struct NoNodes {
    fabric: String,
}

#[derive(Debug, thiserror::Error)]
#[error("--uplinks is for a matrix file; a {fabric} has its own links")]
struct OwnLinks {
    fabric: String,
}

#[derive(Debug, thiserror::Error)]
#[error("the matrix has {has} nodes, not {nodes}")]
struct OtherNodes {
    has: u32,
    nodes: u32,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let network = network(arguments, arguments.nodes)?;
    let outcome = simulate(arguments, &network, arguments.collective)?;
    if let Some(path) = &arguments.plot {
        plot(arguments, &network, path)?;
    }
    let mut stdout = io::stdout().lock();
    if arguments.json {
        let step = |step: &collective::Steps| Steps {
            count: step.count,
            bytes: step.bytes,
            load: step.load,
            seconds: step.seconds,
        };
        let simulation = Simulation {
            fabric: arguments.fabric.display().to_string(),
            nodes: network.hosts(),
            collective: arguments.collective.name(),
            size_bytes: arguments.size,
            seconds: outcome.seconds,
            steps: outcome.steps.iter().map(step).collect(),
            shared: match &network {
                Network::Measured(network) => {
                    Some(Shared { groups: network.groups(), uplinks: network.uplinks() })
                }
                _ => None,
            },
        };
        return Ok(output::json(&mut stdout, &simulation)?);
    }
    let mut table = Table::new([
        ("STEPS", Alignment::Right),
        ("BYTES", Alignment::Right),
        ("LOAD", Alignment::Right),
        ("TIME OF EACH", Alignment::Right),
    ]);
    for step in &outcome.steps {
        table.row([
            step.count.to_string(),
            format!("{:.0}", step.bytes),
            format!("{:.2}", step.load),
            seconds(step.seconds),
        ]);
    }
    table.print(&mut stdout)?;
    if let Network::Measured(network) = &network {
        let uplinks: Vec<String> =
            network.uplinks().iter().map(|links| format!("{links:.2}")).collect();
        match network.groups() {
            0 => writeln!(stdout, "no uplinks are shared")?,
            groups => writeln!(
                stdout,
                "{groups} groups, whose uplinks carry {} of a node's link",
                uplinks.join(", ")
            )?,
        }
    }
    writeln!(stdout, "{} nodes, in all {}", network.hosts(), seconds(outcome.seconds))?;
    Ok(stdout.flush()?)
}

fn network(arguments: &Arguments, nodes: Option<u32>) -> anyhow::Result<Network> {
    let name = arguments.fabric.to_string_lossy();
    let needed = || nodes.ok_or_else(|| NoNodes { fabric: name.to_string() });
    if matches!(&*name, "bigraph" | "fat-tree" | "torus") && arguments.uplinks.is_some() {
        return Err(OwnLinks { fabric: name.into_owned() }.into());
    }
    Ok(match &*name {
        "bigraph" => Network::bigraph(needed()?, arguments.routing)?,
        "fat-tree" => Network::fat_tree(needed()?, arguments.routing)?,
        "torus" => Network::torus(needed()?)?,
        _ => {
            let files::Fabric { matrix, groups, uplinks } = files::fabric(&arguments.fabric)?;
            let uplinks = arguments.uplinks.as_deref().or(uplinks.as_deref());
            let network = MeasuredNetwork::shared(matrix, groups.as_deref(), uplinks);
            let network =
                Network::Measured(network.with_context(|| arguments.fabric.display().to_string())?);
            let has = network.hosts();
            if let Some(nodes) = nodes.filter(|&nodes| nodes != has) {
                return Err(OtherNodes { has, nodes }.into());
            }
            network
        }
    })
}

fn simulate(
    arguments: &Arguments,
    network: &Network,
    collective: Collective,
) -> anyhow::Result<Outcome> {
    let algorithm = match collective {
        Collective::Ring => Algorithm::Ring,
        Collective::Hd | Collective::Hdrm => Algorithm::HalvingDoubling,
        Collective::Hierarchical => Algorithm::Hierarchical(levels(arguments, network)),
    };
    let order = order(arguments.order.as_deref(), network, collective)?;
    let bytes = arguments.size as f64;
    Ok(allreduce(network, &algorithm, &order, bytes, arguments.latency, arguments.bandwidth)?)
}

fn levels(arguments: &Arguments, network: &Network) -> Vec<u32> {
    match (&arguments.levels, network) {
        (Some(Levels(levels)), _) => levels.clone(),
        (None, Network::BiGraph { hosts_per_switch, switches, .. }) => {
            vec![*hosts_per_switch, *switches]
        }
        (None, Network::FatTree { leaves, hosts_per_leaf, .. }) => vec![*hosts_per_leaf, *leaves],
        (None, Network::Torus { dimensions }) => dimensions.clone(),
        (None, Network::Measured(_)) => vec![network.hosts()],
    }
}

fn order(
    argument: Option<&str>,
    network: &Network,
    collective: Collective,
) -> anyhow::Result<Vec<u32>> {
    let hosts = network.hosts();
    match argument {
        None if collective == Collective::Hdrm => Ok(collective::hdrm_order(network)?),
        None => Ok((0..hosts).collect()),
        Some(text) => match text.strip_prefix("shuffled:") {
            Some(seed) => {
                let seed =
                    seed.parse().with_context(|| format!("the seed of {text} is not a number"))?;
                let mut order: Vec<u32> = (0..hosts).collect();
                Random::new(seed).shuffle(&mut order);
                Ok(order)
            }
            None => Ok(files::order(Path::new(text), hosts as usize)?),
        },
    }
}

fn plot(arguments: &Arguments, network: &Network, path: &Path) -> anyhow::Result<()> {
    let most = network.hosts();
    let is_measured = matches!(network, Network::Measured(_));
    let counts =
        std::iter::successors(Some(most), |nodes| nodes.is_multiple_of(2).then_some(nodes / 2));
    let counts: Vec<u32> =
        counts.take(if is_measured { 1 } else { 5 }).filter(|&nodes| nodes >= 2).collect();
    let mut curves = Vec::new();
    for collective in Collective::value_variants() {
        let mut points = Vec::new();
        for &nodes in counts.iter().rev() {
            let network = self::network(arguments, Some(nodes))?;
            match simulate(arguments, &network, *collective) {
                Ok(outcome) => points.push((f64::from(nodes), outcome.seconds)),
                Err(error) if error.is::<SimulationError>() => {}
                Err(error) => return Err(error),
            }
        }
        curves.push(Curve { name: collective.name().to_owned(), points });
    }
    let title =
        format!("allreduce of {} on {}", output::size(arguments.size), arguments.fabric.display());
    fs::write(path, svg::curves(&title, "nodes", "seconds", &curves))
        .with_context(|| path.display().to_string())
}

fn parse_routing(text: &str) -> anyhow::Result<Routing> {
    match text {
        "modulo" => Ok(Routing::Modulo),
        "ideal" => Ok(Routing::Ideal),
        "ecmp" => Ok(Routing::Ecmp(0)),
        _ => match text.strip_prefix("ecmp:").map(str::parse) {
            Some(Ok(seed)) => Ok(Routing::Ecmp(seed)),
            _ => anyhow::bail!("routing is modulo, ecmp:SEED or ideal"),
        },
    }
}

fn parse_bandwidth(text: &str) -> anyhow::Result<f64> {
    let number = parse_number(text)?;
    anyhow::ensure!(number > 0.0, "a bandwidth is above zero");
    Ok(number)
}
