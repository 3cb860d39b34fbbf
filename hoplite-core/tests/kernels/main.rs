//! Compares kernels with a reference that goes element by element.

mod reference;

use hoplite_core::Dtype;
use hoplite_core::reduce::{ReduceOp, combine};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use self::reference::{combined, difference};

fn kernels() -> impl Iterator<Item = (ReduceOp, Dtype)> {
    let all = Dtype::ALL.iter().flat_map(|dtype| ReduceOp::ALL.iter().map(|op| (*op, *dtype)));
    all.filter(|(op, dtype)| op.is_defined_for(*dtype))
}

/// Compares all elements at once, and single ones, which use no wide instructions.
fn check(op: ReduceOp, dtype: Dtype, acc: &[u8], input: &[u8]) {
    let expected = combined(op, dtype, acc, input);
    let mut whole = acc.to_vec();
    combine(op, dtype, &mut whole, input);
    assert_same(op, dtype, (acc, input), &whole, &expected);

    let size = dtype.size_bytes() as usize;
    let mut single = acc.to_vec();
    for (acc, input) in single.chunks_mut(size).zip(input.chunks(size)) {
        combine(op, dtype, acc, input);
    }
    assert_same(op, dtype, (acc, input), &single, &expected);
}

fn assert_same(
    op: ReduceOp,
    dtype: Dtype,
    (acc, input): (&[u8], &[u8]),
    actual: &[u8],
    expected: &[u8],
) {
    if let Some(index) = difference(dtype, actual, expected) {
        let size = dtype.size_bytes() as usize;
        let element = |bytes: &[u8]| bytes.chunks(size).nth(index).map(<[u8]>::to_vec);
        let [a, b, actual, expected] = [acc, input, actual, expected].map(element);
        panic!(
            "element {index}: {op} {dtype} of {a:?} and {b:?} is {actual:?}, expected {expected:?}"
        );
    }
}

/// Extremes, zeros and ones of either sign, infinities, NaNs, subnormals, and values around limits.
fn notable(dtype: Dtype) -> Vec<Vec<u8>> {
    let fraction_bits = match dtype {
        Dtype::F16 => 10,
        Dtype::Bf16 => 7,
        Dtype::F32 => 23,
        Dtype::F64 => 52,
        _ => 0,
    };
    let size = dtype.size_bytes() as usize;
    let bits = 8 * size as u32;
    let values: Vec<u64> = if fraction_bits == 0 {
        let extremes = [0, 1_u64 << (bits - 1), 1 << (bits / 2)];
        extremes
            .iter()
            .flat_map(|value| (0..5).map(|near| value.wrapping_add(near).wrapping_sub(2)))
            .collect()
    } else {
        let last = (1_u64 << (bits - 1 - fraction_bits)) - 1;
        let (one, half) = (last / 2, 1_u64 << (fraction_bits - 1));
        let distances = [
            0,
            1,
            2,
            one - fraction_bits as u64,
            one - 1,
            one,
            one + 1,
            one + fraction_bits as u64,
        ];
        let exponents = distances.into_iter().chain([last - 1, last]);
        let fractions = [0, 1, half - 1, half, half + 1, 2 * half - 1];
        exponents
            .flat_map(|exponent| fractions.map(|fraction| (exponent << fraction_bits) | fraction))
            .flat_map(|magnitude| [magnitude, magnitude | (1 << (bits - 1))])
            .collect()
    };
    values.into_iter().map(|value| value.to_le_bytes()[..size].to_vec()).collect()
}

fn pairs(left: &[Vec<u8>], right: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
    let acc = left.iter().flat_map(|a| right.iter().flat_map(move |_| a.clone())).collect();
    let input = left.iter().flat_map(|_| right.iter().flatten().copied()).collect();
    (acc, input)
}

#[test]
fn notable_values_meet_each_other() {
    for (op, dtype) in kernels() {
        let values = notable(dtype);
        let (acc, input) = pairs(&values, &values);
        check(op, dtype, &acc, &input);
    }
}

