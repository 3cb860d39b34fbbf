//! The operations of a reduce on bytes.

mod kernel;

pub use crate::vocabulary::op::ReduceOp;
pub use kernel::combine;
