//! Ends objects by their time to live or owner (a name that clients hold).
//!
//! A lifetime begins when the put has all bytes. The put's store measures the time to live, and
//! knows the clients that hold the owner. It deletes the object through the directory, like a
//! client. Reads do not extend a lifetime.
//!
//! A store that keeps a copy on a shard's order starts the time to live again, unless the end of
//! the time only frees copies. It ignores the owner.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use super::Objects;
use super::lifetimes::Ending;
use super::notice::Deadline;
use crate::error::Error;
use crate::id::ObjectId;
use crate::lifetime::{Lifetime, Owner, TtlAction};
use crate::message::{
    CallId, CallKey, ClientId, CopyId, LifetimeReport, MAX_SEARCHED_COPIES, Ownerless,
    OwnerlessPage,
};
use crate::shard::{DeleteWait, UnpublishReason};
use crate::time::Time;

const MAX_DELETED_AT_ONCE: usize = 1024;
const DELETE_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_secs(5);

impl Objects {
    pub(super) fn begin_lifetime(&mut self, copy: CopyId) {
        if let Some(lifetime) = self.copies[&copy].metadata.lifetime.clone() {
            self.lifetimes.begin(&mut self.ctx, copy, lifetime, None);
        }
    }

    /// Pins a copy on a shard's order, and starts its time to live.
    pub(super) fn pin(&mut self, copy: CopyId) {
        let ttl = self.copies[&copy].metadata.lifetime.as_ref().and_then(|lifetime| lifetime.ttl);
        if let Some(lifetime) =
            Lifetime::of(None, ttl.filter(|ttl| ttl.action() == TtlAction::Delete))
        {
            self.lifetimes.begin(&mut self.ctx, copy, lifetime, None);
        }
        self.copies.pin(copy);
    }

    /// Deletes or frees a copy after its time to live, or repeats a failed delete.
    pub(crate) fn lifetime_due(&mut self, copy: CopyId) {
        let Some(ending) = self.lifetimes.endings.get_mut(&copy) else { return };
        ending.due = None;
        if ending.is_over {
            self.lifetimes.doomed.push_back(copy);
            return self.delete_doomed();
        }
        self.lifetimes.expired += 1;
        if ending.lifetime.ttl.is_some_and(|ttl| ttl.action() == TtlAction::Free) {
            let id = self.copies[&copy].id.clone();
            self.abandon(copy, Error::ObjectLost { id: id.clone() }, UnpublishReason::Evicted);
            return self.wake(&id);
        }
        self.lifetimes.end(&mut self.ctx, copy);
        self.delete_doomed();
    }

    pub(crate) fn owner_due(&mut self, owner: &Owner) {
        for copy in self.lifetimes.owners.end(owner) {
            if self.lifetimes.end(&mut self.ctx, copy) {
                self.lifetimes.abandoned += 1;
            }
        }
        self.delete_doomed();
    }

    fn delete_doomed(&mut self) {
        if self.lifetimes.deleting.is_some() || self.ctx.is_shutting_down() {
            return;
        }
        let (mut copies, mut ids) = (Vec::new(), BTreeSet::new());
        while copies.len() < MAX_DELETED_AT_ONCE
            && let Some(copy) = self.lifetimes.doomed.pop_front()
        {
            if !self.copies.is_live(copy) {
                continue;
            }
            // If this store may not serve the copy, the id may belong to a newer put.
            if !self.may_serve(copy) {
                self.delete_later(copy);
                continue;
            }
            ids.insert(self.copies[&copy].id.clone());
            copies.push(copy);
        }
        if copies.is_empty() {
            return;
        }
        let call = CallId(self.ctx.next_number());
        self.lifetimes.deleting = Some((call, copies));
        let terms = (DELETE_TIMEOUT, DeleteWait::Reachable);
        self.delete(CallKey::of(ClientId::STORE, call), ids, 0, terms);
    }

    /// Handles the end of the store's own delete of ended objects. Returns `false` for another
    /// call.
    pub(crate) fn doomed_deleted(&mut self, call: CallId) -> bool {
        let Some((_, copies)) = self.lifetimes.deleting.take_if(|(deleting, _)| *deleting == call)
        else {
            return false;
        };
        copies.into_iter().for_each(|copy| self.delete_later(copy));
        self.delete_doomed();
        true
    }

    fn delete_later(&mut self, copy: CopyId) {
        if let Some(ending) = self.lifetimes.endings.get_mut(&copy) {
            let again_at = self.ctx.now() + RETRY_PAUSE;
            ending.due = Some(again_at);
            self.ctx.schedule(again_at, Deadline::Lifetime(copy));
        }
    }

    /// Stops the delete of ended objects if the store may not serve one of them: a shard may know a
    /// newer put.
    pub(super) fn hold_delete(&mut self) {
        let Some((call, copies)) = &self.lifetimes.deleting else { return };
        let is_unsure = |copy: &CopyId| self.copies.is_live(*copy) && !self.may_serve(*copy);
        if copies.iter().any(is_unsure) {
            let key = CallKey::of(ClientId::STORE, *call);
            self.finish(key, Err(Error::unavailable("the directory")));
        }
    }

    pub(crate) fn lifetime(&self, id: &ObjectId, now: Time) -> Option<LifetimeReport> {
        let (copy, _) = self.copies.live(id)?;
        let Ending { lifetime, due, is_over } = self.lifetimes.endings.get(&copy)?;
        let left = |time: Time| time.since(now);
        let owner = lifetime.owner.as_ref();
        Some(LifetimeReport {
            is_owner_gone: owner.is_some_and(|owner| !self.lifetimes.owners.is_held(owner)),
            expires_in: due.filter(|_| !is_over).map(left),
            deleted_in: if *is_over {
                Some(Duration::ZERO)
            } else {
                owner.and_then(|owner| self.lifetimes.owners.ends_at(owner)).map(left)
            },
        })
    }

    pub(crate) fn ownerless(&self, prefix: &[u8], after: &[u8], limit: usize) -> OwnerlessPage {
        let from = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        let mut page = OwnerlessPage::default();
        let live =
            self.copies.live_from(from).take_while(|(id, _)| id.as_bytes().starts_with(prefix));
        for (searched, (id, copy)) in live.enumerate() {
            if searched == MAX_SEARCHED_COPIES || page.objects.len() == limit {
                return page;
            }
            page.objects.extend(self.describe_ownerless(id, copy));
            page.next = Some(id.clone());
        }
        page.next = None;
        page
    }

    fn describe_ownerless(&self, id: &ObjectId, copy: CopyId) -> Option<Ownerless> {
        let local = &self.copies[&copy];
        let lifetime = local.metadata.lifetime.as_deref();
        let owner = lifetime.and_then(|lifetime| lifetime.owner.clone());
        let is_ownerless = match (lifetime, &owner) {
            (None, _) => {
                let (creator, owners) = (local.creator(), &self.lifetimes.owners);
                local.is_complete()
                    && !local.is_reduced()
                    && creator.is_some_and(|creator| !owners.is_connected(creator))
            }
            // A replica has at most a time to live: the put's store knows the owner's clients.
            (_, Some(owner)) => {
                let ending = self.lifetimes.endings.get(&copy);
                ending.is_some_and(|ending| ending.lifetime.owner.is_some())
                    && !self.lifetimes.owners.is_held(owner)
            }
            _ => false,
        };
        is_ownerless.then(|| Ownerless { id: id.clone(), size_bytes: local.size_bytes, owner })
    }
}
