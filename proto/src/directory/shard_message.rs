use std::net::SocketAddr;

use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::shard::{
    DropReason, Equality, Grant, GrantId, GrantReason, InlineBytes, RequestId, ToStore, Verdict,
};

use super::places::{decode_placed, encode_placed};
use super::replication::{
    decode_replicate, decode_replication, encode_replicate, encode_replication,
};
use super::shards::{decode_shard_list, encode_shard_list};
use super::{
    decode_location_state, decode_locations, encode_location_state, encode_locations, encode_node,
    encode_nodes,
};
use crate::bounds::{
    MAX_INLINE_BYTES, MAX_MESSAGES_PER_BATCH, check_count, decode_address, decode_named_nodes,
    decode_optional_node, encode_id,
};
use crate::enumeration::enumeration;
use crate::v1::shard_message as wire;
use crate::v1::{ShardMessage, ShardMessages};
use crate::{error, metadata};

enumeration!(encode_grant_reason, decode_grant_reason: GrantReason, wire::GrantReason, "reason of a grant" {
    OnlyCandidate, CompleteBeforePartial, Closest, LeastRecentlyUsed, AvoidedButOnly, EarliestBytes, ChainHasBytes,
    FirstOfGroup, CloserAreBusy, FasterLink, SlowButOnly,
});
enumeration!(encode_drop_reason, decode_drop_reason: DropReason, wire::DropReason, "reason to drop" {
    Deleted, Lost, Superseded,
});

/// Encodes `message`.
pub fn encode_to_store(message: ToStore) -> ShardMessage {
    let body = match message {
        ToStore::Published { id, put, verdict } => wire::Body::Published(wire::Published {
            id: encode_id(&id),
            put: put.0,
            verdict: Some(encode_verdict(verdict)),
        }),
        ToStore::Granted(grant) => wire::Body::Granted(encode_grant(&grant)),
        ToStore::Inline { request, id, put, metadata, bytes } => wire::Body::Inline(wire::Inline {
            request: request.0,
            id: encode_id(&id),
            put: put.0,
            metadata: Some(metadata::encode(&metadata)),
            crc: bytes.crc(),
            bytes: bytes.into(),
        }),
        ToStore::Failed { request, error } => wire::Body::Failed(wire::Failed {
            request: request.0,
            error: Some(error::encode(&error)),
        }),
        ToStore::Drop { id, put, reason } => wire::Body::Drop(wire::Drop {
            id: encode_id(&id),
            put: put.0,
            reason: encode_drop_reason(reason),
        }),
        ToStore::Promote { id, put } => {
            wire::Body::Promote(wire::Promote { id: encode_id(&id), put: put.0 })
        }
        ToStore::GiveWay { grant } => wire::Body::GiveWay(wire::GiveWay { grant: grant.0 }),
        ToStore::Placed(placed) => wire::Body::Placed(encode_placed(placed)),
        ToStore::TakeOver { id, put, metadata, bytes } => wire::Body::TakeOver(wire::TakeOver {
            id: encode_id(&id),
            put: put.0,
            metadata: Some(metadata::encode(&metadata)),
            crc: bytes.crc(),
            bytes: bytes.into(),
        }),
        ToStore::DeleteDone { request, put, absent } => wire::Body::DeleteDone(wire::DeleteDone {
            request: request.0,
            put: put.map(|put| put.0),
            absent: encode_nodes(&absent.first),
            absent_count: absent.count,
        }),
        ToStore::Locations { request, locations } => wire::Body::Locations(wire::LocationsUpdate {
            request: request.0,
            locations: Some(encode_locations(&locations)),
        }),
        ToStore::Replicate(order) => wire::Body::Replicate(encode_replicate(&order)),
        ToStore::Replication(news) => wire::Body::Replication(encode_replication(&news)),
        ToStore::Shards(list) => wire::Body::Shards(encode_shard_list(&list)),
    };
    ShardMessage { body: Some(body) }
}

