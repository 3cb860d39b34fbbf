use std::sync::Arc;

use bytes::BytesMut;
use hoplite_core::TraceContext;
use hoplite_core::batch::Full;
use hoplite_core::collective::{CollectiveEffect, Decision};
use hoplite_core::node::{self, ClientId, CombineInput, Effect, ServeId, Urgency};
use hoplite_core::stall::SHORT_SILENCE;
use hoplite_daemon::warn_repeated;
use hoplite_proto::local::Response;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Engine, State, Verdict};
use crate::copies::LiveCopy;
use crate::data::{
    CombineRequest, CombineSource, CompareRequest, Exchange, HopRequest, PullRequest,
};
use crate::local::CallWork;
use crate::outbox::Outgoing;
use crate::spill::Change;

const MAX_DECISIONS: usize = 2;

impl Engine {
    #[expect(clippy::too_many_lines, reason = "one arm for each effect")]
    pub(super) fn perform(
        self: &Arc<Self>,
        state: &mut State,
        effect: Effect,
        trace: Option<TraceContext>,
    ) {
        match effect {
            Effect::Reply { client, call, response } => {
                if let Some(answers) = self.clients.get(&client) {
                    let response =
                        response.map(|response| Response::Node(self.with_contents(response)));
                    answers.add((call, response));
                }
            }
            Effect::Follow { client, call, copy, beyond_bytes } => {
                let live =
                    self.copies.get(copy).expect("a copy is open while a client refers to it");
                self.add_work(client, CallWork::Follow { call, live, beyond_bytes });
            }
            Effect::Inspect { client, call, inspection, shards } => {
                self.add_work(client, CallWork::Inspect { call, inspection, shards });
            }
            Effect::CallEnded { client, call } => self.add_work(client, CallWork::End { call }),
            Effect::ToShard { shard, message, inline_from, urgency } => {
                let inline_from = inline_from.and_then(|copy| self.copies.get(copy));
                tell_shard(state, shard, Outgoing { message, inline_from, trace }, urgency);
            }
            Effect::ShardsChanged { added, left } => {
                state.sessions.extend(added.iter().map(|_| None));
                // Dropping a session's outbox ends the session.
                left.iter().for_each(|shard| state.sessions[*shard] = None);
                state.left_shards.extend(left);
                self.shards_changed.notify_one();
            }
            Effect::CopyOpened { copy, extent, size_bytes, producer } => {
                let buffer = self
                    .arena
                    .buffer(extent, size_bytes)
                    .expect("the allocator stays inside the arena");
                buffer.initialise();
                self.copies.open(copy, LiveCopy::new(buffer, producer));
            }
            Effect::Fill { copy, bytes } => {
                if let Some(live) = self.copies.get(copy) {
                    live.buffer().write(0, &bytes);
                }
            }
            Effect::CopyCompleted { copy } => {
                if let Some(live) = self.copies.get(copy) {
                    live.complete();
                }
            }
            Effect::CopyFailed { copy, error } => {
                if let Some(live) = self.copies.get(copy) {
                    live.fail(error);
                }
            }
            Effect::CopyClosed { copy } => {
                self.copies.close(copy);
            }
            Effect::StartPull {
                pull,
                copy,
                id,
                put,
                size_bytes,
                sender,
                sender_address,
                offset_bytes,
                is_replaceable,
            } => {
                tracing::debug!(%id, %sender, size_bytes, offset_bytes, "pull starts");
                let live = self.copies.get(copy).expect("a copy is open while it is pulled");
                let silence_limit = is_replaceable.then_some(SHORT_SILENCE);
                let request = PullRequest {
                    id,
                    put,
                    offset_bytes,
                    sender,
                    sender_address,
                    silence_limit,
                    trace,
                };
                let cancelled = self.stop.child_token();
                state.pulls.insert(pull, cancelled.clone());
                self.spawn_pull(pull, live, request, cancelled);
            }
            Effect::CancelPull { pull } => {
                if let Some(cancelled) = state.pulls.get(&pull) {
                    cancelled.cancel();
                }
            }
            Effect::ServeAccepted { serve, copy, .. } => {
                state.decide(serve, self.copies.get(copy).map(Verdict::Memory));
            }
            Effect::ServeSpilled { serve, copy, size_bytes, record } => {
                state.decide(serve, Some(Verdict::File { copy, size_bytes, record }));
            }
            Effect::ServeRefused { serve } => state.decide(serve, None),
            Effect::Compare { copy, id, winner, holder } => {
                let live = self.copies.get(copy).expect("a copy is open while it is compared");
                let request =
                    CompareRequest { id, put: winner, holder: holder.0, holder_address: holder.1 };
                self.spawn_compare(copy, live, request);
            }
            Effect::PutLost { id, put, winner } => {
                tracing::warn!(%id, %put, %winner, "an accepted put lost to one on the other side of a split");
            }
            Effect::StartCombine { combine, copy, op, dtype, offset_bytes, inputs } => {
                tracing::debug!(?combine, %op, offset_bytes, inputs = inputs.len(), "combination starts");
                let live = self.copies.get(copy).expect("a copy is open while it is filled");
                let inputs = inputs.into_iter().map(|input| self.source(input)).collect();
                self.start_combine(
                    state,
                    combine,
                    live,
                    CombineRequest { op, dtype, offset_bytes, inputs, trace },
                );
            }
            Effect::CancelCombine { combine } => {
                if let Some(cancelled) = state.combines.get(&combine) {
                    cancelled.cancel();
                }
            }
            Effect::StartHop { hop, node, address, spec } => {
                tracing::debug!(?hop, host = %node, inputs = spec.inputs.len(), "hop starts");
                let ended = CancellationToken::new();
                state.hops.insert(hop, ended.clone());
                self.spawn_hop(hop, (node, address), HopRequest { spec, trace }, ended);
            }
            Effect::EndHop { hop } => {
                if let Some(ended) = state.hops.remove(&hop) {
                    ended.cancel();
                }
            }
            Effect::Spill { file, items } => self.start_spill(file, &items),
            Effect::Load { copy, record, .. } => self.start_load(copy, record),
            Effect::RemoveSpillFile { file } => self.change_spill_files(Change::Remove(file)),
            Effect::IndexSpillFile { file, objects } => {
                self.change_spill_files(Change::Index(file, objects));
            }
            Effect::RetireSpillRecord { record } => self.change_spill_files(Change::Retire(record)),
            Effect::NoteShardRun { run } => self.change_spill_files(Change::Shard(run)),
            Effect::Unrecovered { id, put, reason } => {
                tracing::info!(%id, %put, %reason, "an object of a killed store does not come back");
            }
            Effect::DrainEnded { report } => self.drain_ended(report),
            Effect::Collective(effect) => self.perform_collective(state, effect, trace),
            Effect::HopReport { hosting, report } => {
                if let Some(reports) = state.hostings.get(&hosting)
                    && let Err(error) = reports.try_send(report)
                {
                    tracing::debug!(?hosting, %error, "a report of a hop came after its end");
                }
            }
        }
    }

