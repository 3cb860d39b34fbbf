use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::Command;

const EXAMPLES: &str = "Examples:
  hoplite man ~/.local/share/man/man1 && man hoplite-put

The Debian package installs these pages.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Directory for one file per command, such as hoplite-put.1; created if missing
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub(crate) fn run(arguments: &Arguments, program: Command) -> anyhow::Result<()> {
    let directory = &arguments.directory;
    let cannot = || format!("cannot write manual pages into {}", directory.display());
    fs::create_dir_all(directory).with_context(cannot)?;
    clap_mangen::generate_to(program, directory).with_context(cannot)
}
