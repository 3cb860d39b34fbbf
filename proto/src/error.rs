//! Errors in the messages of all planes.

use std::borrow::Cow;
use std::time::Duration;

use hoplite_core::error::{Error, ErrorCode, MetadataError, Missing, Operation, Plane};
use hoplite_core::id::{NodeId, ObjectId};
use hoplite_core::missing::{Absent, MAX_NAMED, Named};
use hoplite_core::placement::MAX_SHARD_NAME_BYTES;
use hoplite_core::text::escape;

use crate::bounds::{MAX_TEXT_BYTES, check_count, encode_id};
use crate::metadata::{decode_dtype, encode_dtype};
use crate::quota::{decode_excess, encode_excess};
use crate::v1;
use crate::v1::MissingKind;

/// Kinds of a [`MetadataError`] in field `c`; zero if only the text is known.
mod metadata_kind {
    pub(super) const UNKNOWN_DTYPE: u64 = 1;
    pub(super) const TOO_MANY_DIMENSIONS: u64 = 2;
    pub(super) const SHAPE_DISAGREES: u64 = 3;
    pub(super) const USER_TOO_LONG: u64 = 4;
}

/// Encodes `error`.
#[expect(clippy::too_many_lines, reason = "one arm for each error")]
pub fn encode(error: &Error) -> v1::Error {
    let code = error.code() as u32;
    match error {
        Error::InvalidId { length_bytes } => v1::Error {
            code,
            a: u64::try_from(*length_bytes).unwrap_or(u64::MAX),
            ..Default::default()
        },
        Error::InvalidName { name } => v1::Error { code, text: name.clone(), ..Default::default() },
        Error::InvalidMetadata(error) => encode_metadata_error(code, error),
        Error::InvalidRequest { reason } | Error::PermissionDenied { reason } => {
            v1::Error { code, text: reason.to_string(), ..Default::default() }
        }
        Error::AlreadyExists { id }
        | Error::PutConflict { id }
        | Error::ObjectLost { id }
        | Error::Deleted { id }
        | Error::Superseded { id }
        | Error::DuplicateId { id } => v1::Error { code, id: encode_id(id), ..Default::default() },
        Error::TypeMismatch { id, reason } | Error::SpillFailed { id, reason } => {
            v1::Error { code, id: encode_id(id), text: reason.to_string(), ..Default::default() }
        }
        Error::ObjectTooLarge { id, size_bytes, limit_bytes } => v1::Error {
            code,
            id: encode_id(id),
            a: *size_bytes,
            b: *limit_bytes,
            ..Default::default()
        },
        Error::StoreFull { needed_bytes, free_bytes, capacity_bytes, holders } => v1::Error {
            code,
            a: *needed_bytes,
            b: *free_bytes,
            c: *capacity_bytes,
            text: holders.clone(),
            ..Default::default()
        },
        Error::QuotaExceeded(excess) => v1::Error {
            code,
            // Shown by peers that do not know this kind of error.
            text: error.to_string(),
            excess: Some(encode_excess(excess)),
            ..Default::default()
        },
        Error::Timeout { operation, waited, missing } => v1::Error {
            code,
            a: encode_operation(*operation),
            b: u64::try_from(waited.as_micros()).unwrap_or(u64::MAX),
            missing: missing.as_deref().map(|missing| Box::new(encode_missing(missing))),
            ..Default::default()
        },
        Error::LimitExceeded { what, maximum } => {
            v1::Error { code, text: what.to_string(), a: *maximum, ..Default::default() }
        }
        Error::UnknownReference { reference } => {
            v1::Error { code, a: *reference, ..Default::default() }
        }
        Error::NodeIdInUse { node } => {
            v1::Error { code, text: node.as_str().to_owned(), ..Default::default() }
        }
        Error::ShardListMismatch { refused, in_use } => v1::Error {
            code,
            text: refused.clone(),
            other_text: in_use.clone(),
            ..Default::default()
        },
        Error::ClusterMismatch { ours, theirs } => {
            v1::Error { code, text: ours.clone(), other_text: theirs.clone(), ..Default::default() }
        }
        Error::NotEnoughNodes { wanted, present } => {
            v1::Error { code, a: *wanted, b: *present, ..Default::default() }
        }
        Error::VersionMismatch { ours, theirs } => {
            v1::Error { code, a: (*ours).into(), b: (*theirs).into(), ..Default::default() }
        }
        Error::Malformed { plane, reason } => v1::Error {
            code,
            text: reason.to_string(),
            a: encode_plane(*plane),
            ..Default::default()
        },
        Error::Unavailable { what } => {
            v1::Error { code, text: what.to_string(), ..Default::default() }
        }
        // A new variant needs an arm here only if it has fields to encode.
        _ => v1::Error { code, text: error.to_string(), ..Default::default() },
    }
}

