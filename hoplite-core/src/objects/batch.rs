//! Batches: puts, gets and deletes of many objects in one message.
//!
//! Each item is a call with its own [`CallKey`], like a single request. The store answers the batch
//! after its last item, and keeps references to the objects until then.

use bytes::Bytes;

use super::Objects;
use super::calls::Access;
use crate::error::{Error, Result};
use crate::message::{
    CallKey, ClientId, CopyId, Effect, MAX_CONTENTS_BYTES, ObjectView, Request, Response,
};

impl Objects {
    pub(crate) fn open_batch(&mut self, key: CallKey, requests: &[Request]) -> Result<()> {
        if requests.is_empty() {
            return Err(Error::invalid_request("a batch without items"));
        }
        let others = self.ctx.batches.items(key.client);
        self.calls.check_ids(self.ctx.limits(), key, others + requests.len())?;
        self.ctx.batches.open(key, requests.len());
        self.calls.enter_batch(key);
        Ok(())
    }

    /// Answers a batch: gets of small objects with their bytes, other gets with references.
    pub(crate) fn end_batch(&mut self, key: CallKey) {
        let Some(mut answers) = self.ctx.batches.remove(key) else { return };
        self.calls.leave_batch(key);
        let CallKey { client, call, .. } = key;
        let held = held_by(&answers);
        for answer in &mut answers {
            match answer {
                Ok(Response::Object(view)) if view.size_bytes <= MAX_CONTENTS_BYTES => {
                    *answer = Ok(Response::Contents { view: view.clone(), bytes: Bytes::new() });
                }
                Ok(Response::Object(view)) => {
                    let is_stale = view.is_stale;
                    let view = self.refer(client, view.copy, Access::Read);
                    *answer = view.map(|view| Response::Object(ObjectView { is_stale, ..view }));
                }
                Ok(Response::Existing(view)) => {
                    *answer = self.refer(client, view.copy, Access::Write).map(Response::Existing);
                }
                _ => {}
            }
        }
        self.ctx.push(Effect::Reply { client, call, response: Ok(Response::Batch(answers)) });
        // Released only now, because the reply above reads these copies.
        held.into_iter().for_each(|copy| self.release(ClientId::STORE, copy));
    }

    pub(crate) fn forget_batch(&mut self, key: CallKey) {
        let Some(answers) = self.ctx.batches.remove(key) else { return };
        self.calls.leave_batch(key);
        for item in self.calls.items_of(key) {
            self.forget_call(item);
        }
        held_by(&answers).into_iter().for_each(|copy| self.release(ClientId::STORE, copy));
    }

    pub(crate) fn forget_batches(&mut self, client: ClientId) {
        self.ctx.batches.of_client(client).into_iter().for_each(|key| self.forget_batch(key));
    }
}

fn held_by(answers: &[Result<Response>]) -> Vec<CopyId> {
    let held = answers.iter().filter_map(|answer| match answer {
        Ok(Response::Object(view) | Response::Existing(view)) => Some(view.copy),
        _ => None,
    });
    held.collect()
}
