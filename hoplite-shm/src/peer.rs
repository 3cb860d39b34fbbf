use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Linux's `NGROUPS_MAX`.
const MAX_GROUPS: usize = 65_536;
const USUAL_GROUPS: usize = 64;

/// User id of the peer process. For a client, the peer is the listener.
///
/// # Errors
/// The kernel's error: the descriptor is no Unix socket.
pub fn peer_user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(credentials(socket)?.uid)
}

/// Number of the peer process. `None` if the process is in a PID namespace that this
/// process cannot see.
///
/// # Errors
/// The kernel's error: the descriptor is no Unix socket.
pub fn peer_process(socket: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let process = u32::try_from(credentials(socket)?.pid).ok();
    Ok(process.filter(|number| *number != 0))
}

/// Unlike rustix's `socket_peercred`, accepts a peer in another PID namespace, with process number
/// 0.
fn credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut length =
        libc::socklen_t::try_from(size_of::<libc::ucred>()).map_err(io::Error::other)?;
    // SAFETY: `credentials` has `length` bytes, and the kernel writes at most as many.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    // The kernel answers with this number if the socket has no peer.
    if answer == 0 && credentials.uid != libc::uid_t::MAX {
        Ok(credentials)
    } else if answer == 0 {
        Err(io::ErrorKind::NotConnected.into())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Supplementary groups that the peer had when it connected.
///
/// # Errors
/// The kernel's error: no Unix socket, or Linux before 4.13.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; USUAL_GROUPS];
    loop {
        let bytes = size_of_val(groups.as_slice());
        let mut length = libc::socklen_t::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: `groups` has `length` bytes, and the kernel writes at most this many.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = usize::try_from(length).map_err(io::Error::other)? / size_of::<libc::gid_t>();
        if answer == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > MAX_GROUPS
        {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_in_this_process_has_the_user_and_number_of_this_process() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        assert_eq!(peer_user(socket.as_fd()).unwrap(), rustix::process::geteuid().as_raw());
        assert_eq!(peer_process(socket.as_fd()).unwrap(), Some(std::process::id()));
    }

    #[test]
    fn a_socket_without_a_peer_has_no_user() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(peer_user(listener.as_fd()).is_err());
        let datagrams = std::os::unix::net::UnixDatagram::unbound().unwrap();
        assert!(peer_user(datagrams.as_fd()).is_err());
    }

    #[test]
    fn a_peer_in_this_process_has_the_groups_of_this_process() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        let mut found = peer_groups(socket.as_fd()).unwrap();
        let mut expected: Vec<u32> = rustix::process::getgroups()
            .unwrap()
            .into_iter()
            .map(rustix::process::Gid::as_raw)
            .collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_tcp_socket_has_no_groups() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(peer_groups(socket.as_fd()).is_err());
    }
}
