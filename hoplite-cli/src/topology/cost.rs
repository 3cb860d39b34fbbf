use std::io::{self, Write};
use std::path::PathBuf;

use hoplite_core::topology::Links;
use hoplite_topology::{Model, cost, files};
use serde::Serialize;

use super::duration;
use crate::arguments::parse_size;
use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Matrix file: JSON, CSV of round trips, or Slurm's topology.conf
    #[arg(long, value_name = "FILE")]
    matrix: PathBuf,
    /// Order file: a JSON list of nodes' indices by rank, or `identity`
    #[arg(long, value_name = "FILE", default_value = "identity")]
    order: PathBuf,
    /// ring, halving-doubling, double-binary-tree, nccl-tree, bcube:B, chain or hierarchical:AxB
    #[arg(long)]
    model: Model,
    /// Bytes at each node
    #[arg(long, value_parser = parse_size)]
    size: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Cost {
    cost_ps: u128,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let matrix = files::matrix(&arguments.matrix)?;
    let order = files::order(&arguments.order, matrix.len())?;
    let cost_ps = cost::cost(Links::new(&matrix, arguments.size)?, &arguments.model, &order)?;
    let mut stdout = io::stdout().lock();
    if arguments.json {
        return Ok(output::json(&mut stdout, &Cost { cost_ps })?);
    }
    writeln!(stdout, "{} ({cost_ps} ps)", duration(cost_ps))?;
    Ok(stdout.flush()?)
}
