//! Trace contexts name the span that caused a message.

use bytes::Bytes;
use hoplite_core::TraceContext;

/// Encodes a trace context; empty without one.
pub fn encode(trace: Option<TraceContext>) -> Bytes {
    trace.map_or_else(Bytes::new, |trace| Bytes::copy_from_slice(&trace.to_bytes()))
}

/// Decodes a trace context; `None` for an invalid or empty value.
pub fn decode(bytes: &[u8]) -> Option<TraceContext> {
    TraceContext::from_bytes(bytes)
}
