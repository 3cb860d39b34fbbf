//! A store's problems on the wire.

use std::time::Duration;

use hoplite_core::error::{Error, Plane};
use hoplite_core::node::LongWait;

use crate::{error, v1};

/// Encodes a long wait.
pub fn encode_wait(wait: &LongWait) -> v1::LongWait {
    v1::LongWait {
        operation: u32::try_from(error::encode_operation(wait.operation)).unwrap_or_default(),
        waited_us: u64::try_from(wait.waited.as_micros()).unwrap_or(u64::MAX),
        missing: wait.missing.as_ref().map(error::encode_missing),
    }
}

/// Decodes a long wait; `None` for an unknown operation.
pub fn decode_wait(wait: v1::LongWait) -> Option<LongWait> {
    Some(LongWait {
        operation: error::decode_operation(wait.operation.into())?,
        waited: Duration::from_micros(wait.waited_us),
        missing: wait.missing.and_then(|missing| error::decode_missing(missing, Plane::Local)),
    })
}

/// Encodes a peer's failure, which began `since` ago.
pub fn encode_fault(name: &str, error: &Error, since: Duration) -> v1::PeerFault {
    v1::PeerFault {
        name: name.to_owned(),
        error: Some(error::encode(error)),
        since_us: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
    }
}

/// Decodes a peer's failure: name, error and age; `None` if incomplete.
pub fn decode_fault(fault: v1::PeerFault) -> Option<(String, Error, Duration)> {
    let name = error::shown(&fault.name);
    let error = error::decode(fault.error?, Plane::Local);
    // Decoding swaps the two sides of a mismatch; a second round swaps them back.
    let error = error::decode(error::encode(&error), Plane::Local);
    Some((name, error, Duration::from_micros(fault.since_us)))
}
