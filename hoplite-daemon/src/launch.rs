//! Commands that start daemons on this machine.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const KEPT_VARIABLES: [&str; 7] = [
    "HOPLITE_LOG",
    "HOPLITE_INSECURE",
    "HOPLITE_TOKEN_FILE",
    "HOPLITE_TLS_CERT",
    "HOPLITE_TLS_KEY",
    "HOPLITE_TLS_CA",
    "HOPLITE_TLS_NAME",
];

/// A store that listens on loopback.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Store<'a> {
    pub node: &'a str,
    /// Path of the socket for clients.
    pub socket: &'a Path,
    pub memory: &'a str,
    pub shards: &'a [String],
}

impl Store<'_> {
    /// Command that starts the store.
    pub fn command(&self) -> Command {
        let mut command = daemon("hoplite-store");
        command
            .args(["--listen", "127.0.0.1:0", "--memory", self.memory, "--node-id", self.node])
            .args(["--directory", &self.shards.join(",")])
            .arg("--socket")
            .arg(self.socket);
        command
    }
}

/// Command that starts a shard on `address`.
pub fn shard(address: &str) -> Command {
    let mut command = daemon("hoplite-directory");
    command.args(["--listen", address]);
    command
}

/// Makes the daemon end with this process, or with the starting thread if earlier, and keeps Ctrl-C
/// from the daemon.
pub fn bind_to_this_process(command: &mut Command) {
    command.arg("--exit-with-parent").arg(std::process::id().to_string()).process_group(0);
}

/// Finds a program beside the current one, in the directory above (for tests), or in `PATH`.
pub fn program(name: &str) -> PathBuf {
    let current = std::env::current_exe().unwrap_or_default();
    let places = current.ancestors().skip(1).take(2).map(|directory| directory.join(name));
    places.into_iter().find(|path| path.is_file()).unwrap_or_else(|| Path::new(name).to_owned())
}

fn daemon(name: &str) -> Command {
    let mut command = Command::new(program(name));
    let is_for_others = |variable: &OsStr| {
        variable.as_encoded_bytes().starts_with(b"HOPLITE_")
            && !KEPT_VARIABLES.iter().any(|kept| variable == *kept)
    };
    for (variable, _) in std::env::vars_os().filter(|(variable, _)| is_for_others(variable)) {
        command.env_remove(variable);
    }
    command
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .arg("--print-addresses");
    command
}
