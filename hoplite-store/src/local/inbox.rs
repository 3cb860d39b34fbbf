use bytes::BytesMut;
use hoplite_proto::framing;

/// The read buffer's initial size. A longer request counts against the user's memory limit.
pub(super) const READ_BYTES: usize = 64 << 10;
pub(super) const MIN_READ_BYTES: usize = 4 << 10;

pub(super) fn has_request(inbox: &[u8]) -> bool {
    framing::announced_bytes(inbox).is_some_and(|length| length <= inbox.len())
}

pub(super) fn usual(inbox: &BytesMut) -> BytesMut {
    let mut usual = BytesMut::with_capacity(READ_BYTES.max(inbox.len()));
    usual.extend_from_slice(inbox);
    usual
}

/// Grows the buffer with the arrived bytes, up to one message of `length` bytes.
pub(super) fn make_room(inbox: &mut BytesMut, length: Option<usize>) {
    let rest = length.map_or(0, |length| length.saturating_sub(inbox.len()));
    if inbox.capacity() - inbox.len() < MIN_READ_BYTES {
        inbox.reserve(rest.min(inbox.len()).max(MIN_READ_BYTES));
    }
}
