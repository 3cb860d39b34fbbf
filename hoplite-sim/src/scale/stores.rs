//! What the effects of stores do, and what happens when a store dies.

use bytes::Bytes;
use hoplite_core::node::{CombineOutcome, CopyId, Effect, Event, ServeId};
use hoplite_core::shard::{PullOutcome, ToShard};
use hoplite_core::{ObjectId, PutId};

use super::flow::{Job, Origin, Serve, Stock, TransferId};
use super::line::Line;
use super::world::World;

/// What a store asks another one for.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) sender: usize,
    pub(super) id: ObjectId,
    pub(super) put: PutId,
    pub(super) awaits_hop: bool,
}

impl World {
    pub(super) fn perform(&mut self, store: usize, effect: Effect) {
        match effect {
            Effect::Reply { call, response, .. } => self.answered(store, call, response),
            Effect::ToShard { shard, mut message, inline_from, .. } => {
                if let (ToShard::Publish(publish), Some(_)) = (&mut message, inline_from) {
                    let size = usize::try_from(publish.size_bytes).expect("inline objects are small");
                    publish.inline = Some(Bytes::from(vec![0; size]));
                }
                self.send_to_shard(store, shard, message);
            }
            Effect::CopyOpened { copy, size_bytes, .. } => {
                let stock = Stock::new(size_bytes, self.now);
                self.stores[store].stocks.insert(copy, stock);
            }
            Effect::Fill { copy, .. } => self.fill_stock(store, copy),
            Effect::CopyCompleted { copy } => self.stock_completed(store, copy),
            Effect::CopyFailed { copy, .. } => self.stock_failed(store, copy),
            Effect::CopyClosed { copy } => {
                self.stores[store].stocks.remove(&copy);
            }
            Effect::StartPull { pull, copy, id, put, sender, offset_bytes, .. } => {
                self.counts.pulls += 1;
                let sender = self.by_name[&sender];
                let wish = Wish { sender, id, put, awaits_hop: false };
                let job = Job::Pull(pull);
                let key = self.begin_transfer(store, job, copy, offset_bytes, vec![(0, Origin::Asked(wish))]);
                self.stores[store].pulls.insert(pull, key);
            }
            Effect::CancelPull { pull } => {
                let key = self.stores[store].pulls[&pull];
                self.end_soon(key, PullOutcome::Cancelled, CombineOutcome::Cancelled);
            }
            Effect::StartCombine { combine, copy, offset_bytes, inputs, .. } => {
                self.counts.combinations += 1;
                let inputs = inputs.into_iter().map(|input| self.origin_of(input)).collect();
                let key = self.begin_transfer(store, Job::Combine(combine), copy, offset_bytes, inputs);
                self.stores[store].combinations.insert(combine, key);
            }
            Effect::CancelCombine { combine } => {
                let key = self.stores[store].combinations[&combine];
                self.end_soon(key, PullOutcome::Cancelled, CombineOutcome::Cancelled);
            }
            Effect::ServeAccepted { serve, copy, .. } => self.serve_accepted(store, serve, copy),
            Effect::ServeRefused { serve } => self.serve_refused(serve),
            Effect::StartHop { hop, node, spec, .. } => self.start_hop(store, hop, self.by_name[&node], spec),
            Effect::EndHop { hop } => self.end_hop(store, hop),
            Effect::HopReport { hosting, report } => self.hop_reported(hosting, report),
            Effect::Compare { id, .. } => unreachable!("{id} is put once"),
        }
    }

    fn end_soon(&mut self, key: TransferId, pull: PullOutcome, combine: CombineOutcome) {
        self.after(0, move |world| world.end_transfer(key, pull, combine));
    }

    /// A store is asked to serve one input of a transfer.
    pub(super) fn wish_arrives(&mut self, key: TransferId, index: usize, wish: Wish) {
        if !self.transfers.contains_key(&key) {
            return;
        }
        let Wish { sender, id, put, awaits_hop } = wish;
        if !self.stores[sender].is_alive {
            return self.input_fails_later(key, index, PullOutcome::SenderUnreachable);
        }
        let serve = ServeId(self.fresh_number());
        self.serves.insert(serve, Serve { sender, transfer: key, index, copy: None });
        self.input_is_served(key, index, sender, serve);
        self.store_event(sender, Event::ServeRequested { serve, id, put, awaits_hop });
    }

    fn serve_accepted(&mut self, store: usize, serve: ServeId, copy: CopyId) {
        let Some(state) = self.serves.get_mut(&serve) else { return };
        state.copy = Some(copy);
        let reader = (state.transfer, state.index);
        self.read_stock(store, copy, reader);
    }

    fn serve_refused(&mut self, serve: ServeId) {
        let Some(Serve { transfer, index, .. }) = self.serves.get(&serve).copied() else { return };
        self.input_fails_later(transfer, index, PullOutcome::SenderHasNoCopy);
    }

    /// The sender hears that a serve has ended.
    pub(super) fn serve_ends(&mut self, serve: ServeId) {
        let Some(Serve { sender, transfer, index, copy }) = self.serves.remove(&serve) else { return };
        if let Some(stock) = copy.and_then(|copy| self.stores[sender].stocks.get_mut(&copy)) {
            stock.readers.remove(&(transfer, index));
        }
        self.store_event(sender, Event::ServeEnded { serve });
    }

    pub(super) fn input_fails_later(&mut self, key: TransferId, index: usize, outcome: PullOutcome) {
        self.after(self.latency(), move |world| {
            world.end_transfer(key, outcome, CombineOutcome::InputFailed { index, outcome });
        });
    }

    /// A copy will never be complete: those who read it are told.
    fn stock_failed(&mut self, store: usize, copy: CopyId) {
        let Some(stock) = self.stores[store].stocks.get_mut(&copy) else { return };
        for (key, index) in stock.readers.clone() {
            self.input_fails_later(key, index, PullOutcome::SenderHasNoCopy);
        }
    }

    fn fill_stock(&mut self, store: usize, copy: CopyId) {
        let now = self.now;
        if let Some(stock) = self.stores[store].stocks.get_mut(&copy) {
            stock.line = Line::flat(now, stock.size);
        }
    }

    /// A node dies: all that it had is gone, and its peers notice.
    pub(super) fn crash(&mut self, store: usize) {
        self.counts.crashes += 1;
        self.stores[store].is_alive = false;
        let transfers = self.transfers.iter().filter(|(_, transfer)| transfer.store == store);
        let own: Vec<TransferId> = transfers.map(|(key, _)| *key).collect();
        for key in own {
            self.abandon_transfer(key);
        }
        let served = self.serves.iter().filter(|(_, serve)| serve.sender == store);
        let served: Vec<(ServeId, Serve)> = served.map(|(id, serve)| (*id, *serve)).collect();
        for (id, serve) in served {
            self.serves.remove(&id);
            self.input_fails_later(serve.transfer, serve.index, PullOutcome::SenderUnreachable);
        }
        // What is under way arrives, and no more.
        let copies: Vec<CopyId> = self.stores[store].stocks.keys().copied().collect();
        for copy in copies {
            self.stop_stock(store, copy);
        }
        self.stores[store].stocks.clear();
        self.disconnect(store);
        self.directions_of_crashed(store);
        self.calls_of_crashed(store);
    }
}
