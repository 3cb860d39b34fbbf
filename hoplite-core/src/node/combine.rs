//! Combinations: copies that this store computes from others, for a reduce of its own or as a hop of somebody else's.

use std::collections::BTreeMap;

use super::context::Context;
use super::hop::HopOwner;
use super::table::Table;
use super::{CombineId, CombineInput, CopyId, Effect, HopInput};
use crate::collective::{CollectiveEffect, MembershipId, Plan};
use crate::dtype::Dtype;
use crate::id::ObjectId;
use crate::reduce::ReduceOp;

/// What a combination is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CombineUser {
    /// The target of a reduce of this store.
    Target(ObjectId),
    /// A hop.
    Hop(HopOwner),
    /// The target of an attempt in which this store is a member.
    Membership(MembershipId),
}

/// A combination under way.
#[derive(Debug)]
struct Combination {
    copy: CopyId,
    /// The local copies that it reads; held until it has ended.
    held: Vec<CopyId>,
    user: CombineUser,
}

/// A combination that has ended.
#[derive(Debug)]
pub(super) struct Combined {
    pub(super) user: CombineUser,
    /// How many bytes of its copy are valid.
    pub(super) valid_bytes: u64,
    /// `true` if the copy is still wanted.
    pub(super) is_live: bool,
    /// The copies that it has read. The caller lets go of them.
    pub(super) held: Vec<CopyId>,
}

/// All combinations under way.
#[derive(Debug, Default)]
pub(super) struct Combinations {
    running: BTreeMap<CombineId, Combination>,
}

impl Combinations {
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// Starts to fill `copy` from `offset_bytes` on.
    pub(super) fn start(
        &mut self,
        (ctx, table): (&mut Context, &mut Table),
        copy: CopyId,
        (op, dtype): (ReduceOp, Dtype),
        offset_bytes: u64,
        inputs: Vec<CombineInput>,
        user: CombineUser,
    ) {
        let combine = CombineId(ctx.next_number());
        let local_copies = inputs.iter().filter_map(|input| match input {
            CombineInput::Local { copy, .. } => Some(*copy),
            CombineInput::Remote(_) => None,
        });
        let held: Vec<CopyId> = local_copies.collect();
        for input in &held {
            table.hold(*input);
        }
        self.running.insert(combine, Combination { copy, held, user });
        table.begin_combine(copy, combine, offset_bytes);
        ctx.push(Effect::StartCombine { combine, copy, op, dtype, offset_bytes, inputs });
    }

    /// Starts to fill `copy` as a member of an attempt, from these copies and from what other members give.
    pub(super) fn start_exchange(
        &mut self,
        (ctx, table): (&mut Context, &mut Table),
        copy: CopyId,
        sources: Vec<CopyId>,
        plan: Box<Plan>,
        membership: MembershipId,
    ) -> CombineId {
        let combine = CombineId(ctx.next_number());
        // The copy too: when it is complete, the exchange goes on for others.
        let held: Vec<CopyId> = sources.iter().copied().chain([copy]).collect();
        for copy in &held {
            table.hold(*copy);
        }
        let user = CombineUser::Membership(membership);
        self.running.insert(combine, Combination { copy, held, user });
        table.begin_combine(copy, combine, 0);
        ctx.push(Effect::Collective(CollectiveEffect::StartExchange { combine, copy, sources, plan }));
        combine
    }

    /// A combination no longer touches any memory.
    pub(super) fn end(
        &mut self,
        (ctx, table): (&mut Context, &mut Table),
        combine: CombineId,
        valid_bytes: u64,
    ) -> Option<Combined> {
        let Combination { copy, held, user } = self.running.remove(&combine)?;
        let is_live = table[&copy].is_live();
        let valid_bytes = table.end_combine(ctx, copy, valid_bytes);
        Some(Combined { user, valid_bytes, is_live, held })
    }
}

/// Where each input is to be read; the place of the first one that should be here and is not, or is of another size,
/// otherwise.
pub(super) fn resolve_inputs(
    ctx: &Context,
    table: &Table,
    inputs: &[HopInput],
) -> Result<Vec<CombineInput>, usize> {
    let resolve = |(index, input)| resolve_input(ctx, table, input).ok_or(index);
    inputs.iter().enumerate().map(resolve).collect()
}

/// Where an input is to be read; `None` if it should be here and is not, or is of another size.
pub(super) fn resolve_input(ctx: &Context, table: &Table, input: &HopInput) -> Option<CombineInput> {
    if input.node != *ctx.node() {
        return Some(CombineInput::Remote(input.clone()));
    }
    let copy = table.live_put(&input.id, input.put);
    match copy.filter(|copy| table[copy].size_bytes == input.size_bytes) {
        Some(copy) => Some(CombineInput::Local { copy, base_bytes: input.base_bytes }),
        // A hop of this node that has not begun: waits for it as for one elsewhere.
        None => input.is_hop.then(|| CombineInput::Remote(input.clone())),
    }
}
