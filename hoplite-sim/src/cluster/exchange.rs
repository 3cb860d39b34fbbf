//! Members of sessions: what each gives and takes by its program, piece by piece, over streams that break and are resumed.

use std::ops::Range;

use hoplite_core::Time;
use hoplite_core::collective::{Break, CollectiveEvent, Plan, Resumes};
use hoplite_core::node::{CombineId, CombineOutcome, CopyId, Event, ServeId};
use hoplite_core::peer::{CONNECT_TIMEOUT, SILENCE_TIMEOUT, plan_timeout};
use hoplite_core::plan::collective::{Program, Step, Taking};
use hoplite_core::shard::PullOutcome;

use super::contents::{Contents, EMPTY, MIXED, Operand, shape_of};
use super::network::LinkEnd;
use super::transfers::{Remote, ServeState};
use super::{Application, Cluster, Network};

/// How often a piece is damaged on its way, or its connection breaks.
const BROKEN_ONE_IN: u64 = 500;

/// A range of what a member has, with its tag and its shape.
pub(crate) type Piece = (Range<u64>, u64, u64);

/// What some bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Value {
    tag: u64,
    /// In which order and by which steps they were combined.
    shape: u64,
    /// Whether they were combined by the session, so that their operands are those of the whole.
    is_combined: bool,
}

impl Value {
    fn combined(contents: &mut Contents, plan: &Plan, values: &[Self]) -> Self {
        let operand =
            |value: &Self| Operand { tag: value.tag, shape: value.shape, is_of_hop: value.is_combined };
        let operands: Vec<Operand> = values.iter().map(operand).collect();
        let tag = contents.combine(plan.agreement.op, &operands);
        let shape = shape_of(values.iter().map(|value| value.shape));
        Self { tag, shape, is_combined: true }
    }
}

/// What the bytes of a target are.
#[derive(Debug, Default)]
struct Memory {
    /// In order, without overlaps; neighbours differ.
    pieces: Vec<(Range<u64>, Value)>,
}

impl Memory {
    fn write(&mut self, range: &Range<u64>, value: Value) {
        let mut pieces: Vec<(Range<u64>, Value)> = Vec::new();
        let before = self.pieces.iter().map(|(old, value)| (old.start..old.end.min(range.start), *value));
        let after = self.pieces.iter().map(|(old, value)| (old.start.max(range.end)..old.end, *value));
        for (range, value) in before.chain([(range.clone(), value)]).chain(after) {
            match pieces.last_mut() {
                _ if range.is_empty() => {}
                Some((last, known)) if last.end == range.start && *known == value => last.end = range.end,
                _ => pieces.push((range, value)),
            }
        }
        self.pieces = pieces;
    }

    fn read(&self, range: &Range<u64>) -> Vec<(Range<u64>, Value)> {
        let within = |old: &Range<u64>| old.start.max(range.start)..old.end.min(range.end);
        let found = self.pieces.iter().map(|(old, value)| (within(old), *value));
        let found: Vec<_> = found.filter(|(range, _)| !range.is_empty()).collect();
        let read_bytes: u64 = found.iter().map(|(range, _)| range.end - range.start).sum();
        assert_eq!(read_bytes, range.end - range.start, "{range:?} was written before it is read: {self:?}");
        found
    }

    /// The tag and the shape of the whole.
    fn contents(&self) -> (u64, u64) {
        let tag = match self.pieces.split_first() {
            None => EMPTY,
            Some(((_, first), others)) if others.iter().all(|(_, other)| other.tag == first.tag) => first.tag,
            Some(_) => MIXED,
        };
        let shapes = self.pieces.iter().flat_map(|(range, value)| [range.end, value.shape]);
        (tag, shape_of(shapes))
    }
}

