//! Frames of the local plane and of direct connections: a length of four bytes, little-endian, and
//! the message.

use bytes::{Buf, BytesMut};
use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::MAX_OBJECT_ID_BYTES;
use hoplite_core::limits::Limits;
use hoplite_core::node::MAX_BATCH_ITEMS;
use prost::Message;

use crate::bounds::{MAX_BATCH_PUT_BYTES, MAX_PUT_BYTES};

/// Size in bytes of the length before each message.
pub const LENGTH_BYTES: usize = 4;

/// Longest hello in bytes. Another protocol's start, read as a length, usually exceeds it.
pub const MAX_HELLO_BYTES: usize = 4096;

/// Longest response in bytes: a page of a listing.
pub const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// Most bytes of a request without a list of ids: one id, metadata, tags, and a small object.
const REQUEST_OVERHEAD_BYTES: usize = (16 << 10) + MAX_PUT_BYTES;

/// Bytes of protobuf's tag and length for each id of a list.
const ID_OVERHEAD_BYTES: usize = 4;

const MAX_BATCH_BYTES: usize =
    MAX_BATCH_PUT_BYTES + MAX_BATCH_ITEMS * (REQUEST_OVERHEAD_BYTES - MAX_PUT_BYTES);

/// Longest request in bytes: a list of ids, or a batch.
pub fn max_request_bytes(limits: &Limits) -> usize {
    let ids = limits.max_ids_per_request.saturating_mul(MAX_OBJECT_ID_BYTES + ID_OVERHEAD_BYTES);
    ids.saturating_add(REQUEST_OVERHEAD_BYTES).max(MAX_BATCH_BYTES)
}

/// Appends `message` and its length.
///
/// # Errors
/// [`Error::LimitExceeded`] from 4 GiB on; `out` is unchanged.
pub fn encode(message: &impl Message, out: &mut BytesMut) -> Result<()> {
    let length = message.encoded_len();
    let Ok(prefix) = u32::try_from(length) else {
        return Err(Error::limit_exceeded("bytes of a message", u64::from(u32::MAX)));
    };
    out.reserve(LENGTH_BYTES + length);
    out.extend_from_slice(&prefix.to_le_bytes());
    message.encode_raw(out);
    Ok(())
}

const READ_BYTES: usize = 64 << 10;

/// Reserves memory for small messages. Frees an empty buffer that a large message has enlarged.
pub fn make_room(buffer: &mut BytesMut) {
    if buffer.is_empty() && buffer.capacity() > READ_BYTES {
        *buffer = BytesMut::new();
    }
    buffer.reserve(READ_BYTES);
}

/// Removes a message from the front of `buffer`; `None` if incomplete.
///
/// At most `limit_bytes` are buffered.
///
/// # Errors
/// [`Error::Malformed`] for a wrong length or message: close the connection.
pub fn decode<M: Message + Default>(
    buffer: &mut BytesMut,
    limit_bytes: usize,
) -> Result<Option<M>> {
    decode_on(Plane::Local, buffer, limit_bytes)
}

/// Returns the front message's length, including the length field, once known.
pub fn announced_bytes(buffer: &[u8]) -> Option<usize> {
    let prefix = buffer.first_chunk::<LENGTH_BYTES>()?;
    Some(
        LENGTH_BYTES
            .saturating_add(usize::try_from(u32::from_le_bytes(*prefix)).unwrap_or(usize::MAX)),
    )
}

/// Does the same as [`decode`], for a connection of `plane`.
pub fn decode_on<M: Message + Default>(
    plane: Plane,
    buffer: &mut BytesMut,
    limit_bytes: usize,
) -> Result<Option<M>> {
    let Some(prefix) = buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = match usize::try_from(u32::from_le_bytes(*prefix)) {
        Ok(length) if length <= limit_bytes => length,
        _ => return Err(Error::malformed(plane, "a frame above the limit")),
    };
    if buffer.len() < LENGTH_BYTES + length {
        return Ok(None);
    }
    buffer.advance(LENGTH_BYTES);
    let frame = buffer.split_to(length).freeze();
    M::decode(frame).map(Some).map_err(|_| Error::malformed(plane, "a frame that is not a message"))
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;
    use proptest::prelude::*;

    use super::*;
    use crate::v1;

    fn hello(program: &str) -> v1::ClientHello {
        v1::ClientHello { version: 1, program: program.to_owned(), ..Default::default() }
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_its_bytes_arrive() {
        let mut buffer = BytesMut::new();
        buffer.put_u32_le(11);
        assert!(decode::<v1::ClientHello>(&mut buffer.clone(), 11).unwrap().is_none());
        assert!(decode::<v1::ClientHello>(&mut buffer, 10).is_err());
    }

    #[test]
    fn eight_zero_bytes_are_two_empty_messages() {
        let mut buffer = BytesMut::zeroed(8);
        for _ in 0..2 {
            assert_eq!(decode(&mut buffer, 10), Ok(Some(v1::ClientHello::default())));
        }
        assert_eq!(decode::<v1::ClientHello>(&mut buffer, 10), Ok(None));
    }

    #[test]
    fn the_longest_list_of_ids_is_within_the_limit() {
        let limits = Limits { max_ids_per_request: 1000, ..Limits::default() };
        let ids =
            vec![bytes::Bytes::from(vec![7; MAX_OBJECT_ID_BYTES]); limits.max_ids_per_request];
        let body = v1::request::Body::Wait(v1::request::Wait {
            ids,
            count: u64::MAX,
            timeout_ms: u64::MAX,
        });
        let request = v1::Request { call: u64::MAX, body: Some(body), trace: vec![7; 25].into() };
        assert!(request.encoded_len() <= max_request_bytes(&limits));
    }

    proptest! {
        #[test]
        fn messages_survive_any_split(
            programs in prop::collection::vec("[a-z]{0,40}", 0..8),
            chunk in 1_usize..20,
        ) {
            let mut wire = BytesMut::new();
            for program in &programs {
                encode(&hello(program), &mut wire).unwrap();
            }
            let mut buffer = BytesMut::new();
            let mut received = Vec::new();
            for part in wire.chunks(chunk) {
                buffer.extend_from_slice(part);
                while let Some(message) = decode::<v1::ClientHello>(&mut buffer, MAX_HELLO_BYTES).unwrap() {
                    received.push(message.program);
                }
            }
            prop_assert_eq!(received, programs);
            prop_assert!(buffer.is_empty());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = decode::<v1::Request>(&mut buffer, 200) {}
            prop_assert!(buffer.len() <= bytes.len());
        }
    }
}
