//! The operations of a reduce, and the kernels that perform them on bytes.

mod kernel;

pub use crate::vocabulary::op::ReduceOp;
pub use kernel::combine;
