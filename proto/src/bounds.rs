//! Limits on peers' messages, and checks of fields that several messages share. Other fields are
//! checked where their message is converted.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::{NodeId, ObjectId};
use hoplite_core::missing::{MAX_NAMED, Named};
use hoplite_core::shard::{DeleteWait, UNREACHABLE};

/// Longest timeout. Longer ones are cut, so that arithmetic on times cannot overflow.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Most bytes of an inline object. A shard's limit is usually lower.
pub const MAX_INLINE_BYTES: usize = 1 << 20;
/// Most bytes of a put that travel through the socket. Larger puts go through the arena.
pub const MAX_PUT_BYTES: usize = 8 << 10;
/// Most object bytes of a batch's puts.
pub const MAX_BATCH_PUT_BYTES: usize = 1 << 20;
/// Most senders that a query may avoid.
pub const MAX_AVOIDED_NODES: usize = 64;
/// Most labels of a node.
pub const MAX_LABELS: usize = 32;
/// Longest key of a label, in bytes.
pub const MAX_LABEL_KEY_BYTES: usize = 63;
/// Longest value of a label, in bytes.
pub const MAX_LABEL_VALUE_BYTES: usize = 255;
/// Most messages in one frame of a session.
pub const MAX_MESSAGES_PER_BATCH: usize = 4096;
/// Most bytes of a frame from a store: a batch of 1 MiB, and an inline object.
pub const MAX_BATCH_BYTES: usize = 4 << 20;
/// Most bytes of a frame from a shard: all locations of an object, or a page of a listing whose
/// last object is on every node.
pub const MAX_SHARD_FRAME_BYTES: usize = 64 << 20;
/// Most locations of an object.
pub const MAX_LOCATIONS: usize = 10_000;
/// Most objects in a page of a listing.
pub const MAX_LISTED_OBJECTS: usize = 10_000;
/// Most bytes of an error's text that decoding keeps.
pub const MAX_TEXT_BYTES: usize = 1024;

/// Longest address in bytes: IPv6 with scope and port.
const MAX_ADDRESS_BYTES: usize = 64;

pub(crate) fn encode_id(id: &ObjectId) -> Bytes {
    Bytes::from_owner(id.clone())
}

pub(crate) fn encode_timeout(timeout: Duration) -> u64 {
    // Rounds up, so that a small timeout does not become zero.
    let millis = timeout.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX)
}

pub(crate) fn decode_timeout(timeout_ms: u64) -> Duration {
    Duration::from_millis(timeout_ms).min(MAX_TIMEOUT)
}

/// Encodes an address as text; empty for [`UNREACHABLE`].
pub fn encode_address(address: SocketAddr) -> String {
    if address == UNREACHABLE { String::new() } else { address.to_string() }
}

/// Decodes the address of a store's data plane; [`UNREACHABLE`] for an empty text.
pub fn decode_store_address(text: &str, plane: Plane) -> Result<SocketAddr> {
    if text.is_empty() { Ok(UNREACHABLE) } else { decode_address(text, plane) }
}

/// Decodes the address of a node.
pub fn decode_address(text: &str, plane: Plane) -> Result<SocketAddr> {
    let address =
        if text.len() > MAX_ADDRESS_BYTES { None } else { text.parse::<SocketAddr>().ok() };
    match address {
        Some(address) if address.port() != 0 => Ok(address),
        _ => Err(Error::malformed(plane, "an address that cannot be reached")),
    }
}

pub(crate) fn encode_optional_node(node: Option<&NodeId>) -> String {
    node.map_or_else(String::new, |node| node.as_str().to_owned())
}

pub(crate) fn decode_optional_node(text: &str) -> Result<Option<NodeId>> {
    if text.is_empty() { Ok(None) } else { Ok(Some(NodeId::new(text)?)) }
}

pub(crate) fn check_count(what: &'static str, length: usize, maximum: usize) -> Result<()> {
    if length > maximum { Err(Error::limit_exceeded(what, maximum as u64)) } else { Ok(()) }
}

pub(crate) const fn decode_delete_wait(wait_all: bool) -> DeleteWait {
    if wait_all { DeleteWait::All } else { DeleteWait::Reachable }
}

pub(crate) fn decode_named_nodes(first: &[String], count: u64) -> Result<Named<NodeId>> {
    check_count("named nodes", first.len(), MAX_NAMED)?;
    let first = first.iter().map(|node| NodeId::new(node)).collect::<Result<Vec<_>, _>>()?;
    Ok(Named { count: count.max(first.len() as u64), first })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_cut_to_thirty_days_and_never_rounded_to_zero() {
        assert_eq!(decode_timeout(u64::MAX), MAX_TIMEOUT);
        assert_eq!(encode_timeout(Duration::from_nanos(1)), 1);
        assert_eq!(encode_timeout(Duration::ZERO), 0);
        assert_eq!(encode_timeout(Duration::MAX), u64::MAX);
        assert_eq!(decode_timeout(encode_timeout(Duration::from_secs(5))), Duration::from_secs(5));
    }

    #[test]
    fn addresses_must_be_reachable() {
        assert!(decode_address("10.0.0.7:7402", Plane::Control).is_ok());
        assert!(decode_address("[::1]:7402", Plane::Control).is_ok());
        for bad in ["", "10.0.0.7", "10.0.0.7:0", "host:7402", &"1".repeat(100)] {
            assert!(decode_address(bad, Plane::Control).is_err(), "{bad}");
        }
    }
}
