use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use hoplite_client::PeerLink;
use hoplite_core::topology::cluster::Dendrogram;
use hoplite_core::topology::place::MAX_LEVELS;
use hoplite_core::topology::{Links, Matrix};
use hoplite_topology::slow::{SlowPair, slow_pairs};
use hoplite_topology::{files, svg};

use super::duration;
use crate::arguments::{StoreArguments, parse_size};
use crate::output::{self, Alignment, Table};

const MAX_SLOW_PAIRS: usize = 10;
const PICOSECONDS: u64 = 1_000_000_000_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Matrix file: JSON, CSV of round trips, or Slurm's topology.conf [default: the store's links,
    /// as measured by transfers]
    #[arg(long, value_name = "FILE")]
    matrix: Option<PathBuf>,
    /// Order file: a JSON list of nodes' indices by rank, or `identity` [default: by groups of
    /// close nodes]
    #[arg(long, value_name = "FILE", requires = "matrix")]
    order: Option<PathBuf>,
    /// Size of the message whose cost is the distance of two nodes
    #[arg(long, value_parser = parse_size, default_value = "0", requires = "matrix")]
    size: u64,
    /// Draw the matrix in rank order, with the tree of groups beside it, as SVG
    #[arg(long, value_name = "FILE", requires = "matrix")]
    plot: Option<PathBuf>,
    /// Print the links of the store as JSON
    #[arg(long, conflicts_with = "matrix")]
    json: bool,
}

pub(crate) async fn run(store: &StoreArguments, arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.matrix {
        Some(path) => show_matrix(path, arguments),
        None => show_links(store, arguments).await,
    }
}

async fn show_links(store: &StoreArguments, arguments: &Arguments) -> anyhow::Result<()> {
    let links = store.connect().await?.status().await?.links;
    let mut stdout = io::stdout().lock();
    if arguments.json {
        return Ok(output::json(&mut stdout, &links)?);
    }
    print_links(&mut stdout, links)?;
    Ok(stdout.flush()?)
}

fn print_links(out: &mut impl Write, links: Vec<PeerLink>) -> io::Result<()> {
    let mut table = Table::new([
        ("PEER", Alignment::Left),
        ("ROUND TRIP", Alignment::Right),
        ("RATE", Alignment::Right),
        ("LANES", Alignment::Right),
        ("", Alignment::Left),
    ]);
    for link in links {
        table.row([
            link.node.escape_debug().to_string(),
            duration(2000 * u128::from(link.link.alpha_ns)),
            rate(link.link.ps_per_byte),
            link.lanes.map_or_else(|| "-".to_owned(), |lanes| lanes.to_string()),
            if link.is_slow { "slow" } else { "" }.to_owned(),
        ]);
    }
    table.print(out)
}

fn show_matrix(path: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let matrix = files::matrix(path)?;
    let links = Links::new(&matrix, arguments.size)?;
    let dendrogram = Dendrogram::new(links);
    let order = match &arguments.order {
        Some(file) => files::order(file, matrix.len())?,
        None => dendrogram.leaves_by_ends(links),
    };
    matrix.check_order(&order)?;
    if let Some(path) = &arguments.plot {
        let drawing = svg::heat_map(links, &order, &dendrogram);
        fs::write(path, drawing).with_context(|| path.display().to_string())?;
    }
    let mut stdout = io::stdout().lock();
    print(&mut stdout, links, &order, &dendrogram)?;
    Ok(stdout.flush()?)
}

pub(super) fn print(
    out: &mut impl Write,
    links: Links<'_>,
    order: &[u32],
    dendrogram: &Dendrogram,
) -> io::Result<()> {
    let matrix = links.matrix();
    table(matrix, order, dendrogram).print(out)?;
    let slow = slow_pairs(links, dendrogram);
    for SlowPair { low, high, cost_ps, usual_ps } in slow.iter().take(MAX_SLOW_PAIRS) {
        let [low, high] = [low, high].map(|&node| matrix.nodes()[node as usize].escape_debug());
        let (cost, usual) = (duration((*cost_ps).into()), duration((*usual_ps).into()));
        writeln!(out, "slow: {low} and {high}, {cost} where {usual} is usual")?;
    }
    if slow.len() > MAX_SLOW_PAIRS {
        writeln!(out, "slow: {} more pairs", slow.len() - MAX_SLOW_PAIRS)?;
    }
    Ok(())
}

fn rate(ps_per_byte: u32) -> String {
    match PICOSECONDS.checked_div(ps_per_byte.into()) {
        Some(bytes) => format!("{}/s", output::size(bytes)),
        None => "-".to_owned(),
    }
}

fn table(matrix: &Matrix, order: &[u32], dendrogram: &Dendrogram) -> Table<5> {
    let mut table = Table::new([
        ("RANK", Alignment::Right),
        ("NODE", Alignment::Left),
        ("GROUP", Alignment::Left),
        ("LATENCY TO NEXT", Alignment::Right),
        ("RATE TO NEXT", Alignment::Right),
    ]);
    let places = dendrogram.places(order);
    let levels = dendrogram.levels().len();
    for (rank, &node) in order.iter().enumerate() {
        let path = &places[node as usize].path[MAX_LEVELS - levels..];
        let groups: Vec<String> = path.iter().map(u32::to_string).collect();
        let link = matrix.link(node as usize, order[(rank + 1) % order.len()] as usize);
        table.row([
            rank.to_string(),
            matrix.nodes()[node as usize].escape_debug().to_string(),
            if groups.is_empty() { "-".to_owned() } else { groups.join("/") },
            duration(1000 * u128::from(link.alpha_ns)),
            rate(link.ps_per_byte),
        ]);
    }
    table
}
