use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::extent::{Extent, HEADER_BYTES};
use hoplite_core::id::PutId;
use hoplite_core::node::{self, ByteRange, CallId, CopyId, MAX_BATCH_ITEMS, ObjectView};
use hoplite_core::plan::collective::MAX_MEMBERS;
use hoplite_core::shard::Locations;
use hoplite_core::topology::probe::survey::SurveyProgress;

use super::drain::{decode_drain, encode_drain};
use super::ownerless::{decode_ownerless, encode_ownerless};
use super::quota::{decode_quotas, encode_quotas};
use crate::bounds::{MAX_LISTED_OBJECTS, check_count, decode_named_nodes};
use crate::directory::{decode_locations, encode_locations, encode_nodes};
use crate::v1::{request, response as wire};
use crate::{error, metadata, v1};

/// Store's answer to a successful request.
#[derive(Debug, Clone, PartialEq)]
pub enum Response {
    /// Response of the node's state machine.
    Node(node::Response),
    /// Answers [`Inspection::List`](hoplite_core::node::Inspection::List).
    Listing {
        /// Sorted by id.
        objects: Vec<Locations>,
        /// `true` if further objects follow.
        more: bool,
    },
    /// Answers [`Inspection::Describe`](hoplite_core::node::Inspection::Describe).
    Description(Box<wire::Description>),
    /// Answers [`Inspection::Status`](hoplite_core::node::Inspection::Status).
    Status(Box<v1::NodeStatus>),
    /// Answers [`Inspection::Cluster`](hoplite_core::node::Inspection::Cluster) for one shard.
    Cluster(Box<v1::StatusReply>),
    /// Answers [`Inspection::Probe`](hoplite_core::node::Inspection::Probe).
    Probed(Box<v1::Probed>),
    /// Answers [`Inspection::ProbeProgress`](hoplite_core::node::Inspection::ProbeProgress).
    ProbeProgress(SurveyProgress),
    /// Answers [`Inspection::Shards`](hoplite_core::node::Inspection::Shards) and
    /// [`Inspection::ChangeShards`](hoplite_core::node::Inspection::ChangeShards).
    Shards(Box<v1::DirectoryShards>),
}

/// Encodes an answer.
pub fn encode_response(call: CallId, response: Result<Response>) -> v1::Response {
    let body = match response {
        Ok(Response::Node(response)) => encode_node_response(response),
        Ok(Response::Listing { objects, more }) => wire::Body::Listing(wire::Listing {
            objects: objects.iter().map(encode_locations).collect(),
            more,
        }),
        Ok(Response::Description(description)) => wire::Body::Description(*description),
        Ok(Response::Status(status)) => wire::Body::Status(*status),
        Ok(Response::Cluster(status)) => wire::Body::Cluster(*status),
        Ok(Response::Probed(probed)) => wire::Body::Probed(*probed),
        Ok(Response::ProbeProgress(SurveyProgress { done, steps })) => {
            wire::Body::ProbeProgress(v1::ProbeProgress { done, steps })
        }
        Ok(Response::Shards(shards)) => wire::Body::Shards(*shards),
        Err(error) => wire::Body::Error(error::encode(&error)),
    };
    v1::Response { call: call.0, body: Some(body) }
}

/// Decodes an answer: its call, and the response or the store's error.
pub fn decode_response(response: v1::Response) -> (CallId, Result<Response>) {
    let body = response.body.ok_or(Error::malformed(Plane::Local, "a response without a body"));
    (CallId(response.call), body.and_then(decode_body))
}

fn encode_node_response(response: node::Response) -> wire::Body {
    match response {
        node::Response::Created(view) => wire::Body::Created(encode_view(&view)),
        node::Response::Existing(view) => wire::Body::Existing(encode_view(&view)),
        node::Response::Object(view) => wire::Body::Object(encode_view(&view)),
        node::Response::Contents { view, bytes } => {
            wire::Body::Contents(wire::Contents { view: Some(encode_view(&view)), bytes })
        }
        node::Response::Ranges { view, order } => wire::Body::Ranges(wire::Ranges {
            view: Some(encode_view(&view)),
            order: order
                .into_iter()
                .map(|ByteRange { offset_bytes, length_bytes }| request::ByteRange {
                    offset_bytes,
                    length_bytes,
                })
                .collect(),
        }),
        node::Response::Batch(answers) => {
            let encode = |answer: Result<_>| encode_response(CallId(0), answer.map(Response::Node));
            wire::Body::Batch(wire::Batch { items: answers.into_iter().map(encode).collect() })
        }
        node::Response::Sealed => wire::Body::Sealed(wire::Sealed {}),
        node::Response::Deleted { count, absent } => wire::Body::Deleted(wire::Deleted {
            count: u64::try_from(count).unwrap_or(u64::MAX),
            absent: encode_nodes(&absent.first),
            absent_count: absent.count,
        }),
        node::Response::Ready { indices } => {
            wire::Body::Ready(wire::Ready { indices: encode_indices(&indices) })
        }
        node::Response::Reduced { indices } => {
            wire::Body::Reduced(wire::Reduced { indices: encode_indices(&indices) })
        }
        node::Response::Locations(locations) => wire::Body::Locations(encode_locations(&locations)),
        node::Response::Drain(report) => wire::Body::Drain(encode_drain(report)),
        node::Response::Ownerless(page) => wire::Body::Ownerless(encode_ownerless(page)),
        node::Response::Quotas(quotas) => wire::Body::Quotas(encode_quotas(quotas)),
        node::Response::Progress { valid_bytes } => {
            wire::Body::Progress(wire::Progress { valid_bytes })
        }
    }
}

