//! What a daemon logs.

use std::io::{self, IsTerminal};

use anyhow::Context;
use tracing_subscriber::EnvFilter;

/// What is set about the log.
#[derive(Debug, clap::Args)]
pub(crate) struct LogSettings {
    /// What to log on standard error, as for RUST_LOG: debug, or info,hoplite_store=debug
    #[arg(long, env = "HOPLITE_LOG", value_name = "FILTER", default_value = "info")]
    pub(crate) log: String,
}

/// Starts to log on standard error what `filter` lets through.
pub(crate) fn start(filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).context("the log filter is not understood")?;
    let colours = io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours).init();
    Ok(())
}
