use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hoplite_core::topology::Links;
use hoplite_topology::smt::Answer;
use hoplite_topology::solve::{Search, Status, WHOLE};
use hoplite_topology::{Model, cost, files, solver};
use serde::Serialize;

use super::formats::{self, Format};
use crate::arguments::{parse_duration, parse_size};
use crate::output;

/// Moves of the search between two checks of the time: some milliseconds for 1,000 nodes.
const MOVES: u32 = 16;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Matrix file: JSON, CSV of round trips, or Slurm's topology.conf
    #[arg(long, value_name = "FILE")]
    matrix: PathBuf,
    /// ring, halving-doubling, double-binary-tree, nccl-tree, bcube:B, chain or hierarchical:AxB
    #[arg(long = "for", value_name = "MODEL")]
    model: Model,
    /// Bytes at each node
    #[arg(long, value_parser = parse_size)]
    size: u64,
    /// Time limit of the search; the search ends earlier with a proof that the order is optimal
    #[arg(long, value_name = "DURATION", default_value = "5", value_parser = parse_duration)]
    seconds: Duration,
    /// Seed of the search
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Path of z3, to search for a better order of up to 16 nodes. It gets the same time again if
    /// the search has no proof
    #[arg(long, value_name = "PROGRAM")]
    z3: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Json)]
    format: Format,
}

#[derive(Debug, Serialize)]
struct Order {
    order: Vec<u32>,
    cost_ps: u128,
    before_ps: u128,
    lower_bound_ps: u128,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let matrix = files::matrix(&arguments.matrix)?;
    let links = Links::new(&matrix, arguments.size)?;
    let identity: Vec<u32> = (0..matrix.len() as u32).collect();
    let before_ps = cost::cost(links, &arguments.model, &identity)?;
    let search = search(links, &arguments.model, arguments.seed, arguments.seconds)?;
    let mut found = Order {
        order: search.best().to_vec(),
        cost_ps: search.best_cost(),
        before_ps,
        lower_bound_ps: search.lower_bound(),
    };
    if let Some(program) = arguments.z3.as_deref().filter(|_| search.status() == Status::Searching)
    {
        improve(&mut found, program, links, arguments)?;
    }
    let mut stdout = io::stdout().lock();
    if arguments.format == Format::Json {
        return Ok(output::json(&mut stdout, &found)?);
    }
    formats::write(&mut stdout, arguments.format, &matrix, &found.order)?;
    Ok(stdout.flush()?)
}

fn improve(
    found: &mut Order,
    program: &Path,
    links: Links<'_>,
    arguments: &Arguments,
) -> anyhow::Result<()> {
    let start = Instant::now();
    while let Some(left) = arguments.seconds.checked_sub(start.elapsed()) {
        match solver::solve(program, links, &arguments.model, found.cost_ps, left)? {
            Answer::Order(order) => {
                let cost_ps = cost::cost(links, &arguments.model, &order)?;
                if cost_ps >= found.cost_ps {
                    break;
                }
                (found.order, found.cost_ps) = (order, cost_ps);
            }
            Answer::NoneCheaper => {
                found.lower_bound_ps = found.cost_ps;
                break;
            }
            Answer::Unknown => break,
        }
    }
    Ok(())
}

fn search<'a>(
    links: Links<'a>,
    model: &Model,
    seed: u64,
    time: Duration,
) -> anyhow::Result<Search<'a>> {
    let start = Instant::now();
    let mut search = Search::new(links, model, seed)?;
    while search.status() == Status::Searching {
        let gone = start.elapsed();
        if gone >= time {
            break;
        }
        search.advance(MOVES, (gone.as_secs_f64() / time.as_secs_f64() * f64::from(WHOLE)) as u32);
    }
    Ok(search)
}
