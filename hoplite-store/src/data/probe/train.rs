//! Trains of bytes, whose rate is that of the link, and echoes over TCP, for where datagrams do not pass.

use std::time::Duration;

use hoplite_core::topology::probe::Samples;
use hoplite_core::topology::probe::echo::{Echoes, MAX_ASKING};
use hoplite_core::topology::probe::survey::{Finding, MAX_TRAIN_BYTES};
use hoplite_proto::data::frame::{Kind, MAX_BLOCK_BYTES};
use hoplite_proto::data::probe::Measure;
use hoplite_proto::v1;
use tokio::time::Instant;

use super::super::DataConfig;
use super::super::connection::{ConnectionError, PeerConnection};
use super::super::handshake;
use super::super::server::{Ending, end_message};

/// Blocks of a train: so long that headers cost nothing, and so short that a quarter of the shortest train has some.
const BLOCK_BYTES: usize = 16 << 10;
/// How many times longer the next train is, if one was too short: few steps to that which fills a fast link.
const GROWTH: u64 = 8;
/// The first part of a train is not measured, in which TCP opens its window: a quarter.
const SKIPPED: u64 = 4;

/// Takes trains from a peer, each longer than the one before it, until one takes `at_least` so long.
pub(super) async fn take(
    config: &DataConfig,
    measure: &Measure,
    first_bytes: u64,
    at_least: Duration,
) -> Result<Finding, ConnectionError> {
    let mut connection = connect(config, measure).await?;
    let (mut bytes, mut all_bytes) = (first_bytes, 0);
    loop {
        let begun = Instant::now();
        let request = v1::TakeTrain { nonce: measure.nonce, bytes };
        connection.write_control(Kind::TakeTrain, &request).await?;
        let picoseconds = receive(&mut connection, bytes).await?;
        all_bytes += bytes;
        if begun.elapsed() >= at_least || bytes >= MAX_TRAIN_BYTES {
            // A byte that takes no time at all would be one that was not measured.
            let ps_per_byte = u32::try_from(picoseconds.max(1)).unwrap_or(u32::MAX);
            return Ok(Finding::Train { ps_per_byte, bytes: all_bytes });
        }
        bytes = (bytes * GROWTH).min(MAX_TRAIN_BYTES);
    }
}

/// Receives one train; answers how many picoseconds each byte of its measured part took.
async fn receive(connection: &mut PeerConnection, bytes: u64) -> Result<u128, ConnectionError> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut arrived = 0;
    // When the measured part began, and how much had arrived by then.
    let mut start: Option<(Instant, u64)> = None;
    let mut end = Instant::now();
    loop {
        let header = connection.read_header().await?;
        match header.kind() {
            Kind::Block => {
                let length = header.length_bytes() as usize;
                let is_next = header.offset_bytes() == arrived && length as u64 <= bytes - arrived;
                if !is_next || length == 0 || length > block.len() {
                    return Err(ConnectionError::Nonsense("a block that is not the next one of a train"));
                }
                connection.read_payload(&header, &mut block[..length]).await?;
                arrived += length as u64;
                end = Instant::now();
                if start.is_none() && arrived >= bytes / SKIPPED {
                    start = Some((end, arrived));
                }
            }
            Kind::End => {
                let ended = connection.read_control::<v1::End>(&header).await?;
                return match (ended.outcome(), start) {
                    (v1::end::Outcome::Complete, Some((begun, before))) if arrived == bytes => {
                        let measured = u128::from(arrived - before).max(1);
                        Ok(end.duration_since(begun).as_nanos() * 1000 / measured)
                    }
                    _ => Err(ConnectionError::Nonsense("a train that is not whole")),
                };
            }
            kind => return Err(ConnectionError::Unexpected(kind)),
        }
    }
}

/// Sends a train of so many bytes.
pub(super) async fn send(connection: &mut PeerConnection, bytes: u64) -> Result<(), ConnectionError> {
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

/// Exchanges echoes over a connection of the data plane.
pub(super) async fn echoes(
    config: &DataConfig,
    measure: &Measure,
    probes: hoplite_core::topology::probe::Probes,
) -> Result<Finding, ConnectionError> {
    let mut connection = connect(config, measure).await?;
    let begun = Instant::now();
    let mut samples = Samples::default();
    while !samples.suffice(probes) && begun.elapsed() < MAX_ASKING {
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

async fn connect(config: &DataConfig, measure: &Measure) -> Result<PeerConnection, ConnectionError> {
    let (mut connection, _) = handshake::connect(config, &(measure.node.clone(), measure.address)).await?;
    connection.expect_within(Some(config.silence_timeout));
    Ok(connection)
}
