use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// Sends `state` to systemd or another service manager (`sd_notify(3)`), if there is one.
pub(crate) fn notify(state: &str) {
    let Some(socket) = env::var_os(SOCKET_VARIABLE) else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, ?socket, state, "cannot notify the service manager");
    }
}

/// Tells the service manager that the daemon needs up to `time` to end.
pub fn extend_stop_timeout(time: std::time::Duration) {
    notify(&format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()));
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    // A slow service manager must not block the daemon.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_arrive_at_sockets_by_path_and_by_abstract_name() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let received_by = |listener: UnixDatagram| {
            let mut received = [0; 64];
            let length = listener.recv(&mut received).unwrap();
            String::from_utf8_lossy(&received[..length]).into_owned()
        };
        let listener = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(received_by(listener), "READY=1");

        let name = format!("hoplite-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(received_by(listener), "STOPPING=1");

        assert!(send(OsStr::new("/nonexistent/notify"), "READY=1").is_err());
    }
}
