use std::io::{self, Write};

use hoplite_topology::decompose;
use serde::Serialize;

use super::{Levels, parse_levels, parse_number, seconds};
use crate::arguments::parse_size;
use crate::output::{self, Alignment, Table};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Number of ranks
    #[arg(long, value_name = "P")]
    ranks: u64,
    /// Levels of the network, innermost first: nodes of each, such as 4x16
    #[arg(long, value_parser = parse_levels)]
    levels: Levels,
    /// Bytes per second above one element of each level, innermost first
    #[arg(long, required = true, value_delimiter = ',', value_parser = parse_number, value_name = "BYTES,...")]
    bandwidth: Vec<f64>,
    /// Latency of a step, in seconds
    #[arg(long, value_parser = parse_number, value_name = "SECONDS")]
    latency: f64,
    /// Bytes at each rank
    #[arg(long, value_parser = parse_size)]
    size: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Decomposition {
    stages: Vec<Stage>,
    total_s: f64,
    ring_s: f64,
}

#[derive(Debug, Serialize)]
struct Stage {
    p: u32,
    bytes: f64,
    bytes_per_second: f64,
    /// Time of reduce-scatter and allgather together.
    seconds: f64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { ranks, levels: Levels(levels), bandwidth, latency, size, json } = arguments;
    decompose::check_ranks(levels, *ranks)?;
    let bytes = *size as f64;
    let best = decompose::best(levels, bandwidth, *latency, bytes)?;
    let ring_s = decompose::one_ring(levels, bandwidth, *latency, bytes)?;
    let mut stdout = io::stdout().lock();
    if *json {
        let stage = |stage: decompose::Stage| Stage {
            p: stage.nodes,
            bytes: stage.bytes,
            bytes_per_second: stage.bytes_per_second,
            seconds: stage.seconds,
        };
        let stages = best.stages.into_iter().map(stage).collect();
        return Ok(output::json(
            &mut stdout,
            &Decomposition { stages, total_s: best.seconds, ring_s },
        )?);
    }
    let mut table = Table::new([
        ("NODES", Alignment::Right),
        ("BYTES", Alignment::Right),
        ("BYTES/S", Alignment::Right),
        ("TIME", Alignment::Right),
    ]);
    for stage in &best.stages {
        table.row([
            stage.nodes.to_string(),
            format!("{:.0}", stage.bytes),
            format!("{:.3e}", stage.bytes_per_second),
            seconds(stage.seconds),
        ]);
    }
    table.print(&mut stdout)?;
    writeln!(stdout, "in all {}, one ring {}", seconds(best.seconds), seconds(ring_s))?;
    Ok(stdout.flush()?)
}
