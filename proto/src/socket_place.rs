//! Checks the directories on the path to a local socket.
//!
//! In `/tmp`, any user could create the socket's directory first and listen there.
//! [`SocketPlace::find`] therefore checks each directory from the root to the socket.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use nix::unistd::{Gid, Group, Uid, User};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

/// Environment variable that names the user who runs the store.
pub const DAEMON_USER_VARIABLE: &str = "HOPLITE_DAEMON_USER";

/// User that the packages create for the daemon.
pub const DEFAULT_DAEMON_USER: &str = "hoplite";

/// Most symbolic links on a path, as in Linux.
const MAX_LINKS: u32 = 40;

/// Extended attribute of a file's access list, which may grant more than the mode.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// Users who may own the directories on a socket's path: this user, root, and the daemon's user.
#[derive(Debug, Clone)]
pub struct TrustedUsers {
    own: u32,
    daemon: Option<String>,
}

impl TrustedUsers {
    /// Trusts this user, root, and `daemon_user` (a name or number), by default
    /// [`DEFAULT_DAEMON_USER`], if it exists.
    pub fn new(daemon_user: Option<&str>) -> Self {
        let daemon = daemon_user.filter(|user| !user.is_empty()).map(str::to_owned);
        Self { own: rustix::process::geteuid().as_raw(), daemon }
    }

    /// Calls [`new`](Self::new) with the user in [`DAEMON_USER_VARIABLE`].
    pub fn from_environment() -> Self {
        Self::new(daemon_user_of_environment().as_deref())
    }

    /// Returns `true` if `user` is trusted.
    ///
    /// # Errors
    /// [`Distrust::NoSuchUser`] if the answer depends on a daemon's user who does not exist.
    pub fn includes(&self, user: u32) -> Result<bool, Distrust> {
        if user == self.own || user == 0 {
            return Ok(true);
        }
        let named =
            |name: &str| User::from_name(name).ok().flatten().map(|found| found.uid.as_raw());
        match &self.daemon {
            None => Ok(named(DEFAULT_DAEMON_USER) == Some(user)),
            Some(daemon) => match daemon.parse().ok().or_else(|| named(daemon)) {
                Some(daemon) => Ok(daemon == user),
                None => Err(Distrust::NoSuchUser { name: daemon.clone() }),
            },
        }
    }
}

/// User in [`DAEMON_USER_VARIABLE`], unless empty.
pub fn daemon_user_of_environment() -> Option<String> {
    let user = std::env::var_os(DAEMON_USER_VARIABLE)?;
    Some(user.to_string_lossy().into_owned()).filter(|user| !user.is_empty())
}

/// Reason to distrust a path to a socket, with advice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Distrust {
    /// A directory, link or socket belongs to an untrusted user.
    #[error(
        "{} belongs to user {owner}, who could put a socket of their own there: use a socket in a directory of your own, or \
         set {DAEMON_USER_VARIABLE}={owner} if that user runs the store",
        path.display()
    )]
    Owner {
        /// The directory, link or socket.
        path: PathBuf,
        /// Owner's number.
        owner: u32,
    },
    /// Other users may replace files in a directory.
    #[error(
        "other users may write to {} (owner {owner}, mode {mode:o}) and could put a socket of their own there: run \
         `chmod go-w` on it, or use a socket in another directory",
        path.display()
    )]
    Writable {
        /// The directory.
        path: PathBuf,
        /// Number of the directory's owner.
        owner: u32,
        /// Directory's mode.
        mode: u32,
    },
    /// The daemon's user does not exist.
    #[error(
        "this machine has no user {name:?}: set {DAEMON_USER_VARIABLE} to the user who runs the store"
    )]
    NoSuchUser {
        /// Configured name.
        name: String,
    },
}

/// Error of [`SocketPlace::find`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// Another user could replace the socket.
    #[error(transparent)]
    Distrusted(#[from] Distrust),
    /// The system denies access to the path.
    #[error("{}", std::io::Error::from(*.0))]
    System(Errno),
}

