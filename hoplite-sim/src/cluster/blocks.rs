use hoplite_core::block::publishable;
use hoplite_core::node::{ByteRange, CopyId, forwardable};
use hoplite_core::peer::{KEEPALIVE_INTERVAL, SILENCE_TIMEOUT, STALL_TIMEOUT, news_interval};
use hoplite_core::shard::PullOutcome;
use hoplite_core::stall::{Heard, Sign, StallDetector};

use super::contents::{MIXED, Operand, part, shape_of};
use super::network::LinkEnd;
use super::transfers::{Connection, Ending, Job, Origin, Reader, Transfer, TransferId};
use super::{Application, Cluster, Network};

const DAMAGED_ONE_IN: u64 = 500;

#[derive(Debug)]
pub(super) struct Steps {
    idle: u32,
    slowness: u32,
}

impl Job {
    const fn unit_bytes(self) -> u64 {
        match self {
            Self::Pull(_) => 1,
            Self::Combine { element_bytes, .. } => element_bytes,
        }
    }

    const fn output_bytes(self, at_hand_bytes: u64, size_bytes: u64) -> u64 {
        match self {
            Self::Pull(_) => publishable(at_hand_bytes, size_bytes),
            Self::Combine { element_bytes, .. } => at_hand_bytes / element_bytes * element_bytes,
        }
    }
}

impl<A: Application> Cluster<A> {
    pub(super) fn any_steps(&mut self, job: Job) -> Steps {
        let slowness = match (self.config.network, job) {
            (Network::Blocks { slowness, .. }, Job::Pull(_)) => slowness,
            (Network::Blocks { slowness, .. }, Job::Combine { .. }) => {
                slowness.max(*self.random.pick(&[1, 1, 1, 5, 20]))
            }
            (Network::Flow { .. }, _) => 1,
        };
        Steps { idle: 0, slowness }
    }

    pub(super) fn block_step(&mut self, key: TransferId) {
        let Some(mut transfer) = self.transfers.remove(&key) else { return };
        let received = (0..transfer.inputs.len()).try_for_each(|index| {
            let received = self.receive_input((key, index), &mut transfer);
            received.map_err(|outcome| Ending::InputFailed { index, outcome })
        });
        let ending = match received {
            Ok(()) => self.combine_available(&mut transfer),
            Err(failed) => Some(failed),
        };
        let delay = match transfer.steps.idle {
            0 => self.random.micros(50..500) * transfer.steps.slowness,
            1..20 => self.random.micros(200..3_000),
            _ => self.random.millis(2..30),
        };
        if let Job::Combine { .. } = transfer.job {
            let store = transfer.store;
            let input = &transfer.inputs[self.random.index(transfer.inputs.len())];
            let other = if let Origin::Elsewhere { remote, .. } = &input.origin {
                remote.sender
            } else {
                store
            };
            A::interfere(self, store, other);
        }
        self.transfers.insert(key, transfer);
        match ending {
            Some(ending) => self.end_transfer(key, ending),
            None => self.after(delay, move |cluster| cluster.block_step(key)),
        }
    }

