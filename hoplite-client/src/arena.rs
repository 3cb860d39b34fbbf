//! The store's arena as this process maps it: for reading, and for writing once it does so.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use hoplite_core::node::ObjectView;
use hoplite_shm::{Mapping, Reader, Writer};
use rustix::fs::fstat;

/// The mappings. They stay as long as any view, reader or writer does.
#[derive(Debug)]
pub(crate) struct Arena {
    readable: Arc<Mapping>,
    writable: OnceLock<Arc<Mapping>>,
    /// Which file it is, as long as it is mapped: device and inode.
    file: Option<(u64, u64)>,
}

impl Arena {
    pub(crate) fn map(readable: OwnedFd, capacity_bytes: u64) -> hoplite_shm::Result<Self> {
        let file = identity(&readable);
        Ok(Self { readable: Mapping::read_only(readable, capacity_bytes)?, writable: OnceLock::new(), file })
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

fn identity(fd: &OwnedFd) -> Option<(u64, u64)> {
    let found = fstat(fd).ok()?;
    Some((found.st_dev, found.st_ino))
}