/// One member's part of a session.
#[derive(Debug)]
pub(super) struct Exchange {
    copy: CopyId,
    sources: Vec<CopyId>,
    plan: Box<Plan>,
    program: Program,
    /// For each step: the earlier ones that write bytes of it, and how many of its bytes are done.
    writers: Vec<Vec<usize>>,
    done_bytes: Vec<u64>,
    finals: Vec<usize>,
    /// How many leading bytes of the target have the combination of the own sources, if there are several.
    folded_bytes: u64,
    memory: Memory,
    is_filled: bool,
    slowness: u32,
}

impl Exchange {
    /// Whether it reads or fills a copy of its store.
    pub(super) fn uses(&self, copy: CopyId) -> bool {
        self.copy == copy || self.sources.contains(&copy)
    }

    fn range(&self, step: usize) -> Range<u64> {
        self.program.steps()[step].range().clone()
    }

    fn is_done(&self, step: usize) -> bool {
        let range = self.range(step);
        self.done_bytes[step] == range.end - range.start
    }

    fn all_done(&self, is_meant: impl Fn(&Step) -> bool) -> bool {
        let mut steps = self.program.steps().iter().enumerate().filter(|(_, step)| is_meant(step));
        steps.all(|(index, _)| self.is_done(index))
    }

    /// Whether the bytes of a step are in the target when it reads them.
    fn reads_target(&self, step: usize) -> bool {
        self.plan.is_folded() || !self.writers[step].is_empty()
    }

    /// Whether all that writes before a step has done its bytes before `end`.
    fn is_reached(&self, step: usize, end: u64) -> bool {
        let is_folded = !self.plan.is_folded() || self.folded_bytes >= end;
        is_folded
            && self.writers[step].iter().all(|writer| {
                let range = self.range(*writer);
                range.start >= end || range.start + self.done_bytes[*writer] >= end.min(range.end)
            })
    }

    /// How many bytes of the target are final, counted in the order in which they become so.
    fn final_bytes(&self) -> u64 {
        let mut final_bytes = 0;
        for step in &self.finals {
            final_bytes += self.done_bytes[*step];
            if !self.is_done(*step) {
                break;
            }
        }
        final_bytes
    }
}

/// A stream from one member to another, as its taker sees it.
#[derive(Debug)]
struct Stream {
    store: usize,
    run: u64,
    combine: CombineId,
    /// The index of the giver, its store, and what it is asked for.
    from: usize,
    remote: Remote,
    steps: Vec<usize>,
    serve: Option<ServeId>,
    /// When the giver was asked, and could be reached last.
    asked_at: Time,
    heard_at: Time,
    /// How many bytes had been taken when the giver was asked last.
    asked_from_bytes: u64,
    /// How many bytes the giver has given on this connection and before it, and what is on its way.
    given_bytes: u64,
    arriving: Vec<(u64, Value)>,
    resumes: Resumes,
    idle: u32,
}

/// Where the bytes are that a step reads.
enum Own {
    /// In the target.
    Partial,
    /// In a source.
    Source(Value),
    /// There too, once it has got that far.
    Late,
    /// Nowhere: the source has failed.
    Lost,
}

/// What the look at a stream came to.
enum Progress {
    Moved,
    Nothing,
    Over,
    Broke(Break, PullOutcome),
}

impl<A: Application> Cluster<A> {
    pub(super) fn start_exchange(
        &mut self,
        store: usize,
        combine: CombineId,
        copy: CopyId,
        sources: Vec<CopyId>,
        plan: Box<Plan>,
    ) {
        self.note(|_| {
            format!("store {store} exchanges as {combine:?} into {copy:?}, with {sources:?}: {plan:?}")
        });
        let program = plan.program();
        let steps = program.steps().len();
        let slowness = match self.config.network {
            Network::Blocks { slowness, .. } => slowness.max(*self.random.pick(&[1, 1, 1, 5, 20])),
            Network::Flow { .. } => panic!("sessions are simulated block by block"),
        };
        let froms = program.sources();
        let exchange = Exchange {
            copy,
            sources,
            writers: (0..steps).map(|step| program.writers_before(step)).collect(),
            done_bytes: vec![0; steps],
            finals: plan.finals(&program),
            folded_bytes: 0,
            memory: Memory::default(),
            is_filled: false,
            slowness,
            program,
            plan,
        };
        let (run, now) = (self.stores[store].run, self.now());
        for from in froms {
            let sender = self.store_named(&exchange.plan.members[from].node);
            let (id, put) = (exchange.plan.target.clone(), exchange.plan.put);
            let stream = Stream {
                store,
                run,
                combine,
                from,
                remote: Remote { sender, id, put, awaits_hop: true },
                steps: exchange.program.takes(from),
                serve: None,
                asked_at: now,
                heard_at: now,
                given_bytes: 0,
                asked_from_bytes: 0,
                arriving: Vec::new(),
                resumes: Resumes::new(now),
                idle: 0,
            };
            self.connect_stream(stream);
        }
        let previous = self.stores[store].exchanges.insert(combine, exchange);
        assert!(previous.is_none(), "{combine:?} is started once");
    }

