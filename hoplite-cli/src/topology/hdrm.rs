//! Halving-doubling with rank mapping (EFLOPS).

use std::io::{self, Write};
use std::path::PathBuf;

use hoplite_core::topology::hdrm::{self, Halves};
use serde::{Deserialize, Serialize};

use crate::output;
use hoplite_topology::files;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// M: at most half the number of switches
    #[arg(long, value_name = "M", required_unless_present = "check")]
    hosts_per_switch: Option<u32>,
    /// N: a power of two; half of the switches are upper
    #[arg(long, value_name = "N", required_unless_present = "check")]
    switches: Option<u32>,
    /// Check a mapping, in the form that --json prints, and name its first conflict
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Mapping {
    upper: Vec<Vec<u32>>,
    lower: Vec<Vec<u32>>,
}

#[derive(Debug, Serialize)]
struct Checked {
    ranks: usize,
    conflict: Option<String>,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the mapping has {upper} upper and {lower} lower switches with up to {hosts} hosts, not {switches} with {hosts_per_switch}"
)]
struct OtherSystem {
    upper: usize,
    lower: usize,
    hosts: usize,
    switches: u32,
    hosts_per_switch: u32,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let system = arguments.hosts_per_switch.zip(arguments.switches);
    if let Some(path) = &arguments.check {
        let Mapping { upper, lower } = files::json(path)?;
        let halves = [upper, lower];
        if let Some((hosts_per_switch, switches)) = system {
            check_system(&halves, hosts_per_switch, switches)?;
        }
        let checked = hdrm::check(&halves);
        let ranks = halves.iter().flatten().map(Vec::len).sum();
        if arguments.json {
            let conflict = checked.err().map(|conflict| conflict.to_string());
            output::json(&mut stdout, &Checked { ranks, conflict })?;
        }
        checked?;
        if !arguments.json {
            writeln!(stdout, "no link carries two pairs of the {ranks} ranks in any step")?;
        }
        return Ok(stdout.flush()?);
    }
    let (hosts_per_switch, switches) = system.unwrap_or_default();
    let [upper, lower] = hdrm::mapping(hosts_per_switch, switches)?;
    if arguments.json {
        return Ok(output::json(&mut stdout, &Mapping { upper, lower })?);
    }
    for (half, of_half) in [("upper", upper), ("lower", lower)] {
        for (switch, ranks) in of_half.iter().enumerate() {
            let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
            writeln!(stdout, "{half} {switch}: {}", ranks.join(" "))?;
        }
    }
    Ok(stdout.flush()?)
}

fn check_system(halves: &Halves, hosts_per_switch: u32, switches: u32) -> Result<(), OtherSystem> {
    let [upper, lower] = [halves[0].len(), halves[1].len()];
    let hosts = halves.iter().flatten().map(Vec::len).max().unwrap_or(0);
    let is_of_it =
        upper == lower && upper + lower == switches as usize && hosts <= hosts_per_switch as usize;
    if is_of_it {
        Ok(())
    } else {
        Err(OtherSystem { upper, lower, hosts, switches, hosts_per_switch })
    }
}
