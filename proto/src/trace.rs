//! The traces of messages.

use bytes::Bytes;
use hoplite_core::TraceContext;

/// No trace is empty.
pub fn encode(trace: Option<TraceContext>) -> Bytes {
    trace.map_or_else(Bytes::new, |trace| Bytes::copy_from_slice(&trace.to_bytes()))
}

/// `None` for any other value.
pub fn decode(bytes: &[u8]) -> Option<TraceContext> {
    TraceContext::from_bytes(bytes)
}