impl From<Errno> for PlaceError {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

/// A socket's path. No untrusted user can replace the socket.
pub struct SocketPlace {
    path: PathBuf,
    directory: OwnedFd,
    name: OsString,
}

impl fmt::Debug for SocketPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketPlace").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SocketPlace {
    /// Follows `path` to a socket, through symbolic links. The socket need not exist.
    ///
    /// Each directory must belong to one of `users`. Only these may write to it, unless it is
    /// sticky like `/tmp`; then links and sockets in it must belong to `users` too.
    ///
    /// # Errors
    /// [`PlaceError::Distrusted`] for the first directory that violates this rule.
    /// [`PlaceError::System`] if the path cannot be followed.
    pub fn find(path: &Path, users: &TrustedUsers) -> Result<Self, PlaceError> {
        let mut walk = Walk::start(path, users)?;
        loop {
            walk.enter_all_but(1)?;
            let name = walk.pending.pop_front().unwrap_or_else(|| OsString::from("."));
            match walk.look(&name)? {
                Entry::Link(target) => walk.follow(&target)?,
                Entry::Directory(_) | Entry::Other | Entry::Missing => {
                    walk.require_known_owner()?;
                    return Ok(Self { path: path.to_owned(), directory: walk.directory, name });
                }
            }
        }
    }

    /// Socket's address, valid while `self` lives. If the path is too long for an address, uses the
    /// open directory's path in `/proc`.
    ///
    /// # Errors
    /// [`Errno::NAMETOOLONG`] if the name alone is too long, or `/proc` is missing.
    pub fn address(&self) -> Result<SocketAddrUnix, Errno> {
        match SocketAddrUnix::new(&self.path) {
            Err(Errno::NAMETOOLONG) => {
                let directory =
                    PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()));
                if fs::symlink_metadata(&directory).is_err() {
                    return Err(Errno::NAMETOOLONG);
                }
                SocketAddrUnix::new(directory.join(&self.name))
            }
            address => address,
        }
    }
}

/// Checks one directory by the rule of [`SocketPlace::find`].
pub fn check_directory(directory: &Path, users: &TrustedUsers) -> Result<(), PlaceError> {
    let mut walk = Walk::start(directory, users)?;
    walk.enter_all_but(0)?;
    walk.require_known_owner()
}

enum Entry {
    Directory(OwnedFd),
    Link(PathBuf),
    Other,
    Missing,
}

/// Walk along a path. Each directory is opened from the previous one and checked while open, so no
/// user can exchange it.
struct Walk<'a> {
    users: &'a TrustedUsers,
    directory: OwnedFd,
    at: PathBuf,
    pending: VecDeque<OsString>,
    links: u32,
    is_shared: bool,
    unmapped_owner: Option<u32>,
}

impl<'a> Walk<'a> {
    fn start(path: &Path, users: &'a TrustedUsers) -> Result<Self, PlaceError> {
        // Directories above the working directory are checked too.
        let path = std::path::absolute(path)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
        let root = open(rustix::fs::CWD, OsStr::new("/"))?;
        let mut walk = Self {
            users,
            directory: root,
            at: PathBuf::from("/"),
            pending: names(&path),
            links: 0,
            is_shared: false,
            unmapped_owner: None,
        };
        walk.check()?;
        Ok(walk)
    }

    fn enter_all_but(&mut self, rest: usize) -> Result<(), PlaceError> {
        while self.pending.len() > rest
            && let Some(name) = self.pending.pop_front()
        {
            match self.look(&name)? {
                Entry::Link(target) => self.follow(&target)?,
                Entry::Directory(directory) => self.enter(directory, &name)?,
                Entry::Other => return Err(Errno::NOTDIR.into()),
                Entry::Missing => return Err(Errno::NOENT.into()),
            }
        }
        Ok(())
    }

