//! Owners (names that connected clients hold), and the copies that end with them.

use std::collections::{BTreeMap, BTreeSet};

use super::context::Context;
use super::notice::Deadline;
use crate::lifetime::Owner;
use crate::message::{ClientId, CopyId};
use crate::time::Time;

#[derive(Debug, Default)]
pub(super) struct Owners {
    clients: BTreeMap<ClientId, Vec<Owner>>,
    owners: BTreeMap<Owner, Record>,
}

#[derive(Debug, Default)]
struct Record {
    holders: usize,
    copies: BTreeSet<CopyId>,
    /// Time when the owner's copies end, if no connected client holds it by then.
    ends_at: Option<Time>,
}

impl Owners {
    pub(super) fn connected(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        mut owners: Vec<Owner>,
    ) {
        owners.sort_unstable();
        owners.dedup();
        for owner in &owners {
            self.owners.entry(owner.clone()).or_default().holders += 1;
            self.changed(ctx, owner);
        }
        self.clients.insert(client, owners);
    }

    pub(super) fn gone(&mut self, ctx: &mut Context, client: ClientId) {
        for owner in self.clients.remove(&client).unwrap_or_default() {
            if let Some(record) = self.owners.get_mut(&owner) {
                record.holders -= 1;
            }
            self.changed(ctx, &owner);
        }
    }

    pub(super) fn is_connected(&self, client: ClientId) -> bool {
        self.clients.contains_key(&client)
    }

    pub(super) fn is_held(&self, owner: &Owner) -> bool {
        self.owners.get(owner).is_some_and(|record| record.holders > 0)
    }

    pub(super) fn ends_at(&self, owner: &Owner) -> Option<Time> {
        self.owners.get(owner)?.ends_at
    }

    pub(super) fn add(&mut self, ctx: &mut Context, owner: &Owner, copy: CopyId) {
        self.owners.entry(owner.clone()).or_default().copies.insert(copy);
        self.changed(ctx, owner);
    }

    pub(super) fn remove(&mut self, ctx: &mut Context, owner: &Owner, copy: CopyId) {
        if let Some(record) = self.owners.get_mut(owner) {
            record.copies.remove(&copy);
            self.changed(ctx, owner);
        }
    }

    pub(super) fn end(&mut self, owner: &Owner) -> BTreeSet<CopyId> {
        self.owners.remove(owner).unwrap_or_default().copies
    }

    fn changed(&mut self, ctx: &mut Context, owner: &Owner) {
        let Some(record) = self.owners.get_mut(owner) else { return };
        let is_gone = record.holders == 0 && !record.copies.is_empty();
        match record.ends_at {
            None if is_gone => {
                let time = ctx.now() + ctx.limits().owner_grace;
                record.ends_at = Some(time);
                ctx.schedule(time, Deadline::Owner(owner.clone()));
            }
            Some(time) if !is_gone => {
                record.ends_at = None;
                ctx.unschedule(time, Deadline::Owner(owner.clone()));
            }
            _ => {}
        }
        if record.holders == 0 && record.copies.is_empty() {
            self.owners.remove(owner);
        }
    }
}
