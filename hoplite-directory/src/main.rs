//! The stand-alone directory shard: `hoplite-directory`.
#![forbid(unsafe_code)]

mod settings;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use hoplite_directory::config;
use hoplite_directory::daemon::{FAILED, USAGE, fail, start_logging, stop_on_signals};
use hoplite_directory::parent::exit_with_parent;
use tokio::net::TcpListener;

use crate::settings::{Plan, Settings};

/// A shard of the directory of a Hoplite cluster: knows which nodes have copies of which objects, and decides who pulls
/// from whom.
///
/// Flags come first, then the environment variables named below, then the file given by --config, then the defaults.
/// The keys of the file are the long flags without dashes in front: listen = "127.0.0.1:7401".
#[derive(Debug, Parser)]
#[command(name = "hoplite-directory", version)]
struct Arguments {
    /// A TOML file with settings. Unknown keys are errors.
    #[arg(long, env = "HOPLITE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the address that is listened on, once it is, as one line on standard output.
    #[arg(long)]
    print_address: bool,
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
        Err(error) => return fail("hoplite-directory", &error, USAGE),
    };
    if let Err(error) = start_logging(&plan.log) {
        return fail("hoplite-directory", &error, USAGE);
    }
    match serve(plan, arguments.print_address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail("hoplite-directory", &error, FAILED),
    }
}

fn plan(arguments: &Arguments) -> anyhow::Result<Plan> {
    let file = config::read_file(arguments.config.as_deref())?;
    Ok(arguments.settings.clone().over(file).resolve()?)
}

#[tokio::main]
async fn serve(plan: Plan, print_address: bool) -> anyhow::Result<()> {
    // Before anything is announced, so that a signal that follows at once is not missed.
    let shutdown = stop_on_signals()?;
    let listener =
        TcpListener::bind(plan.listen).await.with_context(|| format!("cannot listen on {}", plan.listen))?;
    let address = listener.local_addr().context("cannot tell the address that is listened on")?;
    if print_address {
        announce(address).context("cannot print the address")?;
    }
    tracing::info!(%address, cluster = %plan.directory.cluster, "serving");
    hoplite_directory::run(plan.directory, listener, shutdown).await?;
    tracing::info!("stopped");
    Ok(())
}

fn announce(address: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{address}")?;
    out.flush()
}
