//! Accepted puts that lost to a put on the other side of a network split.
//!
//! The client of a lost put gets an error once, at its next request for the id.

use std::collections::BTreeSet;

use crate::id::ObjectId;
use crate::message::{ClientId, Inspection, Request};

const MAX_CONFLICTS: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Conflicts(BTreeSet<(ClientId, ObjectId)>);

impl Conflicts {
    pub(crate) fn note(&mut self, client: ClientId, id: ObjectId) {
        if client == ClientId::STORE {
            return;
        }
        if self.0.len() >= MAX_CONFLICTS {
            self.0.pop_first();
        }
        self.0.insert((client, id));
    }

    /// Takes a lost put that the request names.
    pub(crate) fn take(&mut self, client: ClientId, request: &Request) -> Option<ObjectId> {
        if self.0.is_empty() {
            return None;
        }
        let ids = named(request).iter();
        ids.map(|id| (client, id.clone())).find(|key| self.0.remove(key)).map(|(_, id)| id)
    }

    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.0.retain(|(writer, _)| *writer != client);
    }
}

fn named(request: &Request) -> &[ObjectId] {
    match request {
        Request::Create { id, .. }
        | Request::Put { id, .. }
        | Request::Get { id, .. }
        | Request::Locate { id, .. }
        | Request::Inspect(Inspection::Describe { id }) => std::slice::from_ref(id),
        Request::Delete { ids, .. } => ids,
        _ => &[],
    }
}