    /// The exchange is ended before all bytes are there, or those who take from it are not needed any more.
    pub(super) fn cancel_exchange(&mut self, store: usize, combine: CombineId) {
        let (run, delay) = (self.stores[store].run, self.local_time());
        self.after(delay, move |cluster| {
            if !cluster.stores[store].is_running(run) {
                return;
            }
            let is_filled = cluster.stores[store].exchanges.get(&combine).map(|found| found.is_filled);
            match is_filled {
                Some(true) => cluster.end_exchange(store, combine, CombineOutcome::Complete),
                Some(false) => cluster.end_exchange(store, combine, CombineOutcome::Cancelled),
                None => {}
            }
        });
    }

    fn end_exchange(&mut self, store: usize, combine: CombineId, outcome: CombineOutcome) {
        let Some(ended) = self.stores[store].exchanges.remove(&combine) else { return };
        self.note(|_| format!("store {store}: {combine:?} ended: {outcome:?}"));
        let valid_bytes = if outcome == CombineOutcome::Complete { ended.plan.copy_bytes() } else { 0 };
        self.store_event(store, Event::CombineEnded { combine, valid_bytes, outcome });
    }

    fn connect_stream(&mut self, mut stream: Stream) {
        let delay = self.connect_time();
        self.after(delay, move |cluster| {
            if !cluster.is_exchanging(&stream) {
                return;
            }
            (stream.asked_at, stream.heard_at) = (cluster.now(), cluster.now());
            stream.arriving.clear();
            stream.given_bytes = cluster.taken_bytes(&stream);
            stream.asked_from_bytes = stream.given_bytes;
            match cluster.request_serve(stream.store, &stream.remote, None) {
                Ok(serve) => {
                    stream.serve = Some(serve);
                    cluster.stream_step(stream);
                }
                Err(delay) => {
                    let is_silent = delay == CONNECT_TIMEOUT;
                    let cause = if is_silent { Break::Silent } else { Break::Broken };
                    cluster.after(delay, move |cluster| {
                        cluster.stream_broke(stream, cause, PullOutcome::SenderUnreachable);
                    });
                }
            }
        });
    }

    fn is_exchanging(&self, stream: &Stream) -> bool {
        let host = &self.stores[stream.store];
        host.is_running(stream.run) && host.exchanges.contains_key(&stream.combine)
    }

    fn taken_bytes(&self, stream: &Stream) -> u64 {
        let exchange = &self.stores[stream.store].exchanges[&stream.combine];
        stream.steps.iter().map(|step| exchange.done_bytes[*step]).sum()
    }

    fn stream_broke(&mut self, mut stream: Stream, cause: Break, outcome: PullOutcome) {
        if let Some(serve) = stream.serve.take() {
            self.end_serve(stream.remote.sender, serve);
        }
        if !self.is_exchanging(&stream) {
            return;
        }
        let taken_bytes = self.taken_bytes(&stream);
        self.note(|_| format!("{stream:?} broke at {taken_bytes}: {cause:?}"));
        match stream.resumes.broke(self.now(), taken_bytes, cause) {
            Some(pause) => {
                self.counts.resumed_streams += 1;
                self.after(pause, move |cluster| cluster.connect_stream(stream));
            }
            None => {
                let outcome = CombineOutcome::InputFailed { index: stream.from, outcome };
                self.end_exchange(stream.store, stream.combine, outcome);
            }
        }
    }

