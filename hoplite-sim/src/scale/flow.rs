//! Transfers, and how they share links.
//!
//! A *stock* is a copy with the line along which its bytes grow. A *transfer* fills a stock from one or several inputs,
//! which are stocks of this node or of others: it goes on as fast as its share of the links allows, and, as soon as it has
//! all that an input has, not faster than that input grows. Whenever a line changes, those who read it hear so a relay's
//! latency later, so a change travels along a chain as the bytes do.

use std::collections::BTreeSet;

use hoplite_core::block::publishable;
use hoplite_core::node::{CombineId, CombineInput, CombineOutcome, CopyId, Event, PullId, ServeId};
use hoplite_core::shard::PullOutcome;

use super::line::{Line, NOTHING_BYTES, Nanos};
use super::stores::Wish;
use super::world::World;

/// One transfer.
pub(super) type TransferId = u64;

/// Who reads a stock: which input of which transfer.
pub(super) type Reader = (TransferId, usize);

/// A copy.
#[derive(Debug)]
pub(super) struct Stock {
    pub(super) size: f64,
    size_bytes: u64,
    pub(super) line: Line,
    /// Complete, and known to be.
    is_whole: bool,
    pub(super) readers: BTreeSet<Reader>,
}

impl Stock {
    pub(super) fn new(size_bytes: u64, now: Nanos) -> Self {
        Self {
            size: size_bytes as f64,
            size_bytes,
            line: Line::flat(now, 0.0),
            is_whole: false,
            readers: BTreeSet::new(),
        }
    }
}

/// What one node's link carries now.
#[derive(Debug, Default)]
pub(super) struct Nic {
    /// How many inputs of moving transfers come in.
    inflows: usize,
    receiving: BTreeSet<TransferId>,
    /// Which inputs of moving transfers are sent.
    sending: BTreeSet<Reader>,
}

/// The sender's end of an input.
#[derive(Debug, Clone, Copy)]
pub(super) struct Serve {
    pub(super) sender: usize,
    pub(super) transfer: TransferId,
    pub(super) index: usize,
    pub(super) copy: Option<CopyId>,
}

/// What a transfer is for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Job {
    Pull(PullId),
    Combine(CombineId),
}

/// Something that fills a stock.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) store: usize,
    job: Job,
    copy: CopyId,
    size: f64,
    inputs: Vec<Input>,
    /// Whether each input has something for it, or will have at once: it uses the links then.
    is_moving: bool,
    /// Counts the times that it was looked at, so that only the latest appointment holds.
    looks: u64,
}

#[derive(Debug)]
struct Input {
    /// Where the range that is read begins in its object.
    base: f64,
    origin: Origin,
    /// What has arrived of what the sender has; `None` before anything is known.
    line: Option<Line>,
    is_whole: bool,
}

/// From where an input comes.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    Here(CopyId),
    Asked(Wish),
    Served { sender: usize, serve: ServeId },
}

impl Input {
    const fn is_remote(&self) -> bool {
        !matches!(self.origin, Origin::Here(_))
    }

    /// The line of what is at hand, by the positions of the output.
    fn at_hand(&self) -> Option<Line> {
        self.line.map(|line| Line { bytes: line.bytes - self.base, ..line })
    }

    /// How fast the output can go on, as far as this input is concerned, given that it has `done` bytes; `None`: not at all.
    fn allows(&self, done: f64, now: Nanos) -> Option<f64> {
        let line = self.at_hand()?;
        let is_behind = line.bytes_at(now) > done + NOTHING_BYTES;
        match (is_behind, line.rate > 0.0) {
            (true, _) => Some(f64::INFINITY),
            (false, true) => Some(line.rate),
            (false, false) => None,
        }
    }
}

