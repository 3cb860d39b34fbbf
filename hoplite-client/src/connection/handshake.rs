//! Connects to a store and exchanges hellos. Blocks up to a deadline.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use hoplite_core::error::Plane;
use hoplite_core::lifetime::Owner;
use hoplite_core::{ClusterId, NodeId, Version};
use hoplite_proto::lifetime::encode_owner;
use hoplite_proto::socket_place::{PlaceError, SocketPlace, TrustedUsers};
use hoplite_proto::{framing, v1};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, connect, send, socket_with};

use crate::arena::Arena;
use crate::deadline::Deadline;
use crate::error::{ConnectFailure, Error, Result};
use crate::options::ConnectOptions;

const MAX_PROGRAM_BYTES: usize = 255;

#[derive(Debug)]
pub(crate) struct Greeted {
    pub(crate) socket: OwnedFd,
    pub(crate) path: PathBuf,
    pub(crate) node: NodeId,
    pub(crate) cluster: ClusterId,
    pub(crate) owner: Owner,
    pub(crate) version: Version,
    pub(crate) max_object_bytes: u64,
    pub(crate) on_full: Option<fn()>,
    pub(crate) confirmed_from_bytes: u64,
    pub(crate) max_calls: usize,
    pub(crate) max_ids: usize,
    pub(crate) arena: Arena,
}

pub(crate) fn greet(options: &ConnectOptions, timeout: Duration) -> Result<Greeted> {
    let deadline = Deadline::after(timeout);
    exchange(options, &deadline)
        .map_err(|kind| Error::Connect { path: options.socket.clone(), kind })
}

fn exchange(options: &ConnectOptions, deadline: &Deadline) -> Result<Greeted, ConnectFailure> {
    let users = TrustedUsers::new(options.daemon_user.as_deref());
    let socket = open(&options.socket, &users, deadline)?;
    send_hello(&socket, &hello(options), deadline)?;
    let (hello, fds) = receive_hello(&socket, deadline)?;
    if let Some(error) = hello.error {
        return Err(ConnectFailure::Refused(hoplite_proto::error::decode(error, Plane::Local)));
    }
    let version = Version::NEWEST.agree(hello.version, hello.newest_version);
    let version = version.map_err(ConnectFailure::Refused)?;
    if options.owners.len() > 1 {
        version.require(9).map_err(ConnectFailure::Refused)?;
    }
    let mut fds = fds.into_iter();
    let (Some(readable), writable, None) = (fds.next(), fds.next(), fds.next()) else {
        return Err(ConnectFailure::NotAStore);
    };
    let node = NodeId::new(&hello.node).map_err(|_| ConnectFailure::NotAStore)?;
    let cluster = ClusterId::new(&hello.cluster).map_err(|_| ConnectFailure::NotAStore)?;
    let arena = Arena::map(readable, hello.arena_bytes)
        .map_err(|error| ConnectFailure::Arena { reason: Arc::new(error) })?;
    // A client that may only read gets no descriptor for writing.
    if writable.is_some_and(|writable| !arena.offer_writable(writable)) {
        return Err(ConnectFailure::NotAStore);
    }
    Ok(Greeted {
        socket,
        path: std::path::absolute(&options.socket).unwrap_or_else(|_| options.socket.clone()),
        node,
        cluster,
        owner: options.owners.first().expect("the client has its own owner").clone(),
        version,
        max_object_bytes: hello.max_object_bytes,
        on_full: options.on_full,
        confirmed_from_bytes: hello.confirmed_from_bytes,
        max_calls: usize::try_from(hello.max_calls).unwrap_or(usize::MAX),
        max_ids: usize::try_from(hello.max_ids).unwrap_or(usize::MAX),
        arena,
    })
}

fn limit_wait(socket: &OwnedFd, deadline: &Deadline) -> Result<(), ConnectFailure> {
    let left = deadline.left();
    // The socket option counts microseconds; zero would mean no timeout.
    if left < Duration::from_micros(1) {
        return Err(passed(deadline));
    }
    let left = left.min(Duration::from_secs(1 << 30));
    for direction in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(socket, direction, Some(left)).map_err(system)?;
    }
    Ok(())
}

fn passed(deadline: &Deadline) -> ConnectFailure {
    ConnectFailure::TimedOut { waited: deadline.timeout() }
}

