use std::ops::Range;

/// Use of the bytes that a member receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReceiveMode {
    /// Combine the received bytes, as second operands, with the local bytes.
    Combine,
    /// Replace the local bytes: the received bytes are final.
    Replace,
}

/// A step of a member, for one range of the data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub enum Step {
    /// Send to another member.
    Send { range: Range<u64>, to: usize },
    /// Receive from another member.
    Receive {
        range: Range<u64>,
        from: usize,
        /// Use of the received bytes.
        mode: ReceiveMode,
    },
}

impl Step {
    /// Range that the step sends or receives.
    pub const fn range(&self) -> &Range<u64> {
        match self {
            Self::Send { range, .. } | Self::Receive { range, .. } => range,
        }
    }

    /// Returns `true` for [`Self::Receive`].
    pub const fn is_receive(&self) -> bool {
        matches!(self, Self::Receive { .. })
    }

    fn overlaps(&self, other: &Range<u64>) -> bool {
        let range = self.range();
        range.start < other.end && other.start < range.end
    }
}

/// Sends and receives of one member.
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

    /// Steps in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the indices of the steps that send to `member`.
    pub fn steps_to(&self, member: usize) -> Vec<usize> {
        self.indices(|step| matches!(step, Step::Send { to, .. } if *to == member))
    }

    /// Returns the indices of the steps that receive from `member`.
    pub fn steps_from(&self, member: usize) -> Vec<usize> {
        self.indices(|step| matches!(step, Step::Receive { from, .. } if *from == member))
    }

    fn indices(&self, predicate: impl Fn(&Step) -> bool) -> Vec<usize> {
        let steps = self.steps.iter().enumerate();
        steps.filter(|(_, step)| predicate(step)).map(|(index, _)| index).collect()
    }

    /// Members from which this one receives, in the order of their first steps.
    pub fn sources(&self) -> Vec<usize> {
        let mut sources = Vec::new();
        for step in &self.steps {
            if let Step::Receive { from, .. } = step
                && !sources.contains(from)
            {
                sources.push(*from);
            }
        }
        sources
    }

    /// Returns the earlier steps that write into the range of step `index`. Without any, the range
    /// holds the member's own source.
    pub fn writers_before(&self, index: usize) -> Vec<usize> {
        let Some(step) = self.steps.get(index) else { return Vec::new() };
        let earlier = self.steps[..index].iter().enumerate();
        let writers =
            earlier.filter(|(_, other)| other.is_receive() && other.overlaps(step.range()));
        writers.map(|(index, _)| index).collect()
    }

    /// Indices of the receives that no later receive overwrites. Together they fill the result.
    pub fn finals(&self) -> Vec<usize> {
        let is_final = |index: &usize| {
            let step = &self.steps[*index];
            let later = &self.steps[index + 1..];
            step.is_receive()
                && !later.iter().any(|other| other.is_receive() && other.overlaps(step.range()))
        };
        (0..self.steps.len()).filter(is_final).collect()
    }

    /// Number of bytes that the member sends.
    pub fn sent_bytes(&self) -> u64 {
        let sends = self.steps.iter().filter(|step| !step.is_receive());
        sends.map(|step| step.range().end - step.range().start).sum()
    }
}
