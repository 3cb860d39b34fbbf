//! Tests of the data plane over real sockets on the loopback interface, once for each transport.

mod over_buffers;
mod over_plain_tcp;
mod over_tls;
