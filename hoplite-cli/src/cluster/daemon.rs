//! One daemon of a local cluster.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, ensure};
use hoplite_daemon::{Addresses, READY, launch};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use super::workplace::Workplace;

/// How long a daemon may take to end in order, before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A process that was started, and that is killed when this is dropped before it has ended.
#[derive(Debug)]
pub(super) struct Daemon {
    name: String,
    child: Child,
    stdout: Option<Lines<BufReader<ChildStdout>>>,
}

impl Daemon {
    pub(super) fn spawn(name: &str, mut command: std::process::Command, log: &Path) -> anyhow::Result<Self> {
        let create = || format!("cannot create {}", log.display());
        let log = File::create(log).with_context(create)?;
        // Ctrl-C is for this process, which then ends the daemons in order.
        launch::bind_to_this_process(&mut command);
        command.stderr(log);
        let start = format!("cannot start {}", command.get_program().display());
        let mut child = Command::from(command).kill_on_drop(true).spawn().context(start)?;
        let stdout = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        Ok(Self { name: name.to_owned(), child, stdout })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().with_context(|| format!("{} has ended", self.name))
    }

    /// Where it listens, as it says once it does; an error if it ends without a word.
    pub(super) async fn addresses(&mut self, workplace: &Workplace) -> anyhow::Result<Addresses> {
        let line = self.next_line(workplace).await?;
        serde_json::from_str(&line).with_context(|| format!("{} does not say where it is", self.name))
    }

    /// Waits until it says that it has all that it needs; an error if it ends before.
    pub(super) async fn ready(&mut self, workplace: &Workplace) -> anyhow::Result<()> {
        let line = self.next_line(workplace).await?;
        ensure!(line == READY, "{} says {line:?} instead of being ready", self.name);
        Ok(())
    }

    async fn next_line(&mut self, workplace: &Workplace) -> anyhow::Result<String> {
        if let Some(stdout) = &mut self.stdout {
            let line = stdout.next_line().await.with_context(|| format!("cannot hear from {}", self.name))?;
            if let Some(line) = line {
                return Ok(line);
            }
        }
        let status = self.ended().await;
        Err(ended(&self.name, status, &workplace.log(&self.name)))
    }

    /// Waits until it has ended.
    ///
    /// # Cancel safety
    /// Cancelling it changes nothing.
    pub(super) async fn ended(&mut self) -> ExitStatus {
        match self.child.wait().await {
            Ok(status) => status,
            // Somebody else has waited for it, so it has ended; nobody knows how.
            Err(_) => ExitStatus::from_raw(0),
        }
    }

    /// Asks it to end, and kills it if it does not.
    pub(super) async fn stop(&mut self) {
        // `None` if it has ended and was waited for: then the number may be that of another process.
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let Some(pid) = pid else { return };
        let _ = kill_process(pid, Signal::TERM);
        if timeout(STOP_TIMEOUT, self.ended()).await.is_err() {
            let _: io::Result<()> = self.child.kill().await;
        }
    }
}

/// Says how a daemon ended, with its last words.
pub(super) fn ended(name: &str, status: ExitStatus, log: &Path) -> anyhow::Error {
    let log = fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let last = log.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing");
    anyhow::anyhow!("{name} ended with {status}: {last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_daemon_is_told_with_its_last_words() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let told = || ended("node-1", ExitStatus::from_raw(9), &log).to_string();
        assert_eq!(told(), "node-1 ended with signal: 9 (SIGKILL): it said nothing");
        fs::write(&log, "started\nport in use\n\n").unwrap();
        assert!(told().ends_with(": port in use"));
    }
}
