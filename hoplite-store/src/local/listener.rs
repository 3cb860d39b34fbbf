//! The listening Unix socket: takes over what a killed daemon left, never what a living one holds, and leaves nothing.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hoplite_core::error::Error;
use hoplite_proto::socket_path::temporary_directory;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::net::{UnixListener, UnixStream};

use crate::config::ClientRules;

/// How long another daemon may take to make its socket beside this one; it takes less than a millisecond.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// A daemon answers there.
    #[error("another daemon listens on {}", path.display())]
    InUse {
        /// The path of the socket.
        path: PathBuf,
    },
    /// There is a file at the path that is not a socket.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The path that was to become a socket.
        path: PathBuf,
    },
    /// The directory for sockets in the temporary directory, which any user can make, belongs to another user.
    #[error("{} belongs to user {owner}, who could put a socket of theirs there", directory.display())]
    NotOurs {
        /// The directory of the socket.
        directory: PathBuf,
        /// The user id that owns the directory.
        owner: u32,
    },
    /// The operating system refuses.
    #[error("cannot listen on {}", path.display())]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// Which users may use the socket.
#[derive(Debug, Clone)]
pub(crate) struct SocketAccess {
    /// Its permissions.
    pub(crate) mode: u32,
    /// The user who owns it; by default that of the process.
    pub(crate) owner: Option<u32>,
    /// Its group; by default that of the process.
    pub(crate) group: Option<u32>,
    /// Which of the users that it lets in may be clients.
    pub(crate) clients: ClientRules,
}

/// What a client may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Anything.
    Writer,
    /// Nothing that changes anything. It never gets memory that it could write.
    Reader,
}

/// The process at the other end of a connection, as the kernel knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalPeer {
    /// Its user.
    pub(crate) user: u32,
    /// Its groups.
    pub(crate) groups: Vec<u32>,
}

impl LocalPeer {
    /// Asks the kernel.
    pub(crate) fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let mut groups = hoplite_shm::peer_groups(stream.as_fd())?;
        groups.push(credentials.gid());
        Ok(Self { user: credentials.uid(), groups })
    }
}

impl SocketAccess {
    /// What `peer` may do.
    ///
    /// # Errors
    /// [`Error::PermissionDenied`] if it may not even be a client.
    pub(crate) fn role(&self, peer: &LocalPeer) -> Result<Role, Error> {
        let ClientRules { users, groups, readers } = &self.clients;
        let user = peer.user;
        if user == 0 || user == rustix::process::geteuid().as_raw() {
            return Ok(Role::Writer);
        }
        let is_reader = readers.contains(&user);
        let is_listed = users.as_ref().is_some_and(|users| users.contains(&user))
            || groups.as_ref().is_some_and(|groups| peer.groups.iter().any(|group| groups.contains(group)));
        let is_open = users.is_none() && groups.is_none();
        if !self.admits(user) || !(is_open || is_listed || is_reader) {
            return Err(Error::permission_denied("the store is not for this user"));
        }
        Ok(if is_reader { Role::Reader } else { Role::Writer })
    }

    /// Whether a process of `user` that has connected may stay.
    ///
    /// The system has checked the permissions of the file. Where those let in the group or others they decide alone,
    /// since of a peer's groups only one is known. A socket for its owner alone is for that user, this daemon's and
    /// root: any other user connected before the permissions were set, or has got around them.
    fn admits(&self, user: u32) -> bool {
        self.mode & 0o022 != 0
            || user == 0
            || user == rustix::process::geteuid().as_raw()
            || self.owner == Some(user)
    }
}

