//! `hoplite`, the command line.
//!
//! * [`verbs`]: one module per command. [`bench`](mod@bench), [`demo`] and [`top`] are commands
//!   with several modules.
//! * [`topology`]: costs of links and orders of ranks; most of its commands need no store.
//! * [`cluster`]: daemons on this machine, for `up`, `demo` and `bench`.
//!
//! Exit codes: 0 success; 1 failure, with one line on stderr; 2 an invalid command line.
#![forbid(unsafe_code)]

mod arguments;

mod verbs;

mod bench;
mod demo;
mod top;
mod topology;

mod cluster;
mod output;
mod progress;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use console::Style;
use hoplite_core::text::escape;
use hoplite_daemon::settings::without_empty_variables;

use arguments::StoreArguments;
use cluster::Ended;
use verbs::{
    allreduce, barrier, certs, completion, delete, doctor, drain, gc, get, ls, man, nodes, put,
    quota, reduce, shards, start, stat, status, stop, up, wait,
};

const EXAMPLES: &str = "Examples:
  hoplite start                                    a store for this machine, with a directory in it
  hoplite put weights/7 weights.bin --dtype f32    share a file
  hoplite get weights/7 -o copy.bin                on any node of the cluster
  hoplite reduce sum gradient/0 gradient/1         add up what several nodes have put
  hoplite stat weights/7                           who has it, and who served whom
  hoplite up --nodes 4                             a cluster of four stores on this machine, until Ctrl-C

Exit codes: 0 done, 1 failed (one line on stderr says why), 2 wrong usage.";

/// Exit code for an invalid command line, as in clap.
const USAGE: u8 = 2;

/// A distributed shared-memory object store with collective communication.
#[derive(Debug, Parser)]
#[command(name = "hoplite", version, about, after_help = EXAMPLES)]
struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Store a file, or standard input, as an object
    Put(put::Arguments),
    /// Write an object to a file or to standard output, while it arrives
    Get(get::Arguments),
    /// Combine arrays element by element into a new object; the stores share the work
    Reduce(reduce::Arguments),
    /// Combine the arrays of all participants, and give each of them the result
    Allreduce(allreduce::Arguments),
    /// Wait until all participants have arrived
    Barrier(barrier::Arguments),
    /// Remove every copy of objects
    Delete(delete::Arguments),
    /// Wait until objects are available somewhere in the cluster
    Wait(wait::Arguments),
    /// List ownerless objects of this store, and delete them on request
    Gc(gc::Arguments),
    /// List the quotas of this store, set one, or remove one
    Quota(quota::Arguments),
    /// List the shards of the directory, add one, or remove one
    Shards(shards::Arguments),
    /// List the objects of the cluster
    Ls(ls::Arguments),
    /// Show where an object is, and which nodes fetched it from which, and why
    Stat(stat::Arguments),
    /// Show the state of the store and its view of the directory
    Status(status::Arguments),
    /// List the nodes of the cluster, with their memory, copies and rates
    Nodes(nodes::Arguments),
    /// Show nodes, memory, rates and objects in the terminal, refreshed
    Top(top::Arguments),
    /// Start a store in the background
    Start(start::Arguments),
    /// End a store that `start` has started
    Stop(stop::Arguments),
    /// Move the objects of a store to other stores, and stop it
    Drain(drain::Arguments),
    /// Look for problems of this machine that affect Hoplite
    Doctor(doctor::Arguments),
    /// Run a cluster on this machine until Ctrl-C, for development
    Up(up::Arguments),
    /// Create the certificates with which daemons trust each other
    Certs(certs::Arguments),
    /// Share a real file among the nodes of a cluster on this machine, and sum arrays there
    Demo(demo::Arguments),
    /// Measure, and compare with the speed of the machine itself
    Bench(bench::Arguments),
    /// Print shell completions
    Completion(completion::Arguments),
    /// Write the manual pages of all commands to a directory
    Man(man::Arguments),
    /// Measure links between nodes, and order ranks by cost; decompose, map and simulate
    /// collectives
    Topology(topology::Arguments),
}

fn main() -> ExitCode {
    hoplite_shm::ignore_file_size_signal();
    // Daemons that this program starts inherit the raised limit.
    hoplite_daemon::raise_descriptor_limit();
    let matches = without_empty_variables(Arguments::command()).get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(error.into()),
    };
    let outcome = runtime.block_on(run(arguments));
    // Dropping the runtime would wait for uninterruptible reads, such as from a terminal.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_output(&error) => ExitCode::SUCCESS,
        Err(error) => failed(error),
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { store, command } = arguments;
    match command {
        Command::Put(command) => put::run(&store, command).await,
        Command::Get(command) => get::run(&store, command).await,
        Command::Reduce(command) => reduce::run(&store, command).await,
        Command::Allreduce(command) => allreduce::run(&store, command).await,
        Command::Barrier(command) => barrier::run(&store, command).await,
        Command::Delete(command) => delete::run(&store, command).await,
        Command::Wait(command) => wait::run(&store, command).await,
        Command::Gc(command) => gc::run(&store, command).await,
        Command::Quota(command) => quota::run(&store, command).await,
        Command::Shards(command) => shards::run(&store, command).await,
        Command::Ls(command) => ls::run(&store, command).await,
        Command::Stat(command) => stat::run(&store, command).await,
        Command::Status(command) => status::run(&store, command).await,
        Command::Nodes(command) => nodes::run(&store, command).await,
        Command::Top(command) => top::run(&store, command).await,
        Command::Start(command) => start::run(&store, command).await,
        Command::Stop(command) => stop::run(&store, command).await,
        Command::Drain(command) => drain::run(&store, command).await,
        Command::Doctor(command) => doctor::run(&store, command).await,
        Command::Up(command) => up::run(command).await,
        Command::Certs(command) => certs::run(&command),
        Command::Demo(command) => demo::run(command).await,
        Command::Bench(command) => bench::run(command).await,
        Command::Completion(command) => completion::run(&command, Arguments::command()),
        Command::Man(command) => man::run(&command, Arguments::command()),
        Command::Topology(command) => topology::run(&store, command).await,
    }
}

