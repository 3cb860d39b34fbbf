//! Puts and deletes, which determine the permitted results of gets.

use std::collections::BTreeMap;
use std::time::Duration;

use hoplite_core::{ObjectId, Time};

#[derive(Debug, Clone, Copy)]
struct Contents {
    size_bytes: u64,
    active_puts: u32,
    active_until: Time,
    deleted_at: Option<Time>,
}

#[derive(Debug)]
pub(super) struct Delete {
    id: ObjectId,
    started: Time,
    covered: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct History {
    contents: BTreeMap<(ObjectId, u64), Contents>,
    availability: BTreeMap<ObjectId, Availability>,
    writers: BTreeMap<(ObjectId, usize), Writers>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Availability {
    confirmed_at: Option<Time>,
    active_deletes: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Writers {
    active: u32,
    ended_at: Time,
}

/// Time for which a put without an answer may still take effect.
pub(super) const LATE_EFFECTS_TIME: Duration = Duration::from_secs(3);

impl History {
    pub(super) fn put_started(&mut self, id: &ObjectId, tag: u64, size_bytes: u64) {
        let contents = self.contents.entry((id.clone(), tag)).or_insert(Contents {
            size_bytes,
            active_puts: 0,
            active_until: Time::ZERO,
            deleted_at: None,
        });
        contents.active_puts += 1;
        contents.deleted_at = None;
    }

    pub(super) fn put_ended(&mut self, id: &ObjectId, tag: u64, now: Time) {
        if let Some(contents) = self.contents.get_mut(&(id.clone(), tag)) {
            contents.active_puts -= 1;
            contents.active_until = contents.active_until.max(now);
        }
    }

    pub(super) fn put_left_open(&mut self, id: &ObjectId, tag: u64, now: Time) {
        self.put_ended(id, tag, now + LATE_EFFECTS_TIME);
    }

    /// Returns the tags (which stand for bytes) and sizes of all objects that the id ever named.
    pub(super) fn contents_of(&self, id: &ObjectId) -> Vec<(u64, u64)> {
        let all = (id.clone(), 0)..=(id.clone(), u64::MAX);
        self.contents.range(all).map(|((_, tag), contents)| (*tag, contents.size_bytes)).collect()
    }

    pub(super) fn delete_started(&self, id: &ObjectId, now: Time) -> Delete {
        let all = (id.clone(), 0)..=(id.clone(), u64::MAX);
        let is_at_rest =
            |contents: &Contents| contents.active_puts == 0 && contents.active_until < now;
        let covered = self.contents.range(all).filter(|(_, contents)| is_at_rest(contents));
        Delete {
            id: id.clone(),
            started: now,
            covered: covered.map(|((_, tag), _)| *tag).collect(),
        }
    }

    pub(super) fn delete_done(&mut self, delete: &Delete, now: Time) {
        for tag in &delete.covered {
            if let Some(contents) = self.contents.get_mut(&(delete.id.clone(), *tag))
                && contents.active_puts == 0
                && contents.active_until < delete.started
            {
                contents.deleted_at = Some(now);
            }
        }
    }

    pub(super) fn confirmed(&mut self, id: &ObjectId, now: Time) {
        let availability = self.availability.entry(id.clone()).or_default();
        if availability.active_deletes == 0 {
            availability.confirmed_at.get_or_insert(now);
        }
    }

    pub(super) fn removal_started(&mut self, id: &ObjectId) {
        let availability = self.availability.entry(id.clone()).or_default();
        availability.confirmed_at = None;
        availability.active_deletes += 1;
    }

    pub(super) fn removal_ended(&mut self, id: &ObjectId) {
        self.availability.entry(id.clone()).or_default().active_deletes -= 1;
    }

    pub(super) fn writer_started(&mut self, id: &ObjectId, store: usize) {
        self.writers.entry((id.clone(), store)).or_default().active += 1;
    }

    pub(super) fn writer_ended(&mut self, id: &ObjectId, store: usize, now: Time) {
        let writers = self.writers.entry((id.clone(), store)).or_default();
        writers.active -= 1;
        writers.ended_at = now;
    }

    /// Returns `true` if a get since `started` must succeed: the object was always available, and
    /// not being written at the store.
    pub(super) fn was_available(&self, id: &ObjectId, store: usize, started: Time) -> bool {
        let availability = self.availability.get(id).copied().unwrap_or_default();
        let writers = self.writers.get(&(id.clone(), store)).copied().unwrap_or_default();
        availability.confirmed_at.is_some_and(|at| at < started)
            && writers.active == 0
            && writers.ended_at < started
    }

    pub(super) fn available_since(&self, time: Time) -> impl Iterator<Item = &ObjectId> {
        let is_available =
            move |known: &Availability| known.confirmed_at.is_some_and(|at| at < time);
        self.availability.iter().filter(move |(_, known)| is_available(known)).map(|(id, _)| id)
    }

    pub(super) fn is_put(&self, id: &ObjectId, tag: u64, size_bytes: u64) -> bool {
        self.contents
            .get(&(id.clone(), tag))
            .is_some_and(|contents| contents.size_bytes == size_bytes)
    }

    pub(super) fn is_deleted(&self, id: &ObjectId, tag: u64, time: Time) -> bool {
        let contents = self.contents.get(&(id.clone(), tag));
        contents.and_then(|contents| contents.deleted_at).is_some_and(|deleted| deleted < time)
    }
}
