//! Participants that join here: they wait for the target, or are referred to the copy in which it grows.

use std::time::Duration;

use super::super::{ByteRange, CopyId, Node, Response, Until};
use super::audience::MIN_ATTEMPT_TIMEOUT;
use crate::collective::{Agreement, Failure, MembershipId, promises_session};
use crate::error::Result;
use crate::id::ObjectId;
use crate::message::CallKey;
use crate::objects::calls::{Access, Call};
use crate::objects::notice::Deadline;

/// The time that a store expects to be asked to be a member before it asks the directory for a target that a participant wants: twice as
/// long as it takes until the last of 16 members on 2 cores has its plan, and less than the target takes to be made otherwise.
const INVITATION_TIMEOUT: Duration = Duration::from_millis(10);
/// Targets of sessions that have no more bytes are copied in some microseconds, less than a participant needs to hear of
/// one range: it hears of the whole.
const MAX_UNFOLLOWED_BYTES: u64 = 32 << 10;

impl Node {
    /// A participant asks for the target of a collective.
    pub(in super::super) fn join(
        &mut self,
        key: CallKey,
        target: ObjectId,
        (agreement, is_again): (Agreement, bool),
        source_bytes: u64,
        timeout: Duration,
    ) {
        if is_again && let Some(error) = self.collectives.audiences.denial(&target) {
            return self.objects.ctx.reply(key, Err(error));
        }
        self.end_stale_membership(&target, agreement);
        if let Some((membership, member)) = self.collectives.memberships.growing(&target)
            && let Err(error) = agreement.check(&target, &member.plan().agreement)
        {
            if !member.is_committed() {
                self.note_disagreement(&target, &error);
                self.member_failed(membership, Failure::Disagrees(error.clone()), error.clone());
            }
            return self.objects.ctx.reply(key, Err(error));
        }
        if !is_again
            && self.objects.copies.live(&target).is_none()
            && promises_session(&agreement, source_bytes)
        {
            let until = self.objects.ctx.now() + INVITATION_TIMEOUT;
            self.objects.fetches.expect(&mut self.objects.ctx, &target, until);
        }
        if let Some(response) = self.refer_to_parts(key, &target) {
            return self.objects.ctx.reply(key, response);
        }
        self.objects.get(key, target.clone(), Until::Started, Some(agreement), timeout);
        // Others may try again: not all attempts are seen here before they have made their target.
        if self.objects.calls.contains(key)
            && let Some((too_old, _)) = self.collectives.audiences.disagreement(&target)
            && self.objects.ctx.now() < too_old
        {
            let until = too_old.max(self.objects.ctx.now() + MIN_ATTEMPT_TIMEOUT);
            self.objects.ctx.schedule(until, Deadline::Join(key));
        }
    }

    /// Refers the participants that wait for a target to the copy in which it grows here.
    pub(in super::super) fn refer_participants(&mut self, target: &ObjectId) {
        if self.objects.ctx.is_shutting_down() || self.growing_copy(target).is_none() {
            return;
        }
        for key in self.objects.calls.gets(target) {
            if let Some(Call::Get { join: Some(_), .. }) = self.objects.calls.get(key)
                && let Some(response) = self.refer_to_parts(key, target)
            {
                self.objects.finish(key, response);
            }
        }
    }

    /// Answers a participant if the target grows here in a session, and the participant can follow it.
    fn refer_to_parts(&mut self, key: CallKey, target: &ObjectId) -> Option<Result<Response>> {
        let copy = self.growing_copy(target)?;
        let (membership, order) = self.order_of(copy)?;
        let view = self.objects.refer(key.client, copy, Access::Read);
        self.answered(membership);
        Some(view.map(|view| Response::Ranges { view, order }))
    }

    /// The copy of a target that is not complete, and that the directory does not know.
    fn growing_copy(&self, target: &ObjectId) -> Option<CopyId> {
        let (copy, local) = self.objects.copies.live(target)?;
        (!local.is_complete() && !local.is_public).then_some(copy)
    }

    /// The session in which a copy grows, and in which order its bytes become valid, if that is of use to a participant.
    fn order_of(&self, copy: CopyId) -> Option<(MembershipId, Vec<ByteRange>)> {
        let (number, membership) = self.collectives.memberships.of_copy(copy)?;
        let plan = membership.plan();
        if !plan.is_of_parts() && plan.size_bytes <= MAX_UNFOLLOWED_BYTES {
            return None;
        }
        let program = plan.program();
        let range = |index: usize| {
            let range = program.steps()[index].range();
            ByteRange { offset_bytes: range.start, length_bytes: range.end - range.start }
        };
        Some((number, plan.finals(&program).into_iter().map(range).collect()))
    }
}
