use std::time::Duration;

use bytes::Bytes;
use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::shard::{
    DeleteTerms, DeleteWait, GrantId, InlineBytes, LocationState, Publish, PullOutcome, Query,
    RequestId, ToShard, UnpublishReason, Wants,
};

use super::places::{decode_placed, encode_placed};
use super::replication::{decode_lead, decode_not_replicated, encode_lead, encode_not_replicated};
use super::shards::{decode_shard_list, encode_shard_list};
use super::{
    decode_location_state, decode_retention, decode_slow_peers, encode_location_state,
    encode_nodes, encode_retention,
};
use crate::bounds::{
    MAX_AVOIDED_NODES, MAX_INLINE_BYTES, MAX_MESSAGES_PER_BATCH, check_count, decode_delete_wait,
    decode_optional_node, decode_timeout, encode_id, encode_optional_node, encode_timeout,
};
use crate::enumeration::enumeration;
use crate::v1::store_message as wire;
use crate::v1::{StoreMessage, StoreMessages};
use crate::{metadata, v1};

enumeration!(encode_unpublish_reason, decode_unpublish_reason: UnpublishReason, wire::UnpublishReason,
    "reason to unpublish" { Evicted, PullEnded, Aborted, Superseded, Conceded, Deleted });
enumeration!(pub(crate) encode_pull_outcome, decode_pull_outcome: PullOutcome, v1::PullOutcome, "outcome of a pull" {
    Complete, SenderUnreachable, SenderStalled, SenderHasNoCopy, Corrupt, Cancelled, GaveWay,
});

/// Encodes `message`.
pub fn encode_to_shard(message: ToShard) -> StoreMessage {
    let body = match message {
        ToShard::Publish(publish) => wire::Body::Publish(encode_publish(publish)),
        ToShard::Unpublish { id, put, reason } => wire::Body::Unpublish(wire::Unpublish {
            id: encode_id(&id),
            put: put.0,
            reason: encode_unpublish_reason(reason),
        }),
        ToShard::Query(query) => wire::Body::Query(wire::Query {
            request: query.request.0,
            id: encode_id(&query.id),
            timeout_ms: encode_timeout(query.timeout),
            resume: query.resume.map(|put| put.0),
            avoid: encode_nodes(&query.avoid),
        }),
        ToShard::Cancel { request } => wire::Body::Cancel(wire::Cancel { request: request.0 }),
        ToShard::ReturnSlot { grant, outcome } => wire::Body::ReturnSlot(wire::ReturnSlot {
            grant: grant.0,
            outcome: encode_pull_outcome(outcome),
        }),
        ToShard::Delete { request, id, terms } => wire::Body::Delete(wire::Delete {
            request: request.0,
            id: encode_id(&id),
            only: terms.only.map(|put| put.0),
            wait_all: terms.wait == DeleteWait::All,
        }),
        ToShard::Forget { id, put } => {
            wire::Body::Forget(wire::Forget { id: encode_id(&id), put: put.0 })
        }
        ToShard::Subscribe { request, id, wants, makes } => {
            let wants_bytes = wants == Wants::Bytes;
            wire::Body::Subscribe(wire::Subscribe {
                request: request.0,
                id: encode_id(&id),
                wants_bytes,
                makes,
            })
        }
        ToShard::Unsubscribe { request } => {
            wire::Body::Unsubscribe(wire::Unsubscribe { request: request.0 })
        }
        ToShard::Placed(placed) => wire::Body::Placed(encode_placed(placed)),
        ToShard::SlowLinks { peers } => {
            wire::Body::SlowLinks(wire::SlowLinks { peers: encode_nodes(&peers) })
        }
        ToShard::Lead(lead) => wire::Body::Lead(encode_lead(&lead)),
        ToShard::NotReplicated { id, put, reason } => {
            wire::Body::NotReplicated(encode_not_replicated(&id, put, reason))
        }
        ToShard::Drain { is_draining } => wire::Body::Drain(wire::Drain { is_draining }),
        ToShard::Shards(list) => wire::Body::Shards(encode_shard_list(&list)),
    };
    StoreMessage { body: Some(body), ..Default::default() }
}

