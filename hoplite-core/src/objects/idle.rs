use lru::LruCache;

use crate::message::CopyId;

/// Unused copies that may leave the arena, with the lengths of their extents, in the order of use.
#[derive(Debug)]
pub(crate) struct IdleCopies {
    /// Copies that no spill file has.
    dirty: LruCache<CopyId, u64>,
    /// Copies that a spill file has too.
    clean: LruCache<CopyId, u64>,
    dirty_bytes: u64,
    clean_bytes: u64,
}

impl Default for IdleCopies {
    fn default() -> Self {
        let (dirty, clean) = (LruCache::unbounded(), LruCache::unbounded());
        Self { dirty, clean, dirty_bytes: 0, clean_bytes: 0 }
    }
}

impl IdleCopies {
    /// Returns `true` if the copy was not listed.
    pub(crate) fn add(&mut self, copy: CopyId, bytes: u64, is_clean: bool) -> bool {
        let (list, sum) = if is_clean {
            (&mut self.clean, &mut self.clean_bytes)
        } else {
            (&mut self.dirty, &mut self.dirty_bytes)
        };
        let is_new = list.put(copy, bytes).is_none();
        *sum += if is_new { bytes } else { 0 };
        is_new
    }

    /// Returns `true` if the copy was listed.
    pub(crate) fn remove(&mut self, copy: CopyId) -> bool {
        let (dirty, clean) = (self.dirty.pop(&copy), self.clean.pop(&copy));
        self.dirty_bytes -= dirty.unwrap_or(0);
        self.clean_bytes -= clean.unwrap_or(0);
        dirty.or(clean).is_some()
    }

    pub(crate) fn touch(&mut self, copy: CopyId) {
        self.dirty.promote(&copy);
        self.clean.promote(&copy);
    }

    /// Returns the dirty copies, least recently used first.
    pub(crate) fn dirty(&self) -> impl Iterator<Item = (CopyId, u64)> {
        self.dirty.iter().rev().map(|(copy, bytes)| (*copy, *bytes))
    }

    pub(crate) fn clean(&self) -> impl Iterator<Item = (CopyId, u64)> {
        self.clean.iter().rev().map(|(copy, bytes)| (*copy, *bytes))
    }

    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    pub(crate) const fn clean_bytes(&self) -> u64 {
        self.clean_bytes
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.dirty_bytes + self.clean_bytes
    }
}
