//! Data plane: requests between stores, and outcomes of hops.

mod collective;
pub mod drain;
pub mod frame;
pub mod lanes;
pub mod probe;

pub use collective::{
    Take, decode_known, decode_plan, decode_position, decode_reject, decode_report, decode_stop,
    decode_take, encode_known, encode_plan, encode_position, encode_record, encode_reject,
    encode_report, encode_stop, encode_take,
};

use std::ops::Range;

use hoplite_core::dtype::Dtype;
use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::node::{Hop, HopFailure, HopInput, MAX_HOP_INPUTS};
use hoplite_core::shard::PullOutcome;

use crate::bounds::{check_count, decode_address, decode_timeout, encode_id, encode_timeout};
use crate::directory::{decode_pull_outcome, encode_pull_outcome};
use crate::metadata::{decode_dtype, encode_dtype};
use crate::reduce::{decode_op, encode_op};
use crate::v1::end::Outcome;
use crate::{error, v1};

/// Request to send bytes of a copy as they become valid.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Pull {
    /// The object.
    pub id: ObjectId,
    /// Put that made the object.
    pub put: PutId,
    pub size_bytes: u64,
    /// Requested bytes.
    pub range: Range<u64>,
    /// `true` if the object is the output of a reduce step, which may not have begun.
    pub awaits_hop: bool,
}

/// Encodes `pull`.
pub fn encode_pull(pull: &Pull) -> v1::Pull {
    v1::Pull {
        id: encode_id(&pull.id),
        put: pull.put.0,
        size_bytes: pull.size_bytes,
        offset_bytes: pull.range.start,
        end_bytes: Some(pull.range.end).filter(|end| *end != pull.size_bytes),
        awaits_hop: pull.awaits_hop,
        ..Default::default()
    }
}

/// Decodes a pull and checks that its range lies in the object.
pub fn decode_pull(pull: v1::Pull) -> Result<Pull> {
    let end_bytes = pull.end_bytes.unwrap_or(pull.size_bytes);
    if pull.offset_bytes > end_bytes || end_bytes > pull.size_bytes {
        return Err(malformed("a range outside the object"));
    }
    Ok(Pull {
        id: ObjectId::new(&pull.id)?,
        put: PutId(pull.put),
        size_bytes: pull.size_bytes,
        range: pull.offset_bytes..end_bytes,
        awaits_hop: pull.awaits_hop,
    })
}

/// Encodes `hop`.
pub fn encode_hop(hop: &Hop) -> v1::Combine {
    v1::Combine {
        output: encode_id(&hop.output),
        put: hop.put.0,
        op: encode_op(hop.op),
        dtype: encode_dtype(hop.dtype),
        size_bytes: hop.size_bytes,
        offset_bytes: hop.offset_bytes,
        inputs: hop.inputs.iter().map(encode_input).collect(),
        timeout_ms: encode_timeout(hop.timeout),
        ..Default::default()
    }
}

/// Decodes a hop. Checks the operation, and that ranges are whole elements inside their objects.
pub fn decode_hop(combine: v1::Combine) -> Result<Hop> {
    check_count("inputs of a hop", combine.inputs.len(), MAX_HOP_INPUTS)?;
    if combine.inputs.is_empty() {
        return Err(malformed("a hop without inputs"));
    }
    let op = decode_op(combine.op, Plane::Data)?;
    let dtype = decode_dtype(combine.dtype).ok_or(malformed("unknown element type"))?;
    if !op.is_defined_for(dtype) {
        return Err(malformed("an operation that is undefined for the element type"));
    }
    let (size_bytes, offset_bytes) = (combine.size_bytes, combine.offset_bytes);
    check_aligned(dtype, [size_bytes, offset_bytes])?;
    if offset_bytes > size_bytes {
        return Err(malformed("a hop that begins after its end"));
    }
    let put = PutId(combine.put);
    let output = ObjectId::new(&combine.output)?;
    if output != ObjectId::of_hop(put) {
        // Otherwise, the hop's output could replace a named object.
        return Err(malformed("the output of a hop with a name that is not private"));
    }
    let inputs = combine.inputs.into_iter().map(|input| decode_input(input, size_bytes, dtype));
    Ok(Hop {
        output,
        put,
        op,
        dtype,
        size_bytes,
        offset_bytes,
        inputs: inputs.collect::<Result<_>>()?,
        timeout: decode_timeout(combine.timeout_ms),
    })
}

fn encode_input(input: &HopInput) -> v1::HopInput {
    v1::HopInput {
        id: encode_id(&input.id),
        put: input.put.0,
        size_bytes: input.size_bytes,
        base_bytes: input.base_bytes,
        node: input.node.as_str().to_owned(),
        address: input.address.to_string(),
        is_hop: input.is_hop,
    }
}

