use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use hoplite_core::link::{Delivery, Unacknowledged};

/// Offset of `tcpi_delivery_rate_app_limited`, which libc's structure omits.
const FLAGS_OFFSET: usize = 7;
const APPLICATION_LIMITED: u8 = 1;

/// Kernel's statistics of acknowledged bytes; `None` before the first acknowledgement.
pub fn delivery(socket: BorrowedFd<'_>) -> Option<Delivery> {
    let (info, flags) = tcp_info(socket)?;
    (info.tcpi_delivery_rate > 0).then_some(Delivery {
        acknowledged_bytes: info.tcpi_bytes_acked,
        bytes_per_second: info.tcpi_delivery_rate,
        is_application_limited: flags & APPLICATION_LIMITED != 0,
        round_trip_us: info.tcpi_min_rtt,
        receiver_limited_us: info.tcpi_rwnd_limited,
    })
}

/// Returns the kernel's statistics of unacknowledged bytes, if it has some.
pub fn unacknowledged(socket: BorrowedFd<'_>) -> Option<Unacknowledged> {
    let (info, _) = tcp_info(socket)?;
    Some(Unacknowledged {
        retransmissions: info.tcpi_retransmits.into(),
        silent_for: Duration::from_millis(info.tcpi_last_ack_recv.into()),
    })
}

/// Returns the kernel's statistics, and the flags of [`FLAGS_OFFSET`].
fn tcp_info(socket: BorrowedFd<'_>) -> Option<(libc::tcp_info, u8)> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
    // SAFETY: `info` has `length` bytes, and the kernel writes at most this many.
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
    // SAFETY: the byte is inside of `info`, and was written by the kernel or by `zeroed`.
    let flags = unsafe { info.as_ptr().cast::<u8>().add(FLAGS_OFFSET).read() };
    // SAFETY: all fields are integers. Fields that the kernel did not write are zero, which is
    // valid.
    let info = unsafe { info.assume_init() };
    Some((info, flags))
}

/// Sets the number of received bytes for which the kernel wakes a reader (`SO_RCVLOWAT`). The
/// peer's close wakes it too.
pub fn set_receive_low_water(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// Limits the unsent bytes in the kernel (`TCP_NOTSENT_LOWAT`). Zero restores the default.
pub fn set_unsent_limit(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes)
}

fn set_option(socket: BorrowedFd<'_>, level: i32, option: i32, value: usize) -> io::Result<()> {
    let value = libc::c_int::try_from(value).unwrap_or(libc::c_int::MAX);
    // SAFETY: the kernel reads an integer of the given length.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn acknowledged_bytes_have_a_rate() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        assert_eq!(delivery(sender.as_fd()), None);
        for _ in 0..2 {
            sender.write_all(&[1; 4096]).unwrap();
            receiver.read_exact(&mut [0; 4096]).unwrap();
            receiver.write_all(&[1]).unwrap();
            sender.read_exact(&mut [0]).unwrap();
        }
        let known = delivery(sender.as_fd()).unwrap();
        assert!((8192..=8193).contains(&known.acknowledged_bytes), "{known:?}");
        assert!(known.bytes_per_second > 0 && known.round_trip_us > 0);
        assert!(known.is_application_limited, "the sender had nothing more to send");
        assert_eq!(unacknowledged(sender.as_fd()).unwrap().retransmissions, 0);
    }

    #[test]
    fn a_limit_of_unsent_bytes_bounds_what_the_kernel_accepts() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_receiver, _) = listener.accept().unwrap();
        sender.set_nonblocking(true).unwrap();
        let mut accepted = |limit_bytes| {
            set_unsent_limit(sender.as_fd(), limit_bytes).unwrap();
            let mut total = 0;
            while let Ok(bytes) = sender.write(&[0; 4096]) {
                total += bytes;
            }
            total
        };
        assert!(accepted(16 << 10) < 512 << 10);
        assert!(accepted(0) > 512 << 10, "the send buffer takes more");
    }

    #[test]
    fn only_tcp_sockets_have_a_delivery_rate() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        assert_eq!(delivery(socket.as_fd()), None);
        assert_eq!(unacknowledged(socket.as_fd()), None);
    }
}
