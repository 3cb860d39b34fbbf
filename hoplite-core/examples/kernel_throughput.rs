//! Measures the kernels of a reduce beside `memcpy` and exclusive or: over chunks in the
//! second-level cache, where bytes from a socket are, and over objects in memory.
//!
//! `cargo run --release -p hoplite-core --example kernel_throughput [MIB]`
//!
//! Rates count bytes read and written: three per object byte for a kernel, two for `memcpy`.
#![expect(clippy::print_stdout, reason = "this program prints what it measures")]

use std::hint::black_box;
use std::time::Instant;

use hoplite_core::Dtype;
use hoplite_core::reduce::{ReduceOp, combine};

const CHUNK_BYTES: usize = 64 << 10;
const ROUNDS: usize = 9;

fn main() {
    let mebibytes = std::env::args()
        .nth(1)
        .and_then(|argument| argument.parse().ok())
        .unwrap_or(64_usize)
        .max(1);
    let size_bytes = mebibytes << 20;
    println!("GB/s read and written  {:>4} KiB  {mebibytes:>4} MiB", CHUNK_BYTES >> 10);

    let mut acc = vec![1; size_bytes];
    report("memcpy", 2, &mut acc, &vec![1; size_bytes], |acc, input| acc.copy_from_slice(input));
    report("exclusive or", 3, &mut acc, &vec![1; size_bytes], |acc, input| {
        acc.iter_mut().zip(input).for_each(|(acc, input)| *acc ^= input);
    });
    for &dtype in Dtype::ALL {
        let input: Vec<u8> = one(dtype).into_iter().cycle().take(size_bytes).collect();
        for &op in ReduceOp::ALL.iter().filter(|op| op.is_defined_for(dtype)) {
            report(&format!("{op} {dtype}"), 3, &mut acc, &input, |acc, input| {
                combine(op, dtype, acc, input)
            });
        }
    }
}

/// A number without subnormal sums and products, because some processors are slow at these.
fn one(dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F16 => 0x3c00_u16.to_le_bytes().to_vec(),
        Dtype::Bf16 => 0x3f80_u16.to_le_bytes().to_vec(),
        Dtype::F32 => 1_f32.to_le_bytes().to_vec(),
        Dtype::F64 => 1_f64.to_le_bytes().to_vec(),
        _ => vec![1],
    }
}

fn report(
    name: &str,
    moved: usize,
    acc: &mut [u8],
    input: &[u8],
    kernel: impl Fn(&mut [u8], &[u8]),
) {
    let size_bytes = acc.len();
    let rates = [CHUNK_BYTES, size_bytes].map(|length_bytes| {
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            acc.copy_from_slice(input);
            #[expect(clippy::disallowed_methods, reason = "a program that measures needs a clock")]
            let start = Instant::now();
            for _ in 0..size_bytes / length_bytes {
                kernel(black_box(&mut acc[..length_bytes]), black_box(&input[..length_bytes]));
            }
            best = best.min(start.elapsed().as_secs_f64());
        }
        (moved * size_bytes) as f64 / best / 1e9
    });
    println!("{name:21} {:>10.1} {:>9.1}", rates[0], rates[1]);
}