/// Decodes a shard's message.
///
/// Any error ends the session.
pub fn decode_to_store(message: ShardMessage) -> Result<ToStore> {
    let body = message.body.ok_or(malformed("a message without a body"))?;
    Ok(match body {
        wire::Body::Published(published) => ToStore::Published {
            id: ObjectId::new(&published.id)?,
            put: PutId(published.put),
            verdict: decode_verdict(published.verdict.ok_or(malformed("no verdict"))?)?,
        },
        wire::Body::Granted(grant) => ToStore::Granted(decode_grant(grant)?),
        wire::Body::Inline(inline) => decode_inline(inline)?,
        wire::Body::Failed(failed) => ToStore::Failed {
            request: RequestId(failed.request),
            error: error::decode(failed.error.unwrap_or_default(), Plane::Control),
        },
        wire::Body::Drop(drop) => ToStore::Drop {
            id: ObjectId::new(&drop.id)?,
            put: PutId(drop.put),
            reason: decode_drop_reason(drop.reason, Plane::Control)?,
        },
        wire::Body::Promote(promote) => {
            ToStore::Promote { id: ObjectId::new(&promote.id)?, put: PutId(promote.put) }
        }
        wire::Body::GiveWay(way) => ToStore::GiveWay { grant: GrantId(way.grant) },
        wire::Body::Placed(placed) => ToStore::Placed(decode_placed(placed)?),
        wire::Body::TakeOver(object) => decode_take_over(object)?,
        wire::Body::DeleteDone(done) => ToStore::DeleteDone {
            request: RequestId(done.request),
            put: done.put.map(PutId),
            absent: decode_named_nodes(&done.absent, done.absent_count)?,
        },
        wire::Body::Locations(update) => ToStore::Locations {
            request: RequestId(update.request),
            locations: decode_locations(
                update.locations.ok_or(malformed("no locations"))?,
                Plane::Control,
            )?,
        },
        wire::Body::Replicate(order) => ToStore::Replicate(decode_replicate(order)?),
        wire::Body::Replication(news) => ToStore::Replication(decode_replication(news)?),
        wire::Body::Shards(list) => ToStore::Shards(decode_shard_list(list)?),
    })
}

/// Decodes a frame after the welcome.
///
/// # Errors
/// As [`decode_to_store`]; also for a second welcome, more than [`MAX_MESSAGES_PER_BATCH`]
/// messages, and the error with which the shard ends the session.
pub fn decode_shard_batch(batch: ShardMessages) -> Result<Vec<ToStore>> {
    if batch.welcome.is_some() {
        return Err(malformed("a second welcome"));
    }
    if let Some(error) = batch.error {
        return Err(error::decode(error, Plane::Control));
    }
    check_count("messages in a batch", batch.messages.len(), MAX_MESSAGES_PER_BATCH)?;
    batch.messages.into_iter().map(decode_to_store).collect()
}

const fn malformed(reason: &'static str) -> Error {
    Error::malformed(Plane::Control, reason)
}

fn encode_grant(grant: &Grant) -> wire::Granted {
    wire::Granted {
        request: grant.request.0,
        grant: grant.grant.0,
        id: encode_id(&grant.id),
        put: grant.put.0,
        size_bytes: grant.size_bytes,
        metadata: Some(metadata::encode(&grant.metadata)),
        sender: encode_node(&grant.sender),
        sender_address: grant.sender_address.to_string(),
        sender_state: encode_location_state(grant.sender_state),
        reason: encode_grant_reason(grant.reason),
        complete_copies: grant.complete_copies,
    }
}

fn decode_grant(grant: wire::Granted) -> Result<Grant> {
    Ok(Grant {
        request: RequestId(grant.request),
        grant: GrantId(grant.grant),
        id: ObjectId::new(&grant.id)?,
        put: PutId(grant.put),
        size_bytes: grant.size_bytes,
        metadata: metadata::decode(grant.metadata, grant.size_bytes)?,
        sender: NodeId::new(&grant.sender)?,
        sender_address: decode_address(&grant.sender_address, Plane::Control)?,
        sender_state: decode_location_state(grant.sender_state, Plane::Control)?,
        reason: decode_grant_reason(grant.reason, Plane::Control)?,
        complete_copies: grant.complete_copies,
    })
}

const DAMAGED: &str = "the bytes of a small object are not those that were put";

fn decode_inline(inline: wire::Inline) -> Result<ToStore> {
    check_count("inline bytes", inline.bytes.len(), MAX_INLINE_BYTES)?;
    let size_bytes = inline.bytes.len() as u64;
    let request = RequestId(inline.request);
    let Some(bytes) = InlineBytes::checked(inline.bytes, inline.crc) else {
        // Fails this query only: the object's checksum does not match its bytes.
        return Ok(ToStore::Failed { request, error: malformed(DAMAGED) });
    };
    Ok(ToStore::Inline {
        request,
        id: ObjectId::new(&inline.id)?,
        put: PutId(inline.put),
        metadata: metadata::decode(inline.metadata, size_bytes)?,
        bytes,
    })
}

fn decode_take_over(object: wire::TakeOver) -> Result<ToStore> {
    check_count("inline bytes", object.bytes.len(), MAX_INLINE_BYTES)?;
    let size_bytes = object.bytes.len() as u64;
    Ok(ToStore::TakeOver {
        id: ObjectId::new(&object.id)?,
        put: PutId(object.put),
        metadata: metadata::decode(object.metadata, size_bytes)?,
        bytes: InlineBytes::checked(object.bytes, object.crc).ok_or(malformed(DAMAGED))?,
    })
}

