//! The life of a daemon's process.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use tokio_util::sync::CancellationToken;

use crate::announce::Announcer;
use crate::logging::{self, LogSettings};
use crate::parent::exit_with_parent;
use crate::settings::{self, ProcessArguments};
use crate::signals::stop_on_signals;

/// The exit code of a daemon that failed.
const FAILED: u8 = 1;
/// The exit code for settings that cannot be followed; the same as clap's.
const USAGE: u8 = 2;

/// Runs the daemon `command` until a signal ends it: reads its settings `S`, from the arguments of this process, the
/// environment and a file; turns them into a plan with `resolve`; logs to standard error; and awaits `serve`, which is
/// to end when its token is cancelled.
///
/// Returns 0 after a clean end, 1 if `serve` failed, and 2 if the settings cannot be followed. One line on standard error
/// says why.
pub fn run<S: Args, P>(
    command: Command,
    resolve: impl FnOnce(S) -> anyhow::Result<P>,
    serve: impl AsyncFnOnce(P, Announcer, CancellationToken) -> anyhow::Result<()>,
) -> ExitCode {
    let name = command.get_name().to_owned();
    let (plan, announcer) = match start(command, resolve) {
        Ok(started) => started,
        Err(error) => return failed(&name, &error, USAGE),
    };
    match serve_until_stopped(plan, announcer, serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&name, &error, FAILED),
    }
}

/// Everything that wrong settings can prevent.
fn start<S: Args, P>(
    command: Command,
    resolve: impl FnOnce(S) -> anyhow::Result<P>,
) -> anyhow::Result<(P, Announcer)> {
    let (process, log, settings) = settings::read::<S>(command, std::env::args_os().collect())?;
    let ProcessArguments { print_addresses, exit_with_parent: parent, .. } = process;
    if let Some(parent) = parent {
        exit_with_parent(parent);
    }
    let plan = resolve(settings)?;
    let LogSettings { log } = log;
    logging::start(&log)?;
    Ok((plan, if print_addresses { Announcer::Stdout } else { Announcer::Silent }))
}

fn serve_until_stopped<P>(
    plan: P,
    announcer: Announcer,
    serve: impl AsyncFnOnce(P, Announcer, CancellationToken) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("cannot start the threads of the daemon")?.block_on(async {
        // Before anything is announced, so that a signal that follows at once is not missed.
        let shutdown = stop_on_signals()?;
        serve(plan, announcer, shutdown).await?;
        tracing::info!("stopped");
        Ok(())
    })
}

fn failed(name: &str, error: &anyhow::Error, code: u8) -> ExitCode {
    // If that cannot be written either, the exit code has to do.
    let _ = writeln!(io::stderr(), "{name}: {error:#}");
    code.into()
}
