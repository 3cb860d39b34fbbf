//! The floor of measurements: loops that move the same bytes without Hoplite.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use hoplite_shm::{Arena, Backing, Buffer, Extent, HEADER_BYTES};

const MESSAGE_BYTES: usize = 64;
const PIECE_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct UnixEcho {
    socket: UnixStream,
}

impl UnixEcho {
    pub(super) fn start() -> io::Result<Self> {
        let (socket, mut theirs) = UnixStream::pair()?;
        thread::Builder::new().name("echo".to_owned()).spawn(move || {
            let mut message = [0; MESSAGE_BYTES];
            while theirs.read_exact(&mut message).is_ok() && theirs.write_all(&message).is_ok() {}
        })?;
        Ok(Self { socket })
    }

    pub(super) fn round_trip(&mut self) -> io::Result<Duration> {
        let mut message = [7; MESSAGE_BYTES];
        let started = Instant::now();
        self.socket.write_all(&message)?;
        self.socket.read_exact(&mut message)?;
        Ok(started.elapsed())
    }
}

#[derive(Debug)]
pub(super) struct WarmMemory {
    buffer: Buffer,
}

impl WarmMemory {
    pub(super) fn new(size_bytes: u64) -> anyhow::Result<Self> {
        let length_bytes = (size_bytes + HEADER_BYTES).next_multiple_of(1 << 12);
        let arena: Arc<Arena> = Arena::create(Backing::Pages, length_bytes)?;
        arena.prefault(|_| std::ops::ControlFlow::Continue(()))?;
        let buffer = arena.buffer(Extent { offset_bytes: 0, length_bytes }, size_bytes)?;
        Ok(Self { buffer })
    }

    pub(super) fn copy(&mut self, source: &[u8]) -> Duration {
        let started = Instant::now();
        self.buffer.write(0, source);
        started.elapsed()
    }
}

#[derive(Debug)]
pub(super) struct TcpPipe {
    sender: TcpStream,
    receiver: TcpStream,
    destination: Vec<u8>,
}

impl TcpPipe {
    pub(super) fn open(size_bytes: usize) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let sender = TcpStream::connect(listener.local_addr()?)?;
        sender.set_nodelay(true)?;
        let (receiver, _) = listener.accept()?;
        Ok(Self { sender, receiver, destination: vec![1; size_bytes] })
    }

    /// Sends `source` from one thread to another. `source` is as long as the destination.
    pub(super) fn transfer(&mut self, source: &[u8]) -> anyhow::Result<Duration> {
        let Self { sender, receiver, destination } = self;
        let started = Instant::now();
        thread::scope(|scope| {
            let reading = scope.spawn(|| -> io::Result<()> {
                for piece in destination.chunks_mut(PIECE_BYTES) {
                    receiver.read_exact(piece)?;
                }
                Ok(())
            });
            for piece in source.chunks(PIECE_BYTES) {
                sender.write_all(piece)?;
            }
            reading.join().map_err(|_| io::Error::other("the reading thread panicked"))?
        })
        .context("cannot move bytes over TCP")?;
        Ok(started.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floors_move_all_bytes() {
        let source: Vec<u8> = (0..3_000_001_u32).map(|number| number.to_le_bytes()[1]).collect();
        let mut pipe = TcpPipe::open(source.len()).unwrap();
        pipe.transfer(&source).unwrap();
        assert!(pipe.destination == source);

        let mut memory = WarmMemory::new(source.len() as u64).unwrap();
        memory.copy(&source);
        let mut copied = vec![0; source.len()];
        memory.buffer.read(0, &mut copied);
        assert!(copied == source);

        let mut echo = UnixEcho::start().unwrap();
        for _ in 0..10 {
            echo.round_trip().unwrap();
        }
    }
}
