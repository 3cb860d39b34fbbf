//! The operations of a reduce, and the kernels that perform them on bytes.

mod kernel;
mod op;

pub use kernel::combine;
pub use op::ReduceOp;
