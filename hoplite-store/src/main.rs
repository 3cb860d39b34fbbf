//! The node daemon: `hoplite-store`.
#![forbid(unsafe_code)]

mod settings;

use std::process::ExitCode;

use hoplite_daemon::{Addresses, Process};
use hoplite_store::{Milestone, StoreConfig};

use crate::settings::Settings;

const ABOUT: &str = "The store of one node of a Hoplite cluster: shares memory with the workers of the node and moves \
objects between nodes.

Without any flag it is a working single node. Flags come first, then the environment variables named below, then the file \
given by --config, then the defaults. The keys of the file are the long flags without dashes in front: memory = \"64GiB\".";

fn main() -> ExitCode {
    let command =
        clap::Command::new("hoplite-store").version(env!("CARGO_PKG_VERSION")).about(ABOUT);
    hoplite_daemon::run(command, |settings: Settings| Ok(settings.resolve()?), serve)
}

async fn serve(config: StoreConfig, process: Process) -> anyhow::Result<()> {
    let Process { announcer, metrics, tracer, shutdown } = process;
    if let (Some(metrics), Some(tls)) = (&metrics, &config.credentials.tls) {
        metrics.certificate(tls);
    }
    let StoreConfig { node, cluster, memory_bytes, backing, .. } = config.clone();
    let access = config.credentials.to_string();
    let tell = |milestone: Milestone| match milestone {
        Milestone::Listening(addresses) => {
            tracing::info!(%node, %cluster, memory_bytes, ?backing, ?addresses, "serving");
            log_access(&addresses, &access);
            announcer.listening(Addresses {
                node: Some(node.to_string()),
                socket: Some(addresses.socket),
                data: addresses.data,
                directory: addresses.directory,
                dashboard: addresses.dashboard,
                ..Addresses::default()
            });
        }
        Milestone::Ready => announcer.ready(),
    };
    let config = StoreConfig { tracer, ..config };
    Ok(hoplite_store::run(config, metrics, tell, shutdown).await?)
}

fn log_access(addresses: &hoplite_store::Addresses, access: &str) {
    if addresses.data.is_none() && addresses.directory.is_none() && addresses.dashboard.is_none() {
        tracing::info!("no port is open: only clients of the socket have access");
    } else {
        tracing::info!(access, "ports are open");
    }
}
