//! Hops that this store performs, for a coordinator elsewhere or for a reduce of its own.

use super::combine::CombineUser;
use super::copies::{LocalCopy, Phase, Visibility};
use super::{
    CombineOutcome, CopyId, Deadline, Effect, Errand, Hop, HopFailure, HopId, HopReport, HostingId, Node,
    SpaceWaiter,
};
use crate::error::Error;
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
    /// Where its output is; `None` before there is room for it, and after it has failed.
    output: Option<CopyId>,
    /// Until when it waits for room.
    deadline: Time,
}

impl Node {
    /// Takes on a hop. Its inputs may wait for each other, so it is started whether or not they have begun.
    pub(super) fn host(&mut self, owner: HopOwner, hop: Hop) {
        let checked = self.check_size(&hop.output, hop.size_bytes).and_then(|()| {
            if self.is_shutting_down {
                Err(Error::ShuttingDown)
            } else if self.live(&hop.output).is_some() {
                Err(Error::AlreadyExists { id: hop.output.clone() })
            } else {
                Ok(())
            }
        });
        if let Err(error) = checked {
            return self.report_hop(owner, HopReport::Failed(HopFailure::Refused(error)));
        }
        let deadline = self.now + hop.timeout;
        self.hostings.insert(owner, Hosting { hop, output: None, deadline });
        self.begin_hop(owner);
        if self.hostings.get(&owner).is_some_and(|hosting| hosting.output.is_none())
            && deadline != Time::NEVER
        {
            self.deadlines.insert((deadline, Deadline::Hop(owner)));
        }
    }

    /// Starts a hop if there is room for its output, and waits for room if not.
    pub(super) fn begin_hop(&mut self, owner: HopOwner) {
        let Some(Hosting { hop, output: None, .. }) = self.hostings.get(&owner) else { return };
        let hop = hop.clone();
        let Some(extent) = self.allocate(hop.size_bytes) else {
            return self.wait_for_space(SpaceWaiter::Hop(owner));
        };
        let phase = Phase::Combining { combine: None, valid_bytes: hop.offset_bytes };
        let metadata = Metadata { dtype: hop.dtype, ..Metadata::default() };
        let mut opening =
            LocalCopy::begin(hop.output.clone(), hop.put, hop.size_bytes, metadata, extent, phase);
        opening.visibility = Visibility::Private;
        let copy = self.open(opening);
        self.stop_waiting_for_room(owner);
        if let Some(hosting) = self.hostings.get_mut(&owner) {
            hosting.output = Some(copy);
        }
        match self.resolve_inputs(&hop.inputs) {
            Ok(inputs) => {
                let user = CombineUser::Hop(owner);
                self.start_combine(copy, (hop.op, hop.dtype), hop.offset_bytes, inputs, user);
                self.accept_awaiting(copy);
            }
            Err(index) => {
                let outcome = PullOutcome::SenderHasNoCopy;
                self.hop_failed(owner, HopFailure::Input { index, outcome });
            }
        }
    }

    pub(super) fn hop_combined(&mut self, owner: HopOwner, outcome: CombineOutcome) {
        let Some(copy) = self.hostings.get(&owner).and_then(|hosting| hosting.output) else { return };
        match outcome {
            CombineOutcome::Complete => {
                self.complete(copy);
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

    /// The output is of no use any more; the coordinator will release the hop.
    fn hop_failed(&mut self, owner: HopOwner, failure: HopFailure) {
        if let Some(copy) = self.hostings.get_mut(&owner).and_then(|hosting| hosting.output.take()) {
            let id = self.copies[&copy].id.clone();
            self.detach(copy, Error::ObjectLost { id });
        }
        self.report_hop(owner, HopReport::Failed(failure));
    }

    /// There was no room for the output of a hop in time.
    pub(super) fn hop_expired(&mut self, owner: HopOwner) {
        let Some(Hosting { hop, output: None, .. }) = self.hostings.get(&owner) else { return };
        let error = self.store_full(hop.size_bytes);
        self.stop_waiting_for_room(owner);
        self.report_hop(owner, HopReport::Failed(HopFailure::Refused(error)));
    }

    fn stop_waiting_for_room(&mut self, owner: HopOwner) {
        self.stop_waiting_for_space(&SpaceWaiter::Hop(owner));
        if let Some(hosting) = self.hostings.get(&owner) {
            self.deadlines.remove(&(hosting.deadline, Deadline::Hop(owner)));
        }
    }

    fn report_hop(&mut self, owner: HopOwner, report: HopReport) {
        match owner {
            HopOwner::Elsewhere(hosting) => self.effects.push(Effect::HopReport { hosting, report }),
            HopOwner::Here(hop) => self.errands.push_back(Errand::Report(hop, report)),
        }
    }

    /// The coordinator needs a hop no longer: ends it and frees its output.
    pub(super) fn release_hop(&mut self, owner: HopOwner) {
        self.stop_waiting_for_room(owner);
        let Some(hosting) = self.hostings.remove(&owner) else { return };
        if let Some(copy) = hosting.output {
            self.detach(copy, Error::Deleted { id: hosting.hop.output });
        }
    }
}
