//! Combinations: copies that this store computes from others, for a reduce of its own or as a hop of somebody else's.

use super::hop::HopOwner;
use super::table::Phase;
use super::{CombineId, CombineInput, CombineOutcome, CopyId, Effect, HopInput, Node};
use crate::id::ObjectId;
use crate::metadata::Dtype;
use crate::reduce::ReduceOp;

/// What a combination is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CombineUser {
    /// The target of a reduce of this store.
    Target(ObjectId),
    /// A hop.
    Hop(HopOwner),
}

/// A combination under way.
#[derive(Debug)]
pub(super) struct Combination {
    copy: CopyId,
    /// The local copies that it reads; held until it has ended.
    held: Vec<CopyId>,
    user: CombineUser,
}

impl Node {
    /// Where each input is to be read; the place of the first one that should be here and is not, or is of another size,
    /// otherwise.
    pub(super) fn resolve_inputs(&self, inputs: &[HopInput]) -> Result<Vec<CombineInput>, usize> {
        let resolve = |(index, input): (usize, &HopInput)| {
            if input.node != *self.ctx.node() {
                return Ok(CombineInput::Remote(input.clone()));
            }
            let copy = self.live_put(&input.id, input.put);
            match copy.filter(|copy| self.copies[copy].size_bytes == input.size_bytes) {
                Some(copy) => Ok(CombineInput::Local { copy, base_bytes: input.base_bytes }),
                // A hop of this node that has not begun: waits for it as for one elsewhere.
                None if input.is_hop => Ok(CombineInput::Remote(input.clone())),
                None => Err(index),
            }
        };
        inputs.iter().enumerate().map(resolve).collect()
    }

    /// Counts the inputs that are here as used, so that others are evicted before them.
    pub(super) fn use_inputs(&mut self, inputs: &[HopInput]) {
        for input in inputs {
            if let Some(copy) = self.live_put(&input.id, input.put) {
                self.copies.touch(copy);
            }
        }
    }

    /// Starts to fill `copy` from `offset_bytes` on.
    pub(super) fn start_combine(
        &mut self,
        copy: CopyId,
        (op, dtype): (ReduceOp, Dtype),
        offset_bytes: u64,
        inputs: Vec<CombineInput>,
        user: CombineUser,
    ) {
        let combine = CombineId(self.ctx.next_number());
        let local_copies = inputs.iter().filter_map(|input| match input {
            CombineInput::Local { copy, .. } => Some(*copy),
            CombineInput::Remote(_) => None,
        });
        let held: Vec<CopyId> = local_copies.collect();
        for input in &held {
            self.hold(*input);
        }
        self.combinations.insert(combine, Combination { copy, held, user });
        self.copies.begin_combine(copy, combine, offset_bytes);
        self.ctx.push(Effect::StartCombine { combine, copy, op, dtype, offset_bytes, inputs });
    }

    /// Asks the combination that fills `copy` to end, if there is one; whether there is.
    pub(super) fn cancel_combine(&mut self, copy: CopyId) -> bool {
        match self.copies.get(&copy).map(|local| &local.phase) {
            Some(Phase::Combining { combine: Some(combine), .. }) => {
                self.ctx.push(Effect::CancelCombine { combine: *combine });
                true
            }
            _ => false,
        }
    }

    pub(super) fn combine_ended(&mut self, combine: CombineId, valid_bytes: u64, outcome: CombineOutcome) {
        let Some(Combination { copy, held, user }) = self.combinations.remove(&combine) else { return };
        for input in held {
            self.let_go(input);
        }
        let is_live = self.copies[&copy].detached.is_none();
        let valid_bytes = self.copies.end_combine(&mut self.ctx, copy, valid_bytes);
        if is_live {
            match user {
                CombineUser::Target(target) => self.target_combined(&target, copy, valid_bytes, outcome),
                CombineUser::Hop(owner) => self.hop_combined(owner, outcome),
            }
        }
    }
}
