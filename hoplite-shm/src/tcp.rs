//! What the kernel knows of a TCP connection.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The rate, in bytes per second, at which the peer has lately acknowledged what this side sent; `None` before anything
/// was, or if `socket` is no TCP socket.
///
/// Measured by the kernel from the times of acknowledgements, so bytes that only filled a buffer do not count. While there
/// was less to send than the link would carry, it is the most that was seen.
pub fn delivery_rate(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
    // SAFETY: `info` has room for `length` bytes, of which the kernel writes at most as many.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if answer != 0 {
        return None;
    }
    // SAFETY: all fields are integers, for which the zeros of what the kernel did not write are valid too.
    let rate = unsafe { info.assume_init() }.tcpi_delivery_rate;
    (rate > 0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_was_acknowledged_has_a_rate() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        assert_eq!(delivery_rate(sender.as_fd()), None);
        for _ in 0..2 {
            sender.write_all(&[1; 4096]).unwrap();
            receiver.read_exact(&mut [0; 4096]).unwrap();
            // The answer carries the acknowledgement.
            receiver.write_all(&[1]).unwrap();
            sender.read_exact(&mut [0]).unwrap();
        }
        assert!(delivery_rate(sender.as_fd()).is_some());
    }

    #[test]
    fn other_sockets_have_none() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        assert_eq!(delivery_rate(socket.as_fd()), None);
    }
}
