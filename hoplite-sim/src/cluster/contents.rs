//! The contents of objects as *tags*: equal tags stand for equal bytes.
//!
//! A put has a small unique tag. The tag of a part, or of a combination by a reduce, derives from
//! the tags of its inputs, in any order.

use std::collections::BTreeMap;

use hoplite_core::node::ByteRange;
use hoplite_core::reduce::ReduceOp;

use crate::random::Random;

pub(crate) const EMPTY: u64 = 0;
pub(crate) const MIXED: u64 = u64::MAX;

#[derive(Debug, Clone)]
struct Combined {
    op: ReduceOp,
    operands: Vec<u64>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand {
    pub(crate) tag: u64,
    /// Hash of the order in which a partial result was combined. For other bytes, equals `tag`.
    pub(crate) shape: u64,
    /// `true` for a partial result, which a further combination replaces by its operands.
    pub(crate) is_of_hop: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Contents {
    combined: BTreeMap<u64, Combined>,
}

fn mix(number: u64) -> u64 {
    Random::new(number).next_number()
}

fn derived(hash: u64) -> u64 {
    (hash | 1 << 63).min(MIXED - 1)
}

pub(crate) fn part(tag: u64, size_bytes: u64, range: ByteRange) -> u64 {
    let ByteRange { offset_bytes, length_bytes } = range;
    match tag {
        _ if length_bytes == 0 => EMPTY,
        MIXED => MIXED,
        _ if length_bytes == size_bytes => tag,
        _ => derived(mix(mix(mix(tag) ^ offset_bytes) ^ length_bytes)),
    }
}

pub(crate) fn shape_of(shapes: impl IntoIterator<Item = u64>) -> u64 {
    shapes.into_iter().reduce(|left, right| mix(left).rotate_left(1) ^ mix(right)).unwrap_or(EMPTY)
}

impl Contents {
    pub(crate) fn combine(&mut self, op: ReduceOp, operands: &[Operand]) -> u64 {
        if operands.iter().any(|operand| operand.tag == MIXED) {
            return MIXED;
        }
        let mut all = Vec::new();
        for operand in operands {
            match self.combined.get(&operand.tag).filter(|_| operand.is_of_hop) {
                Some(combined) => {
                    assert_eq!(combined.op, op, "the hops of a reduce have its operation");
                    all.extend(&combined.operands);
                }
                None => all.push(operand.tag),
            }
        }
        all.sort_unstable();
        if let [only] = all[..] {
            return only;
        }
        // Includes the number of operands, so that nested combinations differ.
        let start = mix(mix(all.len() as u64) ^ op as u64);
        let tag = derived(all.iter().fold(start, |hash, tag| mix(hash ^ tag)));
        self.combined.entry(tag).or_insert(Combined { op, operands: all });
        tag
    }

    pub(crate) fn describe(&self, tag: u64) -> String {
        match self.combined.get(&tag) {
            Some(Combined { op, operands }) => {
                let operands: Vec<String> =
                    operands.iter().map(|tag| self.describe(*tag)).collect();
                format!("{op}({})", operands.join(", "))
            }
            None => tag.to_string(),
        }
    }

    pub(crate) fn operands(&self, op: ReduceOp, tag: u64, count: usize) -> Option<Vec<u64>> {
        if count == 1 {
            return Some(vec![tag]);
        }
        let combined = self.combined.get(&tag)?;
        (combined.op == op && combined.operands.len() == count).then(|| combined.operands.clone())
    }
}