    fn look(&self, name: &OsStr) -> Result<Entry, PlaceError> {
        let opened = match open(&self.directory, name) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(Entry::Missing),
            Err(error) => return Err(error.into()),
        };
        let found = rustix::fs::fstat(&opened)?;
        let kind = FileType::from_raw_mode(found.st_mode);
        if kind == FileType::Directory {
            return Ok(Entry::Directory(opened));
        }
        // In a sticky directory, any user creates entries, but only an entry's owner replaces it.
        if self.is_shared && !self.users.includes(found.st_uid)? {
            return Err(Distrust::Owner { path: self.at.join(name), owner: found.st_uid }.into());
        }
        if kind == FileType::Symlink {
            let target = rustix::fs::readlinkat(&opened, "", Vec::new())?;
            return Ok(Entry::Link(OsString::from_vec(target.into_bytes()).into()));
        }
        Ok(Entry::Other)
    }

    fn follow(&mut self, target: &Path) -> Result<(), PlaceError> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        if target.is_absolute() {
            self.directory = open(rustix::fs::CWD, OsStr::new("/"))?;
            self.at = PathBuf::from("/");
            self.check()?;
        }
        for name in names(target).into_iter().rev() {
            self.pending.push_front(name);
        }
        Ok(())
    }

    fn enter(&mut self, directory: OwnedFd, name: &OsStr) -> Result<(), PlaceError> {
        self.directory = directory;
        match name.to_str() {
            Some(".") => {}
            Some("..") => drop(self.at.pop()),
            _ => self.at.push(name),
        }
        self.check()
    }

    fn check(&mut self) -> Result<(), PlaceError> {
        let found = rustix::fs::fstat(&self.directory)?;
        let owner = found.st_uid;
        self.unmapped_owner = None;
        if !self.users.includes(owner)? {
            if !is_unmapped(owner) {
                return Err(Distrust::Owner { path: self.at.clone(), owner }.into());
            }
            self.unmapped_owner = Some(owner);
        }
        self.is_shared = others_may_write(&found, &self.at);
        let is_sticky = found.st_mode & Mode::SVTX.as_raw_mode() != 0;
        if self.is_shared && !is_sticky {
            let mode = found.st_mode & 0o7777;
            return Err(Distrust::Writable { path: self.at.clone(), owner, mode }.into());
        }
        Ok(())
    }

    /// Checks that the socket's directory is shared and sticky, or belongs to a user of this
    /// namespace. Directories above may belong to others, such as the machine's root.
    fn require_known_owner(&self) -> Result<(), PlaceError> {
        match self.unmapped_owner {
            Some(owner) if !self.is_shared => {
                Err(Distrust::Owner { path: self.at.clone(), owner }.into())
            }
            _ => Ok(()),
        }
    }
}

fn open(directory: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::openat(directory.as_fd(), name, flags, Mode::empty());
    // Opens the path as a directory first, which mounts an automount.
    match open(flags | OFlags::DIRECTORY) {
        Err(Errno::NOTDIR | Errno::LOOP) => open(flags),
        opened => opened,
    }
}

fn names(path: &Path) -> VecDeque<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

fn others_may_write(found: &Stat, path: &Path) -> bool {
    let mode = Mode::from_raw_mode(found.st_mode);
    let group_writes = mode.contains(Mode::WGRP);
    mode.contains(Mode::WOTH)
        || group_writes
            && !(is_private_group(found.st_uid, found.st_gid) && has_no_access_list(path))
}

fn is_private_group(user: u32, group: u32) -> bool {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(user)) else { return false };
    let Ok(Some(group)) = Group::from_gid(Gid::from_raw(group)) else { return false };
    user.gid == group.gid
        && user.name == group.name
        && group.mem.iter().all(|member| *member == user.name)
}

/// Returns `true` without an access list. With one, the mode's group bits also concern other
/// users.
fn has_no_access_list(path: &Path) -> bool {
    let mut none = [0_u8; 0];
    matches!(
        rustix::fs::getxattr(path, ACCESS_LIST, &mut none[..]),
        Err(Errno::NODATA | Errno::NOTSUP)
    )
}

