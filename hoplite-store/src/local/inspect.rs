//! Answers for people and tools: what the directory and this store know. Nothing in the data path comes here.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use hoplite_core::ObjectId;
use hoplite_core::error::{Error, Plane};
use hoplite_core::node::ReduceRecord;
use hoplite_core::placement::ShardMap;
use hoplite_core::shard::Locations;
use hoplite_proto::directory::{decode_locations, encode_locations};
use hoplite_proto::local::Response;
use hoplite_proto::status::from_status;
use hoplite_proto::v1;
use prost::Message;
use tokio::time::timeout;

use super::LocalPlane;
use crate::session::ShardLink;

/// How long a shard may take to answer.
const SHARD_TIMEOUT: Duration = Duration::from_secs(5);
/// How many bytes of objects a page of a listing has at most: far below the longest answer, whatever their locations.
const PAGE_BYTES: usize = 4 << 20;
/// Room for tag and length in front of each object.
const OBJECT_OVERHEAD_BYTES: usize = 6;

async fn ask<T>(answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>) -> Result<T, Error> {
    match timeout(SHARD_TIMEOUT, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(from_status(&status)),
        Err(_) => Err(Error::unavailable("a directory shard")),
    }
}

/// One page of the cluster's objects. Each id is known at two shards, so that one may be away.
pub(super) async fn list(
    plane: &LocalPlane,
    prefix: Bytes,
    after: Bytes,
    limit: usize,
) -> Result<Response, Error> {
    let request = v1::ListRequest { prefix, after, limit: u32::try_from(limit).unwrap_or(u32::MAX) };
    let pages = join_all(plane.shards.iter().map(|link| {
        let (mut client, request) = (link.client(), request.clone());
        async move { ask(client.list(request)).await }
    }))
    .await;
    let unreachable = pages.iter().filter(|page| page.is_err()).count();
    if unreachable == pages.len() || unreachable >= hoplite_core::placement::REPLICAS {
        return Err(Error::unavailable("the directory"));
    }
    let mut decoded = Vec::new();
    for page in pages.into_iter().flatten() {
        let decode = |locations| decode_locations(locations, Plane::Control);
        let objects = page.objects.into_iter().map(decode).collect::<Result<_, Error>>()?;
        decoded.push(Page { objects, more: page.more });
    }
    let Page { objects, more } = merge(decoded, limit).cut(PAGE_BYTES);
    Ok(Response::Listing { objects, more })
}

/// Objects in the order of their ids, and whether there are more after the last.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    objects: Vec<Locations>,
    more: bool,
}

impl Page {
    /// Ends the page before it takes more than `limit_bytes` of an answer; but never before its first object, since
    /// whoever asks goes on behind the last one.
    fn cut(mut self, limit_bytes: usize) -> Self {
        let mut taken_bytes = 0;
        let fits = |object: &&Locations| {
            taken_bytes += size_bytes(object);
            taken_bytes <= limit_bytes
        };
        let count = self.objects.iter().take_while(fits).count().max(1);
        self.more |= count < self.objects.len();
        self.objects.truncate(count);
        self
    }
}

/// What an object takes of an answer.
fn size_bytes(object: &Locations) -> usize {
    encode_locations(object).encoded_len() + OBJECT_OVERHEAD_BYTES
}

/// One page of what several shards know.
///
/// A shard may end its page early. Whoever asks goes on behind the last object, so the page must end where the first of
/// the shards that have more does.
fn merge(pages: Vec<Page>, limit: usize) -> Page {
    let unfinished = pages.iter().filter(|page| page.more);
    let horizon = unfinished.filter_map(|page| page.objects.last()).map(|last| last.id.clone()).min();
    let mut more = pages.iter().any(|page| page.more);
    let mut objects: Vec<Locations> = pages.into_iter().flat_map(|page| page.objects).collect();
    objects.retain(|object| horizon.as_ref().is_none_or(|horizon| object.id <= *horizon));
    objects.sort_by(|one, other| one.id.cmp(&other.id));
    objects.dedup_by(|next, kept| next.id == kept.id);
    more |= objects.len() > limit;
    objects.truncate(limit);
    Page { objects, more }
}

