//! What a daemon logs.

use std::io::{self, IsTerminal};

use anyhow::Context;
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// What is set about the log.
#[derive(Debug, clap::Args)]
pub(crate) struct LogSettings {
    /// What to log on standard error, as for RUST_LOG: debug, or info,hoplite_store=debug
    #[arg(long, env = "HOPLITE_LOG", value_name = "FILTER", default_value = "info")]
    pub(crate) log: String,
    /// How to write the log: for people, or an object of JSON a line
    #[arg(long, env = "HOPLITE_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Starts to log on standard error.
pub(crate) fn start(settings: &LogSettings) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&settings.log).context("the log filter is not understood")?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match settings.log_format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}
