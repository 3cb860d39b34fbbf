//! The arena: the store's shared memory, mapped for reading, and for writing at the first write.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use hoplite_core::node::ObjectView;
use hoplite_shm::{Mapping, Reader, Writer};
use rustix::fs::fstat;

/// Mappings that the connections of this process share, because filling page tables is costly.
static MAPPED: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// Most tries to lock [`MAPPED`], which a forked child may inherit locked.
const MAX_TRIES: u32 = 1000;
const BUSY_TRIES: u32 = 900;
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Arena {
    mappings: Arc<Mappings>,
    /// Set when this connection's store, not another one, grants writes.
    writable: OnceLock<Arc<Mapping>>,
    offered: Mutex<Option<OwnedFd>>,
    file: Option<Identity>,
}

#[derive(Debug)]
pub(crate) enum NotWritable {
    NoRight,
    Unmapped(hoplite_shm::Error),
}

#[derive(Debug)]
struct Mappings {
    readable: Arc<Mapping>,
    writable: OnceLock<Arc<Mapping>>,
}

#[derive(Debug)]
struct Entry {
    file: Identity,
    capacity_bytes: u64,
    mappings: Weak<Mappings>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    /// Process that made the mapping. A forked child maps again, because it inherits no filled page
    /// tables.
    process: u32,
    device: u64,
    inode: u64,
}

impl Arena {
    pub(crate) fn map(readable: OwnedFd, capacity_bytes: u64) -> hoplite_shm::Result<Self> {
        Self::map_in(std::process::id(), readable, capacity_bytes)
    }

    fn map_in(process: u32, readable: OwnedFd, capacity_bytes: u64) -> hoplite_shm::Result<Self> {
        let file = identity(process, &readable);
        let mut mapped = lock_mapped();
        let shared = mapped
            .iter()
            .flat_map(|mapped| mapped.iter())
            .filter(|entry| {
                file.as_ref() == Some(&entry.file) && entry.capacity_bytes == capacity_bytes
            })
            .find_map(|entry| entry.mappings.upgrade());
        if let Some(mappings) = shared {
            return Ok(Self::over(mappings, file));
        }
        let readable = Mapping::read_only(readable, capacity_bytes)?;
        let mappings = Arc::new(Mappings { readable, writable: OnceLock::new() });
        if let (Some(mapped), Some(file)) = (&mut mapped, file.clone()) {
            mapped.retain(|entry| entry.mappings.strong_count() > 0);
            mapped.push(Entry { file, capacity_bytes, mappings: Arc::downgrade(&mappings) });
        }
        Ok(Self::over(mappings, file))
    }

    fn over(mappings: Arc<Mappings>, file: Option<Identity>) -> Self {
        Self { mappings, writable: OnceLock::new(), offered: Mutex::default(), file }
    }

    /// Keeps the descriptor until the first write. Returns `false` for other memory.
    pub(crate) fn offer_writable(&self, fd: OwnedFd) -> bool {
        let is_of_arena = self
            .file
            .as_ref()
            .is_some_and(|file| identity(file.process, &fd).as_ref() == Some(file));
        if !is_of_arena {
            return false;
        }
        match self.mappings.writable.get() {
            Some(mapping) => drop(self.writable.set(Arc::clone(mapping))),
            None => *self.lock_offered() = Some(fd),
        }
        true
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.file.is_some() && self.file == other.file
    }

    pub(crate) fn map_writable(&self) -> Result<(), NotWritable> {
        let mut offered = self.lock_offered();
        if self.is_writable() {
            return Ok(());
        }
        let fd = offered.as_ref().ok_or(NotWritable::NoRight)?;
        let mapping = match self.mappings.writable.get() {
            Some(mapping) => Arc::clone(mapping),
            None => {
                let mapping =
                    Mapping::writable(fd.as_fd(), self.mappings.readable.capacity_bytes());
                let mapping = mapping.map_err(NotWritable::Unmapped)?;
                Arc::clone(self.mappings.writable.get_or_init(|| mapping))
            }
        };
        let _ = self.writable.set(mapping);
        *offered = None;
        Ok(())
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable.get().is_some()
    }

