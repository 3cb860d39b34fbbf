use hoplite_core::plan::collective::{
    Collective, Program, ReceiveMode, Schedule, Step, program_of_parts,
};

const UNIT_BYTES: u64 = 64;

/// Number of contributions of each member; `None` for bytes never written.
pub(crate) type Value = Option<Vec<u32>>;

pub(crate) struct Interpreter {
    kind: Collective,
    programs: Vec<Program>,
    writers: Vec<Vec<Vec<usize>>>,
    /// Values that each member has received or computed, without its own source.
    targets: Vec<Vec<Value>>,
    done: Vec<Vec<u64>>,
    streams: Vec<Stream>,
}

struct Stream {
    sender: usize,
    receiver: usize,
    sends: Vec<usize>,
    receives: Vec<usize>,
    next: (usize, u64),
}

impl Interpreter {
    pub(crate) fn new(schedule: &Schedule, kind: Collective, size_bytes: u64) -> Self {
        let members = schedule.members();
        let unit =
            |index| (start_of(index, members, size_bytes.div_ceil(UNIT_BYTES) as usize)) as u64;
        let part = |index| {
            size_bytes.min(unit(index) * UNIT_BYTES)..size_bytes.min(unit(index + 1) * UNIT_BYTES)
        };
        let halves = |index: usize| {
            let whole = part(index);
            let middle = whole.start
                + if index.is_multiple_of(2) {
                    (whole.end - whole.start) / 2 / UNIT_BYTES * UNIT_BYTES
                } else {
                    0
                };
            vec![whole.start..middle, middle..whole.end]
        };
        let parts: Vec<_> = (0..members).map(halves).collect();
        let program = |index| match kind {
            Collective::Allreduce => schedule.program(index, size_bytes),
            kind => program_of_parts(kind, index, &parts),
        };
        let programs: Vec<Program> = (0..members).map(program).collect();
        let mut streams = Vec::new();
        for sender in 0..members {
            for receiver in 0..members {
                let (sends, receives) =
                    (programs[sender].steps_to(receiver), programs[receiver].steps_from(sender));
                let units = |member: usize, steps: &[usize]| -> Vec<u64> {
                    steps.iter().map(|step| units_of(&programs[member].steps()[*step])).collect()
                };
                assert_eq!(
                    units(sender, &sends),
                    units(receiver, &receives),
                    "{sender} sends what {receiver} receives"
                );
                if !sends.is_empty() {
                    streams.push(Stream { sender, receiver, sends, receives, next: (0, 0) });
                }
            }
        }
        let units = size_bytes.div_ceil(UNIT_BYTES) as usize;
        Self {
            kind,
            targets: vec![vec![None; units]; members],
            done: programs.iter().map(|program| vec![0; program.steps().len()]).collect(),
            writers: programs
                .iter()
                .map(|program| {
                    (0..program.steps().len()).map(|step| program.writers_before(step)).collect()
                })
                .collect(),
            programs,
            streams,
        }
    }

    /// Moves a unit along a stream that `choose` picks. Reads the bytes now, as a resumed stream
    /// would.
    pub(crate) fn step(&mut self, choose: impl FnOnce(usize) -> usize) -> bool {
        let ready: Vec<usize> =
            (0..self.streams.len()).filter(|stream| self.is_ready(*stream)).collect();
        if ready.is_empty() {
            return false;
        }
        let stream = ready[choose(ready.len())];
        let Stream { sender, receiver, ref sends, ref receives, next: (index, unit) } =
            self.streams[stream];
        let (send, receive) = (sends[index], receives[index]);
        let value = self.value(sender, send, unit);
        let (Step::Receive { mode, .. }, at) = (
            &self.programs[receiver].steps()[receive],
            unit_at(&self.programs[receiver].steps()[receive], unit),
        ) else {
            panic!("the step receives");
        };
        let value = match mode {
            ReceiveMode::Replace => value,
            ReceiveMode::Combine => {
                let own = self.value(receiver, receive, unit);
                let both = own.unwrap().iter().zip(value.unwrap()).map(|(a, b)| a + b).collect();
                Some(both)
            }
        };
        self.targets[receiver][at] = value;
        self.done[receiver][receive] += 1;
        self.done[sender][send] += 1;
        let is_last =
            self.done[receiver][receive] == units_of(&self.programs[receiver].steps()[receive]);
        self.streams[stream].next = if is_last { (index + 1, 0) } else { (index, unit + 1) };
        true
    }

    fn is_ready(&self, stream: usize) -> bool {
        let Stream { sender, receiver, sends, receives, next: (index, unit) } =
            &self.streams[stream];
        *index < sends.len()
            && self.may_do(*sender, sends[*index], *unit)
            && self.may_do(*receiver, receives[*index], *unit)
    }

    fn may_do(&self, member: usize, step: usize, unit: u64) -> bool {
        let program = &self.programs[member];
        let at = unit_at(&program.steps()[step], unit) as u64;
        self.writers[member][step].iter().all(|writer| {
            let range = program.steps()[*writer].range();
            let (start, end) = (range.start / UNIT_BYTES, range.end.div_ceil(UNIT_BYTES));
            !(start..end).contains(&at) || at < start + self.done[member][*writer]
        })
    }

    fn value(&self, member: usize, step: usize, unit: u64) -> Value {
        let program = &self.programs[member];
        let at = unit_at(&program.steps()[step], unit);
        if self.writers[member][step].is_empty() {
            let mut own = vec![0; self.programs.len()];
            own[member] = 1;
            return Some(own);
        }
        self.targets[member][at].clone()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.streams.iter().all(|stream| stream.next.0 == stream.sends.len())
    }

    pub(crate) fn check(&self) {
        let members = self.programs.len();
        let units = self.targets.first().map_or(0, Vec::len);
        for (member, target) in self.targets.iter().enumerate() {
            for (unit, value) in target.iter().enumerate() {
                let own_part = || self.part_of(unit, units);
                match self.kind {
                    Collective::Allreduce if members > 1 => {
                        assert_eq!(*value, Some(vec![1; members]), "{member}")
                    }
                    Collective::ReduceScatter if members > 1 && own_part() == member => {
                        assert_eq!(*value, Some(vec![1; members]), "unit {unit} of {member}");
                    }
                    Collective::Allgather if own_part() != member => {
                        let mut expected = vec![0; members];
                        expected[own_part()] = 1;
                        assert_eq!(*value, Some(expected), "unit {unit} of {member}");
                    }
                    _ => {}
                }
            }
        }
    }

    fn part_of(&self, unit: usize, units: usize) -> usize {
        let members = self.programs.len();
        (0..members).find(|index| unit < start_of(index + 1, members, units)).unwrap()
    }

    pub(crate) fn programs(&self) -> &[Program] {
        &self.programs
    }
}

fn start_of(index: usize, members: usize, units: usize) -> usize {
    index * (units / members) + index.min(units % members)
}

fn units_of(step: &Step) -> u64 {
    (step.range().end - step.range().start).div_ceil(UNIT_BYTES)
}

fn unit_at(step: &Step, unit: u64) -> usize {
    (step.range().start / UNIT_BYTES + unit) as usize
}
