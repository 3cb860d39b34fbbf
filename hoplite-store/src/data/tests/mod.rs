//! The data plane over loopback sockets, once for each transport.

mod over_buffers;
mod over_plain_tcp;
mod over_tls;
