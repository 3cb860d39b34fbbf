//! Operations of reduces.

use std::fmt;
use std::str::FromStr;

use crate::vocabulary::dtype::Dtype;
use crate::vocabulary::error::{Error, Result};

/// A commutative, associative operation on two elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum ReduceOp {
    /// The sum. Integers wrap around.
    #[default]
    Sum,
    /// The smaller element; NaN if either is NaN.
    Min,
    /// The larger element; NaN if either is NaN.
    Max,
    /// The product. Integers wrap around.
    Prod,
}

impl ReduceOp {
    /// All operations.
    pub const ALL: &[Self] = &[Self::Sum, Self::Min, Self::Max, Self::Prod];

    /// Operation's name in the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::Prod => "prod",
        }
    }

    /// Returns `true` if the operation is defined for this type.
    pub const fn is_defined_for(self, dtype: Dtype) -> bool {
        match dtype {
            Dtype::Opaque => false,
            Dtype::Bool => matches!(self, Self::Min | Self::Max),
            _ => true,
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let named = Self::ALL.iter().copied().find(|op| op.name() == text);
        named.ok_or(Error::invalid_request("the operations of a reduce are sum, min, max and prod"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for op in ReduceOp::ALL {
            assert_eq!(op.name().parse::<ReduceOp>().unwrap(), *op);
        }
        assert!("mean".parse::<ReduceOp>().is_err());
    }
}
