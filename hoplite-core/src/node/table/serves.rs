//! Serves: who reads a copy for another node, and who waits for one that has not begun here yet.

use std::collections::BTreeMap;

use super::super::context::Context;
use super::super::{CopyId, Effect, ServeId};
use super::{Table, Visibility};
use crate::id::{ObjectId, PutId};

impl Table {
    /// Another node asks to be served; it waits for a copy that `is_expected`.
    pub(in super::super) fn serve(
        &mut self,
        ctx: &mut Context,
        serve: ServeId,
        id: &ObjectId,
        put: PutId,
        is_expected: bool,
    ) {
        match self.live_put(id, put) {
            _ if ctx.is_shutting_down() => ctx.push(Effect::ServeRefused { serve }),
            // Only those who know of a private copy ask for it in this way.
            Some(copy) if is_expected || self[&copy].visibility == Visibility::Public => {
                self.accept_serve(ctx, serve, copy);
            }
            Some(_) => ctx.push(Effect::ServeRefused { serve }),
            None if is_expected => self.awaiting_serves.push(serve, id, put),
            None => ctx.push(Effect::ServeRefused { serve }),
        }
    }

    fn accept_serve(&mut self, ctx: &mut Context, serve: ServeId, copy: CopyId) {
        let local = self.copy_mut(copy);
        local.serves += 1;
        let size_bytes = local.size_bytes;
        self.serves.insert(serve, copy);
        self.keep(copy);
        ctx.push(Effect::ServeAccepted { serve, copy, size_bytes });
    }

    /// Serves those who have been waiting for `copy` to begin.
    pub(in super::super) fn accept_awaiting(&mut self, ctx: &mut Context, copy: CopyId) {
        let local = &self.copies[&copy];
        let put = local.put;
        for serve in self.awaiting_serves.take(&local.id, |wanted| wanted == put) {
            self.accept_serve(ctx, serve, copy);
        }
    }

    /// Refuses those who wait for a copy of `id` to begin: none will.
    pub(in super::super) fn refuse_awaiting_of(&mut self, ctx: &mut Context, id: &ObjectId) {
        for serve in self.awaiting_serves.take(id, |_| true) {
            ctx.push(Effect::ServeRefused { serve });
        }
    }

    /// As [`Self::refuse_awaiting_of`], for those who wait for that put of it.
    pub(in super::super) fn refuse_awaiting_put(&mut self, ctx: &mut Context, id: &ObjectId, put: PutId) {
        for serve in self.awaiting_serves.take(id, |wanted| wanted == put) {
            ctx.push(Effect::ServeRefused { serve });
        }
    }

    /// Refuses all who wait for a copy to begin.
    pub(in super::super) fn refuse_awaiting(&mut self, ctx: &mut Context) {
        for serve in std::mem::take(&mut self.awaiting_serves).objects.into_keys() {
            ctx.push(Effect::ServeRefused { serve });
        }
    }

    pub(in super::super) fn end_serve(&mut self, ctx: &mut Context, serve: ServeId) {
        self.awaiting_serves.remove(serve);
        let Some(copy) = self.serves.remove(&serve) else { return };
        self.copy_mut(copy).serves -= 1;
        self.settle(ctx, copy);
    }
}

/// Serves that wait for a copy to begin here: the output of a hop, or what was asked for and not granted yet.
#[derive(Debug, Default)]
pub(super) struct AwaitingServes {
    by_object: BTreeMap<ObjectId, BTreeMap<ServeId, PutId>>,
    objects: BTreeMap<ServeId, ObjectId>,
}

impl AwaitingServes {
    fn push(&mut self, serve: ServeId, id: &ObjectId, put: PutId) {
        self.by_object.entry(id.clone()).or_default().insert(serve, put);
        self.objects.insert(serve, id.clone());
    }

    /// Takes out the serves of those puts of `id` that `are_meant`.
    fn take(&mut self, id: &ObjectId, are_meant: impl Fn(PutId) -> bool) -> Vec<ServeId> {
        let serves = self.by_object.get(id).into_iter().flatten();
        let meant: Vec<ServeId> =
            serves.filter(|(_, put)| are_meant(**put)).map(|(serve, _)| *serve).collect();
        for serve in &meant {
            self.remove(*serve);
        }
        meant
    }

    fn remove(&mut self, serve: ServeId) {
        let Some(id) = self.objects.remove(&serve) else { return };
        let Some(serves) = self.by_object.get_mut(&id) else { return };
        serves.remove(&serve);
        if serves.is_empty() {
            self.by_object.remove(&id);
        }
    }
}
