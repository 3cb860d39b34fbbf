//! Trains: bursts of bytes that measure bandwidth. Also echoes over TCP if datagrams do not arrive.

use std::time::Duration;

use hoplite_core::time::Time;
use hoplite_core::topology::probe::Samples;
use hoplite_core::topology::probe::echo::{Echoes, MAX_ECHO_TIME};
use hoplite_core::topology::probe::survey::Finding;
use hoplite_core::topology::probe::train::{ArrivingTrain, Trains};
use hoplite_proto::data::frame::{Kind, MAX_BLOCK_BYTES};
use hoplite_proto::data::probe::Measure;
use hoplite_proto::v1;
use tokio::time::Instant;

use super::super::config::DataConfig;
use super::super::connection::{ConnectionError, PeerConnection};
use super::super::handshake;
use super::super::route::RouteUse;
use super::super::serving::{Ending, end_message};

/// Small, so that several blocks fit into a train's untimed first quarter.
const BLOCK_BYTES: usize = 16 << 10;

/// Requests growing trains until one takes `at_least`, or has the greatest size.
pub(super) async fn receive_trains(
    config: &DataConfig,
    measure: &Measure,
    first_bytes: u64,
    at_least: Duration,
) -> Result<Finding, ConnectionError> {
    let mut connection = connect(config, measure).await?;
    let mut trains = Trains::new(first_bytes, at_least);
    loop {
        let begun = Instant::now();
        let request = v1::TakeTrain { nonce: measure.nonce, bytes: trains.bytes() };
        connection.write_control(Kind::TakeTrain, &request).await?;
        let picoseconds = receive(&mut connection, trains.bytes(), begun).await?;
        if let Some(found) = trains.arrived(begun.elapsed(), picoseconds) {
            return Ok(found);
        }
    }
}

/// Receives a train. Returns the picoseconds per byte after its first quarter.
async fn receive(
    connection: &mut PeerConnection,
    bytes: u64,
    begun: Instant,
) -> Result<u128, ConnectionError> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut train = ArrivingTrain::new(bytes);
    loop {
        let header = connection.read_header().await?;
        match header.kind() {
            Kind::Block => {
                let length = header.length_bytes() as usize;
                let is_next = header.offset_bytes() == train.arrived_bytes()
                    && length as u64 <= train.missing_bytes();
                if !is_next || length == 0 || length > block.len() {
                    return Err(ConnectionError::Nonsense(
                        "a block that is not the next one of a train",
                    ));
                }
                connection.read_payload(&header, &mut block[..length]).await?;
                train.arrive(Time::ZERO + begun.elapsed(), length as u64);
            }
            Kind::End => {
                let ended = connection.read_control::<v1::End>(&header).await?;
                let measured =
                    train.ps_per_byte().filter(|_| ended.outcome() == v1::end::Outcome::Complete);
                return measured.ok_or(ConnectionError::Nonsense("a train that is not whole"));
            }
            kind => return Err(ConnectionError::Unexpected(kind)),
        }
    }
}

pub(super) async fn send(
    connection: &mut PeerConnection,
    bytes: u64,
) -> Result<(), ConnectionError> {
    const _: () = assert!(BLOCK_BYTES <= MAX_BLOCK_BYTES as usize, "blocks fit in frames");
    let block = vec![0; BLOCK_BYTES];
    let mut sent = 0;
    while sent < bytes {
        let length = usize::try_from(bytes - sent).unwrap_or(usize::MAX).min(block.len());
        connection.write_bytes(sent, &block[..length]).await?;
        sent += length as u64;
    }
    connection.write_control(Kind::End, &end_message(Ending::Complete)).await
}

pub(super) async fn echoes(
    config: &DataConfig,
    measure: &Measure,
    probes: hoplite_core::topology::probe::Probes,
) -> Result<Finding, ConnectionError> {
    let mut connection = connect(config, measure).await?;
    let begun = Instant::now();
    let mut samples = Samples::default();
    while !samples.suffice(probes) && begun.elapsed() < MAX_ECHO_TIME {
        let asked = Instant::now();
        connection.write_control(Kind::Echo, &v1::Echo { nonce: measure.nonce }).await?;
        connection.read_expected::<v1::Echo>(Kind::Echo).await?;
        samples.add(u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    let echoes = samples.round_trip_ns().map(|forth_ns| Echoes {
        forth_ns,
        back_ns: 0,
        count: u32::try_from(samples.len()).unwrap_or(u32::MAX),
        lost: 0,
    });
    Ok(echoes.map_or(Finding::Nothing, |echoes| Finding::Echoes { echoes, by_tcp: true }))
}

async fn connect(
    config: &DataConfig,
    measure: &Measure,
) -> Result<PeerConnection, ConnectionError> {
    let rail = RouteUse::main(measure.address);
    let (mut connection, _) = handshake::connect(config, &measure.node, &rail).await?;
    connection.expect_within(Some(config.silence_timeout));
    Ok(connection)
}
