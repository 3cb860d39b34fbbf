//! Hops that this store performs, for a coordinator elsewhere or for a reduce of its own.

use super::combine::CombineUser;
use super::context::{Deadline, Notice};
use super::table::{LocalCopy, Phase, SpaceWaiter, Visibility};
use super::{CombineOutcome, CopyId, Effect, Hop, HopFailure, HopId, HopReport, HostingId, Node};
use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::shard::PullOutcome;
use crate::time::Time;

/// Who directs a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HopOwner {
    /// A coordinator elsewhere.
    Elsewhere(HostingId),
    /// This store.
    Here(HopId),
}

/// A hop that was asked for and not released yet.
#[derive(Debug)]
pub(super) struct Hosting {
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

impl Node {
    /// Takes on a hop. Its inputs may wait for each other, so it is started whether or not they have begun.
    pub(super) fn host(&mut self, owner: HopOwner, hop: Hop) {
        let deadline = self.ctx.now() + hop.timeout;
        self.hostings.insert(owner, Hosting { hop, output: Output::Awaited { deadline } });
        self.ctx.schedule(deadline, Deadline::Hop(owner));
        self.begin_hop(owner);
    }

    /// Starts a hop if there is room for its output, and waits for room if not.
    pub(super) fn begin_hop(&mut self, owner: HopOwner) {
        let Some(Hosting { hop, output: Output::Awaited { .. } }) = self.hostings.get(&owner) else { return };
        let hop = hop.clone();
        if let Err(error) = self.check_hop(&hop) {
            return self.hop_failed(owner, HopFailure::Refused(error));
        }
        self.use_inputs(&hop.inputs);
        let Some(extent) = self.allocate(hop.size_bytes) else {
            return self.wait_for_space(SpaceWaiter::Hop(owner));
        };
        self.stop_waiting_for_room(owner);
        // Nobody means the output who looks for an object of its name.
        self.end_fetch(&hop.output);
        let phase = Phase::Combining { combine: None, valid_bytes: hop.offset_bytes };
        let metadata = Metadata { dtype: hop.dtype, ..Metadata::default() };
        let mut opening =
            LocalCopy::begin(hop.output.clone(), hop.put, hop.size_bytes, metadata, extent, phase);
        opening.visibility = Visibility::Private;
        let copy = self.open(opening);
        if let Some(hosting) = self.hostings.get_mut(&owner) {
            hosting.output = Output::In(copy);
        }
        match self.resolve_inputs(&hop.inputs) {
            Ok(inputs) => {
                let user = CombineUser::Hop(owner);
                self.start_combine(copy, (hop.op, hop.dtype), hop.offset_bytes, inputs, user);
                self.copies.accept_awaiting(&mut self.ctx, copy);
            }
            Err(index) => {
                let outcome = PullOutcome::SenderHasNoCopy;
                self.hop_failed(owner, HopFailure::Input { index, outcome });
            }
        }
    }

    fn check_hop(&self, hop: &Hop) -> Result<()> {
        if self.ctx.is_shutting_down() {
            return Err(Error::ShuttingDown);
        }
        // Not by another hop, nor by a client that thought of the same name.
        if self.live(&hop.output).is_some() {
            return Err(Error::AlreadyExists { id: hop.output.clone() });
        }
        self.check_size(&hop.output, hop.size_bytes)
    }

    pub(super) fn hop_combined(&mut self, owner: HopOwner, outcome: CombineOutcome) {
        let Some(Hosting { output: Output::In(copy), .. }) = self.hostings.get(&owner) else { return };
        match outcome {
            CombineOutcome::Complete => {
                self.complete(*copy);
                self.report_hop(owner, HopReport::Complete);
            }
            CombineOutcome::InputFailed { index, outcome } => {
                self.hop_failed(owner, HopFailure::Input { index, outcome });
            }
            // Only a release cancels, and it has detached the output; or the daemon stops.
            CombineOutcome::Cancelled => {
                self.hop_failed(owner, HopFailure::Refused(Error::ShuttingDown));
            }
        }
    }

    /// The output is of no use any more, or never will be; the coordinator will release the hop.
    fn hop_failed(&mut self, owner: HopOwner, failure: HopFailure) {
        self.stop_waiting_for_room(owner);
        let Some(hosting) = self.hostings.get_mut(&owner) else { return };
        let id = hosting.hop.output.clone();
        match std::mem::replace(&mut hosting.output, Output::Failed) {
            Output::Awaited { .. } => {}
            Output::In(copy) => self.detach(copy, Error::ObjectLost { id }),
            Output::Failed => return,
        }
        self.report_hop(owner, HopReport::Failed(failure));
    }

    /// There was no room for the output of a hop in time.
    pub(super) fn hop_expired(&mut self, owner: HopOwner) {
        let Some(hosting) = self.hostings.get(&owner) else { return };
        let error = self.store_full(hosting.hop.size_bytes);
        self.hop_failed(owner, HopFailure::Refused(error));
    }

    /// The daemon stops: nobody gets anything from a hop any more.
    pub(super) fn end_hostings(&mut self) {
        let owners: Vec<HopOwner> = self.hostings.keys().copied().collect();
        for owner in owners {
            self.hop_failed(owner, HopFailure::Refused(Error::ShuttingDown));
        }
        self.copies.refuse_awaiting(&mut self.ctx);
    }

    fn stop_waiting_for_room(&mut self, owner: HopOwner) {
        self.stop_waiting_for_space(&SpaceWaiter::Hop(owner));
        if let Some(Hosting { output: Output::Awaited { deadline }, .. }) = self.hostings.get(&owner) {
            self.ctx.unschedule(*deadline, Deadline::Hop(owner));
        }
    }

    fn report_hop(&mut self, owner: HopOwner, report: HopReport) {
        match owner {
            HopOwner::Elsewhere(hosting) => self.ctx.push(Effect::HopReport { hosting, report }),
            HopOwner::Here(hop) => self.ctx.notify(Notice::Report(hop, report)),
        }
    }

    /// The coordinator needs a hop no longer: ends it and frees its output.
    pub(super) fn release_hop(&mut self, owner: HopOwner) {
        self.stop_waiting_for_room(owner);
        let Some(hosting) = self.hostings.remove(&owner) else { return };
        if let Output::In(copy) = hosting.output {
            self.detach(copy, Error::Deleted { id: hosting.hop.output });
        }
    }
}