    fn add_work(&self, client: ClientId, work: CallWork) {
        if let Some(answers) = self.clients.get(&client) {
            answers.add_work(work);
        }
    }

    fn with_contents(&self, response: node::Response) -> node::Response {
        let view = match response {
            node::Response::Contents { view, .. } => view,
            node::Response::Batch(answers) => {
                let with_contents =
                    |answer: Result<_, _>| answer.map(|response| self.with_contents(response));
                return node::Response::Batch(answers.into_iter().map(with_contents).collect());
            }
            response => return response,
        };
        let live = self.copies.get(view.copy).expect("a copy is open until the next event");
        let mut bytes = BytesMut::zeroed(usize::try_from(view.size_bytes).unwrap_or(usize::MAX));
        live.buffer().read(0, &mut bytes);
        node::Response::Contents { view, bytes: bytes.freeze() }
    }

    fn perform_collective(
        self: &Arc<Self>,
        state: &mut State,
        effect: CollectiveEffect,
        trace: Option<TraceContext>,
    ) {
        match effect {
            CollectiveEffect::Enlist { enlistment, plan } => {
                let (sender, decisions) = mpsc::channel(MAX_DECISIONS);
                state.enlistments.insert(enlistment, sender);
                self.spawn_enlistment(enlistment, plan, decisions, trace);
            }
            CollectiveEffect::Tell { enlistment, decision } => {
                let is_last = matches!(decision, Decision::Stop(_));
                if let Some(decisions) = state.enlistments.get(&enlistment)
                    && let Err(error) = decisions.try_send(decision)
                {
                    tracing::debug!(?enlistment, %error, "a member was gone before it could be told");
                }
                if is_last {
                    state.enlistments.remove(&enlistment);
                }
            }
            CollectiveEffect::Dismiss { enlistment } => {
                state.enlistments.remove(&enlistment);
            }
            CollectiveEffect::Report { membership, report } => {
                if let Some(reports) = state.memberships.get(&membership)
                    && let Err(error) = reports.try_send(report)
                {
                    tracing::debug!(?membership, %error, "a report of a member came after its end");
                }
            }
            CollectiveEffect::Reject { node, address, target, attempt, error } => {
                let engine = Arc::clone(self);
                let task = async move {
                    let peer = (node, address);
                    engine
                        .stop
                        .run_until_cancelled(
                            engine.bulk.puller.reject(&peer, &target, attempt, &error),
                        )
                        .await;
                };
                self.tasks.spawn_on(task, &self.bulk.runtime);
            }
            CollectiveEffect::StartExchange { combine, copy, sources, plan } => {
                tracing::debug!(?combine, schedule = %plan.schedule, "exchange starts");
                let live = self.copies.get(copy).expect("a copy is open while it is filled");
                let sources = sources.into_iter().map(|source| {
                    self.copies.get(source).expect("a copy is open while it is read")
                });
                let exchange = Arc::new(Exchange::new(plan, sources.collect(), trace));
                live.set_exchange(Arc::clone(&exchange));
                let cancelled = self.stop.child_token();
                state.combines.insert(combine, cancelled.clone());
                self.spawn_exchange(combine, live, exchange, cancelled);
            }
        }
    }

    fn source(&self, input: CombineInput) -> CombineSource {
        match input {
            CombineInput::Local { copy, base_bytes } => {
                let live = self.copies.get(copy).expect("a copy is open while it is read");
                CombineSource::Local { live, base_bytes }
            }
            CombineInput::Remote(input) => CombineSource::Remote(input),
        }
    }
}

impl State {
    fn decide(&mut self, serve: ServeId, verdict: Option<Verdict>) {
        if let Some(waiting) = self.verdicts.remove(&serve) {
            let _ = waiting.send(verdict);
        }
    }
}

fn tell_shard(state: &mut State, shard: usize, outgoing: Outgoing, urgency: Urgency) {
    if let Some(session) = &state.sessions[shard]
        && session.push(outgoing, urgency) == Err(Full)
    {
        // The shard is too slow. Without its outbox, the session ends; the next one publishes all
        // copies.
        warn_repeated!(shard, "the session's queue is full, starting a new session");
        state.sessions[shard] = None;
    }
}
