use std::io;
use std::slice;

use clap::error::ErrorKind;
use hoplite_client::ObjectId;
use serde::Serialize;

use crate::arguments::{StoreArguments, id_parser};
use crate::cluster::unless_interrupted;
use crate::output::{self, Id};
use crate::progress;

const EXAMPLES: &str = "Examples:
  hoplite barrier ready/1 --rank 0 --participants 3        in one job step
  hoplite barrier ready/1 --rank 1 --participants 3        and so on: each ends when all three have begun
  hoplite --timeout 1min barrier ready/2 --rank $SLURM_PROCID --participants $SLURM_NTASKS

Prints nothing, unless --json is given. In vain, it names the ranks that have not come (exit code 1), and can be called again. It leaves an object of that
name, without bytes, at which nobody can meet again: give each round a name of its own, and delete it after a later round.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Name of the barrier, the same for all participants
    #[arg(value_parser = id_parser())]
    name: ObjectId,
    /// Rank of this participant, from 0
    #[arg(long, value_name = "K")]
    rank: usize,
    /// Number of participants
    #[arg(long, value_name = "N")]
    participants: usize,
    /// Print the name and the number of participants as JSON when all have arrived
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    name: Id,
    participants: usize,
}

pub(crate) async fn run(store: &StoreArguments, arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { name, rank, participants, json } = arguments;
    check_rank(rank, participants)?;
    let waiting = progress::of_wait("barrier");
    unless_interrupted(async {
        let client = store.connect().await?;
        let met = client.barrier(&name, participants, rank, store.call_timeout()).await;
        met.map_err(|error| store.explain(error, slice::from_ref(&name)))
    })
    .await?;
    drop(waiting);
    if json {
        output::json(&mut io::stdout().lock(), &Report { name: Id::new(&name), participants })?;
    }
    Ok(())
}

pub(super) fn check_rank(rank: usize, participants: usize) -> Result<(), clap::Error> {
    if rank < participants {
        return Ok(());
    }
    let message = format!("there is no rank {rank} among {participants}: they count from 0");
    Err(clap::Error::raw(ErrorKind::ValueValidation, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_count_from_0() {
        assert!(check_rank(2, 3).is_ok());
        for (rank, participants) in [(3, 3), (0, 0)] {
            assert_eq!(check_rank(rank, participants).unwrap_err().exit_code(), 2);
        }
    }
}
