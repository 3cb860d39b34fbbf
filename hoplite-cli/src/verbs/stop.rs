//! `hoplite stop`: the end of a store that `hoplite start` has started.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::bail;

use crate::arguments::{StoreArguments, parse_duration};
use crate::cluster::Background;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Kill the store if it does not end by itself
    #[arg(long)]
    force: bool,
    /// The time that it may take: it tells its clients and the directory, which takes ten seconds at most
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    wait: Duration,
}

pub(crate) fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let background = Background::of(store.socket());
    let Some(running) = background.running()? else {
        writeln!(io::stdout(), "no store was started at {}", background.socket().display())?;
        return Ok(());
    };
    if !running.stop(arguments.wait)? {
        if !arguments.force {
            bail!("process {} has not ended yet: --force kills it", running.pid);
        }
        running.kill()?;
    }
    background.forget();
    writeln!(io::stdout(), "stopped process {}", running.pid)?;
    Ok(())
}