/// Returns `true` if `user` stands for all users without a number in this namespace. In most
/// unprivileged containers, the machine's root is one of them.
fn is_unmapped(user: u32) -> bool {
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    let maps = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let maps_all = maps.lines().any(|line| line.split_whitespace().last() == Some("4294967295"));
    !maps_all && overflow.and_then(|text| text.trim().parse().ok()) == Some(user)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    const STRANGER: u32 = 4_000_001;

    fn users() -> TrustedUsers {
        TrustedUsers::new(None)
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn distrust(path: &Path) -> Distrust {
        match SocketPlace::find(path, &users()) {
            Err(PlaceError::Distrusted(distrust)) => distrust,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused_wherever_it_is_on_the_way() {
        let place = tempfile::tempdir().unwrap();
        let (outer, inner) = (place.path().join("outer"), place.path().join("outer/inner"));
        fs::create_dir_all(&inner).unwrap();
        let socket = inner.join("store.sock");
        for open in [&outer, &inner] {
            set_mode(open, 0o757);
            let refused = distrust(&socket);
            assert!(
                matches!(&refused, Distrust::Writable { path, mode: 0o757, .. } if path == open),
                "{refused}"
            );
            set_mode(open, 0o1777);
            SocketPlace::find(&socket, &users()).unwrap();
            check_directory(&inner, &users()).unwrap();
            set_mode(open, 0o755);
        }
        let link = place.path().join("link.sock");
        symlink(&socket, &link).unwrap();
        SocketPlace::find(&link, &users()).unwrap();
        set_mode(&outer, 0o777);
        assert!(matches!(distrust(&link), Distrust::Writable { path, .. } if path == outer));
        set_mode(&outer, 0o755);
        let around = inner.join("../../outer/inner/store.sock");
        SocketPlace::find(&around, &users()).unwrap();
    }

    #[test]
    fn a_group_may_write_only_if_it_is_the_users_own() {
        let place = tempfile::tempdir().unwrap();
        let user = User::from_uid(Uid::effective()).unwrap();
        let own = user
            .map(|user| user.gid)
            .filter(|group| is_private_group(Uid::effective().as_raw(), group.as_raw()));
        let socket = place.path().join("store.sock");
        set_mode(place.path(), 0o770);
        if let Some(group) = own {
            chown(place.path(), None, Some(group.as_raw())).unwrap();
            SocketPlace::find(&socket, &users()).unwrap();
        }
        if Uid::effective().is_root() {
            chown(place.path(), None, Some(STRANGER)).unwrap();
            assert!(matches!(distrust(&socket), Distrust::Writable { mode: 0o770, .. }));
        }
    }

    #[test]
    fn directories_links_and_sockets_of_other_users_are_refused() {
        if !Uid::effective().is_root() {
            eprintln!("skipped: only root can make files of other users");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let is_owner = |distrust: &Distrust, expected: &Path| matches!(distrust, Distrust::Owner { path, owner: STRANGER } if path == expected);
        fs::create_dir(path("theirs")).unwrap();
        chown(path("theirs"), Some(STRANGER), None).unwrap();
        let refused = distrust(&path("theirs/store.sock"));
        assert!(is_owner(&refused, &path("theirs")), "{refused}");
        assert!(refused.to_string().contains("belongs to user 4000001"), "{refused}");
        assert!(refused.to_string().contains("HOPLITE_DAEMON_USER=4000001"), "{refused}");
        let configured = TrustedUsers::new(Some("4000001"));
        SocketPlace::find(&path("theirs/store.sock"), &configured).unwrap();
        assert!(!configured.includes(STRANGER + 1).unwrap());

        set_mode(place.path(), 0o1777);
        symlink(path("ours"), path("link")).unwrap();
        std::os::unix::fs::lchown(path("link"), Some(STRANGER), None).unwrap();
        fs::create_dir(path("ours")).unwrap();
        let refused = distrust(&path("link/store.sock"));
        assert!(is_owner(&refused, &path("link")), "{refused}");
        let refused = check_directory(&path("link"), &users()).unwrap_err();
        assert!(matches!(refused, PlaceError::Distrusted(Distrust::Owner { .. })), "{refused}");
        drop(UnixListener::bind(path("store.sock")).unwrap());
        SocketPlace::find(&path("store.sock"), &users()).unwrap();
        chown(path("store.sock"), Some(STRANGER), None).unwrap();
        let refused = distrust(&path("store.sock"));
        assert!(is_owner(&refused, &path("store.sock")), "{refused}");
    }

    #[test]
    fn an_unknown_user_of_the_daemon_matters_only_if_somebody_else_owns_the_place() {
        let users = TrustedUsers::new(Some("no such name here"));
        assert!(users.includes(0).unwrap());
        let error = users.includes(STRANGER).unwrap_err();
        assert_eq!(error, Distrust::NoSuchUser { name: "no such name here".to_owned() });
        assert!(!TrustedUsers::new(Some("")).includes(STRANGER).unwrap(), "empty counts as unset");
    }

    #[test]
    fn ways_that_lead_nowhere_are_errors_of_the_system() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let errno = |name: &str| match SocketPlace::find(&path(name), &users()) {
            Err(PlaceError::System(errno)) => errno,
            other => panic!("{other:?}"),
        };
        assert_eq!(errno("missing/store.sock"), Errno::NOENT);
        fs::write(path("file"), "").unwrap();
        assert_eq!(errno("file/store.sock"), Errno::NOTDIR);
        symlink("loop", path("loop")).unwrap();
        assert_eq!(errno("loop"), Errno::LOOP);
        SocketPlace::find(&path("missing"), &users()).unwrap();
    }

    #[test]
    fn a_path_of_any_length_can_be_bound_and_connected_to() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("d".repeat(150)).join("e".repeat(150));
        fs::create_dir_all(&directory).unwrap();
        let find = |name: &str| SocketPlace::find(&directory.join(name), &users()).unwrap();
        let socket = || {
            use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap()
        };
        let listener = socket();
        rustix::net::bind(&listener, &find("store.sock").address().unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        assert!(directory.join("store.sock").exists());
        rustix::net::connect(socket(), &find("store.sock").address().unwrap()).unwrap();
        assert_eq!(find(&"x".repeat(100)).address().unwrap_err(), Errno::NAMETOOLONG);
    }
}
