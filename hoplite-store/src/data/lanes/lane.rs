//! The receiver's end of one connection (lane) of a stream.

use hoplite_core::checksum::crc32c;
use hoplite_core::id::NodeId;
use hoplite_core::merge::LaneId;
use hoplite_proto::data::frame::{Header, Kind};
use hoplite_proto::data::lanes::{StreamKey, encode_lane};
use prost::Message;

use super::super::call::{Call, CallError};
use super::super::config::DataConfig;
use super::super::connection::{ConnectionError, PeerConnection};
use super::super::handshake;
use super::super::route::RouteUse;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The stream began with this request.
    Request,
    /// A request for lost bytes.
    Repeat,
    /// The lane joined a running stream.
    Joined,
}

#[derive(Debug)]
pub(super) struct Lane<'a> {
    pub(super) id: LaneId,
    pub(super) call: Call<'a>,
    pub(super) origin: Origin,
    pub(super) block: Option<Header>,
    /// Arriving control frame, and the arrived length of its payload.
    control: Option<(Header, usize)>,
    payload: Vec<u8>,
}

pub(super) type Opened = (RouteUse, Result<Box<PeerConnection>, ConnectionError>);

pub(super) enum LaneFrame {
    Block(Header),
    Control(Kind),
}

impl<'a> Lane<'a> {
    pub(super) const fn new(id: LaneId, call: Call<'a>, origin: Origin) -> Self {
        Self { id, call, origin, block: None, control: None, payload: Vec::new() }
    }

    /// Reads the next block's header, or a whole control frame. Cancel safe.
    pub(super) async fn listen(&mut self) -> Result<LaneFrame, CallError> {
        let header = match self.control {
            Some((header, _)) => header,
            None => {
                let header = self.call.read_header().await?;
                match header.kind() {
                    Kind::Block => return Ok(LaneFrame::Block(header)),
                    Kind::Keepalive | Kind::End | Kind::Lanes => {}
                    kind => return Err(ConnectionError::Unexpected(kind).into()),
                }
                self.payload.resize(header.length_bytes() as usize, 0);
                self.control = Some((header, 0));
                header
            }
        };
        while let Some((_, received)) = &mut self.control
            && *received < self.payload.len()
        {
            *received += self.call.connection().read_part(&mut self.payload[*received..]).await?;
        }
        self.control = None;
        header.check_payload(crc32c(&self.payload)).map_err(ConnectionError::from)?;
        Ok(LaneFrame::Control(header.kind()))
    }

    pub(super) fn decode<M: Message + Default>(&self) -> Result<M, ConnectionError> {
        Ok(M::decode(&*self.payload)?)
    }
}

/// Opens a connection for a running stream.
pub(super) async fn open_lane(
    config: &DataConfig,
    peer: &NodeId,
    rail: &RouteUse,
    pooled: Option<PeerConnection>,
    (key, others): (StreamKey, usize),
) -> Result<PeerConnection, ConnectionError> {
    let mut connection = match pooled {
        Some(connection) => connection,
        None => match handshake::connect(config, peer, rail).await {
            Ok((connection, _)) => {
                rail.worked();
                connection
            }
            Err(error) => {
                rail.could_not_open(&error);
                return Err(error);
            }
        },
    };
    connection.expect_within(Some(config.silence_timeout));
    connection.write_control(Kind::Lane, &encode_lane(key, others)).await?;
    Ok(connection)
}
