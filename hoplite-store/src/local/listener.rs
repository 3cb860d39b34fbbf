//! The listening Unix socket: takes over what a killed daemon left, never what a living one holds, and leaves nothing.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::net::{UnixListener, UnixStream};

/// Why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// A daemon answers there.
    #[error("another daemon listens on {}", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Something that is not a socket is in the way.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The operating system refuses.
    #[error("cannot listen on {}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A listening socket, unlinked when it is dropped.
#[derive(Debug)]
pub(crate) struct LocalListener {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl LocalListener {
    /// Binds `path` with the permissions `mode` and, if given, the group `group`. Missing directories are made,
    /// accessible to the owner only.
    pub(crate) fn bind(path: &Path, mode: u32, group: Option<u32>) -> Result<Self, SocketError> {
        let io_error = |source| SocketError::Io { path: path.to_owned(), source };
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if !directory.is_dir() {
            fs::create_dir_all(directory).map_err(io_error)?;
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).map_err(io_error)?;
        }
        // Held while the old socket is examined and replaced, so that of two daemons that start at once one loses.
        let lock =
            rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(|error| io_error(error.into()))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|error| io_error(error.into()))?;
        remove_leftover(path)?;
        let listener = UnixListener::bind(path).map_err(io_error)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(io_error)?;
        if group.is_some() {
            std::os::unix::fs::chown(path, None, group).map_err(io_error)?;
        }
        let inode = fs::symlink_metadata(path).map_err(io_error)?.ino();
        Ok(Self { listener, path: path.to_owned(), inode })
    }

    /// The next client.
    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        // Somebody may have put another socket there meanwhile; that one is not ours to remove.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn remove_leftover(path: &Path) -> Result<(), SocketError> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(SocketError::NotASocket { path: path.to_owned() });
    }
    match probe(path) {
        Err(Errno::CONNREFUSED) => {
            fs::remove_file(path).map_err(|source| SocketError::Io { path: path.to_owned(), source })
        }
        // The queue of a daemon that does not accept is full.
        Ok(()) | Err(Errno::AGAIN) => Err(SocketError::InUse { path: path.to_owned() }),
        Err(error) => Err(SocketError::Io { path: path.to_owned(), source: error.into() }),
    }
}

/// Connects without waiting: a daemon that is stopped must not stop this one.
fn probe(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_living_daemon_keeps_its_socket_and_a_dead_one_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/store.sock");
        let first = LocalListener::bind(&path, 0o660, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        assert!(matches!(LocalListener::bind(&path, 0o660, None), Err(SocketError::InUse { .. })));
        drop(first);
        assert!(!path.exists(), "a clean end leaves nothing");
        // As after kill -9: the file is there, nobody listens.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let second = LocalListener::bind(&path, 0o660, None).unwrap();
        drop(second);
        fs::write(&path, "data").unwrap();
        assert!(matches!(LocalListener::bind(&path, 0o660, None), Err(SocketError::NotASocket { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }
}
