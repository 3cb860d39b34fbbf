use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use hoplite_client::{ConnectFailure, Error};
use serde::Serialize;

use crate::arguments::{StoreArguments, parse_duration};
use crate::cluster::Background;
use crate::output;
use crate::verbs::drain;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Kill the store if it does not end in time
    #[arg(long)]
    force: bool,
    /// Time limit; an orderly end takes at most ten seconds
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    wait: Duration,
    /// First move the objects of the store to other stores, for up to this time. If that fails, the
    /// store goes on, unless --force is given
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    drain: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    socket: PathBuf,
    /// Store's process id; `null` if no store was started here.
    process: Option<u32>,
}

impl Report {
    fn print(&self, json: bool) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        match self.process {
            _ if json => output::json(&mut stdout, self),
            Some(process) => writeln!(stdout, "stopped process {process}"),
            None => writeln!(stdout, "no store was started at {}", self.socket.display()),
        }
    }
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let background = Background::of(store.socket());
    let Some(running) = background.running()? else {
        check_nothing_listens(store).await?;
        let report = Report { socket: background.socket().to_owned(), process: None };
        return Ok(report.print(arguments.json)?);
    };
    if let Some(within) = arguments.drain {
        let client = store.connect().await?;
        let report = drain::drain(&client, None, within, arguments.force).await?;
        let drained = drain::conclude(&report, arguments.json);
        if !arguments.force {
            drained?;
        }
    }
    if !running.stop(arguments.wait)? {
        if !arguments.force {
            bail!("process {} has not ended yet: --force kills it", running.pid);
        }
        running.kill()?;
    }
    background.forget();
    let report = Report { socket: background.socket().to_owned(), process: Some(running.pid) };
    Ok(report.print(arguments.json)?)
}

async fn check_nothing_listens(store: &StoreArguments) -> anyhow::Result<()> {
    match store.connect_to_watch().await {
        Err(Error::Connect {
            kind: ConnectFailure::NoSuchSocket | ConnectFailure::NotListening,
            ..
        }) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => bail!(
            "a store runs at {}, but `hoplite start` did not start it: end its process, or run `hoplite drain`",
            store.socket().display()
        ),
    }
}