    fn stream_step(&mut self, mut stream: Stream) {
        if !self.is_exchanging(&stream) {
            if let Some(serve) = stream.serve {
                self.end_serve(stream.remote.sender, serve);
            }
            return;
        }
        let (store, combine, sender) = (stream.store, stream.combine, stream.remote.sender);
        A::interfere(self, store, sender);
        match self.look_at_stream(&mut stream) {
            Progress::Moved => stream.idle = 0,
            Progress::Nothing => stream.idle = stream.idle.saturating_add(1),
            Progress::Broke(cause, outcome) => return self.stream_broke(stream, cause, outcome),
            Progress::Over => {
                if let Some(serve) = stream.serve {
                    self.end_serve(sender, serve);
                }
                return self.fill_if_taken(store, combine);
            }
        }
        let slowness = self.stores[store].exchanges[&combine].slowness;
        let delay = match stream.idle {
            0 => self.random.micros(50..500) * slowness,
            1..10 => self.random.micros(200..3_000),
            _ => self.random.millis(2..30),
        };
        self.after(delay, move |cluster| cluster.stream_step(stream));
    }

    fn look_at_stream(&mut self, stream: &mut Stream) -> Progress {
        let (now, store, sender) = (self.now(), stream.store, stream.remote.sender);
        let taken = match self.take_arriving(stream) {
            Ok(taken) => taken,
            Err(cause) => return Progress::Broke(cause, PullOutcome::SenderHasNoCopy),
        };
        let exchange = &self.stores[store].exchanges[&stream.combine];
        if stream.steps.iter().all(|step| exchange.is_done(*step)) {
            return Progress::Over;
        }
        if !self.is_linked(LinkEnd::Store(store), LinkEnd::Store(sender)) {
            let is_given_up = now.since(stream.heard_at) > SILENCE_TIMEOUT;
            let silent = Progress::Broke(Break::Silent, PullOutcome::SenderUnreachable);
            return if is_given_up { silent } else { Progress::Nothing };
        }
        stream.heard_at = now;
        if let Network::Blocks { damages: true, .. } = self.config.network
            && self.random.number(0..BROKEN_ONE_IN) == 0
        {
            return Progress::Broke(Break::Broken, PullOutcome::Corrupt);
        }
        if !stream.arriving.is_empty() {
            // It waits for what it is combined with, and its sender with it.
            return Progress::Nothing;
        }
        let serve = stream.serve.and_then(|serve| self.stores[sender].serves.get(&serve));
        let nothing_to_give = Progress::Broke(Break::NothingToGive, PullOutcome::SenderHasNoCopy);
        let given = match serve.map(|serve| serve.state) {
            Some(ServeState::Awaited)
                if now.since(stream.asked_at) < plan_timeout(stream.asked_from_bytes) =>
            {
                return Progress::Nothing;
            }
            Some(ServeState::Accepted(copy)) => self.give(stream, copy),
            Some(ServeState::Awaited | ServeState::Refused) | None => return nothing_to_give,
        };
        match given {
            Some(given) if given || taken => Progress::Moved,
            Some(_) => Progress::Nothing,
            None => nothing_to_give,
        }
    }

