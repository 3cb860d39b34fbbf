//! Clients and peers for messages on the local and the data plane that no real peer would send.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::TIME_LIMIT;
use crate::cluster::await_that;
use bytes::{Buf, BytesMut};
use hoplite_proto::framing::{self, MAX_RESPONSE_BYTES};
use hoplite_proto::v1::request::Body;
use hoplite_proto::{PROTOCOL_VERSION, v1};
use prost::Message;

/// A client that sends anything; dropping it looks like a crash.
#[derive(Debug)]
pub struct RawClient {
    stream: UnixStream,
    inbox: BytesMut,
    last_call: u64,
}

impl RawClient {
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("the store listens");
        stream.set_read_timeout(Some(TIME_LIMIT)).expect("a socket has a timeout");
        stream.set_write_timeout(Some(TIME_LIMIT)).expect("a socket has a timeout");
        Self { stream, inbox: BytesMut::new(), last_call: 0 }
    }

    pub fn greeted(socket: &Path) -> Self {
        let mut client = Self::connect(socket);
        client.send(&v1::ClientHello {
            version: PROTOCOL_VERSION,
            program: "raw".to_owned(),
            ..Default::default()
        });
        let hello: v1::ServerHello = client.receive().expect("the store answers");
        assert_eq!(hello.error, None);
        client
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub fn send(&mut self, message: &impl Message) {
        let mut frame = BytesMut::new();
        framing::encode(message, &mut frame).expect("the message is short");
        self.send_bytes(&frame);
    }

    pub fn request(&mut self, body: Body) -> u64 {
        self.last_call += 1;
        let call = self.last_call;
        self.send(&v1::Request { call, body: Some(body), ..Default::default() });
        call
    }

    pub fn receive<M: Message + Default>(&mut self) -> Option<M> {
        loop {
            let message = framing::decode(&mut self.inbox, MAX_RESPONSE_BYTES)
                .expect("the store speaks the protocol");
            if message.is_some() {
                return message;
            }
            let mut piece = [0; 4096];
            let length = read(&mut self.stream, &mut piece);
            if length == 0 {
                return None;
            }
            self.inbox.extend_from_slice(&piece[..length]);
        }
    }

    pub fn answer(&mut self) -> v1::response::Body {
        let response: v1::Response = self.receive().expect("the store answers");
        assert_eq!(response.call, self.last_call);
        response.body.expect("an answer says something")
    }

    pub fn finish(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    pub fn try_send_message(&mut self, message: &impl Message, time_limit: Duration) -> bool {
        let mut frame = BytesMut::new();
        framing::encode(message, &mut frame).expect("the message is short");
        self.try_send(&frame, time_limit)
    }

    /// `true` if the socket took all bytes. Each wait lasts at most `time_limit`.
    pub fn try_send(&mut self, bytes: &[u8], time_limit: Duration) -> bool {
        self.stream.set_write_timeout(Some(time_limit)).expect("a socket has a timeout");
        self.stream.write_all(bytes).is_ok()
    }

    pub fn await_close(&mut self) {
        await_end(&mut self.stream);
    }
}

fn await_end(stream: &mut impl Read) {
    let began = Instant::now();
    while read(stream, &mut [0; 4096]) > 0 {
        assert!(began.elapsed() < TIME_LIMIT, "the peer does not close the connection");
    }
}

fn read(stream: &mut impl Read, piece: &mut [u8]) -> usize {
    loop {
        match stream.read(piece) {
            Ok(length) => return length,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error)
                if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) =>
            {
                return 0;
            }
            Err(error) => panic!("the peer neither answers nor closes the connection: {error}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Hello = 1,
    Pull = 2,
    Block = 3,
    End = 4,
    Keepalive = 5,
    DigestRequest = 6,
    Digest = 7,
    Combine = 8,
    Combined = 9,
    Release = 10,
    Proof = 11,
    Enlist = 12,
    Commit = 14,
    Stop = 15,
    Take = 16,
    Reject = 17,
    Probe = 18,
    ProbeReady = 19,
    Arm = 20,
    Measure = 22,
    Echo = 24,
    TakeTrain = 25,
    Lanes = 28,
    Lane = 29,
}

pub(crate) const HEADER_BYTES: usize = 28;

pub(crate) fn payload_length(header: &[u8]) -> usize {
    let length = (&header[8..12]).get_u32_le();
    usize::try_from(length).expect("a length fits")
}

pub fn data_frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("frames of tests are short");
    data_frame_claiming(kind as u8, 1, length, payload)
}

pub fn data_frame_claiming(kind: u8, version: u8, length_bytes: u32, payload: &[u8]) -> Vec<u8> {
    frame_at(0, (kind, version), length_bytes, payload)
}

pub fn data_block(offset_bytes: u64, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("frames of tests are short");
    frame_at(offset_bytes, (Kind::Block as u8, 1), length, payload)
}

fn frame_at(
    offset_bytes: u64,
    (kind, version): (u8, u8),
    length_bytes: u32,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = b"HPLD".to_vec();
    frame.extend([version, kind, 0, 0]);
    frame.extend(length_bytes.to_le_bytes());
    frame.extend(hoplite_core::checksum::crc32c(payload).to_le_bytes());
    frame.extend(offset_bytes.to_le_bytes());
    frame.extend(hoplite_core::checksum::crc32c(&frame).to_le_bytes());
    frame.extend(payload);
    frame
}

#[derive(Debug)]
pub struct RawPeer {
    stream: TcpStream,
}

impl RawPeer {
    fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(TIME_LIMIT)).expect("a socket has a timeout");
        stream.set_write_timeout(Some(TIME_LIMIT)).expect("a socket has a timeout");
        Self { stream }
    }

    pub fn connect(address: &str) -> Self {
        Self::of(TcpStream::connect(address).expect("the store listens"))
    }

    pub fn accepted(listener: &TcpListener) -> Self {
        listener.set_nonblocking(true).expect("a socket can be polled");
        let mut accepted = None;
        await_that("a store to connect", || {
            accepted = listener.accept().ok();
            accepted.is_some()
        });
        let (stream, _) = accepted.expect("it was awaited");
        let mut peer = Self::of(stream);
        let (kind, _) = peer.receive().expect("the store introduces itself");
        assert_eq!(kind, Kind::Hello as u8);
        peer.send(Kind::Hello, &hello("hoplite", PROTOCOL_VERSION));
        peer
    }

    pub fn greeted(address: &str) -> Self {
        let mut peer = Self::connect(address);
        peer.send_bytes(&data_frame(
            Kind::Hello,
            &hello("hoplite", PROTOCOL_VERSION).encode_to_vec(),
        ));
        let (kind, _) = peer.receive().expect("the store introduces itself");
        assert_eq!(kind, Kind::Hello as u8);
        peer
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub fn send(&mut self, kind: Kind, message: &impl Message) {
        self.send_bytes(&data_frame(kind, &message.encode_to_vec()));
    }

    pub fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        let header = self.read_exactly(HEADER_BYTES)?;
        let payload = self.read_exactly(payload_length(&header))?;
        Some((header[5], payload))
    }

    /// Receives the next frame that is no keepalive.
    pub fn receive_other(&mut self) -> Option<(u8, Vec<u8>)> {
        let began = Instant::now();
        loop {
            let frame = self.receive();
            if frame.as_ref().is_none_or(|(kind, _)| *kind != Kind::Keepalive as u8) {
                return frame;
            }
            assert!(began.elapsed() < TIME_LIMIT, "only keepalives arrive");
        }
    }

    fn read_exactly(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match read(&mut self.stream, &mut bytes[filled..]) {
                0 => return None,
                more => filled += more,
            }
        }
        Some(bytes)
    }

    pub fn finish(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    pub fn await_close(&mut self) {
        await_end(&mut self.stream);
    }
}

pub fn hello(cluster: &str, version: u32) -> v1::DataHello {
    v1::DataHello {
        version,
        cluster: cluster.to_owned(),
        node: "raw".to_owned(),
        ..v1::DataHello::default()
    }
}
