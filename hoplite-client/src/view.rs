//! Zero-copy access to a complete object.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use hoplite_core::node;
use hoplite_core::{Metadata, PutId};

use crate::connection::{Connection, Role};
use crate::error::Result;
use crate::reference::Reference;

/// Size of the largest object that is copied out. A reference costs about as much memory as such an
/// object, and the store limits references.
pub(crate) const MAX_COPIED_BYTES: usize = node::MAX_CONTENTS_BYTES as usize;
/// The alignment of a copy in memory: a cache line, as for objects in the store.
const ALIGNMENT: usize = 64;

/// The bytes of a complete object, read-only, in the store's memory.
///
/// Nothing is copied, except objects of at most 4 KiB: a view of such an object is private memory
/// and holds no reference. Otherwise the store does not reuse the memory while the view exists,
/// even after the object is deleted. A view of more than 4 KiB keeps its connection open. Every
/// view stays readable when the connection is lost. It may be used and dropped on any thread,
/// inside or outside of a runtime, and dropping never blocks.
pub struct ObjectView {
    contents: Contents,
    put: PutId,
    metadata: Metadata,
    is_stale: bool,
    /// The range of the view: all bytes, or one part of the result of an exchange.
    range: Range<usize>,
}

/// The place of the bytes of a view.
#[derive(Clone)]
enum Contents {
    Stored {
        // Dropped before the reference, because no pointer into the memory may outlive it.
        bytes: hoplite_shm::Reader,
        reference: Arc<Reference>,
    },
    Copied {
        memory: Arc<[u8]>,
        start: usize,
    },
}

impl Contents {
    /// Copies a few bytes into private memory.
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
    /// Creates a view of a complete copy. Takes over the reference of the answer.
    pub(crate) fn open(connection: &Arc<Connection>, view: node::ObjectView) -> Result<Self> {
        let reference = Reference::new(Arc::clone(connection), view.copy, Role::Reader);
        let mut bytes = connection.arena().reader(&view).map_err(|error| connection.misplaced(&error))?;
        // The store answers so only if all bytes are there. Other clients may have changed the
        // header.
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

    /// Creates a view of the bytes in a store's answer. Copies them.
    pub(crate) fn copied(view: node::ObjectView, bytes: &[u8]) -> Self {
        let contents = Contents::copied(bytes);
        let node::ObjectView { put, metadata, is_stale, .. } = view;
        Self { contents, put, metadata, is_stale, range: 0..bytes.len() }
    }

    /// Creates a view of a part, as an object with this metadata; `None` if the range is out of
    /// bounds.
    pub(crate) fn part(&self, range: Range<usize>, metadata: Metadata) -> Option<Self> {
        self.get(range.clone())?;
        let (contents, put, is_stale) = (self.contents.clone(), self.put, self.is_stale);
        Some(Self { contents, put, metadata, is_stale, range })
    }

    /// The size of the object, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.len() as u64
    }

    /// The metadata that was put together with the bytes.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The id of the put that created the object. It changes if the id is deleted and put again.
    pub fn put_id(&self) -> PutId {
        self.put
    }

    /// Returns `true` if no directory shard confirmed, when the store answered, that the object
    /// still exists. It may be deleted, and another object may have its id. Only a get with
    /// [`allow_stale`](crate::GetOptions::allow_stale) returns a stale object.
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