fn decode_input(input: v1::HopInput, range_bytes: u64, dtype: Dtype) -> Result<HopInput> {
    check_aligned(dtype, [input.base_bytes, input.size_bytes])?;
    let end_bytes = input.base_bytes.checked_add(range_bytes);
    if end_bytes.is_none_or(|end_bytes| end_bytes > input.size_bytes) {
        return Err(malformed("an input that is shorter than the output"));
    }
    Ok(HopInput {
        id: ObjectId::new(&input.id)?,
        put: PutId(input.put),
        size_bytes: input.size_bytes,
        base_bytes: input.base_bytes,
        node: NodeId::new(&input.node)?,
        address: decode_address(&input.address, Plane::Data)?,
        is_hop: input.is_hop,
    })
}

fn check_aligned(dtype: Dtype, positions: [u64; 2]) -> Result<()> {
    if positions.iter().all(|position| position.is_multiple_of(dtype.size_bytes())) {
        Ok(())
    } else {
        Err(malformed("a position inside an element"))
    }
}

/// Encodes a hop's failure.
pub fn encode_hop_failure(failure: &HopFailure) -> v1::End {
    let refused = |reason: &Error| v1::End {
        outcome: Outcome::Refused.into(),
        error: Some(error::encode(reason)),
        ..Default::default()
    };
    match failure {
        HopFailure::Input { index, outcome } => v1::End {
            outcome: Outcome::InputFailed.into(),
            failed_input: Some(v1::FailedInput {
                index: u32::try_from(*index).unwrap_or(u32::MAX),
                outcome: encode_pull_outcome(*outcome),
            }),
            ..Default::default()
        },
        HopFailure::Refused(reason) => refused(reason),
        // A performing store never reports itself unreachable.
        HopFailure::Unreachable => refused(&Error::unavailable("the store")),
    }
}

/// Decodes the failure of a hop with `inputs` inputs.
pub fn decode_hop_failure(end: v1::End, inputs: usize) -> Result<HopFailure> {
    match (end.outcome(), end.error, end.failed_input) {
        (Outcome::Refused, Some(reason), _) => {
            Ok(HopFailure::Refused(error::decode(reason, Plane::Data)))
        }
        (Outcome::InputFailed, _, Some(failed)) => {
            let (index, outcome) = decode_failed_input(&failed, inputs)?;
            Ok(HopFailure::Input { index, outcome })
        }
        _ => Err(malformed("an end without the outcome of the hop")),
    }
}

fn decode_failed_input(failed: &v1::FailedInput, inputs: usize) -> Result<(usize, PullOutcome)> {
    let index = usize::try_from(failed.index).ok().filter(|index| *index < inputs);
    let index = index.ok_or(malformed("an input index out of range"))?;
    match decode_pull_outcome(failed.outcome, Plane::Data)? {
        PullOutcome::Complete => Err(malformed("a failure of an input that is complete")),
        outcome => Ok((index, outcome)),
    }
}

