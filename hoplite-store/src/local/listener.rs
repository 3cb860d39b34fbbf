//! The Unix socket of the store, which replaces the socket file of a dead daemon, but never of a
//! live one, and removes its own file when it stops.
//!
//! A cleaner of `/tmp` may remove the file while the store runs; [`LocalListener::restore`] then
//! creates it again.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hoplite_core::error::Error;
use hoplite_proto::socket_place::{Distrust, PlaceError, SocketPlace, TrustedUsers};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use tokio::net::{UnixListener, UnixStream};

use crate::config::ClientRules;

/// Longest wait for another daemon that creates its socket.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(10);
const PRIVATE: u32 = 0o700;
const LARGEST_BACKLOG: i32 = -1;

/// A reason why the store cannot listen on a socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SocketError {
    #[error("another daemon listens on {}", path.display())]
    InUse { path: PathBuf },
    #[error("{} exists and is not a socket", path.display())]
    NotASocket { path: PathBuf },
    #[error("cannot listen on {}", path.display())]
    Untrusted {
        path: PathBuf,
        #[source]
        source: Distrust,
    },
    #[error("cannot listen on {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct SocketAccess {
    pub(crate) mode: u32,
    pub(crate) owner: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) clients: ClientRules,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Root or the store's user, who may also drain stores and change quotas.
    Owner,
    Writer,
    /// May only read: never gets writable memory.
    Reader,
}

/// A connected process, as the kernel knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalPeer {
    pub(crate) user: u32,
    pub(crate) groups: Vec<u32>,
}

impl LocalPeer {
    pub(crate) fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let mut groups = hoplite_shm::peer_groups(stream.as_fd())?;
        groups.push(credentials.gid());
        Ok(Self { user: credentials.uid(), groups })
    }
}

impl SocketAccess {
    /// Returns the client's rights, or [`Error::PermissionDenied`].
    pub(crate) fn role(&self, peer: &LocalPeer) -> Result<Role, Error> {
        let ClientRules { users, groups, readers } = &self.clients;
        let user = peer.user;
        if user == 0 || user == rustix::process::geteuid().as_raw() {
            return Ok(Role::Owner);
        }
        let is_reader = readers.contains(&user);
        let is_listed = users.as_ref().is_some_and(|users| users.contains(&user))
            || groups
                .as_ref()
                .is_some_and(|groups| peer.groups.iter().any(|group| groups.contains(group)));
        let is_open = users.is_none() && groups.is_none();
        if !self.admits(user) || !(is_open || is_listed || is_reader) {
            return Err(Error::permission_denied("this user may not use the store"));
        }
        Ok(if is_reader { Role::Reader } else { Role::Writer })
    }

    /// Returns `true` if a connected process of `user` may stay connected.
    ///
    /// If the socket file's permissions admit the group or everybody, they decide: the system has
    /// checked them. Otherwise only the owner, this daemon's user and root may stay: others
    /// connected before the permissions were set, or circumvented them.
    fn admits(&self, user: u32) -> bool {
        self.mode & 0o022 != 0
            || user == 0
            || user == rustix::process::geteuid().as_raw()
            || self.owner == Some(user)
    }
}

/// The listening socket. Dropping it removes its file.
#[derive(Debug)]
pub(crate) struct LocalListener {
    listener: UnixListener,
    path: PathBuf,
    access: SocketAccess,
    directory_mode: u32,
    file: FileIdentity,
    /// Last logged failure to create the file again.
    complaint: Option<String>,
}

/// Device and inode, which are unique while the socket listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(found: &fs::Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino() }
    }
}

impl LocalListener {
    /// Listens at `path`. Creates missing directories for this daemon's user only.
    pub(crate) fn bind(path: &Path, access: &SocketAccess) -> Result<Self, SocketError> {
        Self::bind_within(LOCK_TIMEOUT, path, access, PRIVATE)
    }

