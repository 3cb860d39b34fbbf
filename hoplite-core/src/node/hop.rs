//! Hops that this store performs, for a coordinator elsewhere or for a reduce of its own.

use std::collections::BTreeMap;

use super::{CombineOutcome, CopyId, Effect, Hop, HopFailure, HopOwner, HopReport};
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::id::ObjectId;
use crate::metadata::Metadata;
use crate::objects::combine::{Combinations, CombineUser, resolve_inputs};
use crate::objects::context::Context;
use crate::objects::notice::SpaceWaiter;
use crate::objects::notice::{Deadline, Notice};
use crate::objects::table::{LocalCopy, Phase, Table};
use crate::shard::PullOutcome;
use crate::time::Time;

/// A hop that was asked for and not released yet.
#[derive(Debug)]
struct Hosting {
    hop: Hop,
    output: Output,
}

/// Where the output of a hop is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    /// There is no room for it yet, and until then there has to be.
    Awaited { deadline: Time },
    /// In this copy, which is live.
    In(CopyId),
    /// It has failed, and that was reported.
    Failed,
}

/// All hops that this store performs. Those that have failed are in here until they are released.
#[derive(Debug, Default)]
pub(super) struct Hostings {
    by_owner: BTreeMap<HopOwner, Hosting>,
}

impl Hostings {
    pub(super) fn len(&self) -> usize {
        self.by_owner.len()
    }

    /// Takes on a hop. Its inputs may wait for each other, so it is to be started whether or not they have begun.
    pub(super) fn accept(&mut self, ctx: &mut Context, owner: HopOwner, hop: Hop) {
        let deadline = ctx.now() + hop.timeout;
        self.by_owner.insert(owner, Hosting { hop, output: Output::Awaited { deadline } });
        ctx.schedule(deadline, Deadline::Hop(owner));
    }

    /// Which object a hop that has not begun is to make, and of which size. One that cannot be performed fails.
    pub(super) fn output_of(
        &mut self,
        ctx: &mut Context,
        table: &mut Table,
        owner: HopOwner,
    ) -> Option<(ObjectId, u64)> {
        let Hosting { hop, output: Output::Awaited { .. } } = self.by_owner.get(&owner)? else { return None };
        if let Err(error) = check(ctx, table, hop) {
            self.fail(ctx, table, owner, HopFailure::Refused(error));
            return None;
        }
        // They are used, so others are to be evicted before them.
        for input in &hop.inputs {
            if let Some(copy) = table.live_put(&input.id, input.put) {
                table.touch(copy);
            }
        }
        Some((hop.output.clone(), hop.size_bytes))
    }

    /// Starts a hop whose output has this room.
    pub(super) fn begin(
        &mut self,
        ctx: &mut Context,
        table: &mut Table,
        combinations: &mut Combinations,
        owner: HopOwner,
        room: Extent,
    ) {
        stop_waiting(ctx, table, owner, self.by_owner.get(&owner));
        let Some(Hosting { hop, output }) = self.by_owner.get_mut(&owner) else { return };
        let phase = Phase::Combining { combine: None, valid_bytes: hop.offset_bytes };
        let metadata = Metadata { dtype: hop.dtype, ..Metadata::default() };
        let opening = LocalCopy::begin(hop.output.clone(), hop.put, hop.size_bytes, metadata, room, phase);
        let copy = table.open(ctx, opening.private());
        *output = Output::In(copy);
        match resolve_inputs(ctx, table, &hop.inputs) {
            Ok(inputs) => {
                let (operation, offset_bytes) = ((hop.op, hop.dtype), hop.offset_bytes);
                let user = CombineUser::Hop(owner);
                combinations.start((ctx, table), copy, operation, offset_bytes, inputs, user);
                table.accept_awaiting(ctx, copy);
            }
            Err(index) => {
                let outcome = PullOutcome::SenderHasNoCopy;
                self.fail(ctx, table, owner, HopFailure::Input { index, outcome });
            }
        }
    }

