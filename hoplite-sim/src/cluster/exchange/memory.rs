use std::ops::Range;

use hoplite_core::collective::Plan;

use crate::cluster::contents::{Contents, EMPTY, MIXED, Operand, shape_of};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) tag: u64,
    pub(super) shape: u64,
    /// As [`Operand::is_of_hop`].
    pub(super) is_combined: bool,
}

impl Value {
    pub(super) fn combined(contents: &mut Contents, plan: &Plan, values: &[Self]) -> Self {
        let operand = |value: &Self| Operand {
            tag: value.tag,
            shape: value.shape,
            is_of_hop: value.is_combined,
        };
        let operands: Vec<Operand> = values.iter().map(operand).collect();
        let tag = contents.combine(plan.agreement.op, &operands);
        let shape = shape_of(values.iter().map(|value| value.shape));
        Self { tag, shape, is_combined: true }
    }
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) pieces: Vec<(Range<u64>, Value)>,
}

impl Memory {
    pub(super) fn write(&mut self, range: &Range<u64>, value: Value) {
        let mut pieces: Vec<(Range<u64>, Value)> = Vec::new();
        let before =
            self.pieces.iter().map(|(old, value)| (old.start..old.end.min(range.start), *value));
        let after =
            self.pieces.iter().map(|(old, value)| (old.start.max(range.end)..old.end, *value));
        for (range, value) in before.chain([(range.clone(), value)]).chain(after) {
            match pieces.last_mut() {
                _ if range.is_empty() => {}
                Some((last, known)) if last.end == range.start && *known == value => {
                    last.end = range.end
                }
                _ => pieces.push((range, value)),
            }
        }
        self.pieces = pieces;
    }

    pub(super) fn read(&self, range: &Range<u64>) -> Vec<(Range<u64>, Value)> {
        let within = |old: &Range<u64>| old.start.max(range.start)..old.end.min(range.end);
        let found = self.pieces.iter().map(|(old, value)| (within(old), *value));
        let found: Vec<_> = found.filter(|(range, _)| !range.is_empty()).collect();
        let read_bytes: u64 = found.iter().map(|(range, _)| range.end - range.start).sum();
        assert_eq!(
            read_bytes,
            range.end - range.start,
            "{range:?} must be written before it is read: {self:?}"
        );
        found
    }

    pub(super) fn contents(&self) -> (u64, u64) {
        let tag = match self.pieces.split_first() {
            None => EMPTY,
            Some(((_, first), others))
                if others.iter().all(|(_, other)| other.tag == first.tag) =>
            {
                first.tag
            }
            Some(_) => MIXED,
        };
        let shapes = self.pieces.iter().flat_map(|(range, value)| [range.end, value.shape]);
        (tag, shape_of(shapes))
    }
}
