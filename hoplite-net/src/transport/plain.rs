//! TCP, with a reader that sleeps until enough bytes arrive. On a slow link, each packet would wake
//! it. The kernel wakes it only once the low-water mark is reached: [`MAX_LOW_WATER_BYTES`], or the
//! rest of the block.

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

/// Largest low-water mark. At a quarter of Linux's initial receive buffer (`net.ipv4.tcp_rmem`), it
/// is reached before TCP's window closes.
const MAX_LOW_WATER_BYTES: usize = 32 << 10;

/// Smallest low-water mark. Below, a wake-up per packet costs less than the system call that sets
/// the mark.
const MIN_LOW_WATER_BYTES: usize = 4 << 10;

/// Longest wait of a reader for the low-water mark.
const LOW_WATER_TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct PlainStream {
    socket: TcpStream,
    low_water_bytes: usize,
}

impl PlainStream {
    pub(super) const fn new(socket: TcpStream) -> Self {
        Self { socket, low_water_bytes: 1 }
    }

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

    pub(super) async fn read_into(
        &mut self,
        buffer: &Buffer,
        range: Range<u64>,
    ) -> io::Result<usize> {
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

    pub(super) fn is_readable(&self) -> bool {
        // Peeks, because the kernel does not report bytes below the low-water mark to tokio.
        let peeked = recv(&self.socket, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        !matches!(peeked, Err(error) if io::Error::from(error).kind() == io::ErrorKind::WouldBlock)
    }

    async fn read_some(
        &mut self,
        wanted_bytes: usize,
        mut read: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        // Lets other tasks run even if the socket always has bytes.
        consume_budget().await;
        loop {
            match read(&self.socket) {
                Err(error) if is_transient(&error) => self.readable(wanted_bytes).await?,
                answer => return answer,
            }
        }
    }

    async fn readable(&mut self, wanted_bytes: usize) -> io::Result<()> {
        let low_water_bytes = match wanted_bytes {
            ..MIN_LOW_WATER_BYTES => 1,
            _ => wanted_bytes.min(MAX_LOW_WATER_BYTES),
        };
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

    async fn write_some(
        &self,
        mut write: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
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

    async fn pair() -> (PlainStream, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        (PlainStream::new(socket), peer)
    }

    #[tokio::test]
    async fn a_slow_sender_is_read_to_its_end() {
        let (mut stream, mut peer) = pair().await;
        let mut into = vec![0; MAX_LOW_WATER_BYTES];
        let began = Instant::now();
        let (read, ()) =
            tokio::join!(stream.read(&mut into), async { peer.write_all(&[7]).unwrap() });
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
