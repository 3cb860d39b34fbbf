//! One daemon of a local cluster.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, ensure};
use hoplite_daemon::{Addresses, READY};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// How many lines of the log of a daemon that has died are told: enough for an error and what led to it.
const LAST_LINES: usize = 3;
/// The time that a daemon may take to end in order, before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A process that was started, and that is killed when this is dropped before it has ended.
#[derive(Debug)]
pub(crate) struct Daemon {
    name: String,
    log: PathBuf,
    child: Child,
    stdout: Option<Lines<BufReader<ChildStdout>>>,
}

impl Daemon {
    /// Starts `command`, which is to print its addresses, and writes what it logs into a new file `log`.
    pub(crate) fn spawn(
        name: &str,
        mut command: std::process::Command,
        log: PathBuf,
    ) -> anyhow::Result<Self> {
        let create = || format!("cannot create {}", log.display());
        let no_link = OFlags::NOFOLLOW.bits().cast_signed();
        let file = File::options().write(true).create(true).truncate(true).custom_flags(no_link).open(&log);
        command.stderr(file.with_context(create)?);
        let start = format!("cannot start {}", command.get_program().display());
        let mut child = Command::from(command).kill_on_drop(true).spawn().context(start)?;
        let stdout = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        Ok(Self { name: name.to_owned(), log, child, stdout })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().with_context(|| format!("{} has ended", self.name))
    }

    /// Where it listens, as it says once it does; an error if it ends without a word.
    pub(crate) async fn addresses(&mut self) -> anyhow::Result<Addresses> {
        let line = self.next_line().await?;
        serde_json::from_str(&line).with_context(|| format!("{} does not say where it is", self.name))
    }

    /// Waits until it says that it has all that it needs; an error if it ends before.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        let line = self.next_line().await?;
        ensure!(line == READY, "{} says {line:?} instead of being ready", self.name);
        Ok(())
    }

    async fn next_line(&mut self) -> anyhow::Result<String> {
        if let Some(stdout) = &mut self.stdout {
            let line = stdout.next_line().await.with_context(|| format!("cannot hear from {}", self.name))?;
            if let Some(line) = line {
                return Ok(line);
            }
        }
        let status = self.ended().await;
        Err(self.has_ended(status))
    }

    /// Waits until it has ended.
    ///
    /// # Cancel safety
    /// Cancelling it changes nothing.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        match self.child.wait().await {
            Ok(status) => status,
            // Somebody else has waited for it, so it has ended; nobody knows how.
            Err(_) => ExitStatus::from_raw(0),
        }
    }

    /// Says that it has ended, with its last words.
    pub(crate) fn has_ended(&self, status: ExitStatus) -> anyhow::Error {
        anyhow::anyhow!("{} ended with {status}: {}", self.name, last_words(&self.log))
    }

    /// Leaves it alone from now on: it goes on when this process has ended.
    pub(crate) fn leave(self) {
        // Dropping it would kill it.
        std::mem::forget(self.child);
    }

    /// Asks it to end, and kills it if it does not.
    pub(crate) async fn stop(&mut self) {
        // `None` if it has ended and was waited for: then the number may be that of another process.
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let Some(pid) = pid else { return };
        let _ = kill_process(pid, Signal::TERM);
        if timeout(STOP_TIMEOUT, self.ended()).await.is_err() {
            let _: io::Result<()> = self.child.kill().await;
        }
    }
}

/// The last lines of a log, in one.
pub(crate) fn last_words(log: &Path) -> String {
    let log = fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines = || log.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    // What it complains about, if it does.
    let is_complaint = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
    let mut last: Vec<_> = lines().filter(is_complaint).take(LAST_LINES).collect();
    if last.is_empty() {
        last = lines().take(LAST_LINES).collect();
    }
    last.reverse();
    if last.is_empty() { "it said nothing".to_owned() } else { last.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_the_last_lines() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        assert_eq!(last_words(&log), "it said nothing");
        fs::write(&log, "started\nport in use\n\n").unwrap();
        assert_eq!(last_words(&log), "started; port in use");
        fs::write(&log, "1\n2\n3\n4\n").unwrap();
        assert_eq!(last_words(&log), "2; 3; 4");
        fs::write(&log, "a  WARN no peer\na  INFO 2\na  INFO 3\na  INFO 4\n").unwrap();
        assert_eq!(last_words(&log), "a  WARN no peer");
    }
}