impl World {
    pub(super) fn origin_of(&self, input: CombineInput) -> (u64, Origin) {
        match input {
            CombineInput::Local { copy, base_bytes } => (base_bytes, Origin::Here(copy)),
            CombineInput::Remote(input) => {
                let sender = self.by_name[&input.node];
                let wish = Wish { sender, id: input.id, put: input.put, awaits_hop: input.is_hop };
                (input.base_bytes, Origin::Asked(wish))
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
    ) -> TransferId {
        let (key, now) = (self.fresh_number(), self.now);
        let stock = self.stores[store].stocks.get_mut(&copy).expect("a copy that is filled is open");
        stock.line = Line::flat(now, offset_bytes as f64);
        let size = stock.size;
        let input = |(base_bytes, origin): (u64, Origin)| Input {
            base: base_bytes as f64,
            origin,
            line: None,
            is_whole: false,
        };
        let inputs: Vec<Input> = inputs.into_iter().map(input).collect();
        let origins: Vec<Origin> = inputs.iter().map(|input| input.origin.clone()).collect();
        self.transfers.insert(key, Transfer { store, job, copy, size, inputs, is_moving: false, looks: 0 });
        // A connection takes a round trip, and the request half of one.
        let delay = 3 * self.latency();
        for (index, origin) in origins.into_iter().enumerate() {
            match origin {
                Origin::Here(copy) => self.read_stock(store, copy, (key, index)),
                Origin::Asked(wish) => {
                    self.after(delay, move |world| world.wish_arrives(key, index, wish));
                }
                Origin::Served { .. } => {}
            }
        }
        key
    }

    pub(super) fn input_is_served(&mut self, key: TransferId, index: usize, sender: usize, serve: ServeId) {
        if let Some(transfer) = self.transfers.get_mut(&key) {
            transfer.inputs[index].origin = Origin::Served { sender, serve };
        }
    }

    /// Lets an input of a transfer follow a stock from now on.
    pub(super) fn read_stock(&mut self, store: usize, copy: CopyId, reader: Reader) {
        let Some(stock) = self.stores[store].stocks.get_mut(&copy) else { return };
        stock.readers.insert(reader);
        self.tell_reader(store, copy, reader);
    }

    fn tell_reader(&mut self, store: usize, copy: CopyId, (key, index): Reader) {
        let Some(stock) = self.stores[store].stocks.get(&copy) else { return };
        let (bytes, rate, is_whole) = (stock.line.bytes_at(self.now), stock.line.rate, stock.is_whole);
        let is_here = self.transfers.get(&key).is_some_and(|transfer| transfer.store == store);
        let delay = match (is_here, is_whole) {
            (true, _) => 0,
            (false, true) => self.latency(),
            (false, false) => self.relay_latency(),
        };
        self.after(delay, move |world| {
            let since = world.now;
            let Some(input) = world.transfers.get_mut(&key).and_then(|one| one.inputs.get_mut(index)) else {
                return;
            };
            // News that the copy is whole overtakes what was said of its growth.
            if !input.is_whole {
                (input.line, input.is_whole) = (Some(Line { since, bytes, rate }), is_whole);
                world.dirty.insert(key);
            }
        });
    }

    fn set_line(&mut self, store: usize, copy: CopyId, bytes: f64, rate: f64) {
        let since = self.now;
        let Some(stock) = self.stores[store].stocks.get_mut(&copy) else { return };
        stock.line = Line { since, bytes: bytes.min(stock.size), rate };
        for reader in stock.readers.clone() {
            self.tell_reader(store, copy, reader);
        }
    }

    pub(super) fn stock_completed(&mut self, store: usize, copy: CopyId) {
        let Some(stock) = self.stores[store].stocks.get_mut(&copy) else { return };
        stock.is_whole = true;
        let size = stock.size;
        self.set_line(store, copy, size, 0.0);
    }

    /// No more bytes come.
    pub(super) fn stop_stock(&mut self, store: usize, copy: CopyId) {
        if let Some(line) = self.stores[store].stocks.get(&copy).map(|stock| stock.line) {
            self.set_line(store, copy, line.bytes_at(self.now), 0.0);
        }
    }

    /// Looks at all transfers of which something has changed.
    pub(super) fn settle(&mut self) {
        while let Some(key) = self.dirty.pop_first() {
            self.look_at(key);
        }
    }

    fn look_at(&mut self, key: TransferId) {
        let now = self.now;
        let Some(transfer) = self.transfers.get(&key) else { return };
        let (store, copy) = (transfer.store, transfer.copy);
        let Some(stock) = self.stores[store].stocks.get(&copy) else { return };
        let line = stock.line;
        let done = line.bytes_at(now);
        if done + NOTHING_BYTES >= transfer.size {
            return self.end_transfer(key, PullOutcome::Complete, CombineOutcome::Complete);
        }
        let allowed = transfer.inputs.iter().try_fold(f64::INFINITY, |least: f64, input| {
            input.allows(done, now).map(|allowed| least.min(allowed))
        });
        self.set_moving(key, allowed.is_some());
        let rate = allowed.map_or(0.0, |allowed| allowed.min(self.share(key)));
        if (rate - line.rate).abs() > line.rate * 1e-9 {
            self.set_line(store, copy, done, rate);
        }
        let line = Line { since: now, bytes: done, rate };
        let Some(transfer) = self.transfers.get_mut(&key) else { return };
        transfer.looks += 1;
        let look = transfer.looks;
        let end = Line::flat(now, transfer.size);
        let meetings = transfer.inputs.iter().filter(|input| input.allows(done, now) == Some(f64::INFINITY));
        let meetings = meetings.filter_map(|input| line.meets(input.at_hand()?, now));
        let next = meetings.chain(line.meets(end, now)).min_by(f64::total_cmp);
        // Rounded up, so that what was waited for has happened then.
        let Some(delay) = next.map(|delay| delay.ceil() as Nanos) else { return };
        self.after(delay.max(1), move |world| {
            if world.transfers.get(&key).is_some_and(|transfer| transfer.looks == look) {
                world.dirty.insert(key);
            }
        });
    }

    /// What the links leave to each input of a moving transfer.
    fn share(&self, key: TransferId) -> f64 {
        let Some(transfer) = self.transfers.get(&key) else { return 0.0 };
        let link = self.experiment.bytes_per_second as f64 / 1e9;
        let mut flows = self.stores[transfer.store].nic.inflows;
        for input in &transfer.inputs {
            if let Origin::Served { sender, .. } = input.origin {
                flows = flows.max(self.stores[sender].nic.sending.len());
            }
        }
        link / flows.max(1) as f64
    }

    /// Counts a transfer at the links that it uses, or no longer, and has those looked at that share them.
    fn set_moving(&mut self, key: TransferId, is_moving: bool) {
        let Some(transfer) = self.transfers.get_mut(&key) else { return };
        if transfer.is_moving == is_moving {
            return;
        }
        transfer.is_moving = is_moving;
        let remote = transfer.inputs.iter().enumerate().filter(|(_, input)| input.is_remote());
        let (mut inflows, mut senders) = (0, Vec::new());
        for (index, input) in remote {
            inflows += 1;
            if let Origin::Served { sender, .. } = input.origin {
                senders.push((sender, index));
            }
        }
        let nic = &mut self.stores[transfer.store].nic;
        if is_moving {
            nic.inflows += inflows;
            nic.receiving.insert(key);
        } else {
            nic.inflows -= inflows;
            nic.receiving.remove(&key);
        }
        if inflows > 0 {
            self.dirty.extend(nic.receiving.iter().filter(|other| **other != key));
        }
        for (sender, index) in senders {
            let sending = &mut self.stores[sender].nic.sending;
            let _ = if is_moving { sending.insert((key, index)) } else { sending.remove(&(key, index)) };
            self.dirty.extend(sending.iter().map(|(other, _)| *other).filter(|other| *other != key));
        }
    }

    /// Ends a transfer, in whichever of the two ways it is one, and tells its store.
    pub(super) fn end_transfer(&mut self, key: TransferId, pull: PullOutcome, combine: CombineOutcome) {
        let Some(Transfer { store, job, copy, .. }) = self.abandon_transfer(key) else { return };
        let is_complete = pull == PullOutcome::Complete;
        let Some(stock) = self.stores[store].stocks.get(&copy) else { return };
        let done = stock.line.bytes_at(self.now).max(0.0) as u64;
        let valid_bytes = if is_complete { stock.size_bytes } else { publishable(done, stock.size_bytes) };
        self.set_line(store, copy, valid_bytes as f64, 0.0);
        let host = &mut self.stores[store];
        let event = match job {
            Job::Pull(id) => {
                host.pulls.remove(&id);
                self.counts.failed_pulls += u64::from(!is_complete);
                Event::PullEnded { pull: id, valid_bytes, outcome: pull }
            }
            Job::Combine(id) => {
                host.combinations.remove(&id);
                self.counts.failed_combinations += u64::from(!is_complete);
                Event::CombineEnded { combine: id, valid_bytes, outcome: combine }
            }
        };
        self.store_event(store, event);
    }

    /// Takes a transfer out; its senders hear of it.
    pub(super) fn abandon_transfer(&mut self, key: TransferId) -> Option<Transfer> {
        self.set_moving(key, false);
        let transfer = self.transfers.remove(&key)?;
        let delay = self.latency();
        for (index, input) in transfer.inputs.iter().enumerate() {
            match &input.origin {
                Origin::Served { serve, .. } => {
                    let serve = *serve;
                    self.after(delay, move |world| world.serve_ends(serve));
                }
                Origin::Here(copy) => {
                    if let Some(stock) = self.stores[transfer.store].stocks.get_mut(copy) {
                        stock.readers.remove(&(key, index));
                    }
                }
                Origin::Asked(_) => {}
            }
        }
        Some(transfer)
    }
}
