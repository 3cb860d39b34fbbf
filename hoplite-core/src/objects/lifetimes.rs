use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::notice::Deadline;
use super::owners::Owners;
use crate::error::{Error, Result};
use crate::lifetime::{Lifetime, Owner, TtlAction};
use crate::message::{CallId, ClientId, CopyId};
use crate::metadata::Metadata;
use crate::time::Time;

#[derive(Debug, Default)]
pub(crate) struct Lifetimes {
    pub(super) owners: Owners,
    pub(super) endings: BTreeMap<CopyId, Ending>,
    pub(super) doomed: VecDeque<CopyId>,
    pub(super) deleting: Option<(CallId, Vec<CopyId>)>,
    pub(super) expired: u64,
    pub(super) abandoned: u64,
}

#[derive(Debug)]
pub(super) struct Ending {
    pub(super) lifetime: Arc<Lifetime>,
    pub(super) due: Option<Time>,
    pub(super) is_over: bool,
}

impl Lifetimes {
    pub(crate) fn client_connected(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        owners: Vec<Owner>,
    ) {
        self.owners.connected(ctx, client, owners);
    }

    pub(crate) fn client_gone(&mut self, ctx: &mut Context, client: ClientId) {
        self.owners.gone(ctx, client);
    }

    pub(crate) fn check(&self, metadata: &Metadata) -> Result<()> {
        let Some(Lifetime { owner, ttl }) = metadata.lifetime.as_deref() else { return Ok(()) };
        if let Some(owner) = owner.as_ref().filter(|owner| !self.owners.is_held(owner)) {
            let reason = format!("no client of this store holds the owner {owner}").into();
            return Err(Error::InvalidRequest { reason });
        }
        let is_freed = ttl.is_some_and(|ttl| ttl.action() == TtlAction::Free);
        if is_freed && metadata.replicas.to_keep() > 1 {
            return Err(Error::invalid_request(
                "a ttl with the action `free` needs a put with one replica",
            ));
        }
        Ok(())
    }

    /// Begins a copy's lifetime. `ends_in`: the rest of a time to live that began in an earlier
    /// run.
    pub(super) fn begin(
        &mut self,
        ctx: &mut Context,
        copy: CopyId,
        lifetime: Arc<Lifetime>,
        ends_in: Option<Duration>,
    ) {
        if self.endings.contains_key(&copy) {
            return;
        }
        if let Some(owner) = &lifetime.owner {
            self.owners.add(ctx, owner, copy);
        }
        let due = lifetime.ttl.map(|ttl| ctx.now() + ends_in.unwrap_or(ttl.after()));
        if let Some(time) = due {
            ctx.schedule(time, Deadline::Lifetime(copy));
        }
        self.endings.insert(copy, Ending { lifetime, due, is_over: false });
    }

    pub(super) fn forget(&mut self, ctx: &mut Context, copy: CopyId) {
        let Some(Ending { lifetime, due, .. }) = self.endings.remove(&copy) else { return };
        if let Some(time) = due {
            ctx.unschedule(time, Deadline::Lifetime(copy));
        }
        if let Some(owner) = &lifetime.owner {
            self.owners.remove(ctx, owner, copy);
        }
    }

    /// Queues a copy for its delete. Returns `false` if it was already queued.
    pub(super) fn end(&mut self, ctx: &mut Context, copy: CopyId) -> bool {
        let Some(ending) = self.endings.get_mut(&copy).filter(|ending| !ending.is_over) else {
            return false;
        };
        ending.is_over = true;
        if let Some(time) = ending.due.take() {
            ctx.unschedule(time, Deadline::Lifetime(copy));
        }
        self.doomed.push_back(copy);
        true
    }

    pub(super) const fn ended(&self) -> (u64, u64) {
        (self.expired, self.abandoned)
    }
}
