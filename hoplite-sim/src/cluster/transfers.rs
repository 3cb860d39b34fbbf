//! Pulls from one input, and combinations of several. Each transfer fills a copy.

use std::time::Duration;

use hoplite_core::node::{
    CombineId, CombineInput, CombineOutcome, CopyId, Event, Producer, PullId, ServeId,
};
use hoplite_core::peer::{CONNECT_TIMEOUT, STALL_TIMEOUT};
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::PullOutcome;
use hoplite_core::stall::{Sign, StallDetector};
use hoplite_core::{ObjectId, PutId, Time};

use super::blocks::Steps;
use super::contents::{MIXED, Operand};
use super::flow::Flow;
use super::line::Line;
use super::network::LinkEnd;
use super::{Application, Cluster, Network, node_id};

pub(super) type TransferId = u64;

pub(super) type Reader = (TransferId, usize);

#[derive(Debug, Clone, Copy)]
pub(super) enum Job {
    Pull(PullId),
    Combine { combine: CombineId, op: ReduceOp, element_bytes: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Complete,
    Cancelled,
    InputFailed { index: usize, outcome: PullOutcome },
}

#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) store: usize,
    pub(super) job: Job,
    pub(super) copy: CopyId,
    pub(super) size_bytes: u64,
    pub(super) inputs: Vec<Input>,
    pub(super) steps: Steps,
    pub(super) flow: Flow,
}

impl Transfer {
    pub(super) fn uses(&self, copy: CopyId) -> bool {
        let reads = |input: &Input| matches!(input.origin, Origin::Here(local) if local == copy);
        self.copy == copy || self.inputs.iter().any(reads)
    }
}

/// Input of a transfer. Its positions count from the start of the output.
#[derive(Debug)]
pub(super) struct Input {
    /// Output's first byte in the input's object.
    pub(super) base_bytes: u64,
    pub(super) origin: Origin,
    pub(super) at_hand_bytes: u64,
    pub(super) operand: Option<Operand>,
    pub(super) heard_at: Time,
    pub(super) sign_at: Time,
    pub(super) stall: StallDetector,
    /// Sender's growth, as the receiver knows it; `None` if bytes move in blocks.
    pub(super) line: Option<Line>,
    pub(super) is_whole: bool,
}

impl Input {
    pub(super) fn add(&mut self, operand: Operand) {
        self.operand = Some(match self.operand {
            Some(before) if before.tag != operand.tag => Operand { tag: MIXED, ..operand },
            _ => operand,
        });
    }
}

#[derive(Debug)]
pub(super) enum Origin {
    Here(CopyId),
    Elsewhere { remote: Remote, connection: Connection },
}

#[derive(Debug, Clone)]
pub(super) struct Remote {
    pub(super) sender: usize,
    pub(super) id: ObjectId,
    pub(super) put: PutId,
    pub(super) awaits_hop: bool,
}

