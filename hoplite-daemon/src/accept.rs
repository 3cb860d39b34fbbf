use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use hoplite_net::descriptor_limit;
use rustix::io::Errno;

use crate::repeated::Repeated;

/// Pause after a failure to accept, usually for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const RESERVED_PART: u64 = 8;
const MAX_RESERVED: u64 = 256;

/// Accepts the connections of one listener while enough file descriptors are free.
///
/// Otherwise, new connections wait in the system's queue, so a flood cannot stop accepted work. The
/// log reports this at most once a second.
#[derive(Debug)]
pub struct Acceptor {
    peers: &'static str,
    failures: Repeated,
}

impl Acceptor {
    /// `peers` names the connecting programs in the log, such as "clients".
    pub const fn new(peers: &'static str) -> Self {
        Self { peers, failures: Repeated::new() }
    }

    /// Accepts the next connection. Cancel safe if `accept` is.
    pub async fn accept<T, F>(&self, listener: impl AsFd, mut accept: impl FnMut() -> F) -> T
    where
        F: Future<Output = io::Result<T>>,
    {
        loop {
            let accepted = match check_reserve(&listener) {
                Ok(()) => accept().await,
                Err(error) => Err(error.into()),
            };
            match accepted {
                Ok(accepted) => return accepted,
                Err(error) => {
                    if let Some(times) = self.failures.notice() {
                        tracing::warn!(%error, times, peers = self.peers, "cannot accept a connection");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Fails if only the highest descriptor numbers are free: they are reserved for accepted work.
fn check_reserve(listener: &impl AsFd) -> Result<(), Errno> {
    let limit = descriptor_limit();
    let reserved = (limit / RESERVED_PART).min(MAX_RESERVED);
    let next = rustix::io::fcntl_dupfd_cloexec(listener, 0)?;
    let number = u64::try_from(next.as_raw_fd()).unwrap_or(0);
    if number < limit - reserved { Ok(()) } else { Err(Errno::MFILE) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::process::{Resource, getrlimit, setrlimit};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::*;

    const ALONE: &str = "HOPLITE_TEST_OF_DESCRIPTORS";

    #[test]
    fn connections_wait_while_descriptors_are_scarce_and_outgoing_ones_do_not() {
        if std::env::var_os(ALONE).is_none() {
            let name = "accept::tests::connections_wait_while_descriptors_are_scarce_and_outgoing_ones_do_not";
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let output = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            return;
        }
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(128);
        setrlimit(Resource::Nofile, limit).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let acceptor = Acceptor::new("tests");
            let _waiting = TcpStream::connect(address).await.unwrap();
            let mut open = Vec::new();
            while check_reserve(&listener).is_ok() {
                open.push(File::open("/dev/null").unwrap());
            }
            let accepting = async { acceptor.accept(&listener, || listener.accept()).await.1 };
            let mut accepting = std::pin::pin!(accepting);
            assert!(timeout(ACCEPT_PAUSE * 4, &mut accepting).await.is_err(), "none is accepted");
            for _ in 0..8 {
                open.push(File::open("/dev/null").expect("accepted work finds descriptors"));
            }
            open.clear();
            timeout(Duration::from_secs(300), accepting).await.expect("the connection is accepted");
        });
    }
}