    /// Has the giver send a piece, if it has one; `None` if it has nothing to give any more.
    fn give(&mut self, stream: &mut Stream, copy: CopyId) -> Option<bool> {
        if self.copy(stream.remote.sender, copy).failure.is_some() {
            return None;
        }
        let sender = stream.remote.sender;
        let mut exchanges = self.stores[sender].exchanges.iter();
        let (combine, exchange) = exchanges.find(|(_, exchange)| exchange.copy == copy)?;
        let taker = self.stores[stream.store].exchanges[&stream.combine].plan.index;
        let (combine, steps) = (*combine, exchange.program.gives(taker));
        let mut position_bytes = 0;
        for step in steps {
            let exchange = &self.stores[sender].exchanges[&combine];
            let range = exchange.range(step);
            let length_bytes = range.end - range.start;
            if stream.given_bytes >= position_bytes + length_bytes {
                position_bytes += length_bytes;
                self.advance_giver(stream, combine, step, length_bytes);
                continue;
            }
            let start = range.start + stream.given_bytes - position_bytes;
            let element_bytes = exchange.plan.metadata.dtype.size_bytes();
            let most_bytes = exchange.plan.frame_bytes.min(self.random.number(4096..65_536));
            let end = range.end.min(start + most_bytes / element_bytes * element_bytes);
            if !exchange.is_reached(step, end) {
                return Some(false);
            }
            let piece = match self.own(sender, combine, step, end) {
                Own::Lost => return None,
                Own::Late => return Some(false),
                Own::Source(own) => vec![(start..end, own)],
                Own::Partial => self.stores[sender].exchanges[&combine].memory.read(&(start..end)),
            };
            stream.arriving =
                piece.into_iter().map(|(range, value)| (range.end - range.start, value)).collect();
            stream.given_bytes += end - start;
            self.advance_giver(stream, combine, step, end - range.start);
            self.end_if_given(sender, combine);
            return Some(true);
        }
        panic!("{stream:?} takes more than is given to it");
    }

    fn advance_giver(&mut self, stream: &Stream, combine: CombineId, step: usize, done_bytes: u64) {
        if let Some(giver) = self.stores[stream.remote.sender].exchanges.get_mut(&combine) {
            giver.done_bytes[step] = giver.done_bytes[step].max(done_bytes);
        }
    }

    /// Where a step reads what is before `end`.
    fn own(&mut self, store: usize, combine: CombineId, step: usize, end: u64) -> Own {
        let exchange = &self.stores[store].exchanges[&combine];
        if exchange.reads_target(step) {
            return Own::Partial;
        }
        let (index, base) = exchange.plan.source_at(exchange.range(step).start);
        let (source, part_end) = (exchange.sources[index], exchange.plan.part_end(end - 1) - base);
        let tag = self.copy(store, source).tag.unwrap_or(MIXED);
        match self.offered_bytes(store, source, part_end) {
            None => Own::Lost,
            Some(offered_bytes) if offered_bytes < end - base => Own::Late,
            Some(_) => Own::Source(Value { tag, shape: tag, is_combined: false }),
        }
    }

    /// Takes in the piece that arrives, if it can be; says whether that was so.
    fn take_arriving(&mut self, stream: &mut Stream) -> Result<bool, Break> {
        self.fold(stream).ok_or(Break::SourceLost)?;
        let length_bytes: u64 = stream.arriving.iter().map(|(length, _)| length).sum();
        let exchange = &self.stores[stream.store].exchanges[&stream.combine];
        let step = stream.steps.iter().copied().find(|step| !exchange.is_done(*step));
        let Some(step) = step.filter(|_| length_bytes > 0) else { return Ok(false) };
        let Step::Take { range, taking, .. } = exchange.program.steps()[step].clone() else {
            panic!("step {step} of {:?} takes", exchange.program)
        };
        let start = range.start + exchange.done_bytes[step];
        assert!(
            start + length_bytes <= range.end,
            "{stream:?} brings no more than {range:?} from {start} on"
        );
        if !exchange.is_reached(step, start + length_bytes) {
            return Ok(false);
        }
        let own = if taking == Taking::Combine {
            self.own(stream.store, stream.combine, step, start + length_bytes)
        } else {
            Own::Partial
        };
        match own {
            Own::Lost => return Err(Break::SourceLost),
            Own::Late => return Ok(false),
            Own::Partial | Own::Source(_) => {}
        }
        let mut at = start;
        for (length_bytes, value) in std::mem::take(&mut stream.arriving) {
            let piece = at..at + length_bytes;
            at = piece.end;
            let host = self.stores[stream.store].exchanges.get_mut(&stream.combine);
            let exchange = host.expect("an exchange that goes on is there");
            if taking == Taking::Replace {
                exchange.memory.write(&piece, value);
                continue;
            }
            let before = match own {
                Own::Source(own) => vec![(piece, own)],
                _ => exchange.memory.read(&piece),
            };
            for (piece, before) in before {
                let combined = Value::combined(&mut self.contents, &exchange.plan, &[before, value]);
                exchange.memory.write(&piece, combined);
            }
        }
        let host = &mut self.stores[stream.store];
        let exchange = host.exchanges.get_mut(&stream.combine).expect("an exchange that goes on is there");
        exchange.done_bytes[step] += length_bytes;
        let (copy, final_bytes) = (exchange.copy, exchange.final_bytes());
        self.copy(stream.store, copy).valid_bytes = final_bytes;
        Ok(true)
    }

