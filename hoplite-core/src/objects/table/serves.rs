//! Serves: transfers of copies to other nodes. Some wait until a copy begins.

use super::super::context::Context;
use super::Table;
use crate::id::{ObjectId, PutId};
use crate::message::{CopyId, Effect, ServeId};

impl Table {
    /// Serves a copy. If `is_expected`, the request waits for a copy that has not begun.
    pub(crate) fn serve(
        &mut self,
        ctx: &mut Context,
        serve: ServeId,
        id: &ObjectId,
        put: PutId,
        is_expected: bool,
    ) {
        match self.live_put(id, put) {
            _ if ctx.is_shutting_down() => ctx.push(Effect::ServeRefused { serve }),
            // A private copy is served only to requests that expect it.
            Some(copy) if is_expected || self[&copy].is_public => match self[&copy].is_resident() {
                true => self.accept_serve(ctx, serve, copy),
                false => self.serve_spilled(ctx, serve, copy),
            },
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

    pub(crate) fn accept_awaiting(&mut self, ctx: &mut Context, copy: CopyId) {
        let local = &self.copies[&copy];
        let put = local.put;
        for serve in self.awaiting_serves.take(&local.id, |wanted| wanted == put) {
            self.accept_serve(ctx, serve, copy);
        }
    }

    pub(crate) fn refuse_awaiting_of(&mut self, ctx: &mut Context, id: &ObjectId) {
        for serve in self.awaiting_serves.take(id, |_| true) {
            ctx.push(Effect::ServeRefused { serve });
        }
    }

    pub(crate) fn refuse_awaiting_put(&mut self, ctx: &mut Context, id: &ObjectId, put: PutId) {
        for serve in self.awaiting_serves.take(id, |wanted| wanted == put) {
            ctx.push(Effect::ServeRefused { serve });
        }
    }

    pub(crate) fn refuse_awaiting(&mut self, ctx: &mut Context) {
        for serve in self.awaiting_serves.take_all() {
            ctx.push(Effect::ServeRefused { serve });
        }
    }

    pub(crate) fn end_serve(&mut self, ctx: &mut Context, serve: ServeId) {
        self.awaiting_serves.remove(serve);
        let Some(copy) = self.serves.remove(&serve) else { return };
        self.copy_mut(copy).serves -= 1;
        self.reconsider_file(copy);
        self.settle(ctx, copy);
    }
}
