use std::io;

use bytes::BytesMut;
use hoplite_core::error::{Error, Plane};
use hoplite_proto::framing;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use super::opening::Records;
use super::record::{Opener, Sealer};
use super::socket::Socket;

/// Makes the reader and writer of a connection.
pub fn frames(socket: Socket, (sealer, opener): Records) -> (FrameReader, FrameWriter) {
    let (reader, writer) = tokio::io::split(socket);
    let [raw, received, frame, records] = [(); 4].map(|()| BytesMut::new());
    (
        FrameReader { stream: reader, opener, raw, received },
        FrameWriter { stream: writer, sealer, frame, records },
    )
}

/// Reads the peer's frames.
#[derive(Debug)]
pub struct FrameReader {
    stream: ReadHalf<Socket>,
    opener: Opener,
    raw: BytesMut,
    received: BytesMut,
}

impl FrameReader {
    /// Next frame, of at most `limit_bytes`; `None` after the end.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the bytes are no frame. [`Error::Unavailable`] for a damaged record.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn next<M: Message + Default>(
        &mut self,
        limit_bytes: usize,
    ) -> Result<Option<M>, Error> {
        loop {
            let frame = framing::decode_on(Plane::Control, &mut self.received, limit_bytes)?;
            if frame.is_some() {
                return Ok(frame);
            }
            framing::make_room(&mut self.received);
            framing::make_room(&mut self.raw);
            match self.stream.read_buf(&mut self.raw).await {
                Ok(0) | Err(_) => return Ok(None),
                Ok(_) => self.opener.open(&mut self.raw, &mut self.received).map_err(|_| {
                    Error::unavailable("the peer (a record was changed on its way)")
                })?,
            }
        }
    }

    /// Discards bytes until the peer closes.
    pub async fn closed(&mut self) {
        while !matches!(self.stream.read_buf(&mut self.raw).await, Ok(0) | Err(_)) {
            self.raw.clear();
        }
    }
}

/// Writes frames to the peer.
#[derive(Debug)]
pub struct FrameWriter {
    stream: WriteHalf<Socket>,
    sealer: Sealer,
    frame: BytesMut,
    records: BytesMut,
}

impl FrameWriter {
    /// Writes a frame.
    pub async fn write(&mut self, message: &impl Message) -> io::Result<()> {
        framing::make_room(&mut self.frame);
        framing::encode(message, &mut self.frame).map_err(|_| io::ErrorKind::InvalidData)?;
        framing::make_room(&mut self.records);
        self.sealer.seal(&self.frame, &mut self.records);
        self.frame.clear();
        self.stream.write_all_buf(&mut self.records).await?;
        self.stream.flush().await
    }

    /// Tells the peer that no frames follow.
    pub async fn end(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }
}

#[cfg(test)]
mod tests {
    use hoplite_core::ClusterId;
    use hoplite_proto::bounds::MAX_SHARD_FRAME_BYTES;
    use hoplite_proto::directory::Preface;
    use hoplite_proto::v1::shard_message::{Body, Published};
    use hoplite_proto::v1::{ShardMessage, ShardMessages};
    use tokio::net::UnixStream;

    use super::*;
    use crate::opening::{Caller, accept, connect};

    async fn pair() -> [(FrameReader, FrameWriter); 2] {
        let (near, far) = UnixStream::pair().unwrap();
        let cluster = ClusterId::new("c").unwrap();
        let far = async {
            let mut socket = Socket::InProcess(far);
            let mut preface = [0; 16];
            socket.read_exact(&mut preface).await.unwrap();
            let records =
                accept(&mut socket, None, &cluster, hoplite_core::Version::NEWEST).await.unwrap();
            frames(socket, records)
        };
        let near = async {
            let mut socket = Socket::InProcess(near);
            let records =
                connect(&mut socket, None, &Caller::default(), Preface::Direct).await.unwrap();
            frames(socket, records)
        };
        let (near, far) = tokio::join!(near, far);
        [near, far]
    }

    async fn sent(id_bytes: usize) -> (ShardMessages, Result<Option<ShardMessages>, Error>) {
        let published = Published { id: vec![7; id_bytes].into(), ..Published::default() };
        let messages = vec![ShardMessage { body: Some(Body::Published(published)) }];
        let sent = ShardMessages { messages, ..ShardMessages::default() };
        let [(mut reader, near), (_far, mut writer)] = pair().await;
        let (_, read) = tokio::join!(writer.write(&sent), async {
            let read = reader.next(MAX_SHARD_FRAME_BYTES).await;
            drop((reader, near));
            read
        });
        (sent, read)
    }

    #[tokio::test]
    async fn a_changed_byte_ends_the_connection() {
        let [(mut reader, _near), (_far, mut writer)] = pair().await;
        writer.sealer.seal(&[0; 4], &mut writer.records);
        writer.records[5] ^= 1;
        writer.stream.write_all_buf(&mut writer.records).await.unwrap();
        let error = reader.next::<ShardMessages>(MAX_SHARD_FRAME_BYTES).await.unwrap_err();
        assert!(
            matches!(error, Error::Unavailable { .. }) && error.to_string().contains("changed"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_frame_may_be_as_long_as_in_grpc() {
        let (sent_frame, read) = sent(5 << 20).await;
        assert!(read.unwrap() == Some(sent_frame));
        let (_, read) = sent(MAX_SHARD_FRAME_BYTES).await;
        assert!(matches!(read, Err(Error::Malformed { .. })), "longer than that");
    }
}