/// Decodes a peer's error.
///
/// An unknown or invalid error becomes [`Error::Malformed`] with the peer's [escaped](escape) text.
/// [`Error::VersionMismatch`] and [`Error::ClusterMismatch`] swap their sides, so that "ours" means
/// this side.
#[expect(clippy::too_many_lines, reason = "one arm for each code")]
pub fn decode(error: v1::Error, plane: Plane) -> Error {
    // `Display` escapes these names.
    let name = || cut(error.text.clone());
    let text = shown(&error.text);
    let object = || ObjectId::new(&error.id).ok();
    let known = match error.code {
        code if code == ErrorCode::InvalidId as u32 => {
            usize::try_from(error.a).ok().map(|length_bytes| Error::InvalidId { length_bytes })
        }
        code if code == ErrorCode::InvalidName as u32 => Some(Error::InvalidName { name: name() }),
        code if code == ErrorCode::InvalidMetadata as u32 => {
            Some(decode_metadata_error(error.a, error.b, error.c, &name(), text.clone()).into())
        }
        code if code == ErrorCode::InvalidRequest as u32 => {
            Some(Error::InvalidRequest { reason: Cow::Owned(text.clone()) })
        }
        code if code == ErrorCode::PermissionDenied as u32 => {
            Some(Error::PermissionDenied { reason: Cow::Owned(text.clone()) })
        }
        code if code == ErrorCode::AlreadyExists as u32 => {
            object().map(|id| Error::AlreadyExists { id })
        }
        code if code == ErrorCode::PutConflict as u32 => {
            object().map(|id| Error::PutConflict { id })
        }
        code if code == ErrorCode::ObjectTooLarge as u32 => object()
            .map(|id| Error::ObjectTooLarge { id, size_bytes: error.a, limit_bytes: error.b }),
        code if code == ErrorCode::StoreFull as u32 => Some(Error::StoreFull {
            needed_bytes: error.a,
            free_bytes: error.b,
            capacity_bytes: error.c,
            holders: text.clone(),
        }),
        code if code == ErrorCode::QuotaExceeded as u32 => {
            decode_excess(error.excess).map(Error::QuotaExceeded)
        }
        code if code == ErrorCode::Timeout as u32 => decode_operation(error.a).map(|operation| {
            let missing =
                error.missing.and_then(|missing| decode_missing(*missing, plane)).map(Box::new);
            Error::Timeout { operation, waited: Duration::from_micros(error.b), missing }
        }),
        code if code == ErrorCode::ObjectLost as u32 => object().map(|id| Error::ObjectLost { id }),
        code if code == ErrorCode::Superseded as u32 => object().map(|id| Error::Superseded { id }),
        code if code == ErrorCode::Deleted as u32 => object().map(|id| Error::Deleted { id }),
        code if code == ErrorCode::DuplicateId as u32 => {
            object().map(|id| Error::DuplicateId { id })
        }
        code if code == ErrorCode::TypeMismatch as u32 => {
            object().map(|id| Error::TypeMismatch { id, reason: Cow::Owned(text.clone()) })
        }
        code if code == ErrorCode::LimitExceeded as u32 => {
            Some(Error::LimitExceeded { what: Cow::Owned(text.clone()), maximum: error.a })
        }
        code if code == ErrorCode::UnknownReference as u32 => {
            Some(Error::UnknownReference { reference: error.a })
        }
        code if code == ErrorCode::NodeIdInUse as u32 => {
            NodeId::new(&text).ok().map(|node| Error::NodeIdInUse { node })
        }
        code if code == ErrorCode::ClusterMismatch as u32 => {
            Some(Error::ClusterMismatch { ours: cut(error.other_text.clone()), theirs: name() })
        }
        code if code == ErrorCode::ShardListMismatch as u32 => Some(Error::ShardListMismatch {
            refused: text.clone(),
            in_use: shown(&error.other_text),
        }),
        code if code == ErrorCode::VersionMismatch as u32 => decode_versions(error.a, error.b),
        code if code == ErrorCode::Malformed as u32 => decode_plane(error.a)
            .map(|plane| Error::Malformed { plane, reason: Cow::Owned(text.clone()) }),
        code if code == ErrorCode::Unavailable as u32 => {
            Some(Error::Unavailable { what: Cow::Owned(text.clone()) })
        }
        code if code == ErrorCode::ShuttingDown as u32 => Some(Error::ShuttingDown),
        code if code == ErrorCode::NotEnoughNodes as u32 => {
            Some(Error::NotEnoughNodes { wanted: error.a, present: error.b })
        }
        code if code == ErrorCode::Draining as u32 => Some(Error::Draining),
        code if code == ErrorCode::SpillFailed as u32 => {
            object().map(|id| Error::SpillFailed { id, reason: Cow::Owned(text.clone()) })
        }
        _ => None,
    };
    known.unwrap_or_else(|| Error::Malformed {
        plane,
        reason: Cow::Owned(cut(format!("error {} is not understood: {text}", error.code))),
    })
}

