//! The kernels as computations with exact numbers. Other test crates may include this file, which
//! needs the `half` crate.

use half::{bf16, f16};
use hoplite_core::Dtype;
use hoplite_core::reduce::ReduceOp;

#[derive(Debug, Clone, Copy)]
enum Number {
    Integer(i128),
    Float(f64),
}
use Number::{Float, Integer};

pub(crate) fn combined(op: ReduceOp, dtype: Dtype, acc: &[u8], input: &[u8]) -> Vec<u8> {
    let size = dtype.size_bytes() as usize;
    let pairs = acc.chunks_exact(size).zip(input.chunks_exact(size));
    pairs.flat_map(|(a, b)| write(dtype, apply(op, read(dtype, a), read(dtype, b)))).collect()
}

pub(crate) fn difference(dtype: Dtype, left: &[u8], right: &[u8]) -> Option<usize> {
    let size = dtype.size_bytes() as usize;
    let differ = |(a, b): (&[u8], &[u8])| a != b && !(is_nan(dtype, a) && is_nan(dtype, b));
    if left.len() != right.len() {
        return Some(left.len().min(right.len()) / size);
    }
    left.chunks(size).zip(right.chunks(size)).position(differ)
}

fn apply(op: ReduceOp, a: Number, b: Number) -> Number {
    match (op, a, b) {
        (ReduceOp::Sum, Integer(a), Integer(b)) => Integer(a + b),
        (ReduceOp::Min, Integer(a), Integer(b)) => Integer(a.min(b)),
        (ReduceOp::Max, Integer(a), Integer(b)) => Integer(a.max(b)),
        (ReduceOp::Prod, Integer(a), Integer(b)) => Integer(a.wrapping_mul(b)),
        (ReduceOp::Sum, Float(a), Float(b)) => Float(a + b),
        (ReduceOp::Prod, Float(a), Float(b)) => Float(a * b),
        (_, Float(a), Float(b)) if a.is_nan() || b.is_nan() => Float(f64::NAN),
        (ReduceOp::Min, Float(a), Float(b)) => Float(if a.total_cmp(&b).is_le() { a } else { b }),
        (ReduceOp::Max, Float(a), Float(b)) => Float(if a.total_cmp(&b).is_ge() { a } else { b }),
        (_, Integer(_), Float(_)) | (_, Float(_), Integer(_)) => {
            unreachable!("both are of one dtype")
        }
    }
}

fn read(dtype: Dtype, bytes: &[u8]) -> Number {
    let mut low = [0; 8];
    low[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(low);
    match dtype {
        Dtype::F16 => Float(f16::from_bits(bits as u16).to_f64()),
        Dtype::Bf16 => Float(bf16::from_bits(bits as u16).to_f64()),
        Dtype::F32 => Float(f32::from_bits(bits as u32).into()),
        Dtype::F64 => Float(f64::from_bits(bits)),
        Dtype::I8 => Integer((bits as i8).into()),
        Dtype::I16 => Integer((bits as i16).into()),
        Dtype::I32 => Integer((bits as i32).into()),
        Dtype::I64 => Integer((bits as i64).into()),
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => Integer(bits.into()),
        Dtype::Bool => Integer((bits != 0).into()),
        Dtype::Opaque => unreachable!("no operation is defined for opaque bytes"),
    }
}

/// Narrow floats are rounded through f32, which has more than twice the digits.
fn write(dtype: Dtype, number: Number) -> Vec<u8> {
    match (dtype, number) {
        (Dtype::F16, Float(number)) => f16::from_f32(number as f32).to_le_bytes().to_vec(),
        (Dtype::Bf16, Float(number)) => bf16::from_f32(number as f32).to_le_bytes().to_vec(),
        (Dtype::F32, Float(number)) => (number as f32).to_le_bytes().to_vec(),
        (_, Float(number)) => number.to_le_bytes().to_vec(),
        (_, Integer(number)) => number.to_le_bytes()[..dtype.size_bytes() as usize].to_vec(),
    }
}

fn is_nan(dtype: Dtype, bytes: &[u8]) -> bool {
    matches!(read(dtype, bytes), Float(number) if number.is_nan())
}
