use hoplite_core::error::{Plane, Result};
use hoplite_core::id::{ObjectId, PutId};
use hoplite_core::shard::{Lead, Obstacle, Replicate, Replication, ToShard};

use crate::bounds::encode_id;
use crate::enumeration::enumeration;
use crate::v1::{shard_message, store_message};
use crate::{metadata, v1};

enumeration!(encode_obstacle, decode_obstacle: Obstacle, v1::Obstacle, "obstacle" { Failed, NoRoom, NoNode });

pub(crate) fn encode_optional_obstacle(obstacle: Option<Obstacle>) -> i32 {
    obstacle.map_or_else(|| v1::Obstacle::Unspecified.into(), encode_obstacle)
}

pub(crate) fn decode_optional_obstacle(number: i32, plane: Plane) -> Result<Option<Obstacle>> {
    let is_set = number != i32::from(v1::Obstacle::Unspecified);
    is_set.then(|| decode_obstacle(number, plane)).transpose()
}

pub(super) fn encode_lead(lead: &Lead) -> store_message::Lead {
    let Lead { id, put, leads, is_new } = lead;
    store_message::Lead { id: encode_id(id), put: put.0, leads: *leads, is_new: *is_new }
}

pub(super) fn decode_lead(lead: store_message::Lead) -> Result<Lead> {
    let store_message::Lead { id, put, leads, is_new } = lead;
    Ok(Lead { id: ObjectId::new(&id)?, put: PutId(put), leads, is_new })
}

pub(super) fn encode_not_replicated(
    id: &ObjectId,
    put: PutId,
    reason: Obstacle,
) -> store_message::NotReplicated {
    store_message::NotReplicated { id: encode_id(id), put: put.0, reason: encode_obstacle(reason) }
}

pub(super) fn decode_not_replicated(refusal: store_message::NotReplicated) -> Result<ToShard> {
    Ok(ToShard::NotReplicated {
        id: ObjectId::new(&refusal.id)?,
        put: PutId(refusal.put),
        reason: decode_obstacle(refusal.reason, Plane::Control)?,
    })
}

pub(super) fn encode_replicate(order: &Replicate) -> shard_message::Replicate {
    shard_message::Replicate {
        id: encode_id(&order.id),
        put: order.put.0,
        size_bytes: order.size_bytes,
        metadata: Some(metadata::encode(&order.metadata)),
    }
}

pub(super) fn decode_replicate(order: shard_message::Replicate) -> Result<Replicate> {
    Ok(Replicate {
        id: ObjectId::new(&order.id)?,
        put: PutId(order.put),
        size_bytes: order.size_bytes,
        metadata: metadata::decode(order.metadata, order.size_bytes)?,
    })
}

pub(super) fn encode_replication(news: &Replication) -> shard_message::Replication {
    shard_message::Replication {
        id: encode_id(&news.id),
        put: news.put.0,
        copies: news.copies,
        nodes: news.nodes,
        is_draining: news.is_draining,
        obstacle: encode_optional_obstacle(news.obstacle),
    }
}

pub(super) fn decode_replication(news: shard_message::Replication) -> Result<Replication> {
    Ok(Replication {
        id: ObjectId::new(&news.id)?,
        put: PutId(news.put),
        copies: news.copies,
        nodes: news.nodes,
        is_draining: news.is_draining,
        obstacle: decode_optional_obstacle(news.obstacle, Plane::Control)?,
    })
}
