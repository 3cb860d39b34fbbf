//! Messages by which a store drains another store.

use std::time::Duration;

use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::node::DrainReport;

use crate::bounds::{decode_timeout, encode_timeout};
use crate::local::{decode_drain, encode_drain};
use crate::v1;

/// Protocol version that brought these messages.
pub const DRAIN_STORE_SINCE: u32 = 9;
/// Most objects that an answer, which must fit into a frame, names as left.
const MAX_ANSWERED_UNMOVED: usize = 200;

/// Encodes the request to drain a store or, without a timeout, to report its progress.
pub fn encode_drain_store(timeout: Option<Duration>) -> v1::DrainStore {
    v1::DrainStore { timeout_ms: timeout.map(encode_timeout) }
}

/// Returns the timeout of a drain; `None` if the request is for the progress.
pub fn decode_drain_store(request: &v1::DrainStore) -> Option<Duration> {
    request.timeout_ms.map(decode_timeout)
}

/// Encodes a drain's report with its first unmoved objects.
pub fn encode_drain_answer(mut report: DrainReport) -> v1::DrainAnswer {
    report.unmoved.truncate(MAX_ANSWERED_UNMOVED);
    v1::DrainAnswer { report: Some(encode_drain(report)) }
}

/// Decodes a drain's report.
pub fn decode_drain_answer(answer: v1::DrainAnswer) -> Result<DrainReport> {
    decode_drain(answer.report.ok_or(Error::malformed(Plane::Data, "an answer without a report"))?)
}

#[cfg(test)]
mod tests {
    use hoplite_core::id::{MAX_OBJECT_ID_BYTES, ObjectId};
    use hoplite_core::node::{MAX_UNMOVED, Unmoved};
    use prost::Message;

    use super::*;
    use crate::data::frame::MAX_CONTROL_BYTES;

    #[test]
    fn the_longest_report_fits_into_a_frame() {
        let id = ObjectId::new(vec![7; MAX_OBJECT_ID_BYTES]).unwrap();
        let object = Unmoved { id, size_bytes: u64::MAX, obstacle: None };
        let report = DrainReport {
            moved_bytes: u64::MAX,
            left_bytes: u64::MAX,
            unmoved: vec![object; MAX_UNMOVED],
            ..DrainReport::default()
        };
        let answer = encode_drain_answer(report.clone());
        assert!(answer.encoded_len() <= MAX_CONTROL_BYTES as usize, "{}", answer.encoded_len());
        let decoded = decode_drain_answer(answer).unwrap();
        assert_eq!((decoded.left_bytes, decoded.unmoved.len()), (u64::MAX, MAX_ANSWERED_UNMOVED));
        assert!(decode_drain_answer(v1::DrainAnswer { report: None }).is_err());
        for timeout in [None, Some(Duration::from_secs(7))] {
            assert_eq!(decode_drain_store(&encode_drain_store(timeout)), timeout);
        }
    }
}
