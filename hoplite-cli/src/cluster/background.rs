//! A store in the background, with `store.pid` and `store.log` beside its `store.sock`.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::own_directory;

const PROGRAM: &str = "hoplite-store";
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Background {
    socket: PathBuf,
}

impl Background {
    pub(crate) const fn of(socket: PathBuf) -> Self {
        Self { socket }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.socket.with_extension("log")
    }

    fn pid_file(&self) -> PathBuf {
        self.socket.with_extension("pid")
    }

    fn directory(&self) -> &Path {
        let directory = self.socket.parent().filter(|path| !path.as_os_str().is_empty());
        directory.unwrap_or(Path::new("."))
    }

    /// Creates the socket's directory, and locks the pid file until the result is dropped.
    pub(crate) fn prepare(&self) -> anyhow::Result<Preparation> {
        own_directory::make(self.directory())?;
        let path = self.pid_file();
        let cannot = || format!("cannot use {}", path.display());
        let open = File::options()
            .create(true)
            .append(true)
            .mode(0o644)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path);
        let pid_file = open.with_context(cannot)?;
        flock(&pid_file, FlockOperation::NonBlockingLockExclusive).with_context(|| {
            format!("another start of a store is under way at {}", self.socket.display())
        })?;
        Ok(Preparation { _lock: pid_file })
    }

    pub(crate) fn keep_log(&self) {
        let _ = fs::rename(self.log(), self.socket.with_extension("log.old"));
    }

    pub(crate) fn record(&self, pid: u32) -> anyhow::Result<()> {
        let path = self.pid_file();
        fs::write(&path, format!("{pid}\n"))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    pub(crate) fn forget(&self) {
        let _ = fs::remove_file(self.pid_file());
    }

    /// Store's process, unless another program has its number now.
    pub(crate) fn running(&self) -> anyhow::Result<Option<Running>> {
        if fs::symlink_metadata(self.directory())
            .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        {
            return Ok(None);
        }
        // Another user's pid file could name any process of this user.
        own_directory::check(self.directory())?;
        let path = self.pid_file();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        Ok(text.trim().parse::<u32>().ok().and_then(Running::find))
    }
}

#[derive(Debug)]
pub(crate) struct Preparation {
    _lock: File,
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) pid: u32,
    /// File descriptor of the process (pidfd). It never refers to a later process with the same
    /// number.
    process: OwnedFd,
}

impl Running {
    /// Returns the process of the store that listens at `socket`. `None` if its process is
    /// invisible, as in another container.
    pub(crate) fn behind(socket: &Path) -> Option<Self> {
        let connection = UnixStream::connect(socket).ok()?;
        hoplite_shm::peer_process(connection.as_fd()).ok()?.and_then(Self::find)
    }

    fn find(pid: u32) -> Option<Self> {
        let process = pidfd_open(Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty()).ok()?;
        // Read after opening the process, so that the name belongs to it.
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (name.trim_end() == PROGRAM).then_some(Self { pid, process })
    }

    /// Returns `true` if the store ended within `patience` after SIGTERM.
    pub(crate) fn stop(&self, patience: Duration) -> anyhow::Result<bool> {
        self.signal(Signal::TERM)?;
        Ok(self.ends_within(patience)?)
    }

    pub(crate) fn kill(&self) -> anyhow::Result<()> {
        self.signal(Signal::KILL)?;
        ensure!(self.ends_within(KILL_TIMEOUT)?, "process {} cannot be killed", self.pid);
        Ok(())
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        pidfd_send_signal(&self.process, signal)
            .with_context(|| format!("cannot end process {}", self.pid))
    }

    /// Returns `true` if the process ended within `patience`. Blocks.
    pub(crate) fn ends_within(&self, patience: Duration) -> io::Result<bool> {
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut ends = [PollFd::new(&self.process, PollFlags::IN)];
        Ok(poll(&mut ends, Some(&patience))? > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_another_process_is_not_the_store() {
        let place = tempfile::tempdir().unwrap();
        let background = Background::of(place.path().join("store.sock"));
        assert!(background.running().unwrap().is_none());
        for text in ["", "x", "-1", "0", "4194304", "99999999999"] {
            fs::write(background.pid_file(), text).unwrap();
            assert!(background.running().unwrap().is_none(), "{text}");
        }
        background.record(std::process::id()).unwrap();
        assert!(background.running().unwrap().is_none(), "this process is no store");
        background.forget();
        assert!(!background.pid_file().exists());
    }

    #[test]
    fn one_start_at_a_time_and_only_at_home() {
        let place = tempfile::tempdir().unwrap();
        let background = Background::of(place.path().join("new/store.sock"));
        let first = background.prepare().unwrap();
        let error = background.prepare().unwrap_err();
        assert!(error.to_string().contains("another start"), "{error}");
        drop(first);
        background.prepare().unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(place.path().join("new"), Some(12345), None).unwrap();
            assert!(background.prepare().unwrap_err().to_string().contains("12345"));
            assert!(background.running().unwrap_err().to_string().contains("12345"));
        }
    }

    #[test]
    fn the_log_before_is_kept() {
        let place = tempfile::tempdir().unwrap();
        let background = Background::of(place.path().join("store.sock"));
        background.keep_log();
        fs::write(background.log(), "old").unwrap();
        background.keep_log();
        assert_eq!(fs::read_to_string(place.path().join("store.log.old")).unwrap(), "old");
        assert!(!background.log().exists());
    }
}
