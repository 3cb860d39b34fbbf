//! Kernels: an operation on the bytes of two objects.
//!
//! Elements are little-endian, and need not be aligned. `multiversion` compiles each kernel for
//! every x86-64 processor and for AVX2, picks one at run time, and contains the unsafe code for
//! this.
//!
//! The operations match numpy's `add`, `minimum`, `maximum` and `multiply`:
//!
//! * Integers wrap around.
//! * Floats follow IEEE 754, with subnormal numbers, ties to even. Minimum and maximum are NaN if
//!   either operand is, with any sign and payload.
//! * -0.0 is less than +0.0, so minimum and maximum do not depend on the order.
//! * f16 and bf16 are computed in f32 and rounded after *each* operation, like `acc += x` in numpy
//!   and torch. `numpy.sum` has an f32 accumulator. Here intermediate overflows stay infinite, and
//!   small terms vanish: 2048 + 1 is 2048 in f16.
//! * Bytes of bool other than 0 are true. Minimum is "and", maximum is "or".

mod element;
mod float16;

use multiversion::multiversion;

use self::element::Element;
use super::ReduceOp;
use crate::dtype::Dtype;

/// Computes `acc[i] = op(acc[i], input[i])` on all elements.
///
/// Combines only elements that are whole in both slices.
///
/// # Panics
/// If the operation [is not defined](ReduceOp::is_defined_for) for the type; in debug builds, if
/// the lengths differ or cut an element.
#[multiversion(targets("x86_64+avx2+f16c"))]
pub fn combine(op: ReduceOp, dtype: Dtype, acc: &mut [u8], input: &[u8]) {
    debug_assert_eq!(acc.len(), input.len());
    debug_assert!((acc.len() as u64).is_multiple_of(dtype.size_bytes()));
    match dtype {
        Dtype::F16 => float16::combine_f16(op, acc, input),
        Dtype::Bf16 => float16::combine_bf16(op, acc, input),
        Dtype::F32 => combine_as::<f32, 4>(op, acc, input),
        Dtype::F64 => combine_as::<f64, 8>(op, acc, input),
        Dtype::I8 => combine_as::<i8, 1>(op, acc, input),
        Dtype::I16 => combine_as::<i16, 2>(op, acc, input),
        Dtype::I32 => combine_as::<i32, 4>(op, acc, input),
        Dtype::I64 => combine_as::<i64, 8>(op, acc, input),
        Dtype::U8 => combine_as::<u8, 1>(op, acc, input),
        Dtype::U16 => combine_as::<u16, 2>(op, acc, input),
        Dtype::U32 => combine_as::<u32, 4>(op, acc, input),
        Dtype::U64 => combine_as::<u64, 8>(op, acc, input),
        Dtype::Bool => combine_bool(op, acc, input),
        Dtype::Opaque => panic!("{op} of opaque bytes"),
    }
}

// Everything below is inlined into each version of `combine`.

#[inline(always)]
fn combine_as<T: Element<N>, const N: usize>(op: ReduceOp, acc: &mut [u8], input: &[u8]) {
    match op {
        ReduceOp::Sum => each(acc, input, |a, b| T::load(a).sum(T::load(b)).store()),
        ReduceOp::Min => each(acc, input, |a, b| T::load(a).minimum(T::load(b)).store()),
        ReduceOp::Max => each(acc, input, |a, b| T::load(a).maximum(T::load(b)).store()),
        ReduceOp::Prod => each(acc, input, |a, b| T::load(a).product(T::load(b)).store()),
    }
}

#[inline(always)]
fn combine_bool(op: ReduceOp, acc: &mut [u8], input: &[u8]) {
    match op {
        ReduceOp::Min => each(acc, input, |[a], [b]| [u8::from(a != 0 && b != 0)]),
        ReduceOp::Max => each(acc, input, |[a], [b]| [u8::from(a != 0 || b != 0)]),
        ReduceOp::Sum | ReduceOp::Prod => panic!("{op} of bool"),
    }
}

#[inline(always)]
fn each<const N: usize>(acc: &mut [u8], input: &[u8], op: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    for (a, b) in acc.as_chunks_mut().0.iter_mut().zip(input.as_chunks().0) {
        *a = op(*a, *b);
    }
}
