//! Combinations: copies that stores compute from several inputs, as those grow.

use hoplite_core::node::{
    ByteRange, CombineId, CombineInput, CombineOutcome, CopyId, Event, HopInput, Producer,
};
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::PullOutcome;
use hoplite_core::{Dtype, Time};

use super::contents::{MIXED, Operand, part, shape_of};
use super::network::Place;
use super::transfer::{CONNECT_TIMEOUT, Offer, Source};
use super::{Faults, Simulation};

/// The element type of all that is reduced, and its size.
pub(super) const DTYPE: Dtype = Dtype::U64;
pub(super) const ELEMENT_BYTES: u64 = 8;

/// A computation that fills a copy.
#[derive(Debug, Clone)]
pub(super) struct Combination {
    pub(super) copy: CopyId,
    op: ReduceOp,
    size_bytes: u64,
    lanes: Vec<Lane>,
    /// How many steps in a row moved nothing.
    idle_steps: u32,
    /// How many times as long as others its steps take.
    slowness: u32,
}

/// One input. Positions are those of the output.
#[derive(Debug, Clone)]
struct Lane {
    /// Where its range begins in its object.
    base_bytes: u64,
    /// Up to where bytes are at hand.
    at_hand_bytes: u64,
    /// What they are.
    operand: Option<Operand>,
    origin: Origin,
}

#[derive(Debug, Clone)]
enum Origin {
    Local(CopyId),
    Remote { input: HopInput, sender: usize, link: Link },
}

/// A connection to a sender.
#[derive(Debug, Clone, Copy)]
enum Link {
    /// Not needed, or not yet.
    None,
    /// On its way.
    Asking,
    /// Open; when the sender could be reached last.
    Open { source: Source, heard_at: Time },
}

impl Combination {
    /// Whether it reads a copy of its own store.
    pub(super) fn reads(&self, copy: CopyId) -> bool {
        self.lanes.iter().any(|lane| matches!(lane.origin, Origin::Local(local) if local == copy))
    }
}

impl Simulation {
    pub(super) fn start_combine(
        &mut self,
        store: usize,
        combine: CombineId,
        copy: CopyId,
        (op, dtype): (ReduceOp, Dtype),
        offset_bytes: u64,
        inputs: Vec<CombineInput>,
    ) {
        self.note(|_| {
            format!("store {store} starts {combine:?} into {copy:?} from {offset_bytes} on of {inputs:?}")
        });
        assert!(dtype == DTYPE && !inputs.is_empty() && offset_bytes.is_multiple_of(ELEMENT_BYTES));
        let output = self.copy(store, copy);
        let size_bytes = output.size_bytes;
        assert!(output.producer == Producer::Reduce && offset_bytes <= size_bytes);
        if output.tag.is_none() && output.valid_bytes == 0 {
            (output.from_bytes, output.valid_bytes) = (offset_bytes, offset_bytes);
        }
        assert_eq!(output.valid_bytes, offset_bytes, "a combination goes on where the one before it ended");
        let slowness = *self.random.pick(&[1, 1, 1, 5, 20]);
        let lane = |input: CombineInput| match input {
            CombineInput::Local { copy, base_bytes } => (base_bytes, Origin::Local(copy)),
            CombineInput::Remote(input) => {
                assert!(input.base_bytes + size_bytes <= input.size_bytes, "{input:?} has the range");
                let sender = self.store_named(&input.node);
                (input.base_bytes, Origin::Remote { input, sender, link: Link::None })
            }
        };
        let lanes = inputs.into_iter().map(lane).map(|(base_bytes, origin)| Lane {
            base_bytes,
            at_hand_bytes: offset_bytes,
            operand: None,
            origin,
        });
        let combination =
            Combination { copy, op, size_bytes, lanes: lanes.collect(), idle_steps: 0, slowness };
        let host = &mut self.stores[store];
        let is_filled = host.combinations.values().any(|other| other.copy == copy);
        assert!(!is_filled, "{copy:?} is filled by one combination at a time");
        host.combinations.insert(combine, combination);
        let (run, delay) = (host.run, self.latency());
        self.after(delay, move |sim| sim.combine_step(store, run, combine));
    }

    pub(super) fn cancel_combine(&mut self, store: usize, combine: CombineId) {
        let run = self.stores[store].run;
        assert!(self.stores[store].combinations.contains_key(&combine), "{combine:?} runs when cancelled");
        let delay = self.latency();
        self.after(delay, move |sim| sim.end_combination(store, run, combine, CombineOutcome::Cancelled));
    }

