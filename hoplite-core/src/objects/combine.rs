//! Fills copies by combining others, for a reduce's target, a hop (a step of a reduce) or a
//! collective.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Objects;
use super::combinations::{Combination, CombineUser, Story};
use super::table::LocalCopy;
use crate::collective::{CollectiveEffect, MembershipId, Plan};
use crate::dtype::Dtype;
use crate::load::{CombinationLoad, MAX_SENDERS, Sender};
use crate::message::{CombineId, CombineInput, CombineOutcome, CopyId, Effect, HopInput};
use crate::plan::collective::Step;
use crate::reduce::ReduceOp;
use crate::time::Time;

impl Objects {
    pub(crate) fn start_combine(
        &mut self,
        copy: CopyId,
        (op, dtype): (ReduceOp, Dtype),
        offset_bytes: u64,
        inputs: Vec<CombineInput>,
        user: CombineUser,
    ) {
        let local_copies = inputs.iter().filter_map(|input| match input {
            CombineInput::Local { copy, .. } => Some(*copy),
            CombineInput::Remote(_) => None,
        });
        let remote = inputs.iter().filter_map(|input| match input {
            CombineInput::Remote(input) => Some(input),
            CombineInput::Local { .. } => None,
        });
        let sender = |input: &HopInput| Sender {
            node: input.node.clone(),
            hop: input.is_hop.then(|| input.id.clone()),
        };
        let story = Story {
            op: op.name().to_owned(),
            plan: String::new(),
            senders: remote.clone().take(MAX_SENDERS).map(sender).collect(),
            all_senders: remote.count(),
            began: self.ctx.now(),
        };
        let combine = self.enter_combination(copy, local_copies.collect(), user, story);
        self.ctx.push(Effect::StartCombine { combine, copy, op, dtype, offset_bytes, inputs });
    }

    pub(crate) fn start_exchange(
        &mut self,
        copy: CopyId,
        sources: Vec<CopyId>,
        plan: Box<Plan>,
        membership: MembershipId,
    ) -> CombineId {
        // Holds the filled copy too: the exchange may still send its bytes once the copy is
        // complete.
        let held: Vec<CopyId> = sources.iter().copied().chain([copy]).collect();
        let story = self.story_of_exchange(&plan);
        let user = CombineUser::Membership(membership);
        let combine = self.enter_combination(copy, held, user, story);
        self.ctx.push(Effect::Collective(CollectiveEffect::StartExchange {
            combine,
            copy,
            sources,
            plan,
        }));
        combine
    }

    fn story_of_exchange(&self, plan: &Plan) -> Story {
        let program = plan.program();
        let from = |step: &Step| match step {
            Step::Receive { from, .. } => Some(*from),
            Step::Send { .. } => None,
        };
        let senders: BTreeSet<usize> = program.steps().iter().filter_map(from).collect();
        let sender =
            |member: &usize| Sender { node: plan.members[*member].node.clone(), hop: None };
        let op = match plan.properties().combines {
            true => plan.agreement.op.name().to_owned(),
            false => plan.agreement.kind.to_string(),
        };
        Story {
            op,
            plan: plan.summary(),
            senders: senders.iter().take(MAX_SENDERS).map(sender).collect(),
            all_senders: senders.len(),
            began: self.ctx.now(),
        }
    }

    fn enter_combination(
        &mut self,
        copy: CopyId,
        held: Vec<CopyId>,
        user: CombineUser,
        story: Story,
    ) -> CombineId {
        let combine = CombineId(self.ctx.next_number());
        for input in &held {
            self.copies.hold(*input);
        }
        self.combinations.insert(combine, Combination { copy, held, user, story });
        self.copies.begin_combine(copy, combine);
        combine
    }

    pub(crate) fn cancel_combine(&mut self, copy: CopyId) -> bool {
        let combine = self.copies.get(&copy).and_then(LocalCopy::combination);
        combine.map(|combine| self.ctx.push(Effect::CancelCombine { combine })).is_some()
    }

    /// Ends a combination that no longer touches memory. Returns its user, and the number of valid
    /// bytes unless the filled copy is gone.
    pub(crate) fn combine_ended(
        &mut self,
        combine: CombineId,
        valid_bytes: u64,
        outcome: CombineOutcome,
    ) -> Option<(CombineUser, Option<u64>)> {
        let Combination { copy, held, user, story } = self.combinations.remove(&combine)?;
        let now = self.ctx.now();
        let local = &self.copies[&copy];
        let is_live = local.is_live();
        let load = CombinationLoad {
            number: 0,
            output: local.id.clone(),
            put: local.put,
            op: story.op,
            plan: story.plan,
            senders: story.senders,
            all_senders: story.all_senders as u64,
            size_bytes: local.size_bytes,
            age: Duration::ZERO,
            took: now.since(story.began),
            is_complete: outcome == CombineOutcome::Complete,
        };
        self.ended_combinations.push(now, load);
        let valid_bytes = self.copies.end_combine(&mut self.ctx, copy, valid_bytes);
        for input in held {
            self.let_go(input);
        }
        Some((user, is_live.then_some(valid_bytes)))
    }

    /// Returns the latest combinations that have ended, oldest first.
    pub(crate) fn ended_combinations(&self, now: Time) -> impl Iterator<Item = CombinationLoad> {
        self.ended_combinations.all(now)
    }

    /// Returns `None` if the input should be at this node, but is missing or has another size.
    pub(crate) fn resolve_input(&self, input: &HopInput) -> Option<CombineInput> {
        if input.node != *self.ctx.node() {
            return Some(CombineInput::Remote(input.clone()));
        }
        let copy = self.copies.live_put(&input.id, input.put);
        match copy.filter(|copy| self.copies[copy].size_bytes == input.size_bytes) {
            // A copy in a spill file is read like a remote input.
            Some(copy) if !self.copies[&copy].is_resident() => {
                Some(CombineInput::Remote(input.clone()))
            }
            Some(copy) => Some(CombineInput::Local { copy, base_bytes: input.base_bytes }),
            // A hop of this node that has not begun: its output is pulled like a remote input.
            None => input.is_hop.then(|| CombineInput::Remote(input.clone())),
        }
    }
}