pub(crate) fn shown(text: &str) -> String {
    cut(escape(text))
}

pub(crate) fn cut(mut text: String) -> String {
    if text.len() > MAX_TEXT_BYTES {
        let end = (0..=MAX_TEXT_BYTES).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

fn encode_metadata_error(code: u32, error: &MetadataError) -> v1::Error {
    match error {
        MetadataError::UnknownDtype { name } => v1::Error {
            code,
            text: name.clone(),
            c: metadata_kind::UNKNOWN_DTYPE,
            ..Default::default()
        },
        MetadataError::TooManyDimensions { dimensions } => v1::Error {
            code,
            a: u64::try_from(*dimensions).unwrap_or(u64::MAX),
            c: metadata_kind::TOO_MANY_DIMENSIONS,
            ..Default::default()
        },
        MetadataError::ShapeDisagrees { dtype, size_bytes } => v1::Error {
            code,
            a: *size_bytes,
            b: u64::from(encode_dtype(*dtype).unsigned_abs()),
            c: metadata_kind::SHAPE_DISAGREES,
            ..Default::default()
        },
        MetadataError::UserTooLong { length_bytes } => v1::Error {
            code,
            a: u64::try_from(*length_bytes).unwrap_or(u64::MAX),
            c: metadata_kind::USER_TOO_LONG,
            ..Default::default()
        },
        _ => v1::Error { code, text: error.to_string(), ..Default::default() },
    }
}

fn decode_metadata_error(a: u64, b: u64, kind: u64, name: &str, text: String) -> MetadataError {
    let length = usize::try_from(a).unwrap_or(usize::MAX);
    match kind {
        metadata_kind::UNKNOWN_DTYPE => {
            MetadataError::UnknownDtype { name: name.chars().take(32).collect() }
        }
        metadata_kind::TOO_MANY_DIMENSIONS => {
            MetadataError::TooManyDimensions { dimensions: length }
        }
        metadata_kind::SHAPE_DISAGREES => match i32::try_from(b).ok().and_then(decode_dtype) {
            Some(dtype) => MetadataError::ShapeDisagrees { dtype, size_bytes: a },
            None => MetadataError::Reported { reason: Cow::Borrowed("dtype and shape disagree") },
        },
        metadata_kind::USER_TOO_LONG => MetadataError::UserTooLong { length_bytes: length },
        _ if text.is_empty() => {
            MetadataError::Reported { reason: Cow::Borrowed("the metadata was refused") }
        }
        _ => MetadataError::Reported { reason: Cow::Owned(text) },
    }
}

fn decode_versions(theirs: u64, ours: u64) -> Option<Error> {
    let (ours, theirs) = (u32::try_from(ours).ok()?, u32::try_from(theirs).ok()?);
    Some(Error::VersionMismatch { ours, theirs })
}

pub(crate) fn encode_operation(operation: Operation) -> u64 {
    match operation {
        Operation::Put => 1,
        Operation::Get => 2,
        Operation::Delete => 3,
        Operation::Wait => 4,
        Operation::Locate => 5,
        Operation::Connect => 6,
        Operation::Reduce => 7,
        Operation::Allreduce => 8,
        Operation::ReduceScatter => 9,
        Operation::Allgather => 10,
        Operation::AllToAll => 11,
        Operation::Gather => 12,
        Operation::Barrier => 13,
    }
}

pub(crate) fn decode_operation(number: u64) -> Option<Operation> {
    match number {
        1 => Some(Operation::Put),
        2 => Some(Operation::Get),
        3 => Some(Operation::Delete),
        4 => Some(Operation::Wait),
        5 => Some(Operation::Locate),
        6 => Some(Operation::Connect),
        7 => Some(Operation::Reduce),
        8 => Some(Operation::Allreduce),
        9 => Some(Operation::ReduceScatter),
        10 => Some(Operation::Allgather),
        11 => Some(Operation::AllToAll),
        12 => Some(Operation::Gather),
        13 => Some(Operation::Barrier),
        _ => None,
    }
}

fn encode_plane(plane: Plane) -> u64 {
    match plane {
        Plane::Local => 1,
        Plane::Control => 2,
        Plane::Data => 3,
    }
}

fn decode_plane(number: u64) -> Option<Plane> {
    match number {
        1 => Some(Plane::Local),
        2 => Some(Plane::Control),
        3 => Some(Plane::Data),
        _ => None,
    }
}

pub(crate) fn encode_missing(missing: &Missing) -> v1::Missing {
    match missing {
        Missing::Object { id } => of_ids(MissingKind::Object, [id]),
        Missing::Sources { sources } => {
            v1::Missing { count: sources.count, ..of_ids(MissingKind::Sources, &sources.first) }
        }
        Missing::Participants { participants } => {
            let ids = participants.first.iter().map(|absent| &absent.source);
            let ranks = participants.first.iter().map(|absent| absent.rank).collect();
            v1::Missing {
                ranks,
                count: participants.count,
                ..of_ids(MissingKind::Participants, ids)
            }
        }
        Missing::Coordinator { target } => of_ids(MissingKind::Coordinator, [target]),
        Missing::Stores { nodes } => {
            v1::Missing { count: nodes.count, ..of_nodes(MissingKind::Stores, &nodes.first) }
        }
        Missing::Room { needed_bytes, free_bytes, capacity_bytes } => v1::Missing {
            kind: MissingKind::Room.into(),
            needed_bytes: *needed_bytes,
            free_bytes: *free_bytes,
            capacity_bytes: *capacity_bytes,
            ..Default::default()
        },
        Missing::Quota { excess } => v1::Missing {
            kind: MissingKind::Quota.into(),
            excess: Some(encode_excess(excess)),
            ..Default::default()
        },
        Missing::Seal { id } => of_ids(MissingKind::Seal, [id]),
        Missing::Bytes { id, from } => {
            v1::Missing { ids: vec![encode_id(id)], ..of_nodes(MissingKind::Bytes, [from]) }
        }
        Missing::Peer { node, reason } => {
            v1::Missing { reason: encode_reason(reason), ..of_nodes(MissingKind::Peer, [node]) }
        }
        Missing::Shard { address, reason } => v1::Missing {
            kind: MissingKind::Shard.into(),
            address: address.clone(),
            reason: encode_reason(reason),
            ..Default::default()
        },
        Missing::Answer { address } => v1::Missing {
            kind: MissingKind::Answer.into(),
            address: address.clone(),
            ..Default::default()
        },
        Missing::Replicas { id, wanted, present } => v1::Missing {
            wanted: *wanted,
            present: *present,
            ..of_ids(MissingKind::Replicas, [id])
        },
        _ => v1::Missing::default(),
    }
}

fn of_ids<'a>(kind: MissingKind, ids: impl IntoIterator<Item = &'a ObjectId>) -> v1::Missing {
    let ids = ids.into_iter().map(encode_id).collect();
    v1::Missing { kind: kind.into(), ids, ..Default::default() }
}

fn of_nodes<'a>(kind: MissingKind, nodes: impl IntoIterator<Item = &'a NodeId>) -> v1::Missing {
    let nodes = nodes.into_iter().map(|node| node.as_str().to_owned()).collect();
    v1::Missing { kind: kind.into(), nodes, ..Default::default() }
}