fn decode_body(body: wire::Body) -> Result<Response> {
    let response = match body {
        wire::Body::Error(error) => return Err(error::decode(error, Plane::Local)),
        wire::Body::Created(view) => node::Response::Created(decode_view(view)?),
        wire::Body::Existing(view) => node::Response::Existing(decode_view(view)?),
        wire::Body::Object(view) => node::Response::Object(decode_view(view)?),
        wire::Body::Contents(contents) => decode_contents(contents)?,
        wire::Body::Ranges(ranges) => decode_ranges(ranges)?,
        wire::Body::Batch(batch) => decode_batch(batch)?,
        wire::Body::Sealed(_) => node::Response::Sealed,
        wire::Body::Deleted(deleted) => node::Response::Deleted {
            count: decode_number(deleted.count)?,
            absent: decode_named_nodes(&deleted.absent, deleted.absent_count)?,
        },
        wire::Body::Ready(ready) => {
            node::Response::Ready { indices: decode_indices(&ready.indices)? }
        }
        wire::Body::Reduced(reduced) => {
            node::Response::Reduced { indices: decode_distinct(&reduced.indices)? }
        }
        wire::Body::Locations(locations) => {
            node::Response::Locations(decode_locations(locations, Plane::Local)?)
        }
        wire::Body::Drain(report) => node::Response::Drain(decode_drain(report)?),
        wire::Body::Ownerless(page) => node::Response::Ownerless(decode_ownerless(page)?),
        wire::Body::Quotas(quotas) => node::Response::Quotas(decode_quotas(quotas)?),
        wire::Body::Progress(progress) => {
            node::Response::Progress { valid_bytes: progress.valid_bytes }
        }
        wire::Body::Listing(listing) => return decode_listing(listing),
        wire::Body::Description(description) => {
            return Ok(Response::Description(Box::new(description)));
        }
        wire::Body::Status(status) => return Ok(Response::Status(Box::new(status))),
        wire::Body::Cluster(status) => return Ok(Response::Cluster(Box::new(status))),
        wire::Body::Probed(probed) => return Ok(Response::Probed(Box::new(probed))),
        wire::Body::Shards(shards) => return Ok(Response::Shards(Box::new(shards))),
        wire::Body::ProbeProgress(v1::ProbeProgress { done, steps }) => {
            return Ok(Response::ProbeProgress(SurveyProgress { done, steps }));
        }
    };
    Ok(Response::Node(response))
}

fn decode_batch(batch: wire::Batch) -> Result<node::Response> {
    check_count("answers in a batch", batch.items.len(), MAX_BATCH_ITEMS)?;
    let decode = |item: v1::Response| match item.body {
        None | Some(wire::Body::Batch(_)) => {
            Err(malformed("an item of a batch that is not an answer"))
        }
        Some(wire::Body::Error(error)) => Ok(Err(error::decode(error, Plane::Local))),
        Some(body) => match decode_body(body)? {
            Response::Node(response) => Ok(Ok(response)),
            _ => Err(malformed("an item of a batch that is not an answer")),
        },
    };
    Ok(node::Response::Batch(batch.items.into_iter().map(decode).collect::<Result<_>>()?))
}

fn encode_indices(indices: &[usize]) -> Vec<u64> {
    indices.iter().map(|index| u64::try_from(*index).unwrap_or(u64::MAX)).collect()
}

fn encode_view(view: &ObjectView) -> wire::ObjectView {
    wire::ObjectView {
        copy: view.copy.0,
        extent_offset_bytes: view.extent.offset_bytes,
        extent_length_bytes: view.extent.length_bytes,
        put: view.put.0,
        size_bytes: view.size_bytes,
        metadata: Some(metadata::encode(&view.metadata)),
        stale: view.is_stale,
    }
}

fn decode_view(view: wire::ObjectView) -> Result<ObjectView> {
    let needed = view.size_bytes.checked_add(HEADER_BYTES);
    let end = view.extent_offset_bytes.checked_add(view.extent_length_bytes);
    let is_aligned = view.extent_offset_bytes.is_multiple_of(HEADER_BYTES);
    if end.is_none() || !is_aligned || needed.is_none_or(|needed| needed > view.extent_length_bytes)
    {
        return Err(malformed("an extent that cannot hold the object"));
    }
    Ok(ObjectView {
        copy: CopyId(view.copy),
        extent: Extent {
            offset_bytes: view.extent_offset_bytes,
            length_bytes: view.extent_length_bytes,
        },
        put: PutId(view.put),
        size_bytes: view.size_bytes,
        metadata: metadata::decode(view.metadata, view.size_bytes)?,
        is_stale: view.stale,
    })
}