    fn bind_within(
        lock_timeout: Duration,
        path: &Path,
        access: &SocketAccess,
        directory_mode: u32,
    ) -> Result<Self, SocketError> {
        let io_error = |source| SocketError::Io { path: path.to_owned(), source };
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        make_directory(directory, directory_mode).map_err(io_error)?;
        let place = SocketPlace::find(path, &TrustedUsers::from_environment()).map_err(
            |error| match error {
                PlaceError::Distrusted(source) => {
                    SocketError::Untrusted { path: path.to_owned(), source }
                }
                PlaceError::System(error) => io_error(error.into()),
            },
        )?;
        let address = place.address().map_err(|error| io_error(error.into()))?;
        // Of two daemons that start together, one must fail.
        let _lock = lock(directory, lock_timeout).map_err(io_error)?;
        remove_leftover(path, &address)?;
        let socket = bind_to(&address).map_err(io_error)?;
        if access.owner.is_some() || access.group.is_some() {
            std::os::unix::fs::chown(path, access.owner, access.group).map_err(io_error)?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(access.mode)).map_err(io_error)?;
        // A client that connected earlier would circumvent the permissions.
        let listener = listen_on(socket).map_err(io_error)?;
        let file = FileIdentity::of(&fs::symlink_metadata(path).map_err(io_error)?);
        let directory_mode =
            fs::metadata(directory).map_err(io_error)?.permissions().mode() & 0o7777;
        let (path, access) = (path.to_owned(), access.clone());
        Ok(Self { listener, path, access, directory_mode, file, complaint: None })
    }

    /// Creates the socket file again, and its directory if necessary. Logs the recovery, and a
    /// repeated failure once. Never waits, and never replaces a file.
    pub(crate) fn restore(&mut self) {
        let complaint = match fs::symlink_metadata(&self.path) {
            Ok(found) if FileIdentity::of(&found) == self.file => None,
            Ok(_) => Some("another file has taken its place".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match Self::bind_within(
                    Duration::ZERO,
                    &self.path,
                    &self.access,
                    self.directory_mode,
                ) {
                    Ok(again) => {
                        *self = again;
                        tracing::warn!(path = %self.path.display(), "the socket's file was removed; created it again");
                        None
                    }
                    Err(SocketError::Untrusted { source, .. }) => Some(source.to_string()),
                    Err(SocketError::Io { source, .. }) => Some(source.to_string()),
                    Err(error) => Some(error.to_string()),
                }
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(reason) = &complaint
            && self.complaint != complaint
        {
            tracing::warn!(path = %self.path.display(), reason, "new clients cannot find the socket: its file is gone");
        }
        self.complaint = complaint;
    }

    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

impl AsFd for LocalListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        // Another socket may have taken the path; its file stays.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| FileIdentity::of(&found) == self.file)
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn make_directory(directory: &Path, mode: u32) -> io::Result<()> {
    match fs::metadata(directory) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Errno::NOTDIR.into()),
        Err(_) => {
            DirBuilder::new().recursive(true).mode(PRIVATE).create(directory)?;
            fs::set_permissions(directory, fs::Permissions::from_mode(mode))
        }
    }
}

fn bind_to(address: &SocketAddrUnix) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, address)?;
    Ok(socket)
}

fn listen_on(socket: OwnedFd) -> io::Result<UnixListener> {
    listen(&socket, LARGEST_BACKLOG)?;
    UnixListener::from_std(socket.into())
}

/// Locks a directory against other starting daemons. Waits up to `timeout`, because any reader of
/// the directory can hold the lock.
fn lock(directory: &Path, timeout: Duration) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    let started = Instant::now();
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(rustix::io::Errno::WOULDBLOCK) if started.elapsed() < timeout => {
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

fn remove_leftover(path: &Path, address: &SocketAddrUnix) -> Result<(), SocketError> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(SocketError::NotASocket { path: path.to_owned() });
    }
    match probe(address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path)
            .map_err(|source| SocketError::Io { path: path.to_owned(), source }),
        // A full queue of connections means that a live daemon does not accept them.
        Ok(()) | Err(Errno::AGAIN) => Err(SocketError::InUse { path: path.to_owned() }),
        Err(error) => Err(SocketError::Io { path: path.to_owned(), source: error.into() }),
    }
}

