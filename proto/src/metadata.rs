//! Objects' metadata on the wire.

use bytes::Bytes;
use hoplite_core::dtype::Dtype;
use hoplite_core::error::{Error, MetadataError, Plane, Result};
use hoplite_core::metadata::{MAX_DIMENSIONS, MAX_REPLICAS, Metadata, Replicas};

use crate::reduce::{decode_agreement, encode_agreement};
use crate::{lifetime, v1};

pub(crate) fn encode_dtype(dtype: Dtype) -> i32 {
    let wire = match dtype {
        Dtype::Opaque => v1::Dtype::Opaque,
        Dtype::F16 => v1::Dtype::F16,
        Dtype::Bf16 => v1::Dtype::Bf16,
        Dtype::F32 => v1::Dtype::F32,
        Dtype::F64 => v1::Dtype::F64,
        Dtype::I8 => v1::Dtype::I8,
        Dtype::I16 => v1::Dtype::I16,
        Dtype::I32 => v1::Dtype::I32,
        Dtype::I64 => v1::Dtype::I64,
        Dtype::U8 => v1::Dtype::U8,
        Dtype::U16 => v1::Dtype::U16,
        Dtype::U32 => v1::Dtype::U32,
        Dtype::U64 => v1::Dtype::U64,
        Dtype::Bool => v1::Dtype::Bool,
    };
    wire.into()
}

pub(crate) fn decode_dtype(number: i32) -> Option<Dtype> {
    // Uses [`encode_dtype`], so that both directions agree.
    Dtype::ALL.iter().copied().find(|dtype| encode_dtype(*dtype) == number)
}

/// Encodes `metadata`.
pub fn encode(metadata: &Metadata) -> v1::Metadata {
    v1::Metadata {
        dtype: encode_dtype(metadata.dtype),
        shape: metadata.shape.as_ref().map(|extents| v1::Shape { extents: extents.clone() }),
        user: metadata.user.clone(),
        agreement: metadata.agreement.as_ref().map(encode_agreement),
        replicas: metadata.replicas.wanted.into(),
        awaited_replicas: metadata.replicas.awaited.into(),
        lifetime: metadata.lifetime.as_deref().map(lifetime::encode),
        quorum: metadata.replicas.quorum,
    }
}

/// Decodes an object's metadata. Absent metadata means plain bytes.
pub fn decode(metadata: Option<v1::Metadata>, size_bytes: u64) -> Result<Metadata> {
    let Some(metadata) = metadata else { return Ok(Metadata::default()) };
    let dtype = decode_dtype(metadata.dtype)
        .ok_or_else(|| MetadataError::UnknownDtype { name: metadata.dtype.to_string() })?;
    let shape = metadata.shape.map(|shape| shape.extents);
    if let Some(shape) = &shape
        && shape.len() > MAX_DIMENSIONS
    {
        return Err(MetadataError::TooManyDimensions { dimensions: shape.len() }.into());
    }
    // Copies `user`: a slice would keep the whole received buffer.
    let agreement =
        metadata.agreement.map(|agreement| decode_agreement(Some(agreement), Plane::Control));
    let user = Bytes::copy_from_slice(&metadata.user);
    let replicas = Replicas {
        wanted: decode_replicas(metadata.replicas)?,
        awaited: decode_replicas(metadata.awaited_replicas)?,
        quorum: metadata.quorum,
    };
    let lifetime = metadata.lifetime.as_ref().map(lifetime::decode).transpose()?.flatten();
    let metadata =
        Metadata { dtype, shape, user, agreement: agreement.transpose()?, replicas, lifetime };
    metadata.validate(size_bytes)?;
    Ok(metadata)
}

pub(crate) fn decode_replicas(replicas: u32) -> Result<u8> {
    let replicas = u8::try_from(replicas).ok().filter(|replicas| *replicas <= MAX_REPLICAS);
    replicas.ok_or_else(|| Error::limit_exceeded("replicas of an object", u64::from(MAX_REPLICAS)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary;

    proptest! {
        #[test]
        fn metadata_round_trips((metadata, size_bytes) in arbitrary::metadata()) {
            prop_assert_eq!(decode(Some(encode(&metadata)), size_bytes), Ok(metadata));
        }
    }

    #[test]
    fn metadata_that_disagrees_with_the_size_is_refused() {
        let wire = v1::Metadata { dtype: v1::Dtype::F32.into(), ..Default::default() };
        assert!(decode(Some(wire.clone()), 8).is_ok());
        assert!(decode(Some(wire), 7).is_err());
        assert!(decode(Some(v1::Metadata { dtype: 99, ..Default::default() }), 8).is_err());
        let shape = Some(v1::Shape { extents: vec![1; 65] });
        assert_eq!(
            decode(Some(v1::Metadata { shape, ..Default::default() }), 1),
            Err(MetadataError::TooManyDimensions { dimensions: 65 }.into())
        );
        assert_eq!(decode(None, 7), Ok(Metadata::default()));
        for replicas in [65, 256, u32::MAX] {
            let error =
                decode(Some(v1::Metadata { replicas, ..Default::default() }), 1).unwrap_err();
            assert!(matches!(error, Error::LimitExceeded { maximum: 64, .. }), "{error:?}");
        }
        let waits_for_more =
            v1::Metadata { replicas: 2, awaited_replicas: 3, ..Default::default() };
        assert!(matches!(decode(Some(waits_for_more), 1), Err(Error::InvalidRequest { .. })));
    }
}
