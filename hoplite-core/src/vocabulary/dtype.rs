//! Types of the elements of objects.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

macro_rules! dtypes {
    ($($variant:ident $name:literal $numpy:literal $size:literal $doc:literal;)*) => {
        /// Element type of an object.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub enum Dtype {
            /// Plain bytes without elements, which cannot be reduced.
            #[default]
            Opaque,
            $(#[doc = $doc] $variant,)*
        }

        impl Dtype {
            /// All element types.
            pub const ALL: &[Self] = &[Self::Opaque, $(Self::$variant,)*];

            /// Bytes per element; 1 for opaque bytes.
            pub const fn size_bytes(self) -> u64 {
                match self { Self::Opaque => 1, $(Self::$variant => $size,)* }
            }

            /// Command line's name: `f32`, `bf16`, `opaque`.
            pub const fn name(self) -> &'static str {
                match self { Self::Opaque => "opaque", $(Self::$variant => $name,)* }
            }

            /// Name in numpy and torch, such as `float32`; `None` for opaque bytes.
            pub const fn numpy_name(self) -> Option<&'static str> {
                match self { Self::Opaque => None, $(Self::$variant => Some($numpy),)* }
            }
        }
    };
}

dtypes! {
    F16 "f16" "float16" 2 "IEEE 754 half precision.";
    Bf16 "bf16" "bfloat16" 2 "bfloat16: the upper half of an `f32`.";
    F32 "f32" "float32" 4 "IEEE 754 single precision.";
    F64 "f64" "float64" 8 "IEEE 754 double precision.";
    I8 "i8" "int8" 1 "Signed 8-bit integer.";
    I16 "i16" "int16" 2 "Signed 16-bit integer.";
    I32 "i32" "int32" 4 "Signed 32-bit integer.";
    I64 "i64" "int64" 8 "Signed 64-bit integer.";
    U8 "u8" "uint8" 1 "Unsigned 8-bit integer.";
    U16 "u16" "uint16" 2 "Unsigned 16-bit integer.";
    U32 "u32" "uint32" 4 "Unsigned 32-bit integer.";
    U64 "u64" "uint64" 8 "Unsigned 64-bit integer.";
    Bool "bool" "bool" 1 "A byte that is 0 or 1.";
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Parses a name of Hoplite (`f32`) or numpy (`float32`).
impl FromStr for Dtype {
    type Err = MetadataError;

    fn from_str(text: &str) -> Result<Self, MetadataError> {
        Self::ALL
            .iter()
            .copied()
            .find(|dtype| dtype.name() == text || dtype.numpy_name() == Some(text))
            .ok_or_else(|| MetadataError::UnknownDtype { name: text.chars().take(32).collect() })
    }
}

/// Reason why metadata is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// No element type has this name.
    #[error("unknown dtype {name:?}")]
    UnknownDtype {
        /// Unknown name, cut to 32 characters.
        name: String,
    },
    /// The shape has too many dimensions.
    #[error("a shape has at most 64 dimensions, this one has {dimensions}")]
    TooManyDimensions {
        /// Number of dimensions.
        dimensions: usize,
    },
    /// Elements times element size differs from the object's size.
    #[error("dtype {dtype} and the shape do not make {size_bytes} bytes")]
    ShapeDisagrees {
        /// Element type.
        dtype: Dtype,
        /// Object's size.
        size_bytes: u64,
    },
    /// A peer rejected the metadata.
    #[error("{reason}")]
    Reported {
        /// Peer's explanation, cut to the protocol's limit.
        reason: Cow<'static, str>,
    },
    /// The application's metadata is too long.
    #[error("application metadata is at most 4096 bytes, this is {length_bytes}")]
    UserTooLong {
        /// Length in bytes.
        length_bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse::<Dtype>().unwrap(), *dtype);
            if let Some(name) = dtype.numpy_name() {
                assert_eq!(name.parse::<Dtype>().unwrap(), *dtype);
            }
        }
        assert!("float".parse::<Dtype>().is_err());
    }
}
