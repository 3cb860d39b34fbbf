use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use hoplite_core::node;
use hoplite_core::{Metadata, PutId};

use crate::connection::{Connection, Role};
use crate::error::Result;
use crate::reference::Reference;

/// Size in bytes up to which a view is a copy, because a reference costs the client as much memory.
pub(crate) const MAX_COPIED_BYTES: usize = node::MAX_CONTENTS_BYTES as usize;
const ALIGNMENT: usize = 64;

/// Bytes of a complete object, read-only, in the store's memory.
///
/// Views of at most 4 KiB are private memory. Others hold the store's memory, even after a delete,
/// and keep the connection open. Every view stays readable after a loss of the connection, and may
/// be dropped on any thread without blocking.
pub struct ObjectView {
    contents: Contents,
    put: PutId,
    metadata: Metadata,
    is_stale: bool,
    range: Range<usize>,
}

#[derive(Clone)]
enum Contents {
    Stored {
        // Dropped first: no pointer may outlive the reference.
        bytes: hoplite_shm::Reader,
        reference: Arc<Reference>,
    },
    Copied {
        memory: Arc<[u8]>,
        start: usize,
    },
}

impl Contents {
    fn copied(bytes: &[u8]) -> Self {
        let mut memory: Arc<[u8]> = std::iter::repeat_n(0, bytes.len() + ALIGNMENT - 1).collect();
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT - 1);
        if let Some(unshared) = Arc::get_mut(&mut memory) {
            unshared[start..start + bytes.len()].copy_from_slice(bytes);
        }
        Self::Copied { memory, start }
    }
}

impl ObjectView {
    pub(crate) fn open(connection: &Arc<Connection>, view: node::ObjectView) -> Result<Self> {
        let reference = Reference::new(Arc::clone(connection), view.copy, Role::Reader);
        let mut bytes =
            connection.arena().reader(&view).map_err(|error| connection.misplaced(&error))?;
        // Other clients may have changed the byte count in the object's header.
        bytes.confirm(view.size_bytes);
        Ok(Self::over(bytes, reference, view.put, view.metadata, view.is_stale))
    }

    pub(crate) fn over(
        bytes: hoplite_shm::Reader,
        reference: Reference,
        put: PutId,
        metadata: Metadata,
        is_stale: bool,
    ) -> Self {
        let all = bytes.as_slice().unwrap_or_default();
        let range = 0..all.len();
        let contents = if all.len() <= MAX_COPIED_BYTES {
            Contents::copied(all)
        } else {
            Contents::Stored { bytes, reference: Arc::new(reference) }
        };
        Self { contents, put, metadata, is_stale, range }
    }

    pub(crate) fn copied(view: node::ObjectView, bytes: &[u8]) -> Self {
        let contents = Contents::copied(bytes);
        let node::ObjectView { put, metadata, is_stale, .. } = view;
        Self { contents, put, metadata, is_stale, range: 0..bytes.len() }
    }

    pub(crate) fn part(&self, range: Range<usize>, metadata: Metadata) -> Option<Self> {
        self.get(range.clone())?;
        let (contents, put, is_stale) = (self.contents.clone(), self.put, self.is_stale);
        Some(Self { contents, put, metadata, is_stale, range })
    }

    /// Size of the object in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.len() as u64
    }

    /// Metadata of the object.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Put that created the object. A later put of the id has another [`PutId`].
    pub fn put_id(&self) -> PutId {
        self.put
    }

    /// Returns `true` if no directory shard confirmed that the object still exists. Possible only
    /// with [`allow_stale`](crate::GetOptions::allow_stale).
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }
}

impl Deref for ObjectView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all = match &self.contents {
            Contents::Stored { bytes, .. } => {
                bytes.as_slice().expect("views are made only of complete copies")
            }
            Contents::Copied { memory, start } => &memory[*start..],
        };
        &all[self.range.clone()]
    }
}

impl AsRef<[u8]> for ObjectView {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for ObjectView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut view = f.debug_struct("ObjectView");
        view.field("size_bytes", &self.size_bytes()).field("put", &self.put);
        if let Contents::Stored { reference, .. } = &self.contents {
            view.field("copy", &reference.copy());
        }
        view.finish_non_exhaustive()
    }
}
