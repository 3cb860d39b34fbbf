use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::announce::{Announcer, Audience};
use crate::descriptors::raise_descriptor_limit;
use crate::heap::return_memory;
use crate::http::HttpAddress;
use crate::logging;
use crate::metrics::{self, Metrics, MetricsSettings};
use crate::parent::exit_with_parent;
use crate::settings::{self, CommonSettings, ProcessArguments};
use crate::signals::stop_on_signals;
use crate::traces::{Export, TraceSettings, Tracer};

const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// Handles that [`run`] gives to a daemon.
#[derive(Debug)]
pub struct Process {
    /// Reports the progress of the start.
    pub announcer: Announcer,
    /// `None` if metrics are off.
    pub metrics: Option<Metrics>,
    /// `None` if traces are off.
    pub tracer: Option<Tracer>,
    /// Cancelled when the daemon must stop.
    pub shutdown: CancellationToken,
}

/// Runs the daemon `command` until a signal ends it.
///
/// Reads settings `S` from arguments, environment and a file. `resolve` turns them into a plan `P`.
/// `serve` runs the plan, and must end when [`Process::shutdown`] is cancelled.
///
/// Returns 0 after a clean end, 1 if `serve` failed, and 2 for invalid settings. Prints errors as
/// one line.
pub fn run<S: Args, P>(
    command: Command,
    resolve: impl FnOnce(S) -> anyhow::Result<P>,
    serve: impl AsyncFnOnce(P, Process) -> anyhow::Result<()>,
) -> ExitCode {
    hoplite_shm::ignore_file_size_signal();
    raise_descriptor_limit();
    let daemon = Daemon {
        name: command.get_name().to_owned(),
        version: command.get_version().unwrap_or_default().to_owned(),
    };
    let start = match start(command, resolve) {
        Ok(start) => start,
        Err(error) => return failed(&daemon.name, &error, USAGE),
    };
    match serve_until_stopped(&daemon, start, serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&daemon.name, &error, FAILED),
    }
}

struct Daemon {
    name: String,
    version: String,
}

struct Start<P> {
    plan: P,
    audience: Audience,
    metrics: Option<HttpAddress>,
    traces: TraceSettings,
}

fn start<S: Args, P>(
    command: Command,
    resolve: impl FnOnce(S) -> anyhow::Result<P>,
) -> anyhow::Result<Start<P>> {
    let (process, common, settings) = settings::read::<S>(command, std::env::args_os().collect())?;
    let ProcessArguments { print_addresses, exit_with_parent: parent, .. } = process;
    if let Some(parent) = parent {
        exit_with_parent(parent);
    }
    let CommonSettings { log, metrics: MetricsSettings { metrics }, hosts, traces } = common;
    hosts.allow()?;
    // Starts the log first, because `resolve` may warn.
    logging::start(&log)?;
    let plan = resolve(settings)?;
    let audience = if print_addresses { Audience::Stdout } else { Audience::None };
    Ok(Start { plan, audience, metrics, traces })
}

fn serve_until_stopped<P>(
    daemon: &Daemon,
    start: Start<P>,
    serve: impl AsyncFnOnce(P, Process) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("cannot start the threads of the daemon")?.block_on(async {
        // Installed before any announcement, because a signal may follow at once.
        let shutdown = stop_on_signals()?;
        tokio::spawn(return_memory());
        let metrics = match start.metrics {
            Some(address) => Some(serve_metrics(daemon, address).await?),
            None => None,
        };
        let traces = Export::start(start.traces, &daemon.name, &daemon.version)
            .context("cannot export traces")?;
        let (export, tracer) = traces.unzip();
        let announcer =
            Announcer { audience: start.audience, metrics: metrics.as_ref().map(Metrics::address) };
        let served = serve(start.plan, Process { announcer, metrics, tracer, shutdown }).await;
        if let Some(export) = export {
            export.end().await;
        }
        served?;
        tracing::info!("stopped");
        Ok(())
    })
}

async fn serve_metrics(daemon: &Daemon, address: HttpAddress) -> anyhow::Result<Metrics> {
    let HttpAddress(address) = address;
    let cannot = || format!("cannot listen on {address} for metrics");
    let listener = TcpListener::bind(address).await.with_context(cannot)?;
    let address = listener.local_addr().with_context(cannot)?;
    let metrics = Metrics::new(&daemon.name, &daemon.version, address);
    tracing::info!(%address, "serving metrics");
    tokio::spawn(metrics::serve(listener, metrics.clone()));
    Ok(metrics)
}

fn failed(name: &str, error: &anyhow::Error, code: u8) -> ExitCode {
    let _ = writeln!(io::stderr(), "{name}: {error:#}");
    code.into()
}
