//! The connection that carries the messages of a session past gRPC, at the store's end.

use std::io;

use bytes::BytesMut;
use hoplite_core::error::{Error, Plane};
use hoplite_core::session::BYPASS_TIMEOUT;
use hoplite_daemon::prepare_idle_socket;
use hoplite_proto::bounds::MAX_SHARD_FRAME_BYTES;
use hoplite_proto::directory::BypassKey;
use hoplite_proto::framing;
use hoplite_proto::v1::{ShardMessages, StoreMessages};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// A frame that the shard answers, if with one that has no messages either.
pub(crate) const PING: StoreMessages = StoreMessages { hello: None, messages: Vec::new() };

/// A connection that the shard takes messages from and says them on.
#[derive(Debug)]
pub(crate) struct Bypass {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
}

impl Bypass {
    /// Connects to the shard at `address` once more, for the session that `key` names, and pings it there.
    ///
    /// # Errors
    /// What the operating system says; [`io::ErrorKind::TimedOut`] after [`BYPASS_TIMEOUT`].
    pub(crate) async fn open(address: &str, key: &BypassKey) -> io::Result<Self> {
        let opening = async {
            let mut stream = TcpStream::connect(address).await?;
            prepare_idle_socket(&stream)?;
            let mut opening = BytesMut::from(&key.opening()[..]);
            framing::encode(&PING, &mut opening).map_err(|_| io::ErrorKind::InvalidData)?;
            stream.write_all_buf(&mut opening).await?;
            Ok::<_, io::Error>(stream)
        };
        let stream = timeout(BYPASS_TIMEOUT, opening).await??;
        let (stream, writer) = stream.into_split();
        Ok(Self {
            reader: Reader { stream, received: BytesMut::new() },
            writer: Writer { stream: writer, frame: BytesMut::new() },
        })
    }
}

/// What the shard says.
#[derive(Debug)]
pub(crate) struct Reader {
    stream: OwnedReadHalf,
    received: BytesMut,
}

impl Reader {
    /// The next frame; `None` when the shard has closed the connection.
    ///
    /// # Errors
    /// What the frame is not.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<ShardMessages>, Error> {
        loop {
            let frame = framing::decode_on(Plane::Control, &mut self.received, MAX_SHARD_FRAME_BYTES)?;
            if frame.is_some() {
                return Ok(frame);
            }
            framing::make_room(&mut self.received);
            match self.stream.read_buf(&mut self.received).await {
                Ok(0) | Err(_) => return Ok(None),
                Ok(_) => {}
            }
        }
    }
}

/// What the shard is told.
#[derive(Debug)]
pub(crate) struct Writer {
    stream: OwnedWriteHalf,
    frame: BytesMut,
}

impl Writer {
    /// Writes a frame.
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) async fn write(&mut self, messages: &StoreMessages) -> io::Result<()> {
        framing::make_room(&mut self.frame);
        framing::encode(messages, &mut self.frame).map_err(|_| io::ErrorKind::InvalidData)?;
        self.stream.write_all_buf(&mut self.frame).await
    }

    /// Says that there will be no more.
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) async fn end(mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }
}

#[cfg(test)]
mod tests {
    use hoplite_proto::v1::ShardMessage;
    use hoplite_proto::v1::shard_message::{Body, Published};
    use tokio::net::TcpListener;

    use super::*;

    async fn sent(id_bytes: usize) -> (ShardMessages, Result<Option<ShardMessages>, Error>) {
        let published = Published { id: vec![7; id_bytes].into(), ..Published::default() };
        let messages = vec![ShardMessage { body: Some(Body::Published(published)) }];
        let sent = ShardMessages { messages, ..ShardMessages::default() };
        let mut frame = BytesMut::new();
        framing::encode(&sent, &mut frame).unwrap();

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stream, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, writer) = stream.unwrap().into_split();
        let (mut shard, _) = accepted.unwrap();
        let mut reader = Reader { stream, received: BytesMut::new() };
        // The reader may end before it has all of it.
        let (_, read) = tokio::join!(shard.write_all_buf(&mut frame), async {
            let read = reader.next().await;
            drop((reader, writer));
            read
        });
        (sent, read)
    }

    #[tokio::test]
    async fn a_frame_may_be_as_long_as_in_grpc() {
        let (sent_frame, read) = sent(5 << 20).await;
        assert!(read.unwrap() == Some(sent_frame));
        let (_, read) = sent(MAX_SHARD_FRAME_BYTES).await;
        assert!(matches!(read, Err(Error::Malformed { .. })), "longer than that");
    }
}