fn encode_reason(reason: &Error) -> Option<Box<v1::Error>> {
    Some(Box::new(v1::Error { missing: None, ..encode(reason) }))
}

/// Decodes a timeout's cause; `None` for an unknown kind or an exceeded limit. The timeout is valid
/// without it.
pub(crate) fn decode_missing(missing: v1::Missing, plane: Plane) -> Option<Missing> {
    let kind = MissingKind::try_from(missing.kind).ok()?;
    check_count("named objects of a cause", missing.ids.len(), MAX_NAMED).ok()?;
    check_count("named stores of a cause", missing.nodes.len(), MAX_NAMED).ok()?;
    check_count("named ranks of a cause", missing.ranks.len(), MAX_NAMED).ok()?;
    let ids = missing.ids.iter().map(ObjectId::new);
    let ids: Vec<ObjectId> = ids.collect::<Result<_, _>>().ok()?;
    let nodes = missing.nodes.iter().map(|node| NodeId::new(node));
    let nodes: Vec<NodeId> = nodes.collect::<Result<_, _>>().ok()?;
    let count = missing.count;
    let id = || ids.first().cloned();
    let node = || nodes.first().cloned();
    let address =
        || (missing.address.len() <= MAX_SHARD_NAME_BYTES).then(|| missing.address.clone());
    let reason = |reason: Option<Box<v1::Error>>| {
        let reason = v1::Error { missing: None, ..*reason? };
        Some(Box::new(decode(reason, plane)))
    };
    Some(match kind {
        MissingKind::Unspecified => return None,
        MissingKind::Object => Missing::Object { id: id()? },
        MissingKind::Sources => Missing::Sources { sources: named(ids, count) },
        MissingKind::Participants => {
            let participants = missing.ranks.iter().zip(ids);
            let participants = participants.map(|(rank, source)| Absent { rank: *rank, source });
            Missing::Participants { participants: named(participants.collect(), count) }
        }
        MissingKind::Coordinator => Missing::Coordinator { target: id()? },
        MissingKind::Stores => Missing::Stores { nodes: named(nodes, count) },
        MissingKind::Room => Missing::Room {
            needed_bytes: missing.needed_bytes,
            free_bytes: missing.free_bytes,
            capacity_bytes: missing.capacity_bytes,
        },
        MissingKind::Quota => Missing::Quota { excess: decode_excess(missing.excess)? },
        MissingKind::Seal => Missing::Seal { id: id()? },
        MissingKind::Bytes => Missing::Bytes { id: id()?, from: node()? },
        MissingKind::Peer => Missing::Peer { node: node()?, reason: reason(missing.reason)? },
        MissingKind::Shard => {
            Missing::Shard { address: address()?, reason: reason(missing.reason)? }
        }
        MissingKind::Answer => Missing::Answer { address: address()? },
        MissingKind::Replicas => {
            Missing::Replicas { id: id()?, wanted: missing.wanted, present: missing.present }
        }
    })
}

