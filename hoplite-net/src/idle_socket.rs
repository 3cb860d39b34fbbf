//! Connections that may be silent for hours.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay, set_tcp_user_timeout,
};

/// Time of silence after which the system probes the peer. Firewalls forget a connection later than this.
const PROBED_AFTER: Duration = Duration::from_secs(30);
/// Time of these probes, and time that sent bytes may stay without an acknowledgement. A peer that reads nothing for a while
/// still acknowledges. The pings of the users of a connection find a dead peer sooner.
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// Prepares a TCP connection for small messages at any time. The users of the connection send pings.
///
/// # Errors
/// Errors of the operating system.
pub fn prepare_idle_socket(socket: impl AsFd) -> io::Result<()> {
    set_tcp_nodelay(&socket, true)?;
    set_socket_keepalive(&socket, true)?;
    set_tcp_keepidle(&socket, PROBED_AFTER)?;
    set_tcp_keepintvl(&socket, DEAD_AFTER / 3)?;
    set_tcp_user_timeout(&socket, u32::try_from(DEAD_AFTER.as_millis()).unwrap_or(u32::MAX))
}
