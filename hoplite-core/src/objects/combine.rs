//! Fills copies by combining others, for a reduce's target, a hop (a step of a reduce) or a
//! collective.

use super::Objects;
use super::combinations::{Combination, CombineUser};
use super::table::LocalCopy;
use crate::collective::{CollectiveEffect, MembershipId, Plan};
use crate::dtype::Dtype;
use crate::message::{CombineId, CombineInput, CopyId, Effect, HopInput};
use crate::reduce::ReduceOp;

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
        let combine = self.enter_combination(copy, local_copies.collect(), user);
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
        let combine = self.enter_combination(copy, held, CombineUser::Membership(membership));
        self.ctx.push(Effect::Collective(CollectiveEffect::StartExchange {
            combine,
            copy,
            sources,
            plan,
        }));
        combine
    }

    fn enter_combination(
        &mut self,
        copy: CopyId,
        held: Vec<CopyId>,
        user: CombineUser,
    ) -> CombineId {
        let combine = CombineId(self.ctx.next_number());
        for input in &held {
            self.copies.hold(*input);
        }
        self.combinations.insert(combine, Combination { copy, held, user });
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
    ) -> Option<(CombineUser, Option<u64>)> {
        let Combination { copy, held, user } = self.combinations.remove(&combine)?;
        let is_live = self.copies[&copy].is_live();
        let valid_bytes = self.copies.end_combine(&mut self.ctx, copy, valid_bytes);
        for input in held {
            self.let_go(input);
        }
        Some((user, is_live.then_some(valid_bytes)))
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