/// Connects. Before anything is sent, checks that only `users` could have made the socket and
/// listen there.
fn open(path: &Path, users: &TrustedUsers, deadline: &Deadline) -> Result<OwnedFd, ConnectFailure> {
    let place = SocketPlace::find(path, users).map_err(|error| match error {
        PlaceError::Distrusted(distrust) => ConnectFailure::UntrustedPlace(distrust),
        PlaceError::System(error) => explain(path, error),
    })?;
    let address = place.address().map_err(|error| explain(path, error))?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(system)?;
    loop {
        limit_wait(&socket, deadline)?;
        match connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(passed(deadline)),
            Err(error) => return Err(explain(path, error)),
        }
    }
    check_daemon(&socket, users)?;
    Ok(socket)
}

fn check_daemon(socket: &OwnedFd, users: &TrustedUsers) -> Result<(), ConnectFailure> {
    let failed = |error: io::Error| ConnectFailure::System { kind: error.kind() };
    let user = hoplite_shm::peer_user(socket.as_fd()).map_err(failed)?;
    match users.includes(user) {
        Ok(true) => Ok(()),
        Ok(false) => Err(ConnectFailure::UntrustedDaemon { user }),
        Err(distrust) => Err(ConnectFailure::UntrustedPlace(distrust)),
    }
}

fn explain(path: &Path, error: Errno) -> ConnectFailure {
    let metadata = std::fs::metadata(path).ok();
    match error {
        Errno::NOENT | Errno::NOTDIR => ConnectFailure::NoSuchSocket,
        Errno::NAMETOOLONG => ConnectFailure::PathTooLong,
        Errno::ACCESS | Errno::PERM => {
            ConnectFailure::PermissionDenied { owner: metadata.map(|metadata| metadata.uid()) }
        }
        Errno::CONNREFUSED
            if metadata.is_some_and(|metadata| !metadata.file_type().is_socket()) =>
        {
            ConnectFailure::NotASocket
        }
        Errno::CONNREFUSED => ConnectFailure::NotListening,
        Errno::PROTOTYPE => ConnectFailure::NotAStore,
        error => system(error),
    }
}

fn hello(options: &ConnectOptions) -> v1::ClientHello {
    let program = options
        .program
        .char_indices()
        .take_while(|(start, c)| start + c.len_utf8() <= MAX_PROGRAM_BYTES);
    v1::ClientHello {
        version: Version::OLDEST.number(),
        newest_version: Version::NEWEST.number(),
        program: program.map(|(_, c)| c).collect(),
        owners: options.owners.iter().map(encode_owner).collect(),
    }
}

fn send_hello(
    socket: &OwnedFd,
    hello: &v1::ClientHello,
    deadline: &Deadline,
) -> Result<(), ConnectFailure> {
    let mut wire = BytesMut::new();
    framing::encode(hello, &mut wire).map_err(ConnectFailure::Refused)?;
    let mut unsent = &wire[..];
    while !unsent.is_empty() {
        limit_wait(socket, deadline)?;
        match send(socket, unsent, SendFlags::NOSIGNAL) {
            Ok(length) => unsent = &unsent[length..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(passed(deadline)),
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
            Err(error) => return Err(system(error)),
        }
    }
    Ok(())
}

fn receive_hello(
    socket: &OwnedFd,
    deadline: &Deadline,
) -> Result<(v1::ServerHello, Vec<OwnedFd>), ConnectFailure> {
    let mut received = BytesMut::new();
    let mut fds = Vec::new();
    let mut chunk = [0; framing::MAX_HELLO_BYTES + framing::LENGTH_BYTES];
    loop {
        // Checked before each read: another process must not keep this one waiting.
        let hello = framing::decode(&mut received, framing::MAX_HELLO_BYTES);
        match hello.map_err(|_| ConnectFailure::NotAStore)? {
            // A store sends nothing further before a request.
            Some(_) if !received.is_empty() => return Err(ConnectFailure::NotAStore),
            Some(hello) => return Ok((hello, fds)),
            None => {}
        }
        limit_wait(socket, deadline)?;
        match hoplite_shm::fds::receive(socket.as_fd(), &mut chunk, &mut fds) {
            Ok(0) if received.is_empty() => return Err(ConnectFailure::ClosedEarly),
            Ok(0) => return Err(ConnectFailure::NotAStore),
            Ok(length) => received.extend_from_slice(&chunk[..length]),
            Err(error) => {
                return Err(match error.kind() {
                    io::ErrorKind::WouldBlock => passed(deadline),
                    io::ErrorKind::ConnectionReset if received.is_empty() => {
                        ConnectFailure::ClosedEarly
                    }
                    io::ErrorKind::ConnectionReset | io::ErrorKind::InvalidData => {
                        ConnectFailure::NotAStore
                    }
                    kind => ConnectFailure::System { kind },
                });
            }
        }
    }
}

fn system(error: Errno) -> ConnectFailure {
    ConnectFailure::System { kind: io::Error::from(error).kind() }
}
