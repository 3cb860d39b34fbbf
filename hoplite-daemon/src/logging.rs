use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::recent;

#[derive(Debug, clap::Args)]
pub(crate) struct LogSettings {
    /// Filter of the log on standard error, as for RUST_LOG: debug, or info,hoplite_store=debug
    #[arg(long, env = "HOPLITE_LOG", value_name = "FILTER", default_value = "info")]
    pub(crate) log: String,
    /// Format of the log: text for people, or one JSON object per line
    #[arg(long, env = "HOPLITE_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

static LOST_LINES: AtomicU64 = AtomicU64::new(0);

/// Writes to standard error. Ignores failures, because a full disk must not stop the daemon.
struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        recent::remember(line);
        if io::stderr().write_all(line).is_err() {
            LOST_LINES.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn lost_lines() -> u64 {
    LOST_LINES.load(Ordering::Relaxed)
}

pub(crate) fn start(settings: &LogSettings) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&settings.log).context("the log filter is invalid")?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Log);
    match settings.log_format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}
