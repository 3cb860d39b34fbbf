use bytes::Bytes;
use hoplite_core::collective::{CollectiveEffect, CollectiveEvent, MembershipId};
use hoplite_core::error::Error;
use hoplite_core::node::{CombineId, CopyId, Effect, Event, Urgency};
use hoplite_core::shard::{PullOutcome, ToShard};

use super::directed::{Directed, DirectedReport, Order};
use super::network::LinkEnd;
use super::transfers::{Ending, Job, Remote, ServeState};
use super::{Application, Cluster};

pub(crate) fn bytes_of(tag: Option<u64>, size_bytes: u64) -> Bytes {
    let size = usize::try_from(size_bytes).expect("small objects are small");
    let mut bytes = tag.unwrap_or(0).to_le_bytes().to_vec();
    bytes.resize(size, 0);
    bytes.into()
}

fn tag_of(bytes: &Bytes) -> u64 {
    bytes.first_chunk().map_or(0, |tag| u64::from_le_bytes(*tag))
}

impl<A: Application> Cluster<A> {
    #[expect(clippy::too_many_lines, reason = "one arm for each effect")]
    pub(super) fn perform(&mut self, store: usize, effect: Effect) {
        A::observe(self, store, &effect);
        match effect {
            Effect::Follow { client, call, copy, beyond_bytes } => {
                self.watch_copy((store, client, call), copy, beyond_bytes);
            }
            Effect::Inspect { client, call, inspection, shards } => {
                let known = &self.stores[store].shards;
                let shards = shards.into_iter().map(|shard| known[shard]).collect();
                self.inspect((store, client, call), inspection, shards);
            }
            Effect::CallEnded { client, call } => {
                self.watches.remove(&(store, client, call));
            }
            Effect::Reply { client, call, response } => {
                A::answered(self, store, client, call, response)
            }
            Effect::ToShard { shard, message, inline_from, urgency } => {
                let shard = self.stores[store].shards[shard];
                self.tell_shard(store, shard, message, inline_from, urgency);
            }
            Effect::CopyOpened { copy, size_bytes, producer, .. } => {
                self.open_copy(store, copy, size_bytes, producer);
            }
            Effect::Fill { copy, bytes } => self.fill_at_once(store, copy, &bytes),
            Effect::CopyCompleted { copy } => self.complete_copy(store, copy),
            Effect::CopyFailed { copy, error } => self.fail_copy(store, copy, error),
            Effect::CopyClosed { copy } => self.close_copy(store, copy),
            Effect::StartPull { pull, copy, id, put, sender, offset_bytes, .. } => {
                self.counts.pulls += 1;
                let sender = self.store_named(&sender);
                let remote = Remote { sender, id, put, awaits_hop: false };
                self.begin_transfer(
                    store,
                    Job::Pull(pull),
                    copy,
                    offset_bytes,
                    vec![(0, remote.into())],
                );
            }
            Effect::CancelPull { pull } => {
                let key = self.stores[store].pulls[&pull];
                self.end_transfer_later(key, Ending::Cancelled);
            }
            Effect::ServeAccepted { serve, copy, .. } => {
                self.serve_answered(store, serve, ServeState::Accepted(copy));
            }
            Effect::ServeRefused { serve } => {
                self.serve_answered(store, serve, ServeState::Refused)
            }
            Effect::Compare { copy, id, winner, holder } => {
                let holder = self.store_named(&holder.0);
                self.start_comparison(store, copy, id, winner, holder);
            }
            Effect::ShardsChanged { added, left } => self.shards_changed(store, &added, &left),
            Effect::PutLost { .. } | Effect::DrainEnded { .. } => {}
            Effect::StartCombine { combine, copy, op, dtype, offset_bytes, inputs } => {
                self.counts.combinations += 1;
                let inputs = inputs.into_iter().map(|input| self.origin_of(input)).collect();
                let job = Job::Combine { combine, op, element_bytes: dtype.size_bytes() };
                self.begin_transfer(store, job, copy, offset_bytes, inputs);
            }
            Effect::CancelCombine { combine } => self.cancel_combination(store, combine),
            Effect::StartHop { hop, node, spec, .. } => {
                let host = self.store_named(&node);
                self.direct(store, Directed::Hop(hop), host, Order::Hop(spec));
            }
            Effect::EndHop { hop } => self.end_directed(store, Directed::Hop(hop)),
            Effect::HopReport { hosting, report } => {
                self.host_reported(store, hosting.0, DirectedReport::Hop(report))
            }
            Effect::Spill { .. }
            | Effect::ServeSpilled { .. }
            | Effect::Load { .. }
            | Effect::RemoveSpillFile { .. }
            | Effect::IndexSpillFile { .. }
            | Effect::RetireSpillRecord { .. }
            | Effect::NoteShardRun { .. }
            | Effect::Unrecovered { .. } => {
                unreachable!("stores of the simulation have no spill directories")
            }
            Effect::Collective(effect) => self.perform_collective(store, effect),
        }
    }

