//! The direct connection, which carries the messages of a session instead of gRPC, at the store's end.

use std::io;

use bytes::BytesMut;
use hoplite_core::error::{Error, Plane};
use hoplite_core::session::BYPASS_TIMEOUT;
use hoplite_net::opening::{self, Caller, Opened};
use hoplite_net::{Opener, Route, Sealer, Socket, Token};
use hoplite_proto::bounds::MAX_SHARD_FRAME_BYTES;
use hoplite_proto::directory::BypassKey;
use hoplite_proto::framing;
use hoplite_proto::v1::{ShardMessages, StoreMessages};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A frame that the shard answers, if with one that has no messages either.
pub(crate) const PING: StoreMessages = StoreMessages { hello: None, messages: Vec::new() };

/// A connection that the shard takes messages from and says them on.
#[derive(Debug)]
pub(crate) struct DirectConnection {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
}

impl DirectConnection {
    /// Connects to the shard at `address` once more, for the session that `key` names, and pings it there.
    ///
    /// # Errors
    /// Errors of the operating system or of the handshake; [`io::ErrorKind::TimedOut`] after [`BYPASS_TIMEOUT`].
    pub(crate) async fn open(
        address: &str,
        route: &Route,
        token: Option<&Token>,
        caller: &Caller,
        key: BypassKey,
    ) -> io::Result<Self> {
        let opening = async {
            let mut socket = match route {
                Route::Network => Socket::Tcp(TcpStream::connect(address).await?),
                Route::InProcess(directory) => directory.connect().await?,
            };
            socket.prepare()?;
            let opened = opening::connect(&mut socket, token, caller, Some(key)).await;
            let Opened { records: (sealer, opener), .. } = opened.map_err(io::Error::other)?;
            let (stream, writer) = tokio::io::split(socket);
            let [frame, records] = [(); 2].map(|()| BytesMut::new());
            let mut writer = Writer { stream: writer, sealer, frame, records };
            writer.write(&PING).await?;
            Ok::<_, io::Error>(Self { reader: Reader::new(stream, opener), writer })
        };
        timeout(BYPASS_TIMEOUT, opening).await?
    }
}

/// What the shard says.
#[derive(Debug)]
pub(crate) struct Reader {
    stream: ReadHalf<Socket>,
    opener: Opener,
    /// Records as they arrived.
    raw: BytesMut,
    /// What was taken out of them.
    received: BytesMut,
}

impl Reader {
    fn new(stream: ReadHalf<Socket>, opener: Opener) -> Self {
        Self { stream, opener, raw: BytesMut::new(), received: BytesMut::new() }
    }

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
            framing::make_room(&mut self.raw);
            match self.stream.read_buf(&mut self.raw).await {
                Ok(0) | Err(_) => return Ok(None),
                Ok(_) => self.opener.open(&mut self.raw, &mut self.received).map_err(|_| {
                    Error::unavailable("the directory shard (a record was changed on its way)")
                })?,
            }
        }
    }
}

/// What the shard is told.
#[derive(Debug)]
pub(crate) struct Writer {
    stream: WriteHalf<Socket>,
    sealer: Sealer,
    frame: BytesMut,
    records: BytesMut,
}

impl Writer {
    /// Writes a frame.
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) async fn write(&mut self, messages: &StoreMessages) -> io::Result<()> {
        framing::make_room(&mut self.frame);
        framing::encode(messages, &mut self.frame).map_err(|_| io::ErrorKind::InvalidData)?;
        framing::make_room(&mut self.records);
        self.sealer.seal(&self.frame, &mut self.records);
        self.frame.clear();
        self.stream.write_all_buf(&mut self.records).await
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
    use hoplite_core::ClusterId;
    use hoplite_net::InProcess;
    use hoplite_proto::directory::Preface;
    use hoplite_proto::v1::ShardMessage;
    use hoplite_proto::v1::shard_message::{Body, Published};

    use super::*;

    /// Both ends of a connection.
    async fn pair() -> (DirectConnection, DirectConnection) {
        let (connect, mut accept) = InProcess::new();
        let cluster = ClusterId::new("c").unwrap();
        let far = async {
            let mut socket = accept.accept().await.unwrap();
            let mut preface = [0; 16];
            socket.read_exact(&mut preface).await.unwrap();
            let opened = opening::accept(&mut socket, None, &cluster, Preface::Direct).await.unwrap();
            let (sealer, opener) = opened.records;
            let (stream, writer) = tokio::io::split(socket);
            let [frame, records] = [(); 2].map(|()| BytesMut::new());
            let writer = Writer { stream: writer, sealer, frame, records };
            DirectConnection { reader: Reader::new(stream, opener), writer }
        };
        let key = BypassKey([7; 32]);
        let route = Route::InProcess(connect);
        let caller = Caller::default();
        let near = DirectConnection::open("", &route, None, &caller, key);
        let (near, far) = tokio::join!(near, far);
        (near.unwrap(), far)
    }

    async fn sent(id_bytes: usize) -> (ShardMessages, Result<Option<ShardMessages>, Error>) {
        let published = Published { id: vec![7; id_bytes].into(), ..Published::default() };
        let messages = vec![ShardMessage { body: Some(Body::Published(published)) }];
        let sent = ShardMessages { messages, ..ShardMessages::default() };
        let mut frame = BytesMut::new();
        framing::encode(&sent, &mut frame).unwrap();

        let (mut store, mut shard) = pair().await;
        let mut records = BytesMut::new();
        shard.writer.sealer.seal(&frame, &mut records);
        // The reader may end before it has all of it.
        let (_, read) = tokio::join!(shard.writer.stream.write_all_buf(&mut records), async {
            let read = store.reader.next().await;
            drop(store);
            read
        });
        (sent, read)
    }

    #[tokio::test]
    async fn a_changed_byte_ends_the_connection() {
        let (mut store, mut shard) = pair().await;
        let mut records = BytesMut::new();
        shard.writer.sealer.seal(&[0; 4], &mut records);
        records[5] ^= 1;
        shard.writer.stream.write_all_buf(&mut records).await.unwrap();
        let error = store.reader.next().await.unwrap_err();
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