    /// Combines more of the member's own sources into the target, if they are several; `None` if one has failed.
    fn fold(&mut self, stream: &Stream) -> Option<()> {
        let (store, combine) = (stream.store, stream.combine);
        let exchange = &self.stores[store].exchanges[&combine];
        let (size_bytes, folded_bytes) = (exchange.plan.size_bytes, exchange.folded_bytes);
        if !exchange.plan.is_folded() || folded_bytes == size_bytes {
            return Some(());
        }
        let sources = exchange.sources.clone();
        let part_end = exchange.plan.part_end(folded_bytes);
        let offered = |source: &CopyId| self.offered_bytes(store, *source, part_end);
        let at_hand_bytes = sources.iter().map(offered).collect::<Option<Vec<u64>>>()?.into_iter().min()?;
        let element_bytes = self.stores[store].exchanges[&combine].plan.metadata.dtype.size_bytes();
        let end = at_hand_bytes / element_bytes * element_bytes;
        if end <= folded_bytes {
            return Some(());
        }
        let values = sources.iter().map(|source| {
            let tag = self.stores[store].copies[source].tag.unwrap_or(MIXED);
            Value { tag, shape: tag, is_combined: false }
        });
        let values: Vec<Value> = values.collect();
        let exchange = self.stores[store].exchanges.get_mut(&combine)?;
        let value = Value::combined(&mut self.contents, &exchange.plan, &values);
        exchange.memory.write(&(folded_bytes..end), value);
        exchange.folded_bytes = end;
        Some(())
    }

    /// Says that all bytes are there, once they are.
    fn fill_if_taken(&mut self, store: usize, combine: CombineId) {
        let Some(exchange) = self.stores[store].exchanges.get_mut(&combine) else { return };
        if exchange.is_filled || !exchange.all_done(Step::is_take) {
            return;
        }
        exchange.is_filled = true;
        let (copy, put, (tag, shape)) = (exchange.copy, exchange.plan.put, exchange.memory.contents());
        let size_bytes = exchange.plan.copy_bytes();
        let pieces = exchange.memory.pieces.iter();
        let pieces: Vec<Piece> =
            pieces.map(|(range, value)| (range.clone(), value.tag, value.shape)).collect();
        let plan = exchange.plan.clone();
        self.note(|_| format!("store {store} has filled {copy:?} of {put}"));
        let copy = self.copy(store, copy);
        (copy.tag, copy.shape, copy.valid_bytes) = (Some(tag), shape, size_bytes);
        A::filled(self, store, &plan, &pieces);
        self.store_event(store, Event::Collective(CollectiveEvent::Filled { combine }));
        self.end_if_given(store, combine);
    }

    /// An exchange ends when its copy is filled and all has been given.
    fn end_if_given(&mut self, store: usize, combine: CombineId) {
        let Some(exchange) = self.stores[store].exchanges.get(&combine) else { return };
        if exchange.is_filled && exchange.all_done(|step| !step.is_take()) {
            self.end_exchange(store, combine, CombineOutcome::Complete);
        }
    }
}