fn named<T>(first: Vec<T>, count: u64) -> Named<T> {
    Named { count: count.max(first.len() as u64), first }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use hoplite_core::text::is_plain;

    use super::*;
    use crate::arbitrary;

    #[test]
    fn versions_are_told_from_the_reader_s_side() {
        let told = decode(encode(&Error::VersionMismatch { ours: 1, theirs: 2 }), Plane::Control);
        assert_eq!(told, Error::VersionMismatch { ours: 2, theirs: 1 });
    }

    #[test]
    fn unknown_codes_and_impossible_fields_are_reported_as_malformed() {
        let unknown =
            v1::Error { code: 4711, text: "new trouble".to_owned(), ..Default::default() };
        let no_id = v1::Error { code: ErrorCode::ObjectLost as u32, ..Default::default() };
        for error in [unknown, no_id, v1::Error::default()] {
            assert!(matches!(
                decode(error, Plane::Data),
                Error::Malformed { plane: Plane::Data, .. }
            ));
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let error = v1::Error {
            code: ErrorCode::Unavailable as u32,
            text: "ä".repeat(4000),
            ..Default::default()
        };
        let Error::Unavailable { what } = decode(error, Plane::Local) else {
            panic!("another error")
        };
        assert_eq!(what.len(), MAX_TEXT_BYTES);
        let unknown = v1::Error { code: 4711, text: "ä".repeat(4000), ..Default::default() };
        let Error::Malformed { reason, .. } = decode(unknown, Plane::Local) else {
            panic!("another error")
        };
        assert!(reason.len() <= MAX_TEXT_BYTES);
    }

    #[test]
    fn no_text_of_a_peer_disturbs_a_terminal() {
        for code in 0..50 {
            let (text, other_text) = ("\x1b[2J\n\u{202e}".to_owned(), "\x1b".to_owned());
            let error = v1::Error { code, text, other_text, ..Default::default() };
            let decoded = decode(error, Plane::Data).to_string();
            assert!(is_plain(&decoded), "{code}: {decoded:?}");
        }
        let dtype = v1::Error {
            code: ErrorCode::InvalidMetadata as u32,
            text: "\x1b".to_owned(),
            c: metadata_kind::UNKNOWN_DTYPE,
            ..Default::default()
        };
        assert!(is_plain(&decode(dtype, Plane::Data).to_string()));
    }

    proptest! {
        #[test]
        fn errors_round_trip(error in arbitrary::error()) {
            prop_assert_eq!(&decode(encode(&error), Plane::Local), &error);
        }

        #[test]
        fn arbitrary_details_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(error) = v1::Error::decode(&bytes[..]) {
                decode(error, Plane::Local);
            }
        }

        #[test]
        fn arbitrary_fields_never_panic(
            code in 0_u32..50,
            id in prop::collection::vec(any::<u8>(), 0..300),
            text in ".{0,40}",
            (a, b, c) in any::<(u64, u64, u64)>(),
        ) {
            let decoded = decode(v1::Error { code, id: id.into(), text, a, b, c, ..Default::default() }, Plane::Local);
            prop_assert!(!decoded.to_string().is_empty());
        }
    }

    #[test]
    fn a_cause_that_breaks_a_limit_or_is_not_known_is_left_out() {
        let id = bytes::Bytes::from_static(b"x");
        let many = v1::Missing {
            kind: MissingKind::Sources.into(),
            ids: vec![id.clone(); MAX_NAMED + 1],
            ..Default::default()
        };
        let unknown = v1::Missing { kind: 99, ids: vec![id], ..Default::default() };
        let empty = v1::Missing { kind: MissingKind::Object.into(), ..Default::default() };
        let long = v1::Missing {
            kind: MissingKind::Answer.into(),
            address: "a".repeat(MAX_SHARD_NAME_BYTES + 1),
            ..Default::default()
        };
        for missing in [many, unknown, empty, long] {
            assert_eq!(decode_missing(missing.clone(), Plane::Local), None, "{missing:?}");
        }
    }

    #[test]
    fn causes_do_not_nest() {
        let node = NodeId::new("n").unwrap();
        let mut missing = Missing::Object { id: ObjectId::new("x").unwrap() };
        for _ in 0..50 {
            let (operation, waited) = (hoplite_core::Operation::Get, Duration::ZERO);
            let reason = Error::Timeout { operation, waited, missing: Some(Box::new(missing)) };
            missing = Missing::Peer { node: node.clone(), reason: Box::new(reason) };
        }
        let reason = Box::new(Error::timeout(hoplite_core::Operation::Get, Duration::ZERO));
        assert_eq!(
            decode_missing(encode_missing(&missing), Plane::Local),
            Some(Missing::Peer { node, reason })
        );
    }
}
