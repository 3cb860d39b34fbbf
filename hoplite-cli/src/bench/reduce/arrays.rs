use hoplite_client::{Dtype, ReduceOp};
use hoplite_core::reduce::combine;

/// Elements are integers below this, so sums are exact.
const ELEMENTS_BELOW: u32 = 1000;
const ELEMENTS_APART: usize = 1024;

/// Source arrays for a reduce: overlapping windows of one buffer, to save memory.
pub(super) struct Arrays {
    elements: Vec<u8>,
    pub(super) size_bytes: usize,
}

impl Arrays {
    pub(super) fn new(size_bytes: usize, nodes: usize) -> Self {
        let length = size_bytes / 4 + nodes * ELEMENTS_APART;
        let elements = (0..ELEMENTS_BELOW).cycle().take(length);
        Self {
            elements: elements.flat_map(|element| (element as f32).to_le_bytes()).collect(),
            size_bytes,
        }
    }

    pub(super) fn of(&self, node: usize) -> &[u8] {
        let start = node * ELEMENTS_APART * 4;
        &self.elements[start..start + self.size_bytes]
    }

    pub(super) fn sum(&self, nodes: usize) -> Vec<u8> {
        let mut sum = self.of(0).to_vec();
        (1..nodes).for_each(|node| add(&mut sum, self.of(node)));
        sum
    }
}

pub(super) fn add(sum: &mut [u8], array: &[u8]) {
    combine(ReduceOp::Sum, Dtype::F32, sum, array);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_differ_and_their_sums_are_exact() {
        let arrays = Arrays::new(8000, 64);
        assert_ne!(arrays.of(0), arrays.of(1));
        assert_eq!(arrays.of(63).len(), 8000);
        let sum = arrays.sum(2);
        let element = |bytes: &[u8], index: usize| {
            f32::from_le_bytes(bytes[index * 4..][..4].try_into().unwrap())
        };
        assert_eq!(element(&sum, 7), element(arrays.of(0), 7) + element(arrays.of(1), 7));
        let largest = 64.0 * ELEMENTS_BELOW as f32;
        assert_eq!(largest + 1.0 - largest, 1.0);
    }
}
