//! Accepted puts that lost to a put of the same id on the other side of a network split.
//!
//! The client of a lost put gets an error once, at its next request for the id.

use std::collections::BTreeMap;

use crate::id::ObjectId;
use crate::message::{ClientId, Inspection, Request};

const MAX_CONFLICTS: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Conflicts {
    /// Lost puts to report to their clients, numbered by age.
    waiting: BTreeMap<(ClientId, ObjectId), u64>,
    noted: u64,
}

impl Conflicts {
    /// If the list is full, the oldest conflict is dropped.
    pub(crate) fn note(&mut self, client: ClientId, id: ObjectId) {
        if self.waiting.len() >= MAX_CONFLICTS
            && let Some((oldest, _)) = self.waiting.iter().min_by_key(|(_, number)| **number)
        {
            let oldest = oldest.clone();
            self.waiting.remove(&oldest);
        }
        self.noted += 1;
        self.waiting.insert((client, id), self.noted);
    }

    pub(crate) fn take(&mut self, client: ClientId, request: &Request) -> Option<ObjectId> {
        if self.waiting.is_empty() {
            return None;
        }
        let ids = named(request).iter();
        ids.map(|id| (client, id.clone()))
            .find(|key| self.waiting.remove(key).is_some())
            .map(|(_, id)| id)
    }

    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.waiting.retain(|(writer, _), _| *writer != client);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_list_forgets_its_oldest_conflict() {
        let id = |name: &str| ObjectId::new(name).unwrap();
        let mut conflicts = Conflicts::default();
        conflicts.note(ClientId(9), id("oldest"));
        for client in 10..10 + MAX_CONFLICTS as u64 {
            conflicts.note(ClientId(client), id("x"));
        }
        conflicts.note(ClientId(8), id("latest"));
        let mut is_told = |client, name| {
            let request = Request::Inspect(Inspection::Describe { id: id(name) });
            conflicts.take(ClientId(client), &request).is_some()
        };
        assert!(
            !is_told(9, "oldest") && !is_told(10, "x") && is_told(11, "x") && is_told(8, "latest")
        );
    }
}
