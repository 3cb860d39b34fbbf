use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::ensure;
use hoplite_client::{Dtype, ReduceOp};
use hoplite_core::reduce::combine;

use super::report::{Measurement, Report};
use crate::arguments::parse_size;
use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Size of each of the two arrays: larger than the caches
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    size: u64,
    /// Element types [default: all]
    #[arg(long = "dtype", value_name = "DTYPE,...", value_delimiter = ',', value_parser = |text: &str| text.parse::<Dtype>())]
    dtypes: Vec<Dtype>,
    /// Number of runs of each kernel
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
}

struct Kernel {
    op: ReduceOp,
    dtype: Dtype,
    samples: Vec<Duration>,
}

pub(super) fn measure(arguments: &Arguments) -> anyhow::Result<Report> {
    let dtypes = if arguments.dtypes.is_empty() { Dtype::ALL } else { &arguments.dtypes };
    ensure!(
        dtypes.iter().all(|dtype| arguments.size.is_multiple_of(dtype.size_bytes())),
        "the size must be a whole number of elements"
    );
    let mut kernels: Vec<_> = dtypes.iter().flat_map(|dtype| kernels_of(*dtype)).collect();
    // Nonzero: the system allocates zero pages at their first use.
    let mut acc = vec![1; usize::try_from(arguments.size)?];
    let mut input = acc.clone();
    let (mut copies, mut loops) = (Vec::new(), Vec::new());
    for round in 0..=arguments.repetitions {
        let copy = timed(|| black_box(&mut acc).copy_from_slice(black_box(&input)));
        let exclusive_or = timed(|| exclusive_or(black_box(&mut acc), black_box(&input)));
        for kernel in &mut kernels {
            fill(&mut input, &one(kernel.dtype));
            acc.copy_from_slice(&input);
            let sample =
                timed(|| combine(kernel.op, kernel.dtype, black_box(&mut acc), black_box(&input)));
            if round > 0 {
                kernel.samples.push(sample);
            }
        }
        if round > 0 {
            copies.push(copy);
            loops.push(exclusive_or);
        }
    }
    let size = output::size(arguments.size);
    let mut report = Report::new("kernels");
    report.note(format!("One core combines two arrays of {size} into one of them."));
    report.note("GB/S counts bytes read and written: three per byte of an array, two for memcpy.");
    let floor = Measurement::new("exclusive or, a plain loop", &loops).moving(3 * arguments.size);
    for Kernel { op, dtype, samples } in &kernels {
        let kernel =
            Measurement::new(format!("{op} of {dtype}"), samples).moving(3 * arguments.size);
        report.add(kernel.beside(&floor));
    }
    report.add(floor);
    report.add(Measurement::new("memcpy", &copies).moving(2 * arguments.size));
    Ok(report)
}

fn kernels_of(dtype: Dtype) -> impl Iterator<Item = Kernel> {
    let defined = ReduceOp::ALL.iter().copied().filter(move |op| op.is_defined_for(dtype));
    defined.map(move |op| Kernel { op, dtype, samples: Vec::new() })
}

fn timed(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}

/// Cheapest operation, for comparison with other kernels.
fn exclusive_or(acc: &mut [u8], input: &[u8]) {
    for (acc, input) in acc.iter_mut().zip(input) {
        *acc ^= input;
    }
}

/// Returns the number 1. Others may give subnormal results, slow on some processors.
fn one(dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F16 => 0x3c00_u16.to_le_bytes().to_vec(),
        Dtype::Bf16 => 0x3f80_u16.to_le_bytes().to_vec(),
        Dtype::F32 => 1_f32.to_le_bytes().to_vec(),
        Dtype::F64 => 1_f64.to_le_bytes().to_vec(),
        _ => vec![1],
    }
}

fn fill(array: &mut [u8], element: &[u8]) {
    for place in array.chunks_exact_mut(element.len()) {
        place.copy_from_slice(element);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_measured_beside_the_bare_loop() {
        let arguments =
            Arguments { size: 4096, dtypes: vec![Dtype::F32, Dtype::Bool], repetitions: 2 };
        let json = serde_json::to_value(measure(&arguments).unwrap()).unwrap();
        let measurements = json["measurements"].as_array().unwrap();
        let names: Vec<_> = measurements.iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(
            names[..6],
            ["sum of f32", "min of f32", "max of f32", "prod of f32", "min of bool", "max of bool"]
        );
        assert_eq!(measurements.len(), 8);
        assert_eq!(measurements[0]["samples"], 2);
        let odd = Arguments { size: 4095, dtypes: Vec::new(), repetitions: 1 };
        assert!(measure(&odd).is_err());
    }

    #[test]
    fn elements_are_ones() {
        let mut array = [0; 8];
        fill(&mut array, &one(Dtype::F32));
        assert_eq!(array, [0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f]);
        fill(&mut array, &one(Dtype::I8));
        assert_eq!(array, [1; 8]);
    }
}
