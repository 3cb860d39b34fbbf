use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use hoplite_core::ObjectId;
use hoplite_core::dtype::Dtype;
use lru::LruCache;

const MAX_PUTS: NonZeroUsize = NonZeroUsize::new(256).unwrap();

pub(crate) type Description = (u64, Dtype);

/// Types and sizes of objects, to save queries. Other clients may have replaced the objects.
#[derive(Debug)]
pub(crate) struct RecentPuts(Mutex<LruCache<ObjectId, Description>>);

impl Default for RecentPuts {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(MAX_PUTS)))
    }
}

impl RecentPuts {
    pub(crate) fn note(&self, id: ObjectId, description: Description) {
        self.with(|puts| puts.put(id, description));
    }

    pub(crate) fn get(&self, id: &ObjectId) -> Option<Description> {
        self.with(|puts| puts.get(id).copied())
    }

    pub(crate) fn forget(&self, id: &ObjectId) {
        self.with(|puts| puts.pop(id));
    }

    fn with<T>(&self, act: impl FnOnce(&mut LruCache<ObjectId, Description>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
