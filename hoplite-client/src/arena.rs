//! The store's arena as this process maps it: once for reading, once for writing.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use hoplite_core::node::ObjectView;
use hoplite_shm::{Mapping, Reader, Writer};

/// Both mappings. They stay as long as any view, reader or writer does.
#[derive(Debug)]
pub(crate) struct Arena {
    readable: Arc<Mapping>,
    writable: Arc<Mapping>,
}

impl Arena {
    pub(crate) fn map(
        readable: OwnedFd,
        writable: OwnedFd,
        capacity_bytes: u64,
    ) -> hoplite_shm::Result<Self> {
        Ok(Self {
            readable: Mapping::read_only(readable, capacity_bytes)?,
            writable: Mapping::writable(writable, capacity_bytes)?,
        })
    }

    pub(crate) fn reader(&self, view: &ObjectView) -> hoplite_shm::Result<Reader> {
        self.readable.reader(view.extent, view.size_bytes)
    }

    pub(crate) fn writer(&self, view: &ObjectView) -> hoplite_shm::Result<Writer> {
        self.writable.writer(view.extent, view.size_bytes)
    }
}
