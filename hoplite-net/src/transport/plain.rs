//! A TCP socket whose reader sleeps until there is enough to read.
//!
//! On a link that is slower than this machine, bytes come a packet at a time. Who waits for the rest of a block has nothing to do
//! before all of it is there, so the kernel wakes it only once many bytes have come: [`MAX_LOW_WATER_BYTES`], or what is missing.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Duration;

use hoplite_shm::{Buffer, set_receive_low_water};
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

/// A quarter of the receive buffer that Linux begins with (`net.ipv4.tcp_rmem`), so that the sender's window never closes before
/// the reader wakes.
const MAX_LOW_WATER_BYTES: usize = 32 << 10;

/// From here on it is worth a system call to be woken once instead of packet by packet.
const MIN_LOW_WATER_BYTES: usize = 4 << 10;

/// The time that the reader sleeps over bytes that have come, of a sender that is too slow to fill the low water mark.
const LOW_WATER_TIMEOUT: Duration = Duration::from_millis(100);

/// A TCP connection, with the bytes of objects going straight from one arena to the other.
#[derive(Debug)]
pub struct PlainStream {
    socket: TcpStream,
    /// The number of bytes that the kernel wakes the reader for.
    low_water_bytes: usize,
}

impl PlainStream {
    pub(super) const fn new(socket: TcpStream) -> Self {
        Self { socket, low_water_bytes: 1 }
    }

    /// The same, watched by another runtime.
    pub(super) fn on(self, runtime: &Handle) -> io::Result<Self> {
        let socket = self.socket.into_std()?;
        let _there = runtime.enter();
        Ok(Self { socket: TcpStream::from_std(socket)?, ..self })
    }

    pub(super) const fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(super) async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let wanted_bytes = into.len();
        self.read_some(wanted_bytes, |socket| socket.try_read(into)).await
    }

    pub(super) async fn read_into(&mut self, buffer: &Buffer, range: Range<u64>) -> io::Result<usize> {
        // No longer than a block.
        let wanted_bytes = (range.end - range.start) as usize;
        let receive = |socket: &TcpStream| {
            socket.try_io(Interest::READABLE, || buffer.receive(socket.as_fd(), range.clone()))
        };
        self.read_some(wanted_bytes, receive).await
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_some(|socket| socket.try_write(bytes)).await
    }

    pub(super) async fn write_from(
        &mut self,
        head: &[u8],
        buffer: &Buffer,
        range: Range<u64>,
    ) -> io::Result<usize> {
        let send = |socket: &TcpStream| {
            socket.try_io(Interest::WRITABLE, || buffer.send(socket.as_fd(), head, range.clone()))
        };
        self.write_some(send).await
    }

    /// Returns `true` if the peer has closed, or sent something.
    pub(super) fn is_readable(&self) -> bool {
        // Not by what tokio knows: bytes below the low water mark wake nobody.
        let peeked = recv(&self.socket, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        !matches!(peeked, Err(error) if io::Error::from(error).kind() == io::ErrorKind::WouldBlock)
    }

    async fn read_some(
        &mut self,
        wanted_bytes: usize,
        mut read: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        // Neither direction may keep a thread of the runtime for itself when the socket never runs dry.
        consume_budget().await;
        loop {
            match read(&self.socket) {
                Err(error) if is_transient(&error) => self.readable(wanted_bytes).await?,
                answer => return answer,
            }
        }
    }

    /// Waits until there is something to read: `wanted_bytes`, many bytes, or what has come for some time.
    async fn readable(&mut self, wanted_bytes: usize) -> io::Result<()> {
        let low_water_bytes = match wanted_bytes {
            ..MIN_LOW_WATER_BYTES => 1,
            _ => wanted_bytes.min(MAX_LOW_WATER_BYTES),
        };
        // Where the kernel does not know of it, the reader wakes for less.
        if self.wake_from(low_water_bytes).is_ok() && low_water_bytes > 1 {
            if let Ok(readable) = timeout(LOW_WATER_TIMEOUT, self.socket.readable()).await {
                return readable;
            }
            self.wake_from(1)?;
        }
        self.socket.readable().await
    }

    fn wake_from(&mut self, low_water_bytes: usize) -> io::Result<()> {
        if low_water_bytes != self.low_water_bytes {
            set_receive_low_water(self.socket.as_fd(), low_water_bytes)?;
            self.low_water_bytes = low_water_bytes;
        }
        Ok(())
    }

    async fn write_some(&self, mut write: impl FnMut(&TcpStream) -> io::Result<usize>) -> io::Result<usize> {
        consume_budget().await;
        loop {
            match write(&self.socket) {
                Err(error) if is_transient(&error) => self.socket.writable().await?,
                answer => return answer,
            }
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Instant;

    use tokio::net::TcpListener;

    use super::*;

    /// A stream, and the socket at its other end.
    async fn pair() -> (PlainStream, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        (PlainStream::new(socket), peer)
    }

    #[tokio::test]
    async fn a_slow_sender_is_heard() {
        let (mut stream, mut peer) = pair().await;
        let mut into = vec![0; MAX_LOW_WATER_BYTES];
        // Begins to sleep before the byte comes, which alone wakes nobody.
        let began = Instant::now();
        let (read, ()) = tokio::join!(stream.read(&mut into), async { peer.write_all(&[7]).unwrap() });
        assert_eq!((read.unwrap(), into[0]), (1, 7));
        assert!(began.elapsed() >= LOW_WATER_TIMEOUT / 2, "one byte woke the reader");
    }

    #[tokio::test]
    async fn an_end_wakes_a_reader_that_waits_for_more() {
        let (mut stream, peer) = pair().await;
        let mut into = vec![0; MAX_LOW_WATER_BYTES];
        let (read, ()) = tokio::join!(stream.read(&mut into), async { drop(peer) });
        assert_eq!(read.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_byte_below_the_mark_is_seen() {
        let (mut stream, mut peer) = pair().await;
        assert!(!stream.is_readable());
        stream.wake_from(MAX_LOW_WATER_BYTES).unwrap();
        peer.write_all(&[7]).unwrap();
        let mut byte = [0];
        let seen = async {
            while !stream.is_readable() {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(300), seen).await.expect("the byte is seen");
        assert_eq!(stream.read(&mut byte).await.unwrap(), 1);
    }
}