    /// The combination, if its store still runs and it has not ended.
    fn combination(&mut self, store: usize, run: u64, combine: CombineId) -> Option<&mut Combination> {
        let host = &mut self.stores[store];
        if host.is_running(run) { host.combinations.get_mut(&combine) } else { None }
    }

    fn end_combination(&mut self, store: usize, run: u64, combine: CombineId, outcome: CombineOutcome) {
        if self.combination(store, run, combine).is_none() {
            return;
        }
        let Some(Combination { copy, lanes, .. }) = self.stores[store].combinations.remove(&combine) else {
            return;
        };
        self.close_lanes(lanes);
        let valid_bytes = self.copy(store, copy).valid_bytes;
        self.note(|_| format!("store {store}: {combine:?} ended at {valid_bytes}: {outcome:?}"));
        if outcome == CombineOutcome::Complete {
            self.summary.combinations += 1;
        }
        self.store_event(store, Event::CombineEnded { combine, valid_bytes, outcome });
    }

    fn close_lanes(&mut self, lanes: Vec<Lane>) {
        for lane in lanes {
            if let Origin::Remote { link: Link::Open { source, .. }, .. } = lane.origin {
                self.end_serve(source);
            }
        }
    }

    /// The combinations of a machine that crashed are gone with it; those that served them notice.
    pub(super) fn combinations_of_crashed(&mut self, store: usize) {
        for (_, combination) in std::mem::take(&mut self.stores[store].combinations) {
            self.close_lanes(combination.lanes);
        }
    }

    /// Takes in what the inputs have, and combines what is at hand.
    fn combine_step(&mut self, store: usize, run: u64, combine: CombineId) {
        let Some(mut combination) = self.combination(store, run, combine).cloned() else { return };
        let done_bytes = self.copy(store, combination.copy).valid_bytes;
        for index in 0..combination.lanes.len() {
            let size_bytes = combination.size_bytes;
            let lane = &mut combination.lanes[index];
            if let Err(outcome) =
                self.advance_lane(store, (run, combine, index), lane, done_bytes, size_bytes)
            {
                self.keep_lanes(store, run, combine, combination);
                let outcome = CombineOutcome::InputFailed { index, outcome };
                return self.end_combination(store, run, combine, outcome);
            }
        }
        let senders = combination.lanes.iter().map(|lane| match &lane.origin {
            Origin::Local(_) => store,
            Origin::Remote { sender, .. } => *sender,
        });
        let senders: Vec<usize> = senders.collect();
        let sender = *self.random.pick(&senders);
        self.fail_at_step(store, sender);
        let has_moved = self.combine_lanes(store, &mut combination, done_bytes);
        let is_whole = self.copy(store, combination.copy).valid_bytes == combination.size_bytes;
        combination.idle_steps = if has_moved { 0 } else { combination.idle_steps.saturating_add(1) };
        let delay = match combination.idle_steps {
            0 => self.random.micros(50..500) * self.scenario.slowness.max(combination.slowness),
            1..20 => self.random.micros(200..3_000),
            _ => self.random.millis(2..30),
        };
        self.keep_lanes(store, run, combine, combination);
        if is_whole {
            return self.end_combination(store, run, combine, CombineOutcome::Complete);
        }
        self.after(delay, move |sim| sim.combine_step(store, run, combine));
    }

    fn keep_lanes(&mut self, store: usize, run: u64, combine: CombineId, changed: Combination) {
        if let Some(combination) = self.combination(store, run, combine) {
            *combination = changed;
        }
    }

