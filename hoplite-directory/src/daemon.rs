//! What the daemons of Hoplite have in common: logging, signals, and how they say why they cannot go on.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Exit code of a daemon that failed.
pub const FAILED: u8 = 1;
/// Exit code for settings that cannot be followed; the same as clap's.
pub const USAGE: u8 = 2;

/// Says on one line of standard error why `program` ends; returns `code` as its exit code.
pub fn fail(program: &str, error: &anyhow::Error, code: u8) -> ExitCode {
    // If that cannot be written either, the exit code has to do.
    let _ = writeln!(io::stderr(), "{program}: {error:#}");
    code.into()
}

/// Starts to log on standard error what `filter` lets through, written as for `RUST_LOG`.
///
/// # Errors
/// If the filter is not understood.
pub fn start_logging(filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).context("the log filter is not understood")?;
    let colours = io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours).init();
    Ok(())
}

/// A token that the first SIGTERM or SIGINT cancels. To be called inside a tokio runtime.
///
/// # Errors
/// If the signals cannot be waited for.
pub fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        stop.cancel();
    });
    Ok(token)
}
