//! The exchanges between a collective's members, over streams that break and resume.

mod memory;

use std::ops::Range;

use hoplite_core::Time;
use hoplite_core::collective::{Block, Break, CollectiveEvent, Plan, Progress, Reading, Resumes};
use hoplite_core::node::{CombineId, CombineOutcome, CopyId, Event, ServeId};
use hoplite_core::peer::{CONNECT_TIMEOUT, SILENCE_TIMEOUT, plan_timeout};
use hoplite_core::plan::collective::ReceiveMode;
use hoplite_core::shard::PullOutcome;

use super::contents::MIXED;
use super::network::LinkEnd;
use super::transfers::{Remote, ServeState};
use super::{Application, Cluster, Network};
use memory::{Memory, Value};

const BROKEN_ONE_IN: u64 = 500;

pub(crate) type Piece = (Range<u64>, u64, u64);

#[derive(Debug)]
pub(super) struct Exchange {
    copy: CopyId,
    sources: Vec<CopyId>,
    plan: Box<Plan>,
    progress: Progress,
    memory: Memory,
    is_filled: bool,
    slowness: u32,
}

impl Exchange {
    pub(super) fn uses(&self, copy: CopyId) -> bool {
        self.copy == copy || self.sources.contains(&copy)
    }
}

#[derive(Debug)]
struct Stream {
    store: usize,
    run: u64,
    combine: CombineId,
    from: usize,
    remote: Remote,
    serve: Option<ServeId>,
    requested_at: Time,
    heard_at: Time,
    requested_from_bytes: u64,
    sent_bytes: u64,
    arriving: Vec<(u64, Value)>,
    resumes: Resumes,
    idle: u32,
}

enum OwnBytes {
    Partial,
    Source(Value),
    Late,
    Lost,
}