/// All that the directory knows of one object, from the shard that is responsible for it now.
pub(super) async fn describe(plane: &LocalPlane, id: &ObjectId) -> Result<Response, Error> {
    let up = plane.engine.shards_up();
    let map = ShardMap::new(plane.shards.iter().map(|link| &link.address));
    let shard = map.replicas(id, |shard| up[shard]).next().ok_or(Error::unavailable("the directory"))?;
    let link = &plane.shards[shard];
    let request = v1::DescribeRequest { id: Bytes::copy_from_slice(id.as_bytes()) };
    let object = ask(link.client().describe(request)).await?;
    Ok(Response::Description(v1::response::Description {
        shard: link.address.clone(),
        object: Some(object),
        reduce: plane.engine.reduce_record(id).map(encode_reduce_record),
    }))
}

fn encode_reduce_record(record: ReduceRecord) -> v1::ReduceRecord {
    let ReduceRecord { target: _, op, reduced, hops, plan, link, elapsed, mendings, restarts } = record;
    let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    v1::ReduceRecord {
        op: op.name().into(),
        reduced: reduced.0 as u64,
        sources: reduced.1 as u64,
        hops: hops as u64,
        plan,
        bytes_per_second: link.bytes_per_second,
        latency_us: micros(link.latency),
        elapsed_us: micros(elapsed),
        mendings,
        restarts,
    }
}

/// The counters of the store and of its shards.
pub(super) async fn status(plane: &LocalPlane) -> Response {
    let up = plane.engine.shards_up();
    let shards =
        join_all(plane.shards.iter().zip(up).map(|(link, connected)| shard_status(link, connected))).await;
    let node = plane.engine.status();
    let metrics = plane.engine.metrics();
    let count = |number: usize| number as u64;
    Response::Status(Box::new(v1::NodeStatus {
        node: plane.node.as_str().to_owned(),
        cluster: plane.cluster.as_str().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_address: plane.data_address.to_string(),
        uptime_ms: u64::try_from(plane.engine.uptime().as_millis()).unwrap_or(u64::MAX),
        capacity_bytes: node.capacity_bytes,
        free_bytes: node.free_bytes,
        pinned_bytes: node.pinned_bytes,
        evictable_bytes: node.evictable_bytes,
        copies: count(node.copies),
        clients: count(plane.engine.clients()),
        pulls: count(node.pulls),
        serves: metrics.serves.load(Ordering::Relaxed),
        sent_bytes: metrics.sent_bytes.load(Ordering::Relaxed),
        received_bytes: metrics.received_bytes.load(Ordering::Relaxed),
        evictions: node.evictions,
        corrupt_frames: metrics.corrupt_frames.load(Ordering::Relaxed),
        put_conflicts: node.put_conflicts,
        prefaulted_bytes: plane.prefaulted_bytes.load(Ordering::Relaxed),
        shards,
    }))
}

async fn shard_status(link: &ShardLink, connected: bool) -> v1::ShardStatus {
    let address = link.address.clone();
    match ask(link.client().status(v1::StatusRequest {})).await {
        Ok(status) => v1::ShardStatus {
            address,
            connected,
            objects: status.objects,
            inline_bytes: status.inline_bytes,
            nodes: u32::try_from(status.nodes.len()).unwrap_or(u32::MAX),
            waiting_queries: status.waiting_queries,
        },
        Err(_) => v1::ShardStatus { address, connected, ..v1::ShardStatus::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(ids: &[&str], more: bool) -> Page {
        let found = |id: &&str| Locations {
            id: ObjectId::try_from(*id).unwrap(),
            object: None,
            locations: Vec::new(),
        };
        Page { objects: ids.iter().map(found).collect(), more }
    }

    #[test]
    fn a_page_ends_where_the_first_unfinished_shard_does() {
        let pages = vec![page(&["a", "c", "x"], false), page(&["a", "b"], true), page(&["b", "c"], true)];
        assert_eq!(merge(pages, 10), page(&["a", "b"], true));
        assert_eq!(
            merge(vec![page(&["a", "c"], false), page(&["b"], false)], 10),
            page(&["a", "b", "c"], false)
        );
        assert_eq!(merge(vec![page(&["a", "c"], false), page(&["b"], false)], 2), page(&["a", "b"], true));
    }

    #[test]
    fn a_page_is_cut_by_its_size_but_never_to_nothing() {
        let whole = || page(&["a", "b", "c"], false);
        let two = page(&["a", "b"], false).objects.iter().map(size_bytes).sum();
        assert_eq!(whole().cut(PAGE_BYTES), whole());
        assert_eq!(whole().cut(two), page(&["a", "b"], true));
        assert_eq!(whole().cut(two - 1), page(&["a"], true));
        assert_eq!(whole().cut(0), page(&["a"], true));
        assert_eq!(page(&[], false).cut(0), page(&[], false));
    }
}
