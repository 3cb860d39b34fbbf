//! Serves: who reads a copy for another node, and who waits for the output of a hop that has not begun here yet.

use std::collections::{BTreeMap, BTreeSet};

use super::super::context::Context;
use super::super::{CopyId, Effect, ServeId};
use super::Table;
use crate::id::{ObjectId, PutId};

impl Table {
    /// Another node asks to be served.
    pub(in super::super) fn serve(
        &mut self,
        ctx: &mut Context,
        serve: ServeId,
        id: &ObjectId,
        put: PutId,
        awaits_hop: bool,
    ) {
        match self.live_put(id, put) {
            _ if ctx.is_shutting_down() => ctx.push(Effect::ServeRefused { serve }),
            Some(copy) => self.accept_serve(ctx, serve, copy),
            None if awaits_hop => self.awaiting_serves.push(serve, id),
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

    /// Serves those who have been waiting for a hop to begin, which fills `copy` now.
    pub(in super::super) fn accept_awaiting(&mut self, ctx: &mut Context, copy: CopyId) {
        for serve in self.awaiting_serves.take(&self.copies[&copy].id) {
            self.accept_serve(ctx, serve, copy);
        }
    }

    /// Refuses those who wait for a hop to begin: none will.
    pub(in super::super) fn refuse_awaiting(&mut self, ctx: &mut Context) {
        for serve in std::mem::take(&mut self.awaiting_serves).outputs.into_keys() {
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

/// Serves that wait for the output of a hop, which has not begun here yet.
#[derive(Debug, Default)]
pub(super) struct AwaitingServes {
    by_output: BTreeMap<ObjectId, BTreeSet<ServeId>>,
    outputs: BTreeMap<ServeId, ObjectId>,
}

impl AwaitingServes {
    fn push(&mut self, serve: ServeId, output: &ObjectId) {
        self.by_output.entry(output.clone()).or_default().insert(serve);
        self.outputs.insert(serve, output.clone());
    }

    fn take(&mut self, output: &ObjectId) -> BTreeSet<ServeId> {
        let serves = self.by_output.remove(output).unwrap_or_default();
        for serve in &serves {
            self.outputs.remove(serve);
        }
        serves
    }

    fn remove(&mut self, serve: ServeId) {
        let Some(output) = self.outputs.remove(&serve) else { return };
        let Some(serves) = self.by_output.get_mut(&output) else { return };
        serves.remove(&serve);
        if serves.is_empty() {
            self.by_output.remove(&output);
        }
    }
}