/// Returns `true` if the output's reader has ended, as in `hoplite get x | head`.
fn is_closed_output(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn failed(error: anyhow::Error) -> ExitCode {
    let error = match error.downcast::<clap::Error>() {
        Ok(usage) => {
            let _ = usage.format(&mut Arguments::command()).print();
            return ExitCode::from(USAGE);
        }
        Err(error) => error,
    };
    let name = Style::new().for_stderr().red().bold().apply_to("hoplite:");
    let _ = writeln!(io::stderr(), "{name} {}", one_line(&error));
    // A daemon that refuses its settings ends with this code.
    let is_usage = error.downcast_ref::<Ended>().and_then(Ended::code) == Some(USAGE.into());
    if is_usage { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
}

/// Formats an error and its causes as one line without control characters. Skips repeated causes.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = escape(&cause.to_string().replace('\n', " "));
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_definition_of_the_arguments_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn global_options_go_before_or_after_the_command() {
        for line in
            ["hoplite --timeout 2s --socket /s get x", "hoplite get x --timeout 2s --socket /s"]
        {
            let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
            assert_eq!(arguments.store.timeout().as_secs(), 2, "{line}");
            assert!(matches!(arguments.command, Command::Get(_)), "{line}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "hoplite",
            "hoplite fly",
            "hoplite get",
            "hoplite put x",
            "hoplite put x f --dtype f31",
            "hoplite put x f --shape 2,b",
            "hoplite delete",
            "hoplite wait x --num 0",
            "hoplite put x f --ttl-action free",
            "hoplite put x f --ttl 1s --ttl-action evict",
            "hoplite gc --unowned",
            "hoplite quota set --user root",
            "hoplite quota set --memory 1GiB",
            "hoplite quota set --user root --prefix x --objects 1",
            "hoplite quota set --user root --objects many",
            "hoplite quota remove",
            "hoplite shards add",
            "hoplite shards replace a:1",
            "hoplite shards --json remove a:1",
            "hoplite reduce",
            "hoplite reduce target",
            "hoplite reduce target x --op mean",
            "hoplite reduce target x --num 0",
            "hoplite allreduce t a b",
            "hoplite allreduce t --rank 0",
            "hoplite allreduce t a b --rank -1",
            "hoplite barrier x --rank 0",
            "hoplite barrier x --participants 2",
            "hoplite get x --timeout soon",
            "hoplite up",
            "hoplite up --nodes 0",
            "hoplite up --nodes 2 --memory much",
            "hoplite bench",
            "hoplite certs",
            "hoplite certs here",
            "hoplite certs here name --days 0",
            "hoplite bench reduce --nodes 1",
            "hoplite bench kernels --dtype f31",
            "hoplite get x --json",
            "hoplite completion tcsh",
            "hoplite man",
        ] {
            let error = Arguments::try_parse_from(line.split(' '))
                .map(|arguments| format!("{arguments:?}"));
            assert_eq!(error.unwrap_err().exit_code(), 2, "{line}");
        }
        assert!(Arguments::try_parse_from(["hoplite", "get", ""]).is_err());
        assert!(Arguments::try_parse_from(["hoplite", "get", &"x".repeat(256)]).is_err());
        assert!(Arguments::try_parse_from(["hoplite", "get", &"x".repeat(255)]).is_ok());
    }

    #[test]
    fn causes_are_told_once_and_in_one_line() {
        let cause = Err::<(), _>(io::Error::other("disk\non fire"));
        let error =
            cause.context("cannot write").context("cannot write: disk on fire").unwrap_err();
        assert_eq!(one_line(&error), "cannot write: disk on fire");
        let error = anyhow::anyhow!("the peer says \x1b[2J");
        assert_eq!(one_line(&error), r"the peer says \u{1b}[2J");
        let error = anyhow::anyhow!("no space").context("cannot write x");
        assert_eq!(one_line(&error), "cannot write x: no space");
    }

    #[test]
    fn a_closed_output_is_no_failure() {
        let closed = |kind| anyhow::Error::from(io::Error::from(kind)).context("cannot write");
        assert!(is_closed_output(&closed(io::ErrorKind::BrokenPipe)));
        assert!(!is_closed_output(&closed(io::ErrorKind::StorageFull)));
    }
}