fn encode_verdict(verdict: Verdict) -> wire::published::Verdict {
    match verdict {
        Verdict::Accepted => {
            wire::published::Verdict::Accepted(wire::Accepted { cyclic_sender: String::new() })
        }
        Verdict::Cyclic { sender } => wire::published::Verdict::Accepted(wire::Accepted {
            cyclic_sender: encode_node(&sender),
        }),
        Verdict::Conflict { winner, equality } => {
            let (equality, holder) = match equality {
                Equality::Equal => (wire::Equality::Equal, None),
                Equality::Different => (wire::Equality::Different, None),
                Equality::Unknown { holder } => (wire::Equality::Unknown, holder),
            };
            let (holder, holder_address) = match holder {
                Some((node, address)) => (encode_node(&node), address.to_string()),
                None => (String::new(), String::new()),
            };
            let equality = equality.into();
            wire::published::Verdict::Conflict(wire::Conflict {
                winner: winner.0,
                equality,
                holder,
                holder_address,
            })
        }
        Verdict::Deleted => wire::published::Verdict::Deleted(wire::AlreadyDeleted {}),
        Verdict::ShardFull => wire::published::Verdict::ShardFull(wire::ShardFull {}),
    }
}

fn decode_verdict(verdict: wire::published::Verdict) -> Result<Verdict> {
    Ok(match verdict {
        wire::published::Verdict::Accepted(accepted) if accepted.cyclic_sender.is_empty() => {
            Verdict::Accepted
        }
        wire::published::Verdict::Accepted(accepted) => {
            Verdict::Cyclic { sender: NodeId::new(&accepted.cyclic_sender)? }
        }
        wire::published::Verdict::Conflict(conflict) => Verdict::Conflict {
            winner: PutId(conflict.winner),
            equality: match wire::Equality::try_from(conflict.equality) {
                Ok(wire::Equality::Equal) => Equality::Equal,
                Ok(wire::Equality::Different) => Equality::Different,
                Ok(wire::Equality::Unknown) => Equality::Unknown {
                    holder: decode_holder(&conflict.holder, &conflict.holder_address)?,
                },
                _ => return Err(malformed("unknown equality")),
            },
        },
        wire::published::Verdict::Deleted(_) => Verdict::Deleted,
        wire::published::Verdict::ShardFull(_) => Verdict::ShardFull,
    })
}

fn decode_holder(node: &str, address: &str) -> Result<Option<(NodeId, SocketAddr)>> {
    let Some(node) = decode_optional_node(node)? else { return Ok(None) };
    Ok(Some((node, decode_address(address, Plane::Control)?)))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::arbitrary;
    use crate::v1;

    #[test]
    fn incomplete_messages_are_refused() {
        let id = Bytes::from_static(b"x");
        let published = wire::Published { id, put: 1, verdict: None };
        for body in [
            Some(wire::Body::Published(published)),
            Some(wire::Body::Locations(wire::LocationsUpdate::default())),
            Some(wire::Body::Promote(wire::Promote::default())),
            None,
        ] {
            assert!(decode_to_store(ShardMessage { body: body.clone() }).is_err(), "{body:?}");
        }
        let batch = ShardMessages { welcome: Some(v1::Welcome::default()), ..Default::default() };
        assert!(decode_shard_batch(batch).is_err());
        let batch = ShardMessages {
            error: Some(error::encode(&Error::ShuttingDown)),
            ..Default::default()
        };
        assert_eq!(decode_shard_batch(batch), Err(Error::ShuttingDown));
    }

    #[test]
    fn a_failure_without_an_error_is_still_a_failure() {
        let body = wire::Body::Failed(wire::Failed { request: 7, error: None });
        let Ok(ToStore::Failed { request, error }) =
            decode_to_store(ShardMessage { body: Some(body) })
        else {
            panic!("not a failure");
        };
        assert_eq!(request, RequestId(7));
        assert!(matches!(error, Error::Malformed { .. }));
    }

    proptest! {
        #[test]
        fn messages_round_trip(message in arbitrary::to_store()) {
            let bytes = encode_to_store(message.clone()).encode_to_vec();
            let wire = ShardMessage::decode(&bytes[..]).unwrap();
            prop_assert_eq!(decode_to_store(wire), Ok(message));
        }

        #[test]
        fn damaged_messages_never_panic(
            message in arbitrary::to_store(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut bytes = encode_to_store(message).encode_to_vec();
            for (index, byte) in damage {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            if let Ok(message) = ShardMessage::decode(&bytes[..]) {
                let _ = decode_to_store(message);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(batch) = ShardMessages::decode(&bytes[..]) {
                let _ = decode_shard_batch(batch);
            }
        }
    }
}
