mod over_buffers;
mod over_plain_tcp;
mod over_tls;
