use std::io::{self, Write};

use clap::Command;
use clap_complete::Shell;

const EXAMPLES: &str = "Examples:
  source <(hoplite completion bash)                                        in this shell
  hoplite completion bash > ~/.local/share/bash-completion/completions/hoplite
  hoplite completion zsh > \"${fpath[1]}/_hoplite\"
  hoplite completion fish > ~/.config/fish/completions/hoplite.fish

The Debian package installs these files.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments, mut program: Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut program, "hoplite", &mut script);
    let mut stdout = io::stdout().lock();
    stdout.write_all(&script)?;
    Ok(stdout.flush()?)
}