/// Decodes a store's message.
///
/// Any error ends the session.
pub fn decode_to_shard(message: StoreMessage) -> Result<ToShard> {
    let body = message.body.ok_or(Error::malformed(Plane::Control, "a message without a body"))?;
    Ok(match body {
        wire::Body::Publish(publish) => ToShard::Publish(decode_publish(publish)?),
        wire::Body::Unpublish(unpublish) => ToShard::Unpublish {
            id: ObjectId::new(&unpublish.id)?,
            put: PutId(unpublish.put),
            reason: decode_unpublish_reason(unpublish.reason, Plane::Control)?,
        },
        wire::Body::Query(query) => ToShard::Query(decode_query(query)?),
        wire::Body::Cancel(cancel) => ToShard::Cancel { request: RequestId(cancel.request) },
        wire::Body::ReturnSlot(slot) => ToShard::ReturnSlot {
            grant: GrantId(slot.grant),
            outcome: decode_pull_outcome(slot.outcome, Plane::Control)?,
        },
        wire::Body::Delete(delete) => ToShard::Delete {
            request: RequestId(delete.request),
            id: ObjectId::new(&delete.id)?,
            terms: DeleteTerms {
                only: delete.only.map(PutId),
                wait: decode_delete_wait(delete.wait_all),
            },
        },
        wire::Body::Forget(forget) => {
            ToShard::Forget { id: ObjectId::new(&forget.id)?, put: PutId(forget.put) }
        }
        wire::Body::Subscribe(subscribe) => {
            let wants = if subscribe.wants_bytes { Wants::Bytes } else { Wants::Locations };
            let id = ObjectId::new(&subscribe.id)?;
            let (request, makes) = (RequestId(subscribe.request), subscribe.makes);
            ToShard::Subscribe { request, id, wants, makes }
        }
        wire::Body::Unsubscribe(unsubscribe) => {
            ToShard::Unsubscribe { request: RequestId(unsubscribe.request) }
        }
        wire::Body::Placed(placed) => ToShard::Placed(decode_placed(placed)?),
        wire::Body::SlowLinks(slow) => {
            ToShard::SlowLinks { peers: decode_slow_peers(&slow.peers)? }
        }
        wire::Body::Lead(lead) => ToShard::Lead(decode_lead(lead)?),
        wire::Body::NotReplicated(refusal) => decode_not_replicated(refusal)?,
        wire::Body::Drain(drain) => ToShard::Drain { is_draining: drain.is_draining },
        wire::Body::Shards(list) => ToShard::Shards(decode_shard_list(list)?),
    })
}

/// Decodes a frame after the hello.
///
/// # Errors
/// As [`decode_to_shard`]; also for a second hello, and more than [`MAX_MESSAGES_PER_BATCH`]
/// messages.
pub fn decode_store_batch(batch: StoreMessages) -> Result<Vec<ToShard>> {
    if batch.hello.is_some() {
        return Err(Error::malformed(Plane::Control, "a second hello"));
    }
    check_count("messages in a batch", batch.messages.len(), MAX_MESSAGES_PER_BATCH)?;
    batch.messages.into_iter().map(decode_to_shard).collect()
}

fn encode_publish(publish: Publish) -> wire::Publish {
    wire::Publish {
        id: encode_id(&publish.id),
        put: publish.put.0,
        size_bytes: publish.size_bytes,
        metadata: Some(metadata::encode(&publish.metadata)),
        state: encode_location_state(publish.state),
        retention: encode_retention(publish.retention),
        pulling_from: encode_optional_node(publish.pulling_from.as_ref()),
        inline_crc: publish.inline.as_ref().map(InlineBytes::crc).unwrap_or_default(),
        inline: publish.inline.map(Into::into),
        slot: publish.slot.map(|slot| slot.0),
        wants_answer: publish.wants_answer,
        returning_after_ms: publish.returning.map(encode_absence),
    }
}

