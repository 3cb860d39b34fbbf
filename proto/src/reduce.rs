//! Operations of a reduce on the wire: clients ask for them on the local plane, coordinators on the data plane.

use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::reduce::ReduceOp;

use crate::v1;

/// The number of `op` in `common.proto`.
pub(crate) fn encode_op(op: ReduceOp) -> i32 {
    let wire = match op {
        ReduceOp::Sum => v1::ReduceOp::Sum,
        ReduceOp::Min => v1::ReduceOp::Min,
        ReduceOp::Max => v1::ReduceOp::Max,
        ReduceOp::Prod => v1::ReduceOp::Prod,
    };
    wire.into()
}

/// The operation with this number.
pub(crate) fn decode_op(number: i32, plane: Plane) -> Result<ReduceOp> {
    let known = ReduceOp::ALL.iter().copied().find(|op| encode_op(*op) == number);
    known.ok_or(Error::malformed(plane, "unknown operation of a reduce"))
}