enum StreamStep {
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
            format!(
                "store {store} exchanges as {combine:?} into {copy:?}, with {sources:?}: {plan:?}"
            )
        });
        let slowness = match self.config.network {
            Network::Blocks { slowness, .. } => slowness.max(*self.random.pick(&[1, 1, 1, 5, 20])),
            Network::Flow { .. } => panic!("sessions are simulated block by block"),
        };
        let progress = Progress::new(&plan);
        let froms = progress.program().sources();
        let exchange = Exchange {
            copy,
            sources,
            memory: Memory::default(),
            is_filled: false,
            slowness,
            progress,
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
                serve: None,
                requested_at: now,
                heard_at: now,
                sent_bytes: 0,
                requested_from_bytes: 0,
                arriving: Vec::new(),
                resumes: Resumes::new(now),
                idle: 0,
            };
            self.connect_stream(stream);
        }
        let previous = self.stores[store].exchanges.insert(combine, exchange);
        assert!(previous.is_none(), "{combine:?} is started once");
    }

    pub(super) fn cancel_exchange(&mut self, store: usize, combine: CombineId) {
        let (run, delay) = (self.stores[store].run, self.local_time());
        self.after(delay, move |cluster| {
            if !cluster.stores[store].is_running(run) {
                return;
            }
            let is_filled =
                cluster.stores[store].exchanges.get(&combine).map(|found| found.is_filled);
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
        let valid_bytes =
            if outcome == CombineOutcome::Complete { ended.plan.copy_bytes() } else { 0 };
        self.store_event(store, Event::CombineEnded { combine, valid_bytes, outcome });
    }

    fn connect_stream(&mut self, mut stream: Stream) {
        let delay = self.connect_time();
        self.after(delay, move |cluster| {
            if !cluster.is_exchanging(&stream) {
                return;
            }
            (stream.requested_at, stream.heard_at) = (cluster.now(), cluster.now());
            stream.arriving.clear();
            stream.sent_bytes = cluster.received_bytes(&stream);
            stream.requested_from_bytes = stream.sent_bytes;
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

    fn received_bytes(&self, stream: &Stream) -> u64 {
        let exchange = &self.stores[stream.store].exchanges[&stream.combine];
        exchange.progress.stream_from(stream.from).position_bytes()
    }

    fn stream_broke(&mut self, mut stream: Stream, cause: Break, outcome: PullOutcome) {
        if let Some(serve) = stream.serve.take() {
            self.end_serve(stream.remote.sender, serve);
        }
        if !self.is_exchanging(&stream) {
            return;
        }
        let received_bytes = self.received_bytes(&stream);
        self.note(|_| format!("{stream:?} broke at {received_bytes}: {cause:?}"));
        match stream.resumes.broke(self.now(), received_bytes, cause) {
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
        match self.advance_stream(&mut stream) {
            StreamStep::Moved => stream.idle = 0,
            StreamStep::Nothing => stream.idle = stream.idle.saturating_add(1),
            StreamStep::Broke(cause, outcome) => return self.stream_broke(stream, cause, outcome),
            StreamStep::Over => {
                if let Some(serve) = stream.serve {
                    self.end_serve(sender, serve);
                }
                return self.fill_if_received(store, combine);
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

    fn advance_stream(&mut self, stream: &mut Stream) -> StreamStep {
        let (now, store, sender) = (self.now(), stream.store, stream.remote.sender);
        let received = match self.receive_arriving(stream) {
            Ok(received) => received,
            Err(cause) => return StreamStep::Broke(cause, PullOutcome::SenderHasNoCopy),
        };
        let exchange = &self.stores[store].exchanges[&stream.combine];
        if exchange.progress.stream_from(stream.from).is_over() {
            // The stream is over, but this member must still combine bytes for others.
            return if exchange.progress.is_folded() {
                StreamStep::Over
            } else {
                StreamStep::Nothing
            };
        }
        if !self.is_linked(LinkEnd::Store(store), LinkEnd::Store(sender)) {
            let is_given_up = now.since(stream.heard_at) > SILENCE_TIMEOUT;
            let silent = StreamStep::Broke(Break::Silent, PullOutcome::SenderUnreachable);
            return if is_given_up { silent } else { StreamStep::Nothing };
        }
        stream.heard_at = now;
        if let Network::Blocks { damages: true, .. } = self.config.network
            && self.random.number(0..BROKEN_ONE_IN) == 0
        {
            return StreamStep::Broke(Break::Broken, PullOutcome::Corrupt);
        }
        if !stream.arriving.is_empty() {
            // The received bytes wait until this member has the bytes to combine with them. The
            // sender waits too.
            return StreamStep::Nothing;
        }
        let serve = stream.serve.and_then(|serve| self.stores[sender].serves.get(&serve));
        let nothing_to_send = StreamStep::Broke(Break::NothingToSend, PullOutcome::SenderHasNoCopy);
        let sent = match serve.map(|serve| serve.state) {
            Some(ServeState::Awaited)
                if now.since(stream.requested_at) < plan_timeout(stream.requested_from_bytes) =>
            {
                return StreamStep::Nothing;
            }
            Some(ServeState::Accepted(copy)) => self.send(stream, copy),
            Some(ServeState::Awaited | ServeState::Refused) | None => return nothing_to_send,
        };
        match sent {
            Some(sent) if sent || received => StreamStep::Moved,
            Some(_) => StreamStep::Nothing,
            None => nothing_to_send,
        }
    }

    fn send(&mut self, stream: &mut Stream, copy: CopyId) -> Option<bool> {
        if self.copy(stream.remote.sender, copy).failure.is_some() {
            return None;
        }
        let sender = stream.remote.sender;
        let mut exchanges = self.stores[sender].exchanges.iter();
        let (combine, exchange) = exchanges.find(|(_, exchange)| exchange.copy == copy)?;
        let receiver = self.stores[stream.store].exchanges[&stream.combine].plan.index;
        let combine = *combine;
        let element_bytes = exchange.plan.metadata.dtype.size_bytes();
        let max_bytes = self.random.number(4096..65_536) / element_bytes * element_bytes;
        let exchange = self.stores[sender].exchanges.get_mut(&combine)?;
        let mut outgoing = exchange.progress.stream_to(receiver, stream.sent_bytes);
        let block =
            outgoing.next(max_bytes).expect("a stream never takes more than its sender gives");
        if exchange.progress.blocked_on(&block).is_some() {
            return Some(false);
        }
        let piece = match self.own(sender, combine, &block) {
            OwnBytes::Lost => return None,
            OwnBytes::Late => return Some(false),
            OwnBytes::Source(own) => vec![(block.range.clone(), own)],
            OwnBytes::Partial => self.stores[sender].exchanges[&combine].memory.read(&block.range),
        };
        stream.arriving =
            piece.into_iter().map(|(range, value)| (range.end - range.start, value)).collect();
        stream.sent_bytes += block.length_bytes();
        let exchange = self.stores[sender].exchanges.get_mut(&combine)?;
        exchange.progress.done(&mut outgoing, &block);
        self.end_if_sent(sender, combine);
        Some(true)
    }

    fn own(&mut self, store: usize, combine: CombineId, block: &Block) -> OwnBytes {
        let exchange = &self.stores[store].exchanges[&combine];
        let Reading::Source { index, range, part_end } =
            exchange.progress.reading(&exchange.plan, block)
        else {
            return OwnBytes::Partial;
        };
        let source = exchange.sources[index];
        let tag = self.copy(store, source).tag.unwrap_or(MIXED);
        match self.offered_bytes(store, source, part_end) {
            None => OwnBytes::Lost,
            Some(offered_bytes) if offered_bytes < range.end => OwnBytes::Late,
            Some(_) => OwnBytes::Source(Value { tag, shape: tag, is_combined: false }),
        }
    }

    fn receive_arriving(&mut self, stream: &mut Stream) -> Result<bool, Break> {
        self.fold(stream).ok_or(Break::SourceLost)?;
        let length_bytes: u64 = stream.arriving.iter().map(|(length, _)| length).sum();
        if length_bytes == 0 {
            return Ok(false);
        }
        let exchange = &self.stores[stream.store].exchanges[&stream.combine];
        let mut incoming = exchange.progress.stream_from(stream.from);
        let block = incoming.check(incoming.position_bytes(), length_bytes);
        let block = block.unwrap_or_else(|bad| panic!("{stream:?} brings {}", bad.reason()));
        if exchange.progress.blocked_on(&block).is_some() {
            return Ok(false);
        }
        let own = self.own(stream.store, stream.combine, &block);
        match own {
            OwnBytes::Lost => return Err(Break::SourceLost),
            OwnBytes::Late => return Ok(false),
            OwnBytes::Partial | OwnBytes::Source(_) => {}
        }
        let mut at = block.range.start;
        for (length_bytes, value) in std::mem::take(&mut stream.arriving) {
            let piece = at..at + length_bytes;
            at = piece.end;
            let host = self.stores[stream.store].exchanges.get_mut(&stream.combine);
            let exchange = host.expect("a running exchange exists");
            if block.mode == Some(ReceiveMode::Replace) {
                exchange.memory.write(&piece, value);
                continue;
            }
            let before = match own {
                OwnBytes::Source(own) => vec![(piece, own)],
                _ => exchange.memory.read(&piece),
            };
            for (piece, before) in before {
                let combined =
                    Value::combined(&mut self.contents, &exchange.plan, &[before, value]);
                exchange.memory.write(&piece, combined);
            }
        }
        let host = &mut self.stores[stream.store];
        let exchange = host.exchanges.get_mut(&stream.combine).expect("a running exchange exists");
        exchange.progress.done(&mut incoming, &block);
        let (copy, final_bytes) = (exchange.copy, exchange.progress.final_bytes());
        self.copy(stream.store, copy).valid_bytes = final_bytes;
        Ok(true)
    }

    fn fold(&mut self, stream: &Stream) -> Option<()> {
        let (store, combine) = (stream.store, stream.combine);
        let exchange = &self.stores[store].exchanges[&combine];
        let Some(range) = exchange.progress.next_fold(&exchange.plan, u64::MAX) else {
            return Some(());
        };
        let (folded_bytes, part_end) = (range.start, range.end);
        let sources = exchange.sources.clone();
        let offered = |source: &CopyId| self.offered_bytes(store, *source, part_end);
        let at_hand_bytes =
            sources.iter().map(offered).collect::<Option<Vec<u64>>>()?.into_iter().min()?;
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
        exchange.progress.folded(end);
        Some(())
    }

    fn fill_if_received(&mut self, store: usize, combine: CombineId) {
        let Some(exchange) = self.stores[store].exchanges.get_mut(&combine) else { return };
        if exchange.is_filled || !exchange.progress.is_filled() {
            return;
        }
        exchange.is_filled = true;
        let (copy, put, (tag, shape)) =
            (exchange.copy, exchange.plan.put, exchange.memory.contents());
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
        self.end_if_sent(store, combine);
    }

    fn end_if_sent(&mut self, store: usize, combine: CombineId) {
        let Some(exchange) = self.stores[store].exchanges.get(&combine) else { return };
        if exchange.is_filled && exchange.progress.first_unsent().is_none() {
            self.end_exchange(store, combine, CombineOutcome::Complete);
        }
    }
}