fn decode_contents(contents: wire::Contents) -> Result<node::Response> {
    let view = decode_view(contents.view.ok_or(malformed("contents without an object"))?)?;
    if contents.bytes.len() as u64 != view.size_bytes {
        return Err(malformed("contents of another size than the object"));
    }
    Ok(node::Response::Contents { view, bytes: contents.bytes })
}

fn decode_ranges(ranges: wire::Ranges) -> Result<node::Response> {
    let view = decode_view(ranges.view.ok_or(malformed("ranges without an object"))?)?;
    check_count("ranges of an object", ranges.order.len(), 2 * MAX_MEMBERS)?;
    let mut left_bytes = view.size_bytes;
    let mut order = Vec::with_capacity(ranges.order.len());
    for request::ByteRange { offset_bytes, length_bytes } in ranges.order {
        let end_bytes =
            offset_bytes.checked_add(length_bytes).filter(|end| *end <= view.size_bytes);
        let left = left_bytes.checked_sub(length_bytes);
        let (Some(_), Some(left)) = (end_bytes, left) else {
            return Err(malformed("ranges that do not match the object"));
        };
        left_bytes = left;
        order.push(ByteRange { offset_bytes, length_bytes });
    }
    Ok(node::Response::Ranges { view, order })
}

fn decode_listing(listing: wire::Listing) -> Result<Response> {
    check_count("objects in a page", listing.objects.len(), MAX_LISTED_OBJECTS)?;
    let decode = |locations| decode_locations(locations, Plane::Local);
    let objects = listing.objects.into_iter().map(decode).collect::<Result<_>>()?;
    Ok(Response::Listing { objects, more: listing.more })
}

fn decode_indices(indices: &[u64]) -> Result<Vec<usize>> {
    if !indices.is_sorted_by(|one, next| one < next) {
        return Err(malformed("indices that do not ascend"));
    }
    indices.iter().copied().map(decode_number).collect()
}

fn decode_distinct(indices: &[u64]) -> Result<Vec<usize>> {
    let mut sorted = indices.to_vec();
    sorted.sort_unstable();
    if sorted.last().is_some_and(|last| *last > u64::from(u32::MAX)) {
        return Err(malformed("an index beyond every list of ids"));
    }
    decode_indices(&sorted)?;
    indices.iter().copied().map(decode_number).collect()
}

fn decode_number(number: u64) -> Result<usize> {
    usize::try_from(number).map_err(|_| malformed("a number that does not fit"))
}

const fn malformed(reason: &'static str) -> Error {
    Error::malformed(Plane::Local, reason)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::arbitrary;

    #[test]
    fn views_outside_of_their_extent_are_refused() {
        let view = |offset, length, size_bytes| {
            decode_view(wire::ObjectView {
                extent_offset_bytes: offset,
                extent_length_bytes: length,
                size_bytes,
                ..Default::default()
            })
        };
        assert!(view(64, 128, 64).is_ok());
        assert!(view(64, 128, 65).is_err());
        assert!(view(1, 128, 64).is_err());
        assert!(view(64, u64::MAX, 64).is_err());
        assert!(view(64, 128, u64::MAX).is_err());
    }

    #[test]
    fn indices_ascend() {
        assert_eq!(decode_indices(&[0, 2, 3]), Ok(vec![0, 2, 3]));
        assert!(decode_indices(&[0, 0]).is_err());
        assert!(decode_indices(&[2, 1]).is_err());
    }

    #[test]
    fn reduced_indices_have_any_order_but_are_there_once() {
        assert_eq!(decode_distinct(&[2, 0, 3]), Ok(vec![2, 0, 3]));
        assert!(decode_distinct(&[2, 0, 2]).is_err());
        assert!(decode_distinct(&[1 << 32]).is_err());
    }

    proptest! {
        #[test]
        fn responses_round_trip(call in any::<u64>(), response in arbitrary::response()) {
            let bytes = encode_response(CallId(call), response.clone()).encode_to_vec();
            let wire = v1::Response::decode(&bytes[..]).unwrap();
            prop_assert_eq!(decode_response(wire), (CallId(call), response));
        }

        #[test]
        fn damaged_responses_never_panic(
            response in arbitrary::response(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut bytes = encode_response(CallId(1), response).encode_to_vec();
            for (index, byte) in damage {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            if let Ok(response) = v1::Response::decode(&bytes[..]) {
                let _ = decode_response(response);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(response) = v1::Response::decode(&bytes[..]) {
                let _ = decode_response(response);
            }
        }
    }
}