    fn perform_collective(&mut self, store: usize, effect: CollectiveEffect) {
        match effect {
            CollectiveEffect::Enlist { enlistment, plan } => {
                let host = self.store_named(&plan.members[plan.index].node);
                self.direct(store, Directed::Member(enlistment), host, Order::Member(plan));
            }
            CollectiveEffect::Tell { enlistment, decision } => {
                self.send_decision(store, enlistment, decision)
            }
            CollectiveEffect::Dismiss { enlistment } => {
                self.end_directed(store, Directed::Member(enlistment));
            }
            CollectiveEffect::Report { membership, report } => {
                let MembershipId::Elsewhere(number) = membership else {
                    panic!("store {store} tells others of its own member: {report:?}")
                };
                self.host_reported(store, number, DirectedReport::Member(report));
            }
            CollectiveEffect::Reject { node, target, attempt, error, .. } => {
                let (other, delay) = (self.store_named(&node), self.connect_time());
                self.after(delay, move |cluster| {
                    if cluster.is_linked(LinkEnd::Store(store), LinkEnd::Store(other)) {
                        let rejected = CollectiveEvent::Rejected { target, attempt, error };
                        cluster.store_event(other, Event::Collective(rejected));
                    }
                });
            }
            CollectiveEffect::StartExchange { combine, copy, sources, plan } => {
                self.start_exchange(store, combine, copy, sources, plan);
            }
        }
    }

    /// Adds the bytes of the copy `inline_from` if the shard keeps them.
    fn tell_shard(
        &mut self,
        store: usize,
        shard: usize,
        mut message: ToShard,
        inline_from: Option<CopyId>,
        urgency: Urgency,
    ) {
        if let (ToShard::Publish(publish), Some(copy)) = (&mut message, inline_from) {
            let copy = self.copy(store, copy);
            let is_whole = copy.is_complete && copy.valid_bytes == copy.size_bytes;
            assert!(is_whole, "inline bytes are complete");
            publish.inline = Some(bytes_of(copy.tag, copy.size_bytes).into());
        }
        self.send_to_shard(store, shard, message, urgency);
    }

    fn fill_at_once(&mut self, store: usize, copy: CopyId, bytes: &Bytes) {
        let filled = self.copy(store, copy);
        let size_bytes = filled.size_bytes;
        assert_eq!(u64::try_from(bytes.len()), Ok(size_bytes), "a fill brings all bytes");
        filled.tag = Some(tag_of(bytes));
        self.fill(store, copy, size_bytes);
    }

    fn complete_copy(&mut self, store: usize, copy: CopyId) {
        self.note(|_| format!("store {store} completes {copy:?}"));
        let now = self.now();
        let completed = self.copy(store, copy);
        assert_eq!(
            completed.valid_bytes, completed.size_bytes,
            "all bytes are there: {completed:?}"
        );
        (completed.is_complete, completed.completed_at) = (true, now);
        self.announce_complete(store, copy);
    }

    fn fail_copy(&mut self, store: usize, copy: CopyId, error: Error) {
        self.note(|_| format!("store {store} fails {copy:?}: {error}"));
        self.copy(store, copy).failure = Some(error);
        self.fail_readers(store, Some(copy), PullOutcome::SenderHasNoCopy);
    }

    fn cancel_combination(&mut self, store: usize, combine: CombineId) {
        match self.stores[store].combinations.get(&combine) {
            Some(key) => self.end_transfer_later(*key, Ending::Cancelled),
            None => self.cancel_exchange(store, combine),
        }
    }
}