impl From<Remote> for Origin {
    fn from(remote: Remote) -> Self {
        Self::Elsewhere { remote, connection: Connection::Closed }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Connection {
    Closed,
    Opening,
    Open(ServeId),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Serve {
    reader: Option<Reader>,
    pub(super) state: ServeState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServeState {
    Awaited,
    Accepted(CopyId),
    Refused,
}

impl Serve {
    pub(super) const fn copy(&self) -> Option<CopyId> {
        if let ServeState::Accepted(copy) = self.state { Some(copy) } else { None }
    }
}

impl<A: Application> Cluster<A> {
    pub(super) fn origin_of(&self, input: CombineInput) -> (u64, Origin) {
        match input {
            CombineInput::Local { copy, base_bytes } => (base_bytes, Origin::Here(copy)),
            CombineInput::Remote(input) => {
                let sender = self.store_named(&input.node);
                let remote =
                    Remote { sender, id: input.id, put: input.put, awaits_hop: input.is_hop };
                (input.base_bytes, remote.into())
            }
        }
    }

    pub(super) fn begin_transfer(
        &mut self,
        store: usize,
        job: Job,
        copy: CopyId,
        offset_bytes: u64,
        inputs: Vec<(u64, Origin)>,
    ) {
        self.note(|_| {
            format!("store {store}: {job:?} fills {copy:?} from {offset_bytes} on from {inputs:?}")
        });
        let output = self.copy(store, copy);
        let size_bytes = output.size_bytes;
        assert!(!output.is_complete && offset_bytes <= size_bytes && !inputs.is_empty());
        if let Job::Combine { element_bytes, .. } = job {
            assert!(
                output.producer == Producer::Reduce && offset_bytes.is_multiple_of(element_bytes)
            );
            if output.tag.is_none() && output.valid_bytes == 0 {
                (output.from_bytes, output.valid_bytes) = (offset_bytes, offset_bytes);
            }
        }
        assert_eq!(
            output.valid_bytes, offset_bytes,
            "a transfer continues where the one before it ended"
        );
        let is_filled =
            self.stores[store].pulls.values().chain(self.stores[store].combinations.values());
        assert!(
            is_filled.into_iter().all(|key| self.transfers[key].copy != copy),
            "{copy:?} has one writer"
        );
        let key = self.fresh_number();
        let host = &mut self.stores[store];
        match job {
            Job::Pull(pull) => host.pulls.insert(pull, key),
            Job::Combine { combine, .. } => host.combinations.insert(combine, key),
        };
        let inputs = inputs.into_iter().map(|(base_bytes, origin)| Input {
            base_bytes,
            origin,
            at_hand_bytes: offset_bytes,
            operand: None,
            heard_at: Time::ZERO,
            sign_at: Time::ZERO,
            stall: StallDetector::new(Time::ZERO, Sign::default(), STALL_TIMEOUT),
            line: None,
            is_whole: false,
        });
        let inputs: Vec<Input> = inputs.collect();
        let (steps, flow) = (self.any_steps(job), Flow::default());
        self.transfers.insert(key, Transfer { store, job, copy, size_bytes, inputs, steps, flow });
        match self.config.network {
            // Runs after the other effects of the same event.
            Network::Blocks { .. } => {
                self.after(Duration::ZERO, move |cluster| cluster.block_step(key))
            }
            Network::Flow { .. } => self.begin_flow(key),
        }
    }

    pub(super) fn connect_input(&mut self, reader: Reader) {
        let delay = self.connect_time();
        self.after(delay, move |cluster| cluster.request_arrives(reader));
    }

    fn set_connection(&mut self, (key, index): Reader, state: Connection) {
        let transfer = self.transfers.get_mut(&key);
        let input = transfer.and_then(|transfer| transfer.inputs.get_mut(index));
        if let Some(Input { origin: Origin::Elsewhere { connection, .. }, .. }) = input {
            *connection = state;
        }
    }

    fn input_connection(&self, (key, index): Reader) -> Option<Connection> {
        match self.transfers.get(&key)?.inputs[index].origin {
            Origin::Elsewhere { connection, .. } => Some(connection),
            Origin::Here(_) => None,
        }
    }

    fn request_arrives(&mut self, reader: Reader) {
        let Some(Transfer { store, inputs, .. }) = self.transfers.get(&reader.0) else { return };
        let Origin::Elsewhere { remote, connection: Connection::Opening } =
            &inputs[reader.1].origin
        else {
            return;
        };
        let (store, remote) = (*store, remote.clone());
        match self.request_serve(store, &remote, Some(reader)) {
            Ok(_) => {}
            Err(delay) => {
                self.fail_input_later(
                    reader,
                    Connection::Opening,
                    delay,
                    PullOutcome::SenderUnreachable,
                );
            }
        }
    }

    /// On `Err`, returns the time after which the receiver notices that the sender is unavailable.
    pub(super) fn request_serve(
        &mut self,
        receiver: usize,
        remote: &Remote,
        reader: Option<Reader>,
    ) -> Result<ServeId, Duration> {
        let &Remote { sender, ref id, put, awaits_hop } = remote;
        if !self.is_linked(LinkEnd::Store(receiver), LinkEnd::Store(sender)) {
            return Err(CONNECT_TIMEOUT);
        }
        if !self.stores[sender].is_alive {
            return Err(self.latency());
        }
        let serve = ServeId(self.fresh_number());
        self.stores[sender].serves.insert(serve, Serve { reader, state: ServeState::Awaited });
        if let Some(reader) = reader {
            self.set_connection(reader, Connection::Open(serve));
        }
        let (peer, id) = (node_id(receiver), id.clone());
        self.store_event(sender, Event::ServeRequested { serve, peer, id, put, awaits_hop });
        Ok(serve)
    }

    pub(super) fn serve_answered(&mut self, store: usize, serve: ServeId, answer: ServeState) {
        let state = self.stores[store].serves.get_mut(&serve);
        let state = state.unwrap_or_else(|| panic!("{serve:?} was not requested"));
        assert_eq!(state.state, ServeState::Awaited, "{serve:?} is decided once");
        state.state = answer;
        let Some(reader) = state.reader else { return };
        match answer {
            ServeState::Accepted(copy) => {
                self.begin_stream(store, copy, reader);
                self.follow_copy(store, copy, reader);
            }
            ServeState::Awaited | ServeState::Refused => {
                let delay = self.latency();
                self.fail_input_later(
                    reader,
                    Connection::Open(serve),
                    delay,
                    PullOutcome::SenderHasNoCopy,
                );
            }
        }
    }

    pub(super) fn end_serve(&mut self, sender: usize, serve: ServeId) {
        let delay = self.latency();
        self.after(delay, move |cluster| {
            let Some(ended) = cluster.stores[sender].serves.remove(&serve) else { return };
            if let (Some(copy), Some(reader)) = (ended.copy(), ended.reader) {
                cluster.remove_reader(sender, copy, reader);
            }
            cluster.store_event(sender, Event::ServeEnded { serve });
        });
    }

    /// Fails an input after `delay`, unless it is connected again by then.
    fn fail_input_later(
        &mut self,
        reader: Reader,
        connection: Connection,
        delay: Duration,
        outcome: PullOutcome,
    ) {
        self.after(delay, move |cluster| {
            if cluster.input_connection(reader) == Some(connection) {
                let (key, index) = reader;
                cluster.end_transfer(key, Ending::InputFailed { index, outcome });
            }
        });
    }

    pub(super) fn fail_readers(
        &mut self,
        store: usize,
        copy: Option<CopyId>,
        outcome: PullOutcome,
    ) {
        let serves = self.stores[store].serves.iter();
        let served = serves.filter(|(_, serve)| copy.is_none() || serve.copy() == copy);
        let served: Vec<(ServeId, Serve)> = served.map(|(id, serve)| (*id, *serve)).collect();
        for (serve, Serve { reader, .. }) in served {
            if let Some(reader) = reader {
                let delay = self.latency();
                self.fail_input_later(reader, Connection::Open(serve), delay, outcome);
            }
        }
        let Some(copy) = copy else { return };
        for key in self.stores[store].combinations.values().copied().collect::<Vec<_>>() {
            let inputs = &self.transfers[&key].inputs;
            let reads =
                |input: &Input| matches!(input.origin, Origin::Here(local) if local == copy);
            if let Some(index) = inputs.iter().position(reads) {
                self.end_transfer_later(key, Ending::InputFailed { index, outcome });
            }
        }
    }

    pub(super) fn end_transfer_later(&mut self, key: TransferId, ending: Ending) {
        let delay = self.local_time();
        self.after(delay, move |cluster| cluster.end_transfer(key, ending));
    }

    pub(super) fn end_transfer(&mut self, key: TransferId, ending: Ending) {
        let Some(Transfer { store, job, copy, .. }) = self.abandon_transfer(key) else { return };
        self.settle_copy(store, copy, ending);
        let valid_bytes = self.copy(store, copy).valid_bytes;
        self.note(|_| format!("store {store}: {job:?} ended at {valid_bytes}: {ending:?}"));
        let has_failed = u64::from(ending != Ending::Complete);
        let host = &mut self.stores[store];
        let event = match job {
            Job::Pull(pull) => {
                host.pulls.remove(&pull);
                self.counts.failed_pulls += has_failed;
                let outcome = match ending {
                    Ending::Complete => PullOutcome::Complete,
                    Ending::Cancelled => PullOutcome::Cancelled,
                    Ending::InputFailed { outcome, .. } => outcome,
                };
                Event::PullEnded { pull, valid_bytes, outcome }
            }
            Job::Combine { combine, .. } => {
                host.combinations.remove(&combine);
                self.counts.failed_combinations += has_failed;
                let outcome = match ending {
                    Ending::Complete => CombineOutcome::Complete,
                    Ending::Cancelled => CombineOutcome::Cancelled,
                    Ending::InputFailed { index, outcome } => {
                        CombineOutcome::InputFailed { index, outcome }
                    }
                };
                Event::CombineEnded { combine, valid_bytes, outcome }
            }
        };
        self.store_event(store, event);
    }

    fn abandon_transfer(&mut self, key: TransferId) -> Option<Transfer> {
        self.set_moving(key, false);
        let transfer = self.transfers.remove(&key)?;
        for (index, input) in transfer.inputs.iter().enumerate() {
            self.end_stream((key, index));
            match input.origin {
                Origin::Here(copy) => self.remove_reader(transfer.store, copy, (key, index)),
                Origin::Elsewhere { ref remote, connection: Connection::Open(serve) } => {
                    self.end_serve(remote.sender, serve)
                }
                Origin::Elsewhere { .. } => {}
            }
        }
        Some(transfer)
    }

    pub(super) fn transfers_of_crashed(&mut self, store: usize) {
        let host = &mut self.stores[store];
        let pulls = std::mem::take(&mut host.pulls).into_values();
        let own: Vec<TransferId> =
            pulls.chain(std::mem::take(&mut host.combinations).into_values()).collect();
        for key in own {
            self.abandon_transfer(key);
        }
        self.fail_readers(store, None, PullOutcome::SenderUnreachable);
        self.stop_flows_from(store);
        self.stores[store].serves.clear();
    }
}
