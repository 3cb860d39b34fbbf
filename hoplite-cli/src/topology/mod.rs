//! The command line of `hoplite-topology`. Only `probe`, and `show` without a matrix, need a store.

mod cost;
mod decompose;
mod hdrm;
mod order;
mod probe;
mod show;
mod simulate;

mod formats;

use clap::Subcommand;

use crate::arguments::StoreArguments;

const EXAMPLES: &str = "Examples:
  hoplite topology probe --output m.json
  hoplite topology order --matrix m.json --for ring --size 64MiB --format rankfile > ranks
  hoplite topology cost --matrix m.json --order identity --model halving-doubling --size 1MiB
  hoplite topology show --matrix /etc/slurm/topology.conf --plot network.svg
  hoplite topology simulate --fabric bigraph --nodes 1024 --collective hdrm --size 256KiB

A matrix file is JSON: {\"nodes\": [NAME, ...], \"alpha_ns\": [[...], ...], \"ps_per_byte\": [[...], ...]}; or a CSV file of round
trips, with the names in the first row and column and rtt_us (or rtt_ns, rtt_ms) in the corner; or a topology.conf of Slurm.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure the links between the stores of the cluster
    Probe(probe::Arguments),
    /// Compute the cost of a collective for an order of ranks
    Cost(cost::Arguments),
    /// Search for the order of ranks with the lowest cost of a collective
    Order(order::Arguments),
    /// Map the ranks of halving-doubling to a BiGraph, so that no link carries two pairs; or check
    /// such a mapping
    Hdrm(hdrm::Arguments),
    /// Split an allreduce along the levels of a network
    Decompose(decompose::Arguments),
    /// Compute the time of an allreduce on a fabric
    Simulate(simulate::Arguments),
    /// Show a matrix of links with the groups and an order of its nodes; without a matrix, the
    /// store's links, as measured by its transfers
    Show(show::Arguments),
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    match arguments.verb {
        Verb::Probe(arguments) => probe::run(store, arguments).await,
        Verb::Cost(arguments) => cost::run(&arguments),
        Verb::Order(arguments) => order::run(&arguments),
        Verb::Hdrm(arguments) => hdrm::run(&arguments),
        Verb::Decompose(arguments) => decompose::run(&arguments),
        Verb::Simulate(arguments) => simulate::run(&arguments),
        Verb::Show(arguments) => show::run(store, &arguments).await,
    }
}

fn duration(picoseconds: u128) -> String {
    seconds(picoseconds as f64 * 1e-12)
}

fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.3} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s => format!("{:.3} us", s * 1e6),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Levels(Vec<u32>);

fn parse_levels(text: &str) -> anyhow::Result<Levels> {
    let levels = text.split('x').map(|level| level.parse::<u32>().ok().filter(|&level| level > 0));
    let levels: Option<Vec<u32>> = levels.collect();
    Ok(Levels(
        levels
            .ok_or_else(|| anyhow::anyhow!("levels are numbers, innermost first, such as 4x16"))?,
    ))
}

fn parse_number(text: &str) -> anyhow::Result<f64> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => anyhow::bail!("not a number of at least zero"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_factors() {
        assert_eq!(parse_levels("4x16").unwrap(), Levels(vec![4, 16]));
        assert_eq!(parse_levels("7").unwrap(), Levels(vec![7]));
        for text in ["", "4x", "x4", "4x0", "4,16", "-4"] {
            assert!(parse_levels(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_have_three_decimals() {
        assert_eq!(duration(1_500_000), "1.500 us");
        assert_eq!(duration(1_500_000_000_000), "1.500 s");
        assert_eq!(seconds(0.0125), "12.500 ms");
    }
}