#[test]
fn all_16_bit_floats_meet_notable_ones() {
    let all: Vec<Vec<u8>> = (0..=u16::MAX).map(|bits| bits.to_le_bytes().to_vec()).collect();
    for (op, dtype) in kernels().filter(|(_, dtype)| matches!(dtype, Dtype::F16 | Dtype::Bf16)) {
        let some: Vec<Vec<u8>> = notable(dtype).into_iter().step_by(7).collect();
        let (acc, input) = pairs(&all, &some);
        check(op, dtype, &acc, &input);
    }
}

#[test]
fn all_bytes_are_bools() {
    let all: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    let (acc, input) = pairs(&all, &all);
    check(ReduceOp::Min, Dtype::Bool, &acc, &input);
    check(ReduceOp::Max, Dtype::Bool, &acc, &input);
}

#[test]
fn any_length_and_alignment_will_do() {
    for (op, dtype) in kernels() {
        let size = dtype.size_bytes() as usize;
        let values = notable(dtype);
        let (acc, input) = pairs(&values, &values);
        for elements in 0..70 {
            // Starts in the middle, because the first values have exponents of zero.
            let from = acc.len() / 2 / size * size;
            let (acc, input) =
                (&acc[from..from + elements * size], &input[from..from + elements * size]);
            let expected = combined(op, dtype, acc, input);
            for (acc_offset, input_offset) in [(0, 0), (0, 1), (1, 0), (3, 3), (5, 2), (7, 15)] {
                let mut shifted_acc = vec![0xa5; acc_offset];
                shifted_acc.extend_from_slice(acc);
                shifted_acc.push(0xa5);
                let shifted_input = [vec![0x5a; input_offset], input.to_vec()].concat();
                let end = acc_offset + acc.len();
                combine(
                    op,
                    dtype,
                    &mut shifted_acc[acc_offset..end],
                    &shifted_input[input_offset..],
                );
                assert_same(op, dtype, (acc, input), &shifted_acc[acc_offset..end], &expected);
                assert!(
                    shifted_acc[..acc_offset]
                        .iter()
                        .chain(&shifted_acc[end..])
                        .all(|byte| *byte == 0xa5)
                );
            }
        }
    }
}

fn runs() -> ProptestConfig {
    let mut config =
        ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    if let Some(seed) = std::env::var("HOPLITE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        config.rng_seed = RngSeed::Fixed(seed);
    }
    config
}

proptest! {
    #![proptest_config(runs())]

    #[test]
    fn any_bytes_are_combined_as_the_reference_does(
        operands in prop::collection::vec(any::<(u64, u64)>(), 0..300),
    ) {
        let (acc, input): (Vec<u8>, Vec<u8>) =
            operands.iter().flat_map(|(a, b)| a.to_le_bytes().into_iter().zip(b.to_le_bytes())).unzip();
        for (op, dtype) in kernels() {
            check(op, dtype, &acc, &input);
        }
    }
}

fn f16s(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| half::f16::from_f32(*number).to_le_bytes()).collect()
}

#[test]
fn each_step_of_a_chain_rounds() {
    let mut acc = f16s(&[2048.0, 65504.0]);
    combine(ReduceOp::Sum, Dtype::F16, &mut acc, &f16s(&[1.0, 32.0]));
    combine(ReduceOp::Sum, Dtype::F16, &mut acc, &f16s(&[1.0, -65504.0]));
    assert_eq!(acc, f16s(&[2048.0, f32::INFINITY]));
}

#[test]
fn zeros_are_ordered_and_order_does_not_matter() {
    for (op, expected) in [(ReduceOp::Min, -0.0_f64), (ReduceOp::Max, 0.0)] {
        for (a, b) in [(-0.0_f64, 0.0_f64), (0.0, -0.0)] {
            let mut acc = a.to_le_bytes();
            combine(op, Dtype::F64, &mut acc, &b.to_le_bytes());
            assert_eq!(acc, expected.to_le_bytes(), "{op} of {a:?} and {b:?}");
        }
    }
}

#[test]
#[should_panic(expected = "sum of bool")]
fn an_operation_that_is_not_defined_panics() {
    combine(ReduceOp::Sum, Dtype::Bool, &mut [1], &[1]);
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "left == right"))]
fn only_whole_elements_that_both_have_are_combined() {
    let mut acc = [1; 8];
    combine(ReduceOp::Sum, Dtype::I16, &mut acc, &[1; 5]);
    assert_eq!(acc, [2, 2, 2, 2, 1, 1, 1, 1]);
}
