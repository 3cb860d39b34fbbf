use std::ops::{Add, Mul};

/// Number of `N` bytes with the operations of a reduce; `self` is the left operand.
pub(super) trait Element<const N: usize>: Sized {
    fn load(bytes: [u8; N]) -> Self;
    fn store(self) -> [u8; N];
    fn sum(self, other: Self) -> Self;
    fn minimum(self, other: Self) -> Self;
    fn maximum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

macro_rules! element {
    ($type:ident, $size:literal, $sum:path, $minimum:path, $maximum:path, $product:path) => {
        impl Element<$size> for $type {
            #[inline(always)]
            fn load(bytes: [u8; $size]) -> Self {
                Self::from_le_bytes(bytes)
            }

            #[inline(always)]
            fn store(self) -> [u8; $size] {
                self.to_le_bytes()
            }

            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                $sum(self, other)
            }

            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                $minimum(self, other)
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                $maximum(self, other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                $product(self, other)
            }
        }
    };
}

macro_rules! integers {
    ($($type:ident $size:literal;)*) => {
        $(element!($type, $size, $type::wrapping_add, Ord::min, Ord::max, $type::wrapping_mul);)*
    };
}

integers! {
    i8 1; i16 2; i32 4; i64 8;
    u8 1; u16 2; u32 4; u64 8;
}

macro_rules! floats {
    ($($type:ident $size:literal $minimum:ident $maximum:ident;)*) => {
        $(
            element!($type, $size, Add::add, $minimum, $maximum, Mul::mul);

            #[inline(always)]
            fn $minimum(a: $type, b: $type) -> $type {
                // The comparisons differ only for two zeros, and OR keeps the sign of either.
                let (left, right) = (if a < b { a } else { b }, if b < a { b } else { a });
                let least = $type::from_bits(left.to_bits() | right.to_bits());
                if a.is_nan() || b.is_nan() { $type::NAN } else { least }
            }

            #[inline(always)]
            fn $maximum(a: $type, b: $type) -> $type {
                let (left, right) = (if a > b { a } else { b }, if b > a { b } else { a });
                let greatest = $type::from_bits(left.to_bits() & right.to_bits());
                if a.is_nan() || b.is_nan() { $type::NAN } else { greatest }
            }
        )*
    };
}

floats! {
    f32 4 minimum_f32 maximum_f32;
    f64 8 minimum_f64 maximum_f64;
}