fn encode_absence(absence: Duration) -> u64 {
    u64::try_from(absence.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn decode_publish(publish: wire::Publish) -> Result<Publish> {
    let state = decode_location_state(publish.state, Plane::Control)?;
    if publish.slot.is_some() && state != LocationState::Complete {
        return Err(Error::malformed(
            Plane::Control,
            "a slot that is returned before all bytes have come",
        ));
    }
    let crc = publish.inline_crc;
    let checked = |bytes: Bytes| {
        let damaged =
            Error::malformed(Plane::Control, "inline bytes that are not those that were put");
        InlineBytes::checked(bytes, crc).ok_or(damaged)
    };
    if let Some(inline) = &publish.inline {
        check_count("inline bytes", inline.len(), MAX_INLINE_BYTES)?;
        if u64::try_from(inline.len()) != Ok(publish.size_bytes) || state != LocationState::Complete
        {
            return Err(Error::malformed(
                Plane::Control,
                "inline bytes that are not all of the object",
            ));
        }
    }
    Ok(Publish {
        id: ObjectId::new(&publish.id)?,
        put: PutId(publish.put),
        size_bytes: publish.size_bytes,
        metadata: metadata::decode(publish.metadata, publish.size_bytes)?,
        state,
        retention: decode_retention(publish.retention, Plane::Control)?,
        pulling_from: decode_optional_node(&publish.pulling_from)?,
        inline: publish.inline.map(checked).transpose()?,
        slot: publish.slot.map(GrantId),
        wants_answer: publish.wants_answer,
        returning: publish.returning_after_ms.map(Duration::from_millis),
    })
}

fn decode_query(query: wire::Query) -> Result<Query> {
    check_count("nodes to avoid", query.avoid.len(), MAX_AVOIDED_NODES)?;
    Ok(Query {
        request: RequestId(query.request),
        id: ObjectId::new(&query.id)?,
        timeout: decode_timeout(query.timeout_ms),
        resume: query.resume.map(PutId),
        avoid: query.avoid.iter().map(|node| NodeId::new(node)).collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use hoplite_core::checksum::crc32c;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::arbitrary;
    use crate::v1;

    fn publish() -> wire::Publish {
        wire::Publish {
            id: Bytes::from_static(b"x"),
            size_bytes: 3,
            state: v1::LocationState::Complete.into(),
            retention: v1::Retention::Pinned.into(),
            ..Default::default()
        }
    }

    #[test]
    fn inline_bytes_must_be_the_whole_object() {
        assert!(decode_publish(publish()).is_ok());
        let inline = Some(Bytes::from_static(b"abc"));
        let inline_crc = crc32c(b"abc");
        assert!(
            decode_publish(wire::Publish { inline: inline.clone(), inline_crc, ..publish() })
                .is_ok()
        );
        assert!(
            decode_publish(wire::Publish { inline: inline.clone(), ..publish() }).is_err(),
            "other bytes"
        );
        assert!(
            decode_publish(wire::Publish { size_bytes: 4, inline: inline.clone(), ..publish() })
                .is_err()
        );
        let state = v1::LocationState::Partial.into();
        assert!(decode_publish(wire::Publish { state, inline, ..publish() }).is_err());
        let long = Bytes::from(vec![0; MAX_INLINE_BYTES + 1]);
        let publish =
            wire::Publish { size_bytes: long.len() as u64, inline: Some(long), ..publish() };
        assert!(matches!(decode_publish(publish), Err(Error::LimitExceeded { .. })));
    }

    #[test]
    fn lists_are_bounded() {
        let id = Bytes::from_static(b"x");
        let avoid = vec!["a".to_owned(); MAX_AVOIDED_NODES + 1];
        assert!(decode_query(wire::Query { id, avoid, ..Default::default() }).is_err());
        let cancel = StoreMessage {
            body: Some(wire::Body::Cancel(wire::Cancel { request: 1 })),
            ..Default::default()
        };
        let batch = |count| StoreMessages { hello: None, messages: vec![cancel.clone(); count] };
        assert_eq!(
            decode_store_batch(batch(MAX_MESSAGES_PER_BATCH)).unwrap().len(),
            MAX_MESSAGES_PER_BATCH
        );
        assert!(decode_store_batch(batch(MAX_MESSAGES_PER_BATCH + 1)).is_err());
        assert!(
            decode_store_batch(StoreMessages {
                hello: Some(v1::Hello::default()),
                messages: vec![]
            })
            .is_err()
        );
        assert!(decode_to_shard(StoreMessage::default()).is_err());
    }

    #[test]
    fn unspecified_enumerations_are_refused() {
        assert!(decode_publish(wire::Publish { state: 0, ..publish() }).is_err());
        assert!(decode_publish(wire::Publish { retention: 3, ..publish() }).is_err());
    }

    proptest! {
        #[test]
        fn messages_round_trip(message in arbitrary::to_shard()) {
            let bytes = encode_to_shard(message.clone()).encode_to_vec();
            let wire = StoreMessage::decode(&bytes[..]).unwrap();
            prop_assert_eq!(decode_to_shard(wire), Ok(message));
        }

        #[test]
        fn damaged_messages_never_panic(
            message in arbitrary::to_shard(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut bytes = encode_to_shard(message).encode_to_vec();
            for (index, byte) in damage {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            if let Ok(message) = StoreMessage::decode(&bytes[..]) {
                let _ = decode_to_shard(message);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(batch) = StoreMessages::decode(&bytes[..]) {
                let _ = decode_store_batch(batch);
            }
        }
    }
}
