//! Connections on which nothing may be said for hours.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay, set_tcp_user_timeout,
};

/// After so long without a word the system asks whether the other side is there: more often than firewalls forget a connection.
const PROBED_AFTER: Duration = Duration::from_secs(30);
/// The time that it asks, and how long what was sent may go without an acknowledgement. A peer that only does not read for now is not
/// taken for dead; that it is, the pings of those who talk here tell sooner.
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// Prepares a TCP connection for small messages at any time, on which those who use it send pings.
///
/// # Errors
/// What the operating system says.
pub fn prepare_idle_socket(socket: impl AsFd) -> io::Result<()> {
    set_tcp_nodelay(&socket, true)?;
    set_socket_keepalive(&socket, true)?;
    set_tcp_keepidle(&socket, PROBED_AFTER)?;
    set_tcp_keepintvl(&socket, DEAD_AFTER / 3)?;
    set_tcp_user_timeout(&socket, u32::try_from(DEAD_AFTER.as_millis()).unwrap_or(u32::MAX))
}