    fn lock_offered(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reader(&self, view: &ObjectView) -> hoplite_shm::Result<Reader> {
        self.mappings.readable.reader(view.extent, view.size_bytes)
    }

    pub(crate) fn writer(&self, view: &ObjectView) -> hoplite_shm::Result<Writer> {
        self.writable.get().unwrap_or(&self.mappings.readable).writer(view.extent, view.size_bytes)
    }
}

fn lock_mapped() -> Option<MutexGuard<'static, Vec<Entry>>> {
    (0..MAX_TRIES).find_map(|tries| {
        let guard = MAPPED.try_lock().ok();
        match &guard {
            Some(_) => {}
            None if tries < BUSY_TRIES => thread::yield_now(),
            None => thread::sleep(PAUSE),
        }
        guard
    })
}

fn identity(process: u32, fd: &OwnedFd) -> Option<Identity> {
    let found = fstat(fd).ok()?;
    Some(Identity { process, device: found.st_dev, inode: found.st_ino })
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use hoplite_shm::Backing;

    use super::*;

    const CAPACITY_BYTES: u64 = 1 << 20;

    fn store() -> Arc<hoplite_shm::Arena> {
        hoplite_shm::Arena::create(Backing::Pages, CAPACITY_BYTES).unwrap()
    }

    fn map(fd: BorrowedFd<'_>, capacity_bytes: u64) -> Arena {
        Arena::map(fd.try_clone_to_owned().unwrap(), capacity_bytes).unwrap()
    }

    fn offer(arena: &Arena, store: &hoplite_shm::Arena) -> bool {
        arena.offer_writable(store.writable_fd().try_clone_to_owned().unwrap())
    }

    fn map_writable(arena: &Arena, store: &hoplite_shm::Arena) {
        assert!(offer(arena, store));
        arena.map_writable().unwrap();
    }

    fn is_shared(one: &Arena, other: &Arena) -> bool {
        Arc::ptr_eq(&one.mappings, &other.mappings)
    }

    #[test]
    fn connections_share_the_mappings_of_a_store() {
        let (one, other) = (store(), store());
        let first = map(one.read_only_fd(), CAPACITY_BYTES);
        let second = map(one.read_only_fd(), CAPACITY_BYTES);
        assert!(is_shared(&first, &second));
        assert!(!is_shared(&first, &map(other.read_only_fd(), CAPACITY_BYTES)));
        assert!(!is_shared(&first, &map(one.read_only_fd(), CAPACITY_BYTES / 2)));
        map_writable(&first, &one);
        map_writable(&second, &one);
        assert!(Arc::ptr_eq(first.writable.get().unwrap(), second.writable.get().unwrap()));
    }

    #[test]
    fn what_another_connection_may_write_is_not_for_one_that_only_reads() {
        let store = store();
        let trusted = map(store.read_only_fd(), CAPACITY_BYTES);
        let other = map(store.read_only_fd(), CAPACITY_BYTES);
        map_writable(&trusted, &store);
        assert!(trusted.is_writable() && !other.is_writable());
    }

    #[test]
    fn memory_of_another_store_is_not_written_to() {
        let (one, other) = (store(), store());
        let arena = map(one.read_only_fd(), CAPACITY_BYTES);
        assert!(!offer(&arena, &other));
        assert!(matches!(arena.map_writable(), Err(NotWritable::NoRight)));
        assert!(
            offer(&arena, &one) && !arena.is_writable(),
            "nothing is mapped before the first write"
        );
        arena.map_writable().unwrap();
        assert!(arena.is_writable() && arena.lock_offered().is_none());
        let second = map(one.read_only_fd(), CAPACITY_BYTES);
        assert!(offer(&second, &one) && second.is_writable() && second.lock_offered().is_none());
    }

    #[test]
    fn the_last_connection_ends_the_mappings() {
        let store = store();
        let arena = map(store.read_only_fd(), CAPACITY_BYTES);
        map_writable(&arena, &store);
        let readable = Arc::downgrade(&arena.mappings.readable);
        let writable = Arc::downgrade(arena.writable.get().unwrap());
        drop(arena);
        assert!(readable.upgrade().is_none() && writable.upgrade().is_none());
    }

    #[test]
    fn a_forked_child_maps_for_itself() {
        let store = store();
        let of_parent = Arena::map_in(
            std::process::id() - 1,
            store.read_only_fd().try_clone_to_owned().unwrap(),
            CAPACITY_BYTES,
        );
        assert!(!is_shared(&of_parent.unwrap(), &map(store.read_only_fd(), CAPACITY_BYTES)));
    }
}
