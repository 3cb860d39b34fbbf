//! Serves (transfers to other nodes) that wait for a copy to begin.

use std::collections::BTreeMap;

use crate::id::{ObjectId, PutId};
use crate::message::ServeId;

#[derive(Debug, Default)]
pub(super) struct AwaitingServes {
    by_object: BTreeMap<ObjectId, BTreeMap<ServeId, PutId>>,
    objects: BTreeMap<ServeId, ObjectId>,
}

impl AwaitingServes {
    pub(super) fn push(&mut self, serve: ServeId, id: &ObjectId, put: PutId) {
        self.by_object.entry(id.clone()).or_default().insert(serve, put);
        self.objects.insert(serve, id.clone());
    }

    pub(super) fn take(
        &mut self,
        id: &ObjectId,
        are_meant: impl Fn(PutId) -> bool,
    ) -> Vec<ServeId> {
        let serves = self.by_object.get(id).into_iter().flatten();
        let meant: Vec<ServeId> =
            serves.filter(|(_, put)| are_meant(**put)).map(|(serve, _)| *serve).collect();
        for serve in &meant {
            self.remove(*serve);
        }
        meant
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = ServeId> + use<> {
        std::mem::take(self).objects.into_keys()
    }

    pub(super) fn remove(&mut self, serve: ServeId) {
        let Some(id) = self.objects.remove(&serve) else { return };
        let Some(serves) = self.by_object.get_mut(&id) else { return };
        serves.remove(&serve);
        if serves.is_empty() {
            self.by_object.remove(&id);
        }
    }
}
