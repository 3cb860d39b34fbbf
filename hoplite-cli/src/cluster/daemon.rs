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

const LAST_LINES: usize = 3;
/// Longer than a store's orderly end (at most ten seconds): a killed store leaves its socket.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// Process of a daemon, killed on drop.
#[derive(Debug)]
pub(crate) struct Daemon {
    name: String,
    log: PathBuf,
    child: Child,
    stdout: Option<Lines<BufReader<ChildStdout>>>,
}

impl Daemon {
    pub(crate) fn spawn(
        name: &str,
        mut command: std::process::Command,
        log: PathBuf,
    ) -> anyhow::Result<Self> {
        let create = || format!("cannot create {}", log.display());
        let no_link = OFlags::NOFOLLOW.bits().cast_signed();
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(no_link)
            .open(&log);
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

    pub(crate) async fn addresses(&mut self) -> anyhow::Result<Addresses> {
        let line = self.next_line().await?;
        serde_json::from_str(&line)
            .with_context(|| format!("{} does not print its addresses", self.name))
    }

    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        let line = self.next_line().await?;
        ensure!(line == READY, "{} prints {line:?} instead of being ready", self.name);
        Ok(())
    }

    async fn next_line(&mut self) -> anyhow::Result<String> {
        if let Some(stdout) = &mut self.stdout {
            let line = stdout
                .next_line()
                .await
                .with_context(|| format!("cannot hear from {}", self.name))?;
            if let Some(line) = line {
                return Ok(line);
            }
        }
        let status = self.ended().await;
        Err(self.has_ended(status))
    }

    /// Cancel safe.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        match self.child.wait().await {
            Ok(status) => status,
            // An earlier call has read the exit status.
            Err(_) => ExitStatus::from_raw(0),
        }
    }

    pub(crate) fn has_ended(&self, status: ExitStatus) -> anyhow::Error {
        Ended { name: self.name.clone(), status, last_words: last_words(&self.log) }.into()
    }

    pub(crate) fn leave(self) {
        // Dropping the child would kill it.
        std::mem::forget(self.child);
    }

    pub(crate) async fn stop(&mut self) {
        // `None` after the daemon's end, because another process may have its number.
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let Some(pid) = pid else { return };
        let _ = kill_process(pid, Signal::TERM);
        if timeout(STOP_TIMEOUT, self.ended()).await.is_err() {
            let _: io::Result<()> = self.child.kill().await;
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{name} ended with {status}: {last_words}")]
pub(crate) struct Ended {
    name: String,
    status: ExitStatus,
    last_words: String,
}

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// Returns from a daemon's log the error of a wrong command line, else the last warnings and
/// errors, else the last lines.
pub(crate) fn last_words(log: &Path) -> String {
    let log = fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines = || log.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let from_error = log.lines().map(str::trim).skip_while(|line| !line.starts_with("error:"));
    let usage_error = from_error.take_while(|line| !line.starts_with("Usage:"));
    let usage_error: Vec<_> =
        usage_error.filter(|line| !line.is_empty()).take(LAST_LINES).collect();
    if !usage_error.is_empty() {
        return usage_error.join("; ");
    }
    let is_complaint = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
    let mut last: Vec<_> = lines().filter(is_complaint).take(LAST_LINES).collect();
    if last.is_empty() {
        last = lines().take(LAST_LINES).collect();
    }
    last.reverse();
    if last.is_empty() { "it logged nothing".to_owned() } else { last.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_the_last_lines() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        assert_eq!(last_words(&log), "it logged nothing");
        fs::write(&log, "started\nport in use\n\n").unwrap();
        assert_eq!(last_words(&log), "started; port in use");
        fs::write(&log, "1\n2\n3\n4\n").unwrap();
        assert_eq!(last_words(&log), "2; 3; 4");
        fs::write(&log, "a  WARN no peer\na  INFO 2\na  INFO 3\na  INFO 4\n").unwrap();
        assert_eq!(last_words(&log), "a  WARN no peer");
        let usage =
            "error: unexpected argument\n\n  tip: another one\n\nUsage: store\n\nSee '--help'.\n";
        fs::write(&log, usage).unwrap();
        assert_eq!(last_words(&log), "error: unexpected argument; tip: another one");
    }
}
