//! Performs hops of reduces, also for remote coordinators.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::id::ObjectId;
use crate::message::{
    CombineInput, CombineOutcome, CopyId, Effect, Hop, HopFailure, HopOwner, HopReport,
};
use crate::metadata::Metadata;
use crate::objects::Objects;
use crate::objects::combinations::CombineUser;
use crate::objects::context::Context;
use crate::objects::notice::{Deadline, Notice, SpaceWaiter};
use crate::objects::table::{LocalCopy, Object, Phase};
use crate::shard::PullOutcome;
use crate::time::Time;

#[derive(Debug)]
struct Hosting {
    hop: Hop,
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    Awaited { deadline: Time },
    In(CopyId),
    Failed,
}

/// Hops that this store performs. A failed hop stays until its coordinator releases it.
#[derive(Debug, Default)]
pub(crate) struct Hostings {
    by_owner: BTreeMap<HopOwner, Hosting>,
}

impl Hostings {
    pub(crate) fn len(&self) -> usize {
        self.by_owner.len()
    }

    /// Starts a hop once there is memory. Its inputs may come later.
    pub(crate) fn accept(&mut self, objects: &mut Objects, owner: HopOwner, hop: Hop) {
        let deadline = objects.ctx.now() + hop.timeout;
        self.by_owner.insert(owner, Hosting { hop, output: Output::Awaited { deadline } });
        objects.ctx.schedule(deadline, Deadline::Hop(owner));
        self.begin(objects, owner);
    }

    pub(crate) fn begin(&mut self, objects: &mut Objects, owner: HopOwner) {
        let Some(Hosting { hop, output: Output::Awaited { .. } }) = self.by_owner.get(&owner)
        else {
            return;
        };
        if let Err(error) = check(objects, hop) {
            return self.fail(objects, owner, HopFailure::Refused(error));
        }
        // Keeps inputs in the arena if possible. Inputs that are only in files are streamed.
        let inputs = hop.inputs.iter();
        let mut kept: Vec<CopyId> =
            inputs.filter_map(|input| objects.copies.live_put(&input.id, input.put)).collect();
        for copy in &kept {
            objects.copies.touch(*copy);
        }
        let extent = objects.allocate_keeping(&kept, hop.size_bytes).or_else(|| {
            kept.retain(|copy| !objects.copies[copy].is_pinned());
            objects.allocate_keeping(&kept, hop.size_bytes)
        });
        let Some(extent) = extent else {
            return objects.copies.wait_for_space(SpaceWaiter::Hop(owner));
        };
        objects.end_fetch(&hop.output);
        self.stop_waiting(objects, owner);
        let Some(Hosting { hop, output }) = self.by_owner.get_mut(&owner) else { return };
        let phase = Phase::Combining { combine: None };
        let metadata = Metadata { dtype: hop.dtype, ..Metadata::default() };
        let Hop { put, size_bytes, .. } = *hop;
        let opening = Object { id: hop.output.clone(), put, size_bytes, metadata };
        let opening = LocalCopy::begin(opening, extent, phase);
        let copy = objects.copies.open(&mut objects.ctx, opening.private());
        *output = Output::In(copy);
        let inputs = hop.inputs.iter().enumerate();
        let inputs: Result<Vec<CombineInput>, usize> =
            inputs.map(|(index, input)| objects.resolve_input(input).ok_or(index)).collect();
        match inputs {
            Ok(inputs) => {
                let (operation, user) = ((hop.op, hop.dtype), CombineUser::Hop(owner));
                objects.start_combine(copy, operation, hop.offset_bytes, inputs, user);
                objects.copies.accept_awaiting(&mut objects.ctx, copy);
            }
            Err(index) => {
                let outcome = PullOutcome::SenderHasNoCopy;
                self.fail(objects, owner, HopFailure::Input { index, outcome });
            }
        }
    }

    pub(crate) fn combined(
        &mut self,
        objects: &mut Objects,
        owner: HopOwner,
        outcome: CombineOutcome,
    ) {
        let Some(Hosting { output: Output::In(copy), .. }) = self.by_owner.get(&owner) else {
            return;
        };
        match outcome {
            CombineOutcome::Complete => {
                objects.complete(*copy);
                report(&mut objects.ctx, owner, HopReport::Complete);
            }
            CombineOutcome::InputFailed { index, outcome } => {
                self.fail(objects, owner, HopFailure::Input { index, outcome });
            }
            // Only a shutdown leads here, as a release first detaches the output.
            CombineOutcome::Cancelled => {
                self.fail(objects, owner, HopFailure::Refused(Error::ShuttingDown));
            }
        }
    }

    fn fail(&mut self, objects: &mut Objects, owner: HopOwner, failure: HopFailure) {
        self.stop_waiting(objects, owner);
        let Some(Hosting { hop, output }) = self.by_owner.get_mut(&owner) else { return };
        match std::mem::replace(output, Output::Failed) {
            Output::Awaited { .. } => {}
            Output::In(copy) => {
                objects.drop_private(copy, Error::ObjectLost { id: hop.output.clone() })
            }
            Output::Failed => return,
        }
        report(&mut objects.ctx, owner, HopReport::Failed(failure));
    }

    pub(crate) fn expired(&mut self, objects: &mut Objects, owner: HopOwner) {
        let Some(hosting) = self.by_owner.get(&owner) else { return };
        let error = objects.copies.store_full(objects.ctx.node(), hosting.hop.size_bytes);
        self.fail(objects, owner, HopFailure::Refused(error));
    }

    pub(crate) fn release(&mut self, objects: &mut Objects, owner: HopOwner) {
        self.stop_waiting(objects, owner);
        let Some(hosting) = self.by_owner.remove(&owner) else { return };
        if let Output::In(copy) = hosting.output {
            let id: ObjectId = hosting.hop.output;
            objects.drop_private(copy, Error::Deleted { id });
        }
    }

    pub(crate) fn shut_down(&mut self, objects: &mut Objects) {
        let owners: Vec<HopOwner> = self.by_owner.keys().copied().collect();
        for owner in owners {
            self.fail(objects, owner, HopFailure::Refused(Error::ShuttingDown));
        }
        objects.copies.refuse_awaiting(&mut objects.ctx);
    }

    fn stop_waiting(&self, objects: &mut Objects, owner: HopOwner) {
        objects.copies.stop_waiting_for_space(&SpaceWaiter::Hop(owner));
        if let Some(Hosting { output: Output::Awaited { deadline }, .. }) =
            self.by_owner.get(&owner)
        {
            objects.ctx.unschedule(*deadline, Deadline::Hop(owner));
        }
    }
}

fn check(objects: &Objects, hop: &Hop) -> Result<()> {
    if objects.ctx.is_shutting_down() {
        return Err(Error::ShuttingDown);
    }
    // Another hop has this output, or a client guessed its name.
    if objects.copies.live(&hop.output).is_some() {
        return Err(Error::AlreadyExists { id: hop.output.clone() });
    }
    objects.copies.check_size(objects.ctx.limits(), &hop.output, hop.size_bytes)
}

fn report(ctx: &mut Context, owner: HopOwner, report: HopReport) {
    match owner {
        HopOwner::Elsewhere(hosting) => ctx.push(Effect::HopReport { hosting, report }),
        HopOwner::Here(hop) => ctx.notify(Notice::Report(hop, report)),
    }
}