    /// Takes in what an input has; the error is how it failed.
    fn advance_lane(
        &mut self,
        store: usize,
        (run, combine, index): (u64, CombineId, usize),
        lane: &mut Lane,
        done_bytes: u64,
        size_bytes: u64,
    ) -> Result<(), PullOutcome> {
        let (now, end_bytes) = (self.now, lane.base_bytes + size_bytes);
        if done_bytes == size_bytes {
            return Ok(());
        }
        let offer = match &mut lane.origin {
            Origin::Local(copy) => self.offer_of(store, *copy, end_bytes),
            Origin::Remote { link: Link::Asking, .. } => return Ok(()),
            Origin::Remote { .. } if lane.at_hand_bytes == size_bytes => return Ok(()),
            Origin::Remote { link, .. } if matches!(link, Link::None) => {
                if lane.at_hand_bytes < done_bytes + ELEMENT_BYTES {
                    *link = Link::Asking;
                    let delay = self.latency();
                    self.after(delay, move |sim| sim.lane_connects(store, run, combine, index));
                }
                return Ok(());
            }
            Origin::Remote { link, .. } => {
                let Link::Open { source, heard_at } = link else { return Ok(()) };
                let is_linked = self.is_linked(Place::Store(store), Place::Store(source.store));
                if !self.stores[source.store].is_running(source.run) {
                    return Err(PullOutcome::SenderUnreachable);
                }
                if !is_linked {
                    let is_given_up = now.since(*heard_at) > CONNECT_TIMEOUT;
                    return if is_given_up { Err(PullOutcome::SenderUnreachable) } else { Ok(()) };
                }
                *heard_at = now;
                let source = *source;
                if lane.at_hand_bytes >= done_bytes + ELEMENT_BYTES && self.random.chance(1) {
                    // Its connection is closed and opened again, since the other inputs keep it waiting.
                    *link = Link::None;
                    self.end_serve(source);
                    return Ok(());
                }
                if self.scenario.faults == Faults::Many && self.random.number(0..1000) == 0 {
                    return Err(PullOutcome::Corrupt);
                }
                self.offered(source, end_bytes)
            }
        };
        let (copy, limit_bytes) = match offer {
            Offer::Awaited => return Ok(()),
            Offer::Nothing => return Err(PullOutcome::SenderHasNoCopy),
            Offer::Bytes { copy, limit_bytes } => (copy, limit_bytes),
        };
        let most = lane.at_hand_bytes + self.random.number(4096..65_536);
        let limit = limit_bytes.saturating_sub(lane.base_bytes).min(size_bytes).min(most);
        if limit <= lane.at_hand_bytes {
            return Ok(());
        }
        assert!(
            copy.from_bytes <= lane.base_bytes + lane.at_hand_bytes,
            "{copy:?} is asked for bytes before its beginning: {lane:?}"
        );
        let range = ByteRange { offset_bytes: lane.base_bytes, length_bytes: size_bytes };
        let tag = part(copy.tag.unwrap_or(MIXED), copy.size_bytes, range);
        let is_of_hop = copy.is_of_hop();
        let operand = Operand { tag, shape: if is_of_hop { copy.shape } else { tag }, is_of_hop };
        lane.operand = Some(match lane.operand {
            Some(before) if before.tag != tag => Operand { tag: MIXED, ..operand },
            _ => operand,
        });
        lane.at_hand_bytes = limit;
        Ok(())
    }

    fn lane_connects(&mut self, store: usize, run: u64, combine: CombineId, index: usize) {
        let Some(combination) = self.combination(store, run, combine) else { return };
        let Origin::Remote { input, sender, .. } = combination.lanes[index].origin.clone() else { return };
        match self.request_serve(store, sender, &input.id, input.put, input.is_hop) {
            Ok(source) => {
                let heard_at = self.now;
                let Some(combination) = self.combination(store, run, combine) else {
                    return self.end_serve(source);
                };
                if let Origin::Remote { link, .. } = &mut combination.lanes[index].origin {
                    *link = Link::Open { source, heard_at };
                }
            }
            Err(delay) => self.after(delay, move |sim| {
                let outcome = CombineOutcome::InputFailed { index, outcome: PullOutcome::SenderUnreachable };
                sim.end_combination(store, run, combine, outcome);
            }),
        }
    }

    /// Combines what all inputs have; returns whether there was anything.
    fn combine_lanes(&mut self, store: usize, combination: &mut Combination, done_bytes: u64) -> bool {
        let at_hand = combination.lanes.iter().map(|lane| lane.at_hand_bytes).min().unwrap_or(0);
        let next_bytes = at_hand / ELEMENT_BYTES * ELEMENT_BYTES;
        if next_bytes <= done_bytes {
            return false;
        }
        let operands: Vec<Operand> = combination.lanes.iter().filter_map(|lane| lane.operand).collect();
        assert_eq!(operands.len(), combination.lanes.len(), "what is at hand is something");
        let tag = self.contents.combine(combination.op, &operands);
        let shape = shape_of(operands.iter().map(|operand| operand.shape));
        let output = self.copy(store, combination.copy);
        assert!(!output.is_complete, "{output:?} is being computed");
        (output.tag, output.shape) = match output.tag {
            None => (Some(tag), shape),
            Some(before) => (
                Some(if before == tag { tag } else { MIXED }),
                if output.shape == shape { shape } else { MIXED },
            ),
        };
        output.valid_bytes = next_bytes;
        true
    }
}