/// Connects without waiting, because the daemon may be suspended.
fn probe(address: &SocketAddrUnix) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, address)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENTS: ClientRules = ClientRules { users: None, groups: None, readers: Vec::new() };
    const ACCESS: SocketAccess =
        SocketAccess { mode: 0o660, owner: None, group: None, clients: CLIENTS };

    #[tokio::test]
    async fn a_living_daemon_keeps_its_socket_and_a_dead_one_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/store.sock");
        let first = LocalListener::bind(&path, &ACCESS).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        assert!(matches!(LocalListener::bind(&path, &ACCESS), Err(SocketError::InUse { .. })));
        drop(first);
        assert!(!path.exists(), "a clean end leaves nothing");
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
        let private =
            SocketAccess { mode: 0o600, owner: Some(4_000_000), group: None, clients: CLIENTS };
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
            assert_eq!(role(user, &[]), Ok(Role::Owner));
        }
        let only_readers = ClientRules { readers: vec![4_000_002], ..CLIENTS };
        let access = SocketAccess { clients: only_readers, ..ACCESS };
        assert_eq!(access.role(&peer(4_000_005, &[])), Ok(Role::Writer), "the socket decides");
        assert_eq!(access.role(&peer(4_000_002, &[])), Ok(Role::Reader));
    }

    #[tokio::test]
    async fn a_directory_that_others_may_write_to_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("open");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        let error = LocalListener::bind(&directory.join("store.sock"), &ACCESS).unwrap_err();
        assert!(
            matches!(&error, SocketError::Untrusted { source: Distrust::Writable { path, .. }, .. } if *path == directory),
            "{error}"
        );
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "nothing was made there");
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(&directory, Some(4_000_000), None).unwrap();
            let error = LocalListener::bind(&directory.join("store.sock"), &ACCESS).unwrap_err();
            let SocketError::Untrusted { source, .. } = error else { panic!("{error}") };
            assert!(source.to_string().contains("belongs to user 4000000"), "{source}");
        }
    }

    #[tokio::test]
    async fn a_path_may_be_longer_than_an_address() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("d".repeat(200)).join("store.sock");
        let first = LocalListener::bind(&path, &ACCESS).unwrap();
        assert!(matches!(LocalListener::bind(&path, &ACCESS), Err(SocketError::InUse { .. })));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        drop(first);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn the_file_is_made_again_when_it_is_gone_but_no_file_of_others_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("sockets");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let path = directory.join("store.sock");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let answers = || std::os::unix::net::UnixStream::connect(&path).is_ok();
        let mut listener = LocalListener::bind(&path, &ACCESS).unwrap();
        let first = listener.file;
        listener.restore();
        assert_eq!(listener.file, first, "nothing was removed");

        fs::remove_file(&path).unwrap();
        listener.restore();
        assert!(answers() && mode(&path) == 0o660);
        fs::remove_dir_all(&directory).unwrap();
        listener.restore();
        assert!(answers() && mode(&directory) == 0o755);
        assert_eq!(listener.complaint, None);

        fs::remove_file(&path).unwrap();
        let other = LocalListener::bind(&path, &ACCESS).unwrap();
        listener.restore();
        assert!(
            listener.complaint.as_deref().is_some_and(|reason| reason.contains("another file"))
        );
        assert_eq!(FileIdentity::of(&fs::symlink_metadata(&path).unwrap()), other.file);
        drop(other);
        let starting = lock(&directory, Duration::ZERO).unwrap();
        listener.restore();
        assert!(listener.complaint.as_deref().is_some_and(|reason| reason.contains("locked")));
        assert!(!path.exists());
        drop(starting);
        listener.restore();
        assert!(answers() && listener.complaint.is_none());
        drop(listener);
        assert!(!path.exists());
    }
}
