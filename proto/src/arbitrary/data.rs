use hoplite_core::collective::{Agreement, AttemptId, Failure, Member, Plan, Report};
use hoplite_core::dtype::Dtype;
use hoplite_core::error::Error;
use hoplite_core::id::ObjectId;
use hoplite_core::metadata::Metadata;
use hoplite_core::node::{Hop, HopFailure, HopInput};
use hoplite_core::plan::collective::Schedule;
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::PullOutcome;
use proptest::prelude::*;
use proptest::sample::select;

use super::directory::pull_outcome;
use super::errors::error;
use super::{address, dtype, id, kind, node, put, reduce, text, timeout};
use crate::data::Pull;

pub(crate) fn pull() -> impl Strategy<Value = Pull> {
    (id(), put(), any::<[u64; 3]>(), any::<bool>()).prop_map(
        |(id, put, mut positions, awaits_hop)| {
            positions.sort_unstable();
            let [start, end, size_bytes] = positions;
            Pull { id, put, size_bytes, range: start..end, awaits_hop }
        },
    )
}

pub(crate) fn hop() -> impl Strategy<Value = Hop> {
    let kinds = select(ReduceOp::ALL.to_vec()).prop_flat_map(|op| {
        (Just(op), dtype().prop_filter("defined", move |dtype| op.is_defined_for(*dtype)))
    });
    let input = (id(), put(), 0_u64..1 << 40, 0_u64..1 << 40, (node(), address(), any::<bool>()))
        .prop_map(|(id, put, size_bytes, base_bytes, (node, address, is_hop))| HopInput {
            id,
            put,
            size_bytes,
            base_bytes,
            node,
            address,
            is_hop,
        });
    let inputs = prop::collection::vec(input, 1..8);
    (put(), kinds, (0_u64..1 << 40, any::<prop::sample::Index>()), inputs, timeout()).prop_map(
        |(put, (op, dtype), (elements, offset), mut inputs, timeout)| {
            let output = ObjectId::of_hop(put);
            let item = dtype.size_bytes();
            for input in &mut inputs {
                // At this point, `size_bytes` counts only the elements after the range.
                input.size_bytes = (input.base_bytes + elements + input.size_bytes) * item;
                input.base_bytes *= item;
            }
            let offset_bytes = offset.index(usize::try_from(elements).unwrap() + 1) as u64 * item;
            Hop {
                output,
                put,
                op,
                dtype,
                size_bytes: elements * item,
                offset_bytes,
                inputs,
                timeout,
            }
        },
    )
}

pub(crate) fn hop_failure(inputs: usize) -> impl Strategy<Value = HopFailure> {
    prop_oneof![
        (
            0..inputs,
            pull_outcome().prop_filter("a failure", |outcome| *outcome != PullOutcome::Complete)
        )
            .prop_map(|(index, outcome)| HopFailure::Input { index, outcome }),
        error().prop_map(HopFailure::Refused),
    ]
}

pub(crate) fn plan() -> impl Strategy<Value = Plan> {
    let members = prop::collection::vec((node(), address(), 1_usize..4), 2..12);
    let what = (select(vec![Dtype::F32, Dtype::U8, Dtype::F64]), 0_u64..100_000, 1_u64..1000);
    let (index, explanation) = (any::<prop::sample::Index>(), text(".{0,40}"));
    (
        kind(),
        reduce(),
        put(),
        members,
        prop::collection::vec((id(), put()), 3),
        what,
        index,
        explanation,
    )
        .prop_map(
            |(
                kind,
                reduce,
                put,
                members,
                sources,
                (dtype, elements, frame),
                index,
                explanation,
            )| {
                let index = index.index(members.len());
                let mut next = 0;
                let mut of_member = |count: &usize| {
                    next += count;
                    (next - count..next).rev().collect::<Vec<usize>>()
                };
                let all: Vec<Vec<usize>> =
                    members.iter().map(|(.., count)| of_member(count)).collect();
                let sources = sources[..members[index].2].to_vec();
                let members =
                    members.into_iter().map(|(node, address, _)| Member { node, address });
                let members: Vec<Member> = members.collect();
                let mut agreement = Agreement::of(kind, &reduce);
                agreement.participants = next.try_into().unwrap();
                let (run, number) = (put.0.rotate_left(32), put.0 >> 40);
                Plan {
                    attempt: AttemptId { run, number },
                    put,
                    agreement,
                    target: reduce.target,
                    size_bytes: elements * next as u64 * dtype.size_bytes(),
                    metadata: Metadata { dtype, ..Metadata::default() },
                    schedule: Schedule::ring(members.len()),
                    frame_bytes: frame * dtype.size_bytes(),
                    index,
                    ranks: if kind.properties().makes_target { Vec::new() } else { all },
                    members,
                    sources,
                    timeout: reduce.timeout,
                    explanation,
                }
            },
        )
}

pub(crate) fn member_report(members: usize) -> impl Strategy<Value = Report> {
    let failure = hop_failure(members).prop_map(|failure| match failure {
        HopFailure::Unreachable => Failure::Refused(Error::ShuttingDown),
        HopFailure::Input { index, outcome } => Failure::Peer { index, outcome },
        HopFailure::Refused(error) => Failure::Disagrees(error),
    });
    prop_oneof![Just(Report::Done), failure.prop_map(Report::Failed)]
}
