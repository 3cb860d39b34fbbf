//! Stand-alone directory shard: `hoplite-directory`.
#![forbid(unsafe_code)]

mod settings;

use std::process::ExitCode;

use anyhow::Context;
use hoplite_daemon::{Addresses, Process};
use hoplite_directory::{DirectoryConfig, Listener, Listeners};
use tokio::net::TcpListener;

use crate::settings::{DaemonConfig, Settings};

const ABOUT: &str = "A shard of the directory of a Hoplite cluster: knows which nodes have copies of which objects, and \
decides who pulls from whom.

Flags come first, then the environment variables named below, then the file given by --config, then the defaults. The keys \
of the file are the long flags without dashes in front: listen = \"127.0.0.1:7401\".";

fn main() -> ExitCode {
    let command =
        clap::Command::new("hoplite-directory").version(env!("CARGO_PKG_VERSION")).about(ABOUT);
    hoplite_daemon::run(command, |settings: Settings| Ok(settings.resolve()?), serve)
}

async fn serve(config: DaemonConfig, process: Process) -> anyhow::Result<()> {
    let Process { announcer, metrics, tracer, shutdown } = process;
    if let (Some(metrics), Some(tls)) = (&metrics, &config.directory.credentials.tls) {
        metrics.certificate(tls);
    }
    let cannot_tell = "cannot tell the address that is listened on";
    let control = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("cannot listen on {}", config.listen))?;
    let address = control.local_addr().context(cannot_tell)?;
    let dashboard = match config.dashboard {
        Some(address) => {
            let bound = TcpListener::bind(address).await;
            Some(bound.with_context(|| format!("cannot listen on {address} for the dashboard"))?)
        }
        None => None,
    };
    let dashboard_address =
        dashboard.as_ref().map(TcpListener::local_addr).transpose().context(cannot_tell)?;
    tracing::info!(%address, dashboard = ?dashboard_address, cluster = %config.directory.cluster, "serving");
    tracing::info!(access = %config.directory.credentials, "ports are open");
    announcer.listening(Addresses {
        directory: Some(address),
        dashboard: dashboard_address,
        ..Addresses::default()
    });
    announcer.ready();
    let listeners = Listeners { control: Listener::Tcp(control), dashboard };
    let directory = DirectoryConfig { tracer, ..config.directory };
    Ok(hoplite_directory::run(directory, metrics, listeners, shutdown).await?)
}
