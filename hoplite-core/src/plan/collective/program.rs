//! The steps of one member.

use std::ops::Range;

/// The use of the bytes that a step takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Taking {
    /// Combine them, as second operands, with the local bytes.
    Combine,
    /// Replace the local bytes: they are final.
    Replace,
}

/// One step of a member. Ranges are bytes of the member's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send local bytes to another member.
    Give {
        /// The bytes.
        range: Range<u64>,
        /// The index of the member.
        to: usize,
    },
    /// Receive as many bytes from another member.
    Take {
        /// The bytes.
        range: Range<u64>,
        /// The index of the member.
        from: usize,
        /// The use of the bytes.
        taking: Taking,
    },
}

impl Step {
    /// Returns the bytes that the step gives or takes.
    pub const fn range(&self) -> &Range<u64> {
        match self {
            Self::Give { range, .. } | Self::Take { range, .. } => range,
        }
    }

    /// Returns `true` if the step takes.
    pub const fn is_take(&self) -> bool {
        matches!(self, Self::Take { .. })
    }

    fn overlaps(&self, other: &Range<u64>) -> bool {
        let range = self.range();
        range.start < other.end && other.start < range.end
    }
}

/// The steps of one member. See the [module documentation](super).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Program {
    steps: Vec<Step>,
}

impl Program {
    pub(super) fn push(&mut self, step: Step) {
        if !step.range().is_empty() {
            self.steps.push(step);
        }
    }

    /// Returns all steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the indices of the steps that give to a member. They form the stream to it.
    pub fn gives(&self, member: usize) -> Vec<usize> {
        self.indices(|step| matches!(step, Step::Give { to, .. } if *to == member))
    }

    /// Returns the indices of the steps that take from a member. They form the stream from it.
    pub fn takes(&self, member: usize) -> Vec<usize> {
        self.indices(|step| matches!(step, Step::Take { from, .. } if *from == member))
    }

    fn indices(&self, is_meant: impl Fn(&Step) -> bool) -> Vec<usize> {
        let steps = self.steps.iter().enumerate();
        steps.filter(|(_, step)| is_meant(step)).map(|(index, _)| index).collect()
    }

    /// Returns the members from which it takes, in the order of their first steps.
    pub fn sources(&self) -> Vec<usize> {
        let mut sources = Vec::new();
        for step in &self.steps {
            if let Step::Take { from, .. } = step
                && !sources.contains(from)
            {
                sources.push(*from);
            }
        }
        sources
    }

    /// Returns the indices of the earlier steps that write bytes of this step, which waits for
    /// them. If there are none, the bytes are the member's own.
    pub fn writers_before(&self, index: usize) -> Vec<usize> {
        let Some(step) = self.steps.get(index) else { return Vec::new() };
        let earlier = self.steps[..index].iter().enumerate();
        let writers = earlier.filter(|(_, other)| other.is_take() && other.overlaps(step.range()));
        writers.map(|(index, _)| index).collect()
    }

    /// Returns the indices of the steps that make bytes final, in this order. Their ranges do not
    /// overlap.
    pub fn finals(&self) -> Vec<usize> {
        let is_final = |index: &usize| {
            let step = &self.steps[*index];
            let later = &self.steps[index + 1..];
            step.is_take() && !later.iter().any(|other| other.is_take() && other.overlaps(step.range()))
        };
        (0..self.steps.len()).filter(is_final).collect()
    }

    /// Returns the number of bytes that the member sends.
    pub fn given_bytes(&self) -> u64 {
        let gives = self.steps.iter().filter(|step| !step.is_take());
        gives.map(|step| step.range().end - step.range().start).sum()
    }
}