    fn receive_input(
        &mut self,
        reader: Reader,
        transfer: &mut Transfer,
    ) -> Result<(), PullOutcome> {
        let (now, size_bytes) = (self.now(), transfer.size_bytes);
        let output = self.copy(transfer.store, transfer.copy);
        let (last_sign, needed_bytes) =
            (output.last_sign, output.valid_bytes + transfer.job.unit_bytes());
        let is_alone = transfer.inputs.len() == 1;
        let input = &mut transfer.inputs[reader.1];
        let (sender, copy) = match &mut input.origin {
            Origin::Here(copy) => (transfer.store, *copy),
            Origin::Elsewhere { connection: Connection::Opening, .. } => return Ok(()),
            Origin::Elsewhere { connection: connection @ Connection::Closed, .. } => {
                if input.at_hand_bytes < needed_bytes {
                    *connection = Connection::Opening;
                    input.heard_at = now;
                    input.stall = StallDetector::new(now, last_sign, STALL_TIMEOUT);
                    self.connect_input(reader);
                }
                return Ok(());
            }
            Origin::Elsewhere { remote, connection: connection @ Connection::Open(_) } => {
                let (Connection::Open(serve), sender) = (*connection, remote.sender) else {
                    return Ok(());
                };
                if !self.is_linked(LinkEnd::Store(transfer.store), LinkEnd::Store(sender)) {
                    let is_given_up = now.since(input.heard_at) > SILENCE_TIMEOUT;
                    return if is_given_up { Err(PullOutcome::SenderUnreachable) } else { Ok(()) };
                }
                input.heard_at = now;
                if !is_alone && input.at_hand_bytes >= needed_bytes && self.random.chance(1) {
                    // The connection closes, and opens again later.
                    *connection = Connection::Closed;
                    self.end_serve(sender, serve);
                    return Ok(());
                }
                let serve = self.stores[sender].serves.get(&serve);
                let Some(copy) = serve.and_then(|serve| serve.copy()) else { return Ok(()) };
                (sender, copy)
            }
        };
        let end_bytes = input.base_bytes + size_bytes;
        let Some(offered_bytes) = self.offered_bytes(sender, copy, end_bytes) else {
            return Err(PullOutcome::SenderHasNoCopy);
        };
        let copy = &self.stores[sender].copies[&copy];
        input.is_whole = copy.is_complete;
        let most_bytes = input.at_hand_bytes + self.random.number(4096..65_536);
        let limit_bytes =
            offered_bytes.saturating_sub(input.base_bytes).min(size_bytes).min(most_bytes);
        let is_remote = matches!(input.origin, Origin::Elsewhere { .. });
        if limit_bytes <= input.at_hand_bytes {
            let sign = Sign::of(copy.producer, copy.last_sign, now);
            return if is_remote { self.receive_sign(transfer, reader.1, sign) } else { Ok(()) };
        }
        input.stall.arrived(now);
        if is_remote
            && let Network::Blocks { damages: true, .. } = self.config.network
            && self.random.number(0..DAMAGED_ONE_IN) == 0
        {
            return Err(PullOutcome::Corrupt);
        }
        assert!(
            copy.from_bytes <= input.base_bytes + input.at_hand_bytes,
            "{copy:?} is asked for bytes before its beginning: {input:?}"
        );
        let range = ByteRange { offset_bytes: input.base_bytes, length_bytes: size_bytes };
        let tag = part(copy.tag.unwrap_or(MIXED), copy.size_bytes, range);
        let is_of_hop = copy.is_of_hop();
        let operand = Operand { tag, shape: if is_of_hop { copy.shape } else { tag }, is_of_hop };
        input.add(operand);
        input.at_hand_bytes = limit_bytes;
        Ok(())
    }

    fn receive_sign(
        &mut self,
        transfer: &mut Transfer,
        index: usize,
        sign: Sign,
    ) -> Result<(), PullOutcome> {
        let (now, input) = (self.now(), &mut transfer.inputs[index]);
        if now.since(input.sign_at) < news_interval(KEEPALIVE_INTERVAL) {
            return Ok(());
        }
        input.sign_at = now;
        match input.stall.heard(now, sign) {
            Heard::News => self.copy(transfer.store, transfer.copy).last_sign = sign,
            Heard::Nothing => {}
            Heard::Stalled => return Err(PullOutcome::SenderStalled),
        }
        Ok(())
    }

    /// Returns the number of leading bytes that a store may forward to a receiver of bytes up to
    /// `end_bytes`; `None` if the copy has failed.
    pub(super) fn offered_bytes(&self, store: usize, copy: CopyId, end_bytes: u64) -> Option<u64> {
        let copy = &self.stores[store].copies[&copy];
        let forwardable = || {
            forwardable(
                copy.producer, copy.is_complete, copy.valid_bytes, copy.size_bytes, end_bytes,
            )
        };
        copy.failure.is_none().then(forwardable)
    }

    fn combine_available(&mut self, transfer: &mut Transfer) -> Option<Ending> {
        let Transfer { store, job, copy, size_bytes, .. } = *transfer;
        let done_bytes = self.copy(store, copy).valid_bytes;
        let at_hand_bytes =
            transfer.inputs.iter().map(|input| input.at_hand_bytes).min().unwrap_or(0);
        let next_bytes = job.output_bytes(at_hand_bytes, size_bytes);
        if next_bytes > done_bytes {
            let operands: Vec<Operand> =
                transfer.inputs.iter().filter_map(|input| input.operand).collect();
            assert_eq!(operands.len(), transfer.inputs.len(), "each available input has contents");
            let shape = shape_of(operands.iter().map(|operand| operand.shape));
            let tag = match job {
                Job::Pull(_) => operands[0].tag,
                Job::Combine { op, .. } => self.contents.combine(op, &operands),
            };
            let output = self.copy(store, copy);
            (output.tag, output.shape) = match output.tag {
                None => (Some(tag), shape),
                Some(before) => (
                    Some(if before == tag { tag } else { MIXED }),
                    if output.shape == shape { shape } else { MIXED },
                ),
            };
            output.valid_bytes = next_bytes;
            transfer.steps.idle = 0;
        } else {
            transfer.steps.idle = transfer.steps.idle.saturating_add(1);
        }
        // A receiver without bytes completes an empty object only on its sender's word.
        let has_word =
            size_bytes > 0 || matches!(job, Job::Combine { .. }) || transfer.inputs[0].is_whole;
        (next_bytes.max(done_bytes) == size_bytes && has_word).then_some(Ending::Complete)
    }
}
