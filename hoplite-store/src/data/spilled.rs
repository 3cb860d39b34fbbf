//! Sends objects from spill files, without a copy in the arena.

use std::ops::Range;

use hoplite_proto::data::frame::MAX_BLOCK_BYTES;
use xxhash_rust::xxh3::Xxh3;

use super::connection::{ConnectionError, PeerConnection};
use super::keepalive::Keepalive;
use super::metrics::{DataMetrics, count};
use super::rails::RailTable;
use super::serving::Ending;
use crate::spill::{NotRead, SpilledCopy};

/// Sends a range of an object. If a read fails, or the disk is busy for too long, the stream ends
/// as if there were no copy, and the receiver looks for another sender.
pub(super) async fn send(
    connection: &mut PeerConnection,
    copy: &SpilledCopy,
    range: Range<u64>,
    keepalive: Keepalive<'_>,
    (metrics, rails): (&DataMetrics, &RailTable),
) -> Result<Ending, ConnectionError> {
    let Ok(mut reader) = keepalive.during(connection, copy.open(range)).await? else {
        return Ok(Ending::NoCopy);
    };
    loop {
        let (mut position_bytes, bytes) = match keepalive.during(connection, reader.next()).await? {
            Ok(Some(piece)) => piece,
            Ok(None) => return Ok(Ending::Complete),
            Err(_) => return Ok(Ending::NoCopy),
        };
        for block in bytes.chunks(MAX_BLOCK_BYTES as usize) {
            connection.write_bytes(position_bytes, block).await?;
            position_bytes += block.len() as u64;
            count(&metrics.sent_bytes, block.len() as u64);
            rails.sent(connection.rail, block.len() as u64);
        }
    }
}

pub(super) async fn digest(copy: &SpilledCopy) -> Result<[u8; 16], NotRead> {
    let mut hasher = Xxh3::new();
    let mut reader = copy.open(0..copy.size_bytes).await?;
    while let Some((_, bytes)) = reader.next().await? {
        hasher.update(&bytes);
    }
    Ok(hasher.digest128().to_le_bytes())
}
