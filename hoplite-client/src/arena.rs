//! The store's arena as this process maps it: for reading, and for writing once it does so.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread;

use hoplite_core::node::ObjectView;
use hoplite_shm::{Mapping, Reader, Writer};
use rustix::fs::fstat;

/// The arenas that this process maps. To fill the page tables of a fresh mapping costs as much as half a copy of what is in
/// it, so all connections to a store share one, and those that come and go find them filled if another one has stayed.
static MAPPED: Mutex<Vec<Weak<Arena>>> = Mutex::new(Vec::new());

/// How often the lock of [`MAPPED`] is tried. It is held for the few microseconds of a system call; but in a forked child it
/// may be held for ever, by a thread that is not there.
const MAX_TRIES: usize = 1000;

/// The mappings. They stay as long as any connection, view, reader or writer does.
#[derive(Debug)]
pub(crate) struct Arena {
    readable: Arc<Mapping>,
    writable: OnceLock<Arc<Mapping>>,
    file: Option<Identity>,
}

/// Which file is mapped, as long as it is mapped.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    /// A forked child inherits the mapping, but not what was filled of its page tables.
    process: u32,
    device: u64,
    inode: u64,
}

impl Arena {
    /// Maps the arena for reading, unless this process does so already.
    pub(crate) fn map(readable: OwnedFd, capacity_bytes: u64) -> hoplite_shm::Result<Arc<Self>> {
        let file = identity(&readable);
        let mut mapped = lock_mapped();
        let is_same = |arena: &Arc<Self>| {
            arena.file.is_some() && arena.file == file && arena.readable.capacity_bytes() == capacity_bytes
        };
        if let Some(arena) =
            mapped.iter().flat_map(|mapped| mapped.iter()).filter_map(Weak::upgrade).find(is_same)
        {
            return Ok(arena);
        }
        let readable = Mapping::read_only(readable, capacity_bytes)?;
        let arena = Arc::new(Self { readable, writable: OnceLock::new(), file });
        if let Some(mapped) = &mut mapped {
            mapped.retain(|arena| arena.strong_count() > 0);
            mapped.push(Arc::downgrade(&arena));
        }
        Ok(arena)
    }

    /// Whether [`writer`](Self::writer) works.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable.get().is_some()
    }

    /// Whether `fd` is of the same memory, and not of that of another store.
    pub(crate) fn is_of(&self, fd: &OwnedFd) -> bool {
        self.file.is_some() && identity(fd) == self.file
    }

    /// Maps it for writing, too.
    pub(crate) fn map_writable(&self, writable: OwnedFd) -> hoplite_shm::Result<()> {
        let mapping = Mapping::writable(writable, self.readable.capacity_bytes())?;
        // Another thread may have been first; one mapping is as good as the other.
        let _ = self.writable.set(mapping);
        Ok(())
    }

    pub(crate) fn reader(&self, view: &ObjectView) -> hoplite_shm::Result<Reader> {
        self.readable.reader(view.extent, view.size_bytes)
    }

    pub(crate) fn writer(&self, view: &ObjectView) -> hoplite_shm::Result<Writer> {
        // A mapping for reading says that it is none for writing.
        self.writable.get().unwrap_or(&self.readable).writer(view.extent, view.size_bytes)
    }
}

fn lock_mapped() -> Option<MutexGuard<'static, Vec<Weak<Arena>>>> {
    (0..MAX_TRIES).find_map(|_| {
        let guard = MAPPED.try_lock().ok();
        if guard.is_none() {
            thread::yield_now();
        }
        guard
    })
}

fn identity(fd: &OwnedFd) -> Option<Identity> {
    let found = fstat(fd).ok()?;
    Some(Identity { process: std::process::id(), device: found.st_dev, inode: found.st_ino })
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use hoplite_shm::Backing;

    use super::*;

    const CAPACITY_BYTES: u64 = 1 << 20;

    fn store() -> Arc<hoplite_shm::Arena> {
        hoplite_shm::Arena::create(Backing::Memfd, CAPACITY_BYTES).unwrap()
    }

    fn map(fd: BorrowedFd<'_>, capacity_bytes: u64) -> Arc<Arena> {
        Arena::map(fd.try_clone_to_owned().unwrap(), capacity_bytes).unwrap()
    }

    #[test]
    fn connections_share_the_mappings_of_a_store() {
        let (one, other) = (store(), store());
        let first = map(one.read_only_fd(), CAPACITY_BYTES);
        let second = map(one.read_only_fd(), CAPACITY_BYTES);
        assert!(Arc::ptr_eq(&first, &second));
        second.map_writable(one.writable_fd().try_clone_to_owned().unwrap()).unwrap();
        assert!(first.is_writable());
        assert!(!Arc::ptr_eq(&first, &map(other.read_only_fd(), CAPACITY_BYTES)));
        assert!(!Arc::ptr_eq(&first, &map(one.read_only_fd(), CAPACITY_BYTES / 2)));
    }

    #[test]
    fn the_last_connection_ends_the_mapping() {
        let store = store();
        let arena = map(store.read_only_fd(), CAPACITY_BYTES);
        let readable = Arc::downgrade(&arena.readable);
        drop(arena);
        assert!(readable.upgrade().is_none());
        assert!(!map(store.read_only_fd(), CAPACITY_BYTES).is_writable());
    }
}
