use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay,
    set_tcp_user_timeout,
};

/// Silence after which TCP probes the connection, before firewalls forget it.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// Time after which the kernel closes a connection whose peer acknowledges nothing. A peer that
/// pauses reading still acknowledges.
const DEAD_PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// Prepares a TCP connection for small messages after hours of silence.
pub fn prepare_idle_socket(socket: impl AsFd) -> io::Result<()> {
    set_tcp_nodelay(&socket, true)?;
    set_socket_keepalive(&socket, true)?;
    set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
    set_tcp_keepintvl(&socket, DEAD_PEER_TIMEOUT / 3)?;
    set_tcp_user_timeout(&socket, u32::try_from(DEAD_PEER_TIMEOUT.as_millis()).unwrap_or(u32::MAX))
}
