//! The node daemon: `hoplite-store`.
#![forbid(unsafe_code)]

mod memory;
mod settings;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use hoplite_directory::config;
use hoplite_directory::daemon::{FAILED, USAGE, fail, start_logging, stop_on_signals};
use hoplite_directory::parent::exit_with_parent;
use hoplite_store::{Addresses, StoreConfig};

use crate::settings::{Plan, Settings};

/// The store of one node of a Hoplite cluster: shares memory with the workers of the node and moves objects between
/// nodes.
///
/// Without any flag it is a working single node. Flags come first, then the environment variables named below, then
/// the file given by --config, then the defaults. The keys of the file are the long flags without dashes in front:
/// memory = "64GiB".
#[derive(Debug, Parser)]
#[command(name = "hoplite-store", version)]
struct Arguments {
    /// A TOML file with settings. Unknown keys are errors.
    #[arg(long, env = "HOPLITE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print node, socket and addresses as one line of JSON on standard output, once clients are accepted.
    #[arg(long)]
    print_addresses: bool,
    /// End when the process with this number, which must be the parent, ends.
    #[arg(long, value_name = "PID", hide = true)]
    exit_with_parent: Option<u32>,
    #[command(flatten)]
    settings: Settings,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(parent) = arguments.exit_with_parent {
        exit_with_parent(parent);
    }
    let plan = match plan(&arguments) {
        Ok(plan) => plan,
        Err(error) => return fail("hoplite-store", &error, USAGE),
    };
    if let Err(error) = start_logging(&plan.log) {
        return fail("hoplite-store", &error, USAGE);
    }
    match serve(plan, arguments.print_addresses) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail("hoplite-store", &error, FAILED),
    }
}

fn plan(arguments: &Arguments) -> anyhow::Result<Plan> {
    let file = config::read_file(arguments.config.as_deref())?;
    Ok(arguments.settings.clone().over(file).resolve()?)
}

#[tokio::main]
async fn serve(plan: Plan, print_addresses: bool) -> anyhow::Result<()> {
    // Before anything is announced, so that a signal that follows at once is not missed.
    let shutdown = stop_on_signals()?;
    let StoreConfig { node, cluster, memory_bytes, .. } = plan.store.clone();
    let started = |addresses: &Addresses| {
        tracing::info!(%node, %cluster, memory_bytes, ?addresses, "serving");
        if print_addresses && let Err(error) = announce(node.as_str(), addresses) {
            tracing::warn!(%error, "cannot print the addresses");
        }
    };
    hoplite_store::run(plan.store, started, shutdown).await?;
    tracing::info!("stopped");
    Ok(())
}

fn announce(node: &str, addresses: &Addresses) -> io::Result<()> {
    let line = serde_json::json!({
        "node": node,
        "socket": addresses.socket,
        "data": addresses.data,
        "directory": addresses.directory,
    });
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
