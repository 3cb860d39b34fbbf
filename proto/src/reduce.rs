use hoplite_core::collective::Agreement;
use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::node::ReduceOrder;
use hoplite_core::plan::collective::Collective;
use hoplite_core::reduce::ReduceOp;

use crate::v1;

pub(crate) fn encode_op(op: ReduceOp) -> i32 {
    let wire = match op {
        ReduceOp::Sum => v1::ReduceOp::Sum,
        ReduceOp::Min => v1::ReduceOp::Min,
        ReduceOp::Max => v1::ReduceOp::Max,
        ReduceOp::Prod => v1::ReduceOp::Prod,
    };
    wire.into()
}

pub(crate) fn encode_agreement(agreement: &Agreement) -> v1::Agreement {
    v1::Agreement {
        op: encode_op(agreement.op),
        is_ordered: agreement.order == ReduceOrder::Fixed,
        participants: agreement.participants,
        sources: agreement.sources,
        collective: encode_kind(agreement.kind),
    }
}

pub(crate) fn encode_kind(kind: Collective) -> i32 {
    let wire = match kind {
        Collective::Allreduce => v1::Collective::Allreduce,
        Collective::ReduceScatter => v1::Collective::ReduceScatter,
        Collective::Allgather => v1::Collective::Allgather,
        Collective::AllToAll => v1::Collective::AllToAll,
    };
    wire.into()
}

pub(crate) fn decode_kind(number: i32, plane: Plane) -> Result<Collective> {
    match v1::Collective::try_from(number) {
        Ok(v1::Collective::Allreduce) => Ok(Collective::Allreduce),
        Ok(v1::Collective::ReduceScatter) => Ok(Collective::ReduceScatter),
        Ok(v1::Collective::Allgather) => Ok(Collective::Allgather),
        Ok(v1::Collective::AllToAll) => Ok(Collective::AllToAll),
        Ok(v1::Collective::Unspecified) | Err(_) => {
            Err(Error::malformed(plane, "unknown collective"))
        }
    }
}

pub(crate) fn decode_agreement(
    agreement: Option<v1::Agreement>,
    plane: Plane,
) -> Result<Agreement> {
    let agreement =
        agreement.ok_or(Error::malformed(plane, "a collective without an agreement"))?;
    Ok(Agreement {
        kind: decode_kind(agreement.collective, plane)?,
        op: decode_op(agreement.op, plane)?,
        order: if agreement.is_ordered { ReduceOrder::Fixed } else { ReduceOrder::Any },
        participants: agreement.participants,
        sources: agreement.sources,
    })
}

pub(crate) fn decode_op(number: i32, plane: Plane) -> Result<ReduceOp> {
    let known = ReduceOp::ALL.iter().copied().find(|op| encode_op(*op) == number);
    known.ok_or(Error::malformed(plane, "unknown operation of a reduce"))
}
