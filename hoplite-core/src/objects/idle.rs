use lru::LruCache;

use crate::message::CopyId;

/// Unused copies that may leave the arena, with the lengths of their extents, in the order of use.
#[derive(Debug, Default)]
pub(crate) struct IdleCopies {
    /// Copies that no spill file has.
    dirty: List,
    /// Copies in no spill file, for which a quota of disk lacks room.
    barred: List,
    /// Copies that a spill file has too.
    clean: List,
}

#[derive(Debug)]
struct List {
    copies: LruCache<CopyId, u64>,
    bytes: u64,
}

impl Default for List {
    fn default() -> Self {
        Self { copies: LruCache::unbounded(), bytes: 0 }
    }
}

impl List {
    fn add(&mut self, copy: CopyId, bytes: u64) -> bool {
        let is_new = self.copies.put(copy, bytes).is_none();
        self.bytes += if is_new { bytes } else { 0 };
        is_new
    }

    fn remove(&mut self, copy: CopyId) -> Option<u64> {
        let bytes = self.copies.pop(&copy)?;
        self.bytes -= bytes;
        Some(bytes)
    }

    fn oldest_first(&self) -> impl Iterator<Item = (CopyId, u64)> {
        self.copies.iter().rev().map(|(copy, bytes)| (*copy, *bytes))
    }
}

impl IdleCopies {
    /// Returns `true` if the copy was not listed.
    pub(crate) fn add(&mut self, copy: CopyId, bytes: u64, is_clean: bool) -> bool {
        match is_clean {
            true => self.clean.add(copy, bytes),
            false => !self.barred.copies.contains(&copy) && self.dirty.add(copy, bytes),
        }
    }

    /// Returns `true` if the copy was listed.
    pub(crate) fn remove(&mut self, copy: CopyId) -> bool {
        let lists = [&mut self.dirty, &mut self.barred, &mut self.clean];
        lists.map(|list| list.remove(copy)).into_iter().any(|bytes| bytes.is_some())
    }

    pub(crate) fn touch(&mut self, copy: CopyId) {
        for list in [&mut self.dirty, &mut self.barred, &mut self.clean] {
            list.copies.promote(&copy);
        }
    }

    /// Returns `false` if the copy is not in the list of dirty copies.
    pub(crate) fn bar(&mut self, copy: CopyId) -> bool {
        let bytes = self.dirty.remove(copy);
        bytes.is_some_and(|bytes| self.barred.add(copy, bytes))
    }

    pub(crate) fn readmit(&mut self, copy: CopyId) {
        if let Some(bytes) = self.barred.remove(copy) {
            self.dirty.add(copy, bytes);
        }
    }

    pub(crate) fn dirty(&self) -> impl Iterator<Item = (CopyId, u64)> {
        self.dirty.oldest_first()
    }

    pub(crate) fn barred(&self) -> impl Iterator<Item = (CopyId, u64)> {
        self.barred.oldest_first()
    }

    pub(crate) fn clean(&self) -> impl Iterator<Item = (CopyId, u64)> {
        self.clean.oldest_first()
    }

    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.copies.is_empty()
    }

    pub(crate) const fn dirty_bytes(&self) -> u64 {
        self.dirty.bytes
    }

    pub(crate) const fn barred_bytes(&self) -> u64 {
        self.barred.bytes
    }

    pub(crate) const fn clean_bytes(&self) -> u64 {
        self.clean.bytes
    }
}