const fn malformed(reason: &'static str) -> Error {
    Error::malformed(Plane::Data, reason)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::arbitrary;

    proptest! {
        #[test]
        fn pulls_round_trip(pull in arbitrary::pull()) {
            prop_assert_eq!(decode_pull(encode_pull(&pull)), Ok(pull));
        }

        #[test]
        fn hops_round_trip(hop in arbitrary::hop()) {
            prop_assert_eq!(decode_hop(encode_hop(&hop)), Ok(hop));
        }

        #[test]
        fn failures_of_hops_round_trip(failure in arbitrary::hop_failure(MAX_HOP_INPUTS)) {
            let end = encode_hop_failure(&failure);
            prop_assert_eq!(decode_hop_failure(end, MAX_HOP_INPUTS), Ok(failure));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = v1::Pull::decode(&bytes[..]).map(decode_pull);
            let _ = v1::Combine::decode(&bytes[..]).map(decode_hop);
            let _ = v1::End::decode(&bytes[..]).map(|end| decode_hop_failure(end, 2));
        }
    }

    #[test]
    fn ranges_lie_in_their_objects() {
        let decoded = |offset_bytes, end_bytes| {
            let id = b"x".as_slice().into();
            decode_pull(v1::Pull {
                id,
                size_bytes: 10,
                offset_bytes,
                end_bytes,
                ..Default::default()
            })
            .map(|pull| pull.range)
        };
        assert_eq!(decoded(0, None), Ok(0..10));
        assert_eq!(decoded(10, None), Ok(10..10));
        assert_eq!(decoded(0, Some(0)), Ok(0..0));
        assert_eq!(decoded(3, Some(10)), Ok(3..10));
        for (offset_bytes, end_bytes) in
            [(11, None), (4, Some(3)), (0, Some(11)), (u64::MAX, Some(u64::MAX))]
        {
            assert!(decoded(offset_bytes, end_bytes).is_err());
        }
    }

    fn combine() -> v1::Combine {
        let input = v1::HopInput {
            id: b"x".as_slice().into(),
            size_bytes: 16,
            base_bytes: 8,
            node: "n".to_owned(),
            address: "10.0.0.1:7402".to_owned(),
            ..Default::default()
        };
        v1::Combine {
            output: ObjectId::of_hop(PutId(0)).as_bytes().to_vec().into(),
            op: v1::ReduceOp::Sum.into(),
            dtype: v1::Dtype::F32.into(),
            size_bytes: 8,
            offset_bytes: 4,
            inputs: vec![input; MAX_HOP_INPUTS],
            timeout_ms: u64::MAX,
            ..Default::default()
        }
    }

    #[test]
    fn hops_are_checked() {
        let refused = |change: fn(&mut v1::Combine)| {
            let mut combine = combine();
            change(&mut combine);
            decode_hop(combine).is_err()
        };
        assert!(!refused(|_| {}));
        assert!(!refused(|combine| combine.offset_bytes = 8));
        assert!(refused(|combine| combine.output.clear()));
        assert!(refused(|combine| combine.output = b"model".as_slice().into()));
        assert!(refused(|combine| combine.put = 1));
        assert!(refused(|combine| combine.op = 0));
        assert!(refused(|combine| combine.op = 99));
        assert!(refused(|combine| combine.dtype = 99));
        assert!(refused(|combine| combine.dtype = v1::Dtype::Opaque.into()));
        assert!(refused(|combine| combine.dtype = v1::Dtype::Bool.into()));
        assert!(refused(|combine| combine.size_bytes = 6));
        assert!(refused(|combine| combine.offset_bytes = 6));
        assert!(refused(|combine| combine.offset_bytes = 12));
        assert!(refused(|combine| combine.size_bytes = 12));
        assert!(refused(|combine| combine.size_bytes = u64::MAX - 3));
        assert!(refused(|combine| combine.inputs.clear()));
        assert!(refused(|combine| combine.inputs.push(combine.inputs[0].clone())));
        assert!(refused(|combine| combine.inputs[63].id = vec![7; 256].into()));
        assert!(refused(|combine| combine.inputs[63].base_bytes = 6));
        assert!(refused(|combine| combine.inputs[63].base_bytes = u64::MAX - 7));
        assert!(refused(|combine| combine.inputs[63].size_bytes = 12));
        assert!(refused(|combine| combine.inputs[63].size_bytes = 18));
        assert!(refused(|combine| combine.inputs[63].node = "a b".to_owned()));
        assert!(refused(|combine| combine.inputs[63].address = "10.0.0.1:0".to_owned()));
    }

    #[test]
    fn a_hop_with_the_longest_names_fits_in_a_frame() {
        let mut combine = combine();
        combine.output = vec![7; 255].into();
        combine.trace = vec![7; 25].into();
        for input in &mut combine.inputs {
            input.id = vec![7; 255].into();
            (input.put, input.size_bytes, input.base_bytes) = (u64::MAX, u64::MAX, u64::MAX);
            input.node = "n".repeat(63);
            input.address = "1".repeat(64);
            input.is_hop = true;
        }
        assert!(combine.encoded_len() <= frame::MAX_CONTROL_BYTES as usize);
    }

    #[test]
    fn only_failures_of_its_inputs_are_failures_of_a_hop() {
        let input = |index, outcome: v1::PullOutcome| v1::End {
            outcome: Outcome::InputFailed.into(),
            failed_input: Some(v1::FailedInput { index, outcome: outcome.into() }),
            ..Default::default()
        };
        let expected = HopFailure::Input { index: 1, outcome: PullOutcome::Corrupt };
        assert_eq!(decode_hop_failure(input(1, v1::PullOutcome::Corrupt), 2), Ok(expected));
        let without_reason = v1::End { outcome: Outcome::Refused.into(), ..Default::default() };
        let released = v1::End { outcome: Outcome::Released.into(), ..Default::default() };
        for end in [
            input(2, v1::PullOutcome::Corrupt),
            input(0, v1::PullOutcome::Complete),
            input(0, v1::PullOutcome::Unspecified),
            v1::End { failed_input: None, ..input(0, v1::PullOutcome::Corrupt) },
            without_reason,
            released,
            v1::End::default(),
        ] {
            assert!(decode_hop_failure(end, 2).is_err());
        }
    }
}
