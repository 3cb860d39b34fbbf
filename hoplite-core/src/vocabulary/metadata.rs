//! An object's metadata.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;

use crate::vocabulary::agreement::Agreement;
use crate::vocabulary::dtype::{Dtype, MetadataError};
use crate::vocabulary::error::{Error, Result};
use crate::vocabulary::id::ObjectId;
use crate::vocabulary::lifetime::Lifetime;

/// Most dimensions of a shape: numpy's limit.
pub const MAX_DIMENSIONS: usize = 64;
/// Most bytes of application metadata.
pub const MAX_USER_METADATA_BYTES: usize = 4096;

/// Most pinned copies of an object.
pub const MAX_REPLICAS: u8 = 64;

/// Number of pinned copies that a put requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Replicas {
    /// Number of pinned copies, each on a different node. Zero means the store's default.
    pub wanted: u8,
    /// Number of copies that the put waits for. Zero means all.
    pub awaited: u8,
    /// `true` if the put succeeds only when both directory shards of its id accept it.
    pub quorum: bool,
}

impl Replicas {
    /// Number of copies to keep: at least one.
    pub fn to_keep(self) -> usize {
        usize::from(self.wanted.max(1))
    }

    /// Number of copies that the put waits for.
    pub fn to_await(self) -> usize {
        let all = self.to_keep();
        if self.awaited == 0 { all } else { all.min(usize::from(self.awaited)) }
    }

    /// Returns `true` if the put waits for the directory, even if it is small.
    pub fn awaits_directory(self) -> bool {
        self.to_await() > 1 || self.quorum
    }
}

/// Metadata set by `Put`, equal in every copy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions in elements, row-major: `None` for bytes without a shape, `Some([])` for a
    /// scalar.
    pub shape: Option<Vec<u64>>,
    /// Application's bytes, at most 4 KiB.
    pub user: Bytes,
    /// Parameters of the collective that made the object, if any.
    pub agreement: Option<Agreement>,
    /// Number of copies to keep. Puts with equal contents may differ in it.
    pub replicas: Replicas,
    /// Owner and time to live. Puts with equal contents may differ in it: the first put's counts.
    pub lifetime: Option<Arc<Lifetime>>,
}

/// Metadata in a table of objects. Most small objects have none, and take no memory for it.
#[derive(Debug, Default)]
pub(crate) struct BoxedMetadata(Option<Box<Metadata>>);

static NO_METADATA: Metadata = Metadata {
    dtype: Dtype::Opaque,
    shape: None,
    user: Bytes::new(),
    agreement: None,
    replicas: Replicas { wanted: 0, awaited: 0, quorum: false },
    lifetime: None,
};

impl BoxedMetadata {
    pub(crate) fn to_metadata(&self) -> Metadata {
        Metadata::clone(self)
    }
}

impl From<Metadata> for BoxedMetadata {
    fn from(metadata: Metadata) -> Self {
        Self((metadata != NO_METADATA).then(|| Box::new(metadata)))
    }
}

impl Deref for BoxedMetadata {
    type Target = Metadata;

    fn deref(&self) -> &Metadata {
        self.0.as_deref().unwrap_or(&NO_METADATA)
    }
}

impl DerefMut for BoxedMetadata {
    fn deref_mut(&mut self) -> &mut Metadata {
        self.0.get_or_insert_default()
    }
}

impl Metadata {
    /// Checks the limits, and that dtype, shape and size agree.
    ///
    /// # Errors
    /// [`Error::InvalidMetadata`] for a mismatch. [`Error::LimitExceeded`] or
    /// [`Error::InvalidRequest`] for too many replicas or awaited copies.
    pub fn validate(&self, size_bytes: u64) -> Result<()> {
        if self.replicas.wanted > MAX_REPLICAS {
            return Err(Error::limit_exceeded("replicas of an object", u64::from(MAX_REPLICAS)));
        }
        let Replicas { wanted, awaited, .. } = self.replicas;
        if wanted > 0 && awaited > wanted {
            return Err(Error::invalid_request(
                "a put cannot wait for more copies than its replicas",
            ));
        }
        if self.user.len() > MAX_USER_METADATA_BYTES {
            return Err(MetadataError::UserTooLong { length_bytes: self.user.len() }.into());
        }
        let item = self.dtype.size_bytes();
        match &self.shape {
            Some(shape) if shape.len() > MAX_DIMENSIONS => {
                Err(MetadataError::TooManyDimensions { dimensions: shape.len() }.into())
            }
            Some(shape) => {
                let total =
                    shape.iter().try_fold(item, |product, extent| product.checked_mul(*extent));
                if total == Some(size_bytes) {
                    Ok(())
                } else {
                    Err(MetadataError::ShapeDisagrees { dtype: self.dtype, size_bytes }.into())
                }
            }
            None if !size_bytes.is_multiple_of(item) => {
                Err(MetadataError::ShapeDisagrees { dtype: self.dtype, size_bytes }.into())
            }
            None => Ok(()),
        }
    }

    /// Returns `true` if both are equal, except for the number of copies and the lifetime.
    pub fn describes_same(&self, other: &Self) -> bool {
        let Self { dtype, shape, user, agreement, replicas: _, lifetime: _ } = self;
        (dtype, shape, user, agreement)
            == (&other.dtype, &other.shape, &other.user, &other.agreement)
    }

    /// Checks that the existing object `target` was made by the requested collective.
    ///
    /// # Errors
    /// [`Error::TypeMismatch`].
    pub fn check_made_by(&self, target: &ObjectId, asked: &Agreement) -> Result<()> {
        match &self.agreement {
            Some(coordinator) => asked.check(target, coordinator),
            None => {
                let reason =
                    format!("a participant asks for {asked}, but no collective made what is there");
                Err(Error::TypeMismatch { id: target.clone(), reason: reason.into() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metadata_beyond_the_default_takes_memory() {
        let mut boxed = BoxedMetadata::from(Metadata::default());
        assert!(boxed.0.is_none());
        assert_eq!(*boxed, Metadata::default());
        boxed.replicas.wanted = 2;
        assert_eq!(boxed.to_metadata().dtype, Metadata::default().dtype);
        let typed = Metadata { dtype: Dtype::U8, ..Metadata::default() };
        let mut boxed = BoxedMetadata::from(typed.clone());
        boxed.replicas.wanted = 2;
        assert!(boxed.describes_same(&typed));
    }

    fn shaped(dtype: Dtype, shape: &[u64]) -> Metadata {
        Metadata { dtype, shape: Some(shape.to_vec()), ..Metadata::default() }
    }

    #[test]
    fn shape_must_agree_with_size() {
        assert!(shaped(Dtype::F32, &[2, 3]).validate(24).is_ok());
        assert!(shaped(Dtype::F32, &[2, 3]).validate(23).is_err());
        assert!(shaped(Dtype::F64, &[]).validate(8).is_ok());
        assert!(shaped(Dtype::F64, &[0, 9]).validate(0).is_ok());
        assert!(shaped(Dtype::U8, &[u64::MAX, 2]).validate(0).is_err());
        assert!(Metadata { dtype: Dtype::F32, ..Metadata::default() }.validate(6).is_err());
        assert!(Metadata::default().validate(6).is_ok());
    }
}
