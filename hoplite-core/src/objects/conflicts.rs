//! Accepted puts that lost to another put of the id.
//!
//! Each side of a split network may accept a put of the same id. Once the sides meet, one put wins.
//! The store of a put that lost tells the client that made it: the client's next request for the id
//! fails, once.

use std::collections::BTreeSet;

use crate::id::ObjectId;
use crate::message::{ClientId, Inspection, Request};

/// Most conflicts that wait for a request of their client.
const MAX_CONFLICTS: usize = 4096;

/// The puts that lost, by client. See the [module documentation](self).
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

    /// Removes and returns the id of a request whose put by this client has lost.
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

/// The objects that a request is about.
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