/// A listening socket, unlinked when it is dropped.
#[derive(Debug)]
pub(crate) struct LocalListener {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl LocalListener {
    /// Binds `path` for those whom `access` names. Missing directories are made, accessible to this daemon's user only.
    pub(crate) fn bind(path: &Path, access: &SocketAccess) -> Result<Self, SocketError> {
        let io_error = |source| SocketError::Io { path: path.to_owned(), source };
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        make_directory(directory).map_err(io_error)?;
        if directory == temporary_directory() {
            check_owner(directory, rustix::process::geteuid().as_raw())?;
        }
        // Held while the old socket is examined and replaced, so that of two daemons that start at once one loses.
        let _lock = lock(directory).map_err(io_error)?;
        remove_leftover(path)?;
        let listener = UnixListener::bind(path).map_err(io_error)?;
        if access.owner.is_some() || access.group.is_some() {
            std::os::unix::fs::chown(path, access.owner, access.group).map_err(io_error)?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(access.mode)).map_err(io_error)?;
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

fn make_directory(directory: &Path) -> io::Result<()> {
    match fs::metadata(directory) {
        Ok(found) if found.is_dir() => Ok(()),
        // What the attempt to make one would say, that something exists, helps nobody.
        Ok(_) => Err(Errno::NOTDIR.into()),
        Err(_) => {
            fs::create_dir_all(directory)?;
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700))
        }
    }
}

/// Checks that `directory`, or the link of that name, belongs to `user` or to root. Then nobody else can replace it as
/// long as the directory around it is sticky.
fn check_owner(directory: &Path, user: u32) -> Result<(), SocketError> {
    match fs::symlink_metadata(directory) {
        Ok(found) if found.uid() == user || found.uid() == 0 => Ok(()),
        Ok(found) => Err(SocketError::NotOurs { directory: directory.to_owned(), owner: found.uid() }),
        Err(source) => Err(SocketError::Io { path: directory.to_owned(), source }),
    }
}

/// Locks a directory against other daemons that start, for at most [`LOCK_TIMEOUT`]: anybody who can read it can hold it.
fn lock(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    let started = Instant::now();
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(rustix::io::Errno::WOULDBLOCK) if started.elapsed() < LOCK_TIMEOUT => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    "another process has locked its directory",
                ));
            }
            Err(error) => return Err(error.into()),
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

    const CLIENTS: ClientRules = ClientRules { users: None, groups: None, readers: Vec::new() };
    const ACCESS: SocketAccess = SocketAccess { mode: 0o660, owner: None, group: None, clients: CLIENTS };

    #[tokio::test]
    async fn a_living_daemon_keeps_its_socket_and_a_dead_one_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/store.sock");
        let first = LocalListener::bind(&path, &ACCESS).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        assert!(matches!(LocalListener::bind(&path, &ACCESS), Err(SocketError::InUse { .. })));
        drop(first);
        assert!(!path.exists(), "a clean end leaves nothing");
        // As after kill -9: the file is there, nobody listens.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let second = LocalListener::bind(&path, &ACCESS).unwrap();
        drop(second);
        fs::write(&path, "data").unwrap();
        assert!(matches!(LocalListener::bind(&path, &ACCESS), Err(SocketError::NotASocket { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn a_socket_for_its_owner_alone_is_for_that_user_the_daemon_and_root() {
        let private = SocketAccess { mode: 0o600, owner: Some(4_000_000), group: None, clients: CLIENTS };
        let ours = rustix::process::geteuid().as_raw();
        assert!([0, ours, 4_000_000].into_iter().all(|user| private.admits(user)));
        assert!(!private.admits(4_000_001));
        assert!(SocketAccess { mode: 0o620, ..private.clone() }.admits(4_000_001));
        assert!(!SocketAccess { mode: 0o644, ..private }.admits(4_000_001));
    }

    #[test]
    fn of_those_whom_the_socket_lets_in_only_the_listed_are_clients() {
        let peer = |user, groups: &[u32]| LocalPeer { user, groups: groups.to_vec() };
        let clients = ClientRules {
            users: Some(vec![4_000_001]),
            groups: Some(vec![4_000_100]),
            readers: vec![4_000_002, 4_000_003],
        };
        let access = SocketAccess { clients, ..ACCESS };
        let role = |user, groups: &[u32]| access.role(&peer(user, groups));
        assert_eq!(role(4_000_001, &[1]), Ok(Role::Writer));
        assert_eq!(role(4_000_005, &[1, 4_000_100]), Ok(Role::Writer));
        assert_eq!(role(4_000_002, &[1]), Ok(Role::Reader));
        assert_eq!(role(4_000_003, &[4_000_100]), Ok(Role::Reader), "even if the group may write");
        assert!(matches!(role(4_000_005, &[1]), Err(Error::PermissionDenied { .. })));
        for user in [0, rustix::process::geteuid().as_raw()] {
            assert_eq!(role(user, &[]), Ok(Role::Writer));
        }
        let only_readers = ClientRules { readers: vec![4_000_002], ..CLIENTS };
        let access = SocketAccess { clients: only_readers, ..ACCESS };
        assert_eq!(access.role(&peer(4_000_005, &[])), Ok(Role::Writer), "the socket decides");
        assert_eq!(access.role(&peer(4_000_002, &[])), Ok(Role::Reader));
    }

    #[test]
    fn a_directory_of_another_user_is_not_trusted() {
        let place = tempfile::tempdir().unwrap();
        let owner = fs::metadata(place.path()).unwrap().uid();
        assert!(check_owner(place.path(), owner).is_ok());
        assert!(check_owner(Path::new("/"), owner).is_ok(), "root's");
        if owner == 0 {
            std::os::unix::fs::chown(place.path(), Some(4_000_000), None).unwrap();
        }
        let error = check_owner(place.path(), 4_000_001).unwrap_err();
        assert!(
            matches!(&error, SocketError::NotOurs { directory, .. } if directory == place.path()),
            "{error}"
        );
    }
}
