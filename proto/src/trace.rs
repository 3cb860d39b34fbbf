//! To which trace a message belongs: the field `trace` of requests and messages.

use bytes::Bytes;
use hoplite_core::TraceContext;

/// The wire form; of no trace, nothing.
pub fn encode(trace: Option<TraceContext>) -> Bytes {
    trace.map_or_else(Bytes::new, |trace| Bytes::copy_from_slice(&trace.to_bytes()))
}

/// What the field says; `None` for anything but a trace.
pub fn decode(bytes: &[u8]) -> Option<TraceContext> {
    TraceContext::from_bytes(bytes)
}