    /// The combination of a hop has ended.
    pub(super) fn combined(
        &mut self,
        ctx: &mut Context,
        table: &mut Table,
        owner: HopOwner,
        outcome: CombineOutcome,
    ) {
        let Some(Hosting { hop, output: Output::In(copy) }) = self.by_owner.get(&owner) else { return };
        match outcome {
            CombineOutcome::Complete => {
                table.complete(ctx, *copy);
                ctx.notify(Notice::Changed(hop.output.clone()));
                report(ctx, owner, HopReport::Complete);
            }
            CombineOutcome::InputFailed { index, outcome } => {
                self.fail(ctx, table, owner, HopFailure::Input { index, outcome });
            }
            // Only a release cancels, and it has detached the output; or the daemon stops.
            CombineOutcome::Cancelled => {
                self.fail(ctx, table, owner, HopFailure::Refused(Error::ShuttingDown));
            }
        }
    }

    /// The output is of no use any more, or never will be; the coordinator will release the hop.
    fn fail(&mut self, ctx: &mut Context, table: &mut Table, owner: HopOwner, failure: HopFailure) {
        stop_waiting(ctx, table, owner, self.by_owner.get(&owner));
        let Some(Hosting { hop, output }) = self.by_owner.get_mut(&owner) else { return };
        match std::mem::replace(output, Output::Failed) {
            Output::Awaited { .. } => {}
            Output::In(copy) => {
                table.detach(ctx, copy, Error::ObjectLost { id: hop.output.clone() });
            }
            Output::Failed => return,
        }
        report(ctx, owner, HopReport::Failed(failure));
    }

    /// There was no room for the output of a hop in time.
    pub(super) fn expired(&mut self, ctx: &mut Context, table: &mut Table, owner: HopOwner) {
        let Some(hosting) = self.by_owner.get(&owner) else { return };
        let error = table.store_full(ctx.node(), hosting.hop.size_bytes);
        self.fail(ctx, table, owner, HopFailure::Refused(error));
    }

    /// The coordinator needs a hop no longer: ends it and frees its output.
    pub(super) fn release(&mut self, ctx: &mut Context, table: &mut Table, owner: HopOwner) {
        stop_waiting(ctx, table, owner, self.by_owner.get(&owner));
        let Some(hosting) = self.by_owner.remove(&owner) else { return };
        if let Output::In(copy) = hosting.output {
            table.detach(ctx, copy, Error::Deleted { id: hosting.hop.output });
        }
    }

    /// The daemon stops: nobody gets anything from a hop any more.
    pub(super) fn shut_down(&mut self, ctx: &mut Context, table: &mut Table) {
        let owners: Vec<HopOwner> = self.by_owner.keys().copied().collect();
        for owner in owners {
            self.fail(ctx, table, owner, HopFailure::Refused(Error::ShuttingDown));
        }
        table.refuse_awaiting(ctx);
    }
}

fn check(ctx: &Context, table: &Table, hop: &Hop) -> Result<()> {
    if ctx.is_shutting_down() {
        return Err(Error::ShuttingDown);
    }
    // Not by another hop, nor by a client that thought of the same name.
    if table.live(&hop.output).is_some() {
        return Err(Error::AlreadyExists { id: hop.output.clone() });
    }
    table.check_size(ctx.limits(), &hop.output, hop.size_bytes)
}

/// A hop waits for room no longer, if it did.
fn stop_waiting(ctx: &mut Context, table: &mut Table, owner: HopOwner, hosting: Option<&Hosting>) {
    table.stop_waiting_for_space(&SpaceWaiter::Hop(owner));
    if let Some(Hosting { output: Output::Awaited { deadline }, .. }) = hosting {
        ctx.unschedule(*deadline, Deadline::Hop(owner));
    }
}

fn report(ctx: &mut Context, owner: HopOwner, report: HopReport) {
    match owner {
        HopOwner::Elsewhere(hosting) => ctx.push(Effect::HopReport { hosting, report }),
        HopOwner::Here(hop) => ctx.notify(Notice::Report(hop, report)),
    }
}
