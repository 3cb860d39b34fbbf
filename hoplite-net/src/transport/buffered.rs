//! A transport that copies all bytes into buffers, for tests.

use std::io;
use std::ops::Range;

use futures::FutureExt;
use hoplite_shm::Buffer;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

const RECORD_BYTES: usize = 16 << 10;

/// TCP connection behind buffers.
#[derive(Debug)]
pub struct Buffered {
    stream: BufStream<TcpStream>,
    record: Vec<u8>,
}

impl Buffered {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream: BufStream::new(stream), record: vec![0; RECORD_BYTES] }
    }

    pub(super) async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into).await
    }

    pub(super) async fn read_into(
        &mut self,
        buffer: &Buffer,
        range: Range<u64>,
    ) -> io::Result<usize> {
        let length = self.record.len().min((range.end - range.start) as usize);
        let received = self.stream.read(&mut self.record[..length]).await?;
        buffer.write(range.start, &self.record[..received]);
        Ok(received)
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes).await
    }

    pub(super) async fn write_from(
        &mut self,
        head: &[u8],
        buffer: &Buffer,
        range: Range<u64>,
    ) -> io::Result<usize> {
        if !head.is_empty() {
            return self.stream.write(head).await;
        }
        let length = self.record.len().min((range.end - range.start) as usize);
        buffer.read(range.start, &mut self.record[..length]);
        self.stream.write(&self.record[..length]).await
    }

    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.stream.flush().await
    }

    pub(super) fn is_readable(&mut self) -> bool {
        self.stream.fill_buf().now_or_never().is_some()
    }

    pub(super) fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }
}
