use hoplite_client::{Dtype, Metadata, PutOptions, ReduceOp};

/// Integers cover the whole range, so that sums wrap around. Floats are small whole numbers, exact
/// in any order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrays {
    pub(crate) dtype: Dtype,
    pub(crate) length: usize,
}

impl Arrays {
    pub(crate) const fn of_bytes(size_bytes: usize) -> Self {
        Self { dtype: Dtype::F32, length: size_bytes / 4 }
    }

    pub(crate) fn size_bytes(self) -> u64 {
        self.length as u64 * self.dtype.size_bytes()
    }

    pub(crate) fn bytes(self, number: u64) -> Vec<u8> {
        (0..self.length).flat_map(|index| self.encoded(self.element(number, index))).collect()
    }

    pub(crate) fn reduced(self, op: ReduceOp, numbers: &[u64]) -> Vec<u8> {
        let elements = (0..self.length).map(|index| {
            let elements = numbers.iter().map(|number| self.element(*number, index));
            elements
                .reduce(|one, other| apply(op, one, other))
                .expect("there is at least one array")
        });
        elements.flat_map(|element| self.encoded(element)).collect()
    }

    pub(crate) fn options(self) -> PutOptions {
        let metadata = Metadata {
            dtype: self.dtype,
            shape: Some(vec![self.length as u64]),
            ..Metadata::default()
        };
        PutOptions { metadata, ..PutOptions::default() }
    }

    /// Returns a value that reveals misplaced, missing or duplicate elements.
    fn element(self, number: u64, index: usize) -> i128 {
        let mut random = (number << 32 ^ index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        random = (random ^ (random >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random ^= random >> 29;
        match self.dtype {
            Dtype::I8 => (random as i8).into(),
            Dtype::I16 => (random as i16).into(),
            Dtype::I32 => (random as i32).into(),
            Dtype::I64 => (random as i64).into(),
            Dtype::U8 => (random as u8).into(),
            Dtype::U16 => (random as u16).into(),
            Dtype::U32 => (random as u32).into(),
            Dtype::U64 => random.into(),
            Dtype::Bool => (random % 2).into(),
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64 => (random % 4).into(),
            Dtype::Opaque => unreachable!("plain bytes have no elements"),
        }
    }

    fn encoded(self, number: i128) -> impl Iterator<Item = u8> {
        let single = (number as f32).to_bits();
        let bits: u64 = match self.dtype {
            Dtype::F64 => (number as f64).to_bits(),
            Dtype::F32 => single.into(),
            Dtype::Bf16 => (single >> 16).into(),
            // f16 has 5 bits of exponent and 10 of fraction, f32 has 8 and 23.
            Dtype::F16 if number == 0 => 0,
            Dtype::F16 => ((single >> 13) - ((127 - 15) << 10)).into(),
            _ => number as u64,
        };
        bits.to_le_bytes().into_iter().take(self.dtype.size_bytes() as usize)
    }
}

fn apply(op: ReduceOp, one: i128, other: i128) -> i128 {
    match op {
        ReduceOp::Sum => one.wrapping_add(other),
        ReduceOp::Prod => one.wrapping_mul(other),
        ReduceOp::Min => one.min(other),
        ReduceOp::Max => one.max(other),
    }
}
