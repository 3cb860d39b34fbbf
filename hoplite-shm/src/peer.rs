//! The groups of the process at the other end of a Unix socket, as the kernel knows them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Most groups of a process (`NGROUPS_MAX` of Linux).
const MAX_GROUPS: usize = 65_536;
/// Number of groups for which the first call has room.
const USUAL_GROUPS: usize = 64;

/// Returns the supplementary groups that the peer process had when it connected.
///
/// # Errors
///
/// Returns the kernel's error: for example, the socket is not a Unix socket, or Linux is older than
/// 4.13.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; USUAL_GROUPS];
    loop {
        let bytes = size_of_val(groups.as_slice());
        let mut length = libc::socklen_t::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: `groups` has room for `length` bytes, and the kernel writes at most this many.
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
        // The kernel has returned the number of groups.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > MAX_GROUPS {
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
    fn a_peer_in_this_process_has_the_groups_of_this_process() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        let mut found = peer_groups(socket.as_fd()).unwrap();
        let mut expected: Vec<u32> =
            rustix::process::getgroups().unwrap().into_iter().map(rustix::process::Gid::as_raw).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }

    #[test]
    fn other_sockets_have_none() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(peer_groups(socket.as_fd()).is_err());
    }
}
