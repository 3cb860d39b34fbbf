//! Targets that no session makes: by a reduce and a broadcast, or by each participant for itself.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::super::{CallId, ClientId, Confirm, Node};
use super::CoordinatedCall;
use crate::collective::Agreement;
use crate::error::Error;
use crate::id::ObjectId;
use crate::message::CallKey;
use crate::metadata::Metadata;
use crate::objects::calls::{Contents, CreateCall};
use crate::objects::notice::Deadline;
use crate::objects::notice::SpaceWaiter;
use crate::peer::ROOM_TIMEOUT;
use crate::reduction::Fallback;
use crate::shard::{RequestId, UnpublishReason};

/// Targets without bytes that this store has made, and of which the directory has not said that it knows them: the questions
/// whether there is one.
#[derive(Debug, Default)]
pub(super) struct Announcements(BTreeMap<ObjectId, RequestId>);

impl Node {
    /// Does an allreduce as a reduce, whose target all get. The participants of a collective of parts are told to get theirs
    /// each by itself.
    pub(super) fn fall_back(&mut self, call: CoordinatedCall, reason: &str) {
        if call.kind.is_of_parts() {
            self.reductions.remember(call.record(&self.objects.ctx, 0, format!("general path: {reason}")));
            return self.announce_end(call);
        }
        let CoordinatedCall { key, started, kind: call_kind, mut request, existence } = call;
        existence.into_iter().for_each(|existence| self.objects.withdraw_query(existence));
        let Some(key) = key else { return };
        request.timeout = request.timeout.saturating_sub(self.objects.ctx.now().since(started));
        let fallback = Fallback { agreement: Agreement::of(call_kind, &request), reason: reason.to_owned() };
        self.reductions.start(&mut self.objects, key, request, Some(fallback));
    }

    /// Ends a collective whose target has no room here, and will have none unless somebody deletes objects. A short wait comes
    /// before that, because the objects of the previous round may be about to be deleted.
    pub(in super::super) fn give_up_without_room(&mut self, target: &ObjectId) {
        let is_waiting = self.objects.copies.is_waiting_for_space(&SpaceWaiter::Target(target.clone()));
        let Some(since) = self.collectives.audiences.since(target).filter(|_| is_waiting) else { return };
        let Some(size_bytes) = self.reductions.target_size(target) else { return };
        let now = self.objects.ctx.now();
        if now < since + ROOM_TIMEOUT {
            return self.objects.ctx.schedule(since + ROOM_TIMEOUT, Deadline::Reduce(target.clone()));
        }
        if self.objects.copies.may_come_to_fit(size_bytes) {
            return self.objects.ctx.schedule(now + ROOM_TIMEOUT, Deadline::Reduce(target.clone()));
        }
        self.fail_target(target, self.objects.copies.store_full(self.objects.ctx.node(), size_bytes));
    }

    /// The exchange of parts is over, or there will be none. Makes the target, an object without bytes, of which all participants
    /// hear who have not their parts yet, whenever and wherever they come.
    pub(super) fn announce_end(&mut self, call: CoordinatedCall) {
        let CoordinatedCall { key, started, kind, request, existence } = call;
        if let Some(existence) = existence {
            // Whoever deletes the target before the directory knows it means this one too.
            self.collectives.announcements.0.insert(request.target.clone(), existence);
        }
        let left = request.timeout.saturating_sub(self.objects.ctx.now().since(started));
        let contents = Contents { bytes: Bytes::new(), confirm: Confirm::No };
        let metadata = Metadata { agreement: Some(Agreement::of(kind, &request)), ..Metadata::default() };
        let id = request.target;
        let create = CreateCall { id, size_bytes: 0, metadata, contents: Some(contents) };
        let call = CallId(self.objects.ctx.next_number());
        self.objects.create(CallKey { client: ClientId::STORE, call }, create, left);
        self.finish_coordinated(key, request.sources.len());
    }

    /// The directory knows a target. Whether that is one which was made here to say that an exchange is over.
    pub(super) fn end_announcement(&mut self, target: &ObjectId) -> bool {
        let Some(existence) = self.collectives.announcements.0.remove(target) else { return false };
        self.objects.withdraw_query(existence);
        true
    }

    /// The target was deleted before the directory knew it: it is no more.
    pub(in super::super) fn withdraw_announcement(&mut self, target: &ObjectId) {
        if !self.end_announcement(target) {
            return;
        }
        if let Some((copy, local)) = self.objects.copies.live(target)
            && local.is_complete()
            && local.size_bytes == 0
        {
            self.objects.abandon(copy, Error::Deleted { id: target.clone() }, UnpublishReason::Aborted);
            self.objects.wake(target);
        }
    }
}
