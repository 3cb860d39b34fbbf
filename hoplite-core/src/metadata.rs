//! What travels with an object besides its bytes: element type, shape, and a few bytes of the application's own.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::collective::Agreement;
use crate::error::{Error, MetadataError, Result};

/// Most dimensions of a shape: numpy's limit.
pub const MAX_DIMENSIONS: usize = 64;
/// Most bytes of application metadata.
pub const MAX_USER_METADATA_BYTES: usize = 4096;

macro_rules! dtypes {
    ($($variant:ident $name:literal $size:literal $doc:literal;)*) => {
        /// The element type of an object; [`Dtype::Opaque`] for plain bytes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub enum Dtype {
            /// Plain bytes: no elements are known, so no reduce is possible.
            #[default]
            Opaque,
            $(#[doc = $doc] $variant,)*
        }

        impl Dtype {
            /// All element types, in the order of their declaration.
            pub const ALL: &[Self] = &[Self::Opaque, $(Self::$variant,)*];

            /// Bytes per element; 1 for opaque bytes.
            pub const fn size_bytes(self) -> u64 {
                match self { Self::Opaque => 1, $(Self::$variant => $size,)* }
            }

            /// The name as it is written on the command line: `f32`, `bf16`, `opaque`.
            pub const fn name(self) -> &'static str {
                match self { Self::Opaque => "opaque", $(Self::$variant => $name,)* }
            }
        }
    };
}

dtypes! {
    F16 "f16" 2 "IEEE 754 half precision.";
    Bf16 "bf16" 2 "bfloat16: the upper half of an `f32`.";
    F32 "f32" 4 "IEEE 754 single precision.";
    F64 "f64" 8 "IEEE 754 double precision.";
    I8 "i8" 1 "Signed 8-bit integer.";
    I16 "i16" 2 "Signed 16-bit integer.";
    I32 "i32" 4 "Signed 32-bit integer.";
    I64 "i64" 8 "Signed 64-bit integer.";
    U8 "u8" 1 "Unsigned 8-bit integer.";
    U16 "u16" 2 "Unsigned 16-bit integer.";
    U32 "u32" 4 "Unsigned 32-bit integer.";
    U64 "u64" 8 "Unsigned 64-bit integer.";
    Bool "bool" 1 "A byte that is 0 or 1.";
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|dtype| dtype.name() == text)
            .ok_or_else(|| MetadataError::UnknownDtype { name: text.chars().take(32).collect() }.into())
    }
}

/// Typed metadata of an object: set by `Put`, the same for every copy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    /// The element type.
    pub dtype: Dtype,
    /// The shape, in elements, row-major; `None` for bytes without a shape, `Some([])` for a scalar.
    pub shape: Option<Vec<u64>>,
    /// Bytes of the application's own, at most 4 KiB, passed through unread.
    pub user: Bytes,
    /// What the participants of a collective have agreed to, if this is its target: set by the store that makes it.
    pub agreement: Option<Agreement>,
}

impl Metadata {
    /// Checks the limits, and that dtype, shape and size agree.
    ///
    /// # Errors
    /// [`Error::InvalidMetadata`], which says what disagrees.
    pub fn validate(&self, size_bytes: u64) -> Result<()> {
        if self.user.len() > MAX_USER_METADATA_BYTES {
            return Err(MetadataError::UserTooLong { length_bytes: self.user.len() }.into());
        }
        let item = self.dtype.size_bytes();
        match &self.shape {
            Some(shape) if shape.len() > MAX_DIMENSIONS => {
                Err(MetadataError::TooManyDimensions { dimensions: shape.len() }.into())
            }
            Some(shape) => {
                let total = shape.iter().try_fold(item, |product, extent| product.checked_mul(*extent));
                if total == Some(size_bytes) {
                    Ok(())
                } else {
                    Err(MetadataError::ShapeDisagrees { dtype: self.dtype, size_bytes }.into())
                }
            }
            None if !size_bytes.is_multiple_of(item) => {
                Err(MetadataError::ShapeDisagrees { dtype: self.dtype, size_bytes }.into())
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shaped(dtype: Dtype, shape: &[u64]) -> Metadata {
        Metadata { dtype, shape: Some(shape.to_vec()), ..Metadata::default() }
    }

    #[test]
    fn names_round_trip() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse::<Dtype>().unwrap(), *dtype);
        }
        assert!("float".parse::<Dtype>().is_err());
    }

    #[test]
    fn shape_must_agree_with_size() {
        assert!(shaped(Dtype::F32, &[2, 3]).validate(24).is_ok());
        assert!(shaped(Dtype::F32, &[2, 3]).validate(23).is_err());
        assert!(shaped(Dtype::F64, &[]).validate(8).is_ok());
        assert!(shaped(Dtype::F64, &[0, 9]).validate(0).is_ok());
        assert!(shaped(Dtype::U8, &[u64::MAX, 2]).validate(0).is_err());
        assert!(Metadata { dtype: Dtype::F32, ..Metadata::default() }.validate(6).is_err());
        assert!(Metadata::default().validate(6).is_ok());
    }
}
