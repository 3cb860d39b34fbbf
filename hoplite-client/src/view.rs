//! Zero-copy access to a complete object.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use hoplite_core::node;
use hoplite_core::{Metadata, PutId};

use crate::connection::{Connection, Role};
use crate::error::Result;
use crate::reference::Reference;

/// The bytes of a complete object, read-only, where the store keeps them.
///
/// Nothing is copied. The store does not reuse the memory while the view exists, even if the object is deleted meanwhile.
/// A view stays readable when the connection is lost. It keeps the connection open. It may be used and dropped on any
/// thread, inside or outside of a runtime; to drop it never blocks.
pub struct ObjectView {
    // Dropped before the reference: nothing may point into the memory after the reference is given back.
    bytes: hoplite_shm::Reader,
    reference: Arc<Reference>,
    put: PutId,
    metadata: Metadata,
    /// Which of them: all, or of a part of what stores have exchanged.
    range: Range<usize>,
}

impl ObjectView {
    /// Makes a view of a complete copy, and takes over the reference that came with it.
    pub(crate) fn open(connection: &Arc<Connection>, view: node::ObjectView) -> Result<Self> {
        let reference = Reference::new(Arc::clone(connection), view.copy, Role::Reader);
        let mut bytes = connection.arena().reader(&view).map_err(|error| connection.misplaced(&error))?;
        // The store answers so only if all bytes are there. The header, to which every client can
        // write, need not show it.
        bytes.confirm(view.size_bytes);
        Ok(Self::over(bytes, reference, view.put, view.metadata))
    }

    /// A view of a copy that is complete.
    pub(crate) fn over(
        bytes: hoplite_shm::Reader,
        reference: Reference,
        put: PutId,
        metadata: Metadata,
    ) -> Self {
        let range = 0..bytes.as_slice().map_or(0, <[u8]>::len);
        Self { bytes, reference: Arc::new(reference), put, metadata, range }
    }

    /// A view of a part, as an object with this metadata; `None` if there is none.
    pub(crate) fn part(&self, range: Range<usize>, metadata: Metadata) -> Option<Self> {
        self.get(range.clone())?;
        let (bytes, reference) = (self.bytes.clone(), Arc::clone(&self.reference));
        Some(Self { bytes, reference, put: self.put, metadata, range })
    }

    /// The size of the object, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.len() as u64
    }

    /// The metadata that was put together with the bytes.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Which put made the object: another one if the id was deleted and put again.
    pub fn put_id(&self) -> PutId {
        self.put
    }
}

impl Deref for ObjectView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all = self.bytes.as_slice().expect("a view is made of copies that the store has called complete");
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
        f.debug_struct("ObjectView")
            .field("size_bytes", &self.size_bytes())
            .field("put", &self.put)
            .field("copy", &self.reference.copy())
            .finish_non_exhaustive()
    }
}
