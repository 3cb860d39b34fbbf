use bytes::Bytes;
use hoplite_core::error::Result;
use hoplite_core::id::ObjectId;
use hoplite_core::lifetime::Owner;
use hoplite_core::node::{Ownerless, OwnerlessPage};

use crate::bounds::{MAX_LISTED_OBJECTS, check_count, encode_id};
use crate::lifetime::encode_owner;
use crate::v1::response as wire;

pub(super) fn encode_ownerless(page: OwnerlessPage) -> wire::Ownerless {
    let encode = |object: Ownerless| wire::ownerless::Object {
        id: encode_id(&object.id),
        size_bytes: object.size_bytes,
        owner: object.owner.as_ref().map(encode_owner).unwrap_or_default(),
    };
    wire::Ownerless {
        objects: page.objects.into_iter().map(encode).collect(),
        next: page.next.as_ref().map(encode_id).unwrap_or_default(),
    }
}

pub(super) fn decode_ownerless(page: wire::Ownerless) -> Result<OwnerlessPage> {
    check_count("objects in a page", page.objects.len(), MAX_LISTED_OBJECTS)?;
    let owner =
        |owner: &Bytes| if owner.is_empty() { Ok(None) } else { Owner::new(owner).map(Some) };
    let decode = |object: wire::ownerless::Object| {
        Ok(Ownerless {
            id: ObjectId::new(&object.id)?,
            size_bytes: object.size_bytes,
            owner: owner(&object.owner)?,
        })
    };
    Ok(OwnerlessPage {
        objects: page.objects.into_iter().map(decode).collect::<Result<_>>()?,
        next: if page.next.is_empty() { None } else { Some(ObjectId::new(&page.next)?) },
    })
}
