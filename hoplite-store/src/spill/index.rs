//! The index at the end of a spill file, for a later run that recovers the objects.
//!
//! The store appends the index once the core has decided which records it keeps, and later the
//! records that it retires, because their objects are gone. A file with a damaged or truncated
//! frame is not recovered. The frames, in bytes:
//!
//! * object: kind (1), offset of the record, put, size, end in ms since boot (8 each), `1` if the
//!   object ends with its owner (1), length of the id (1), id, metadata in protobuf
//! * end: kind (1), number of objects (8)
//! * retired: kind (1), offset of the record (8)

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_core::id::{ObjectId, PutId};
use hoplite_core::node::{RecoveredFile, SpilledObject};
use hoplite_proto::metadata;
use hoplite_proto::v1::Metadata;
use prost::Message;
use rustix::time::{ClockId, clock_gettime};

use super::frames::{self, Flaw, take_bytes, take_number};

const OBJECT: u8 = 1;
const END: u8 = 2;
const RETIRED: u8 = 3;
const NEVER: u64 = u64::MAX;

/// Milliseconds since boot, the same in all processes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BootTime(pub(super) u64);

impl BootTime {
    pub(super) fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let (seconds, nanos) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
        Self(seconds.unwrap_or_default() * 1000 + nanos.unwrap_or_default() / 1_000_000)
    }
}

pub(super) fn encode(objects: &[SpilledObject], now: BootTime) -> Vec<u8> {
    let mut log = Vec::new();
    for object in objects {
        let in_ms = |rest: Duration| u64::try_from(rest.as_millis()).unwrap_or(NEVER);
        let ends_at = object.ends_in.map_or(NEVER, |rest| now.0.saturating_add(in_ms(rest)));
        let id = object.id.as_bytes();
        let mut content = vec![OBJECT];
        for number in [object.offset_bytes, object.put.0, object.size_bytes, ends_at] {
            content.extend(number.to_le_bytes());
        }
        content.push(u8::from(object.ends_with_owner));
        content.push(u8::try_from(id.len()).expect("an id has up to 255 bytes"));
        content.extend(id);
        content.extend(metadata::encode(&object.metadata).encode_to_vec());
        frames::append(&mut log, &content);
    }
    let mut end = vec![END];
    end.extend((objects.len() as u64).to_le_bytes());
    frames::append(&mut log, &end);
    log
}

pub(super) fn encode_retired(offset_bytes: u64) -> Vec<u8> {
    let (mut log, mut content) = (Vec::new(), vec![RETIRED]);
    content.extend(offset_bytes.to_le_bytes());
    frames::append(&mut log, &content);
    log
}

/// Returns the objects that still exist, or the index's flaw. `records` maps the offset of each
/// record to the size of its object.
pub(super) fn decode(
    mut log: &[u8],
    records: &BTreeMap<u64, u64>,
    now: BootTime,
) -> Result<Vec<SpilledObject>, Flaw> {
    let (mut objects, mut ids) = (BTreeMap::new(), BTreeSet::new());
    let mut has_ended = false;
    while !log.is_empty() {
        let mut content = frames::take(&mut log)?;
        match (take_bytes(&mut content), has_ended) {
            (Some([OBJECT]), false) if objects.len() < RecoveredFile::MAX_OBJECTS => {
                let object = decode_object(content, now)?;
                if records.get(&object.offset_bytes) != Some(&object.size_bytes) {
                    return Err(Flaw::Damaged("an object without a record"));
                }
                if !ids.insert(object.id.clone())
                    || objects.insert(object.offset_bytes, object).is_some()
                {
                    return Err(Flaw::Damaged("an object twice"));
                }
            }
            (Some([END]), false) if decode_number(content)? == objects.len() as u64 => {
                has_ended = true
            }
            (Some([RETIRED]), true) => {
                let offset_bytes = decode_number(content)?;
                if !records.contains_key(&offset_bytes) {
                    return Err(Flaw::Damaged("a retired record that does not exist"));
                }
                objects.remove(&offset_bytes);
            }
            _ => return Err(Flaw::Damaged("an unexpected frame")),
        }
    }
    if has_ended { Ok(objects.into_values().collect()) } else { Err(Flaw::Incomplete) }
}

fn decode_number(mut content: &[u8]) -> Result<u64, Flaw> {
    let number = take_number(&mut content).filter(|_| content.is_empty());
    number.ok_or(Flaw::Damaged("a frame of another length"))
}

fn decode_object(mut content: &[u8], now: BootTime) -> Result<SpilledObject, Flaw> {
    const DAMAGED: Flaw = Flaw::Damaged("the description of an object");
    let mut number = || take_number(&mut content).ok_or(DAMAGED);
    let (offset_bytes, put, size_bytes, ends_at) =
        (number()?, PutId(number()?), number()?, number()?);
    let [ends_with_owner, id_bytes] = take_bytes(&mut content).ok_or(DAMAGED)?;
    let (id, metadata) = content.split_at_checked(id_bytes.into()).ok_or(DAMAGED)?;
    let id = ObjectId::new(id).map_err(|_| DAMAGED)?;
    let metadata = Metadata::decode(metadata).map_err(|_| DAMAGED)?;
    let metadata = metadata::decode(Some(metadata), size_bytes).map_err(|_| DAMAGED)?;
    let ends_in = (ends_at != NEVER).then(|| Duration::from_millis(ends_at.saturating_sub(now.0)));
    let ends_with_owner = ends_with_owner == 1;
    Ok(SpilledObject { offset_bytes, id, put, size_bytes, metadata, ends_in, ends_with_owner })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use hoplite_core::lifetime::{Lifetime, Owner, Ttl, TtlAction};
    use hoplite_core::metadata::Replicas;
    use hoplite_core::{Dtype, Metadata};
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::*;

    const NOW: BootTime = BootTime(5000);

    fn object(number: u64, id: &[u8], user: Vec<u8>, ends_in_ms: Option<u64>) -> SpilledObject {
        let size_bytes = 8 * number;
        let ttl = Ttl::of_seconds(90.0, TtlAction::Delete).unwrap();
        SpilledObject {
            offset_bytes: 1000 * number,
            id: ObjectId::new(id).unwrap(),
            put: PutId(number ^ 0xdead_beef),
            size_bytes,
            metadata: Metadata {
                dtype: Dtype::F64,
                shape: Some(vec![number, 1]),
                user: Bytes::from(user),
                replicas: Replicas { wanted: 3, awaited: 2, quorum: true },
                lifetime: Lifetime::of(Some(Owner::new("job").unwrap()), Some(ttl)),
                ..Metadata::default()
            },
            ends_in: ends_in_ms.map(Duration::from_millis),
            ends_with_owner: number.is_multiple_of(2),
        }
    }

    fn records(objects: &[SpilledObject]) -> BTreeMap<u64, u64> {
        objects.iter().map(|object| (object.offset_bytes, object.size_bytes)).collect()
    }

    fn sample() -> Vec<SpilledObject> {
        vec![object(1, b"first", b"user".to_vec(), Some(7)), object(2, b"second", Vec::new(), None)]
    }

    fn decoded(log: &[u8]) -> Result<Vec<SpilledObject>, Flaw> {
        decode(log, &records(&sample()), NOW)
    }

    proptest! {
        #[test]
        fn objects_round_trip(
            ids in btree_set(vec(any::<u8>(), 1..256), 0..20),
            user in vec(any::<u8>(), 0..5000),
            ends_in_ms in proptest::option::of(0_u64..1 << 40),
            retired in 0_usize..20,
        ) {
            let user = user[..user.len().min(4096)].to_vec();
            let numbered = (1..).zip(&ids);
            let mut objects: Vec<SpilledObject> =
                numbered.map(|(number, id)| object(number, id, user.clone(), ends_in_ms)).collect();
            let (records, mut log) = (records(&objects), encode(&objects, NOW));
            prop_assert_eq!(decode(&log, &records, NOW), Ok(objects.clone()));
            if retired < objects.len() {
                log.extend(encode_retired(objects.remove(retired).offset_bytes));
                prop_assert_eq!(decode(&log, &records, NOW), Ok(objects));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(
            log in vec(any::<u8>(), 0..200),
            content in vec(any::<u8>(), 0..200),
            kind in 0_u8..5,
        ) {
            let mut framed = log.clone();
            frames::append(&mut framed, &[&[kind][..], &content].concat());
            prop_assert!(log.is_empty() || decoded(&log).is_err());
            let _ = decoded(&framed);
            let mut after = encode(&sample(), NOW);
            frames::append(&mut after, &[&[kind][..], &content].concat());
            let _ = decoded(&after);
        }
    }

    #[test]
    fn a_truncated_index_is_refused() {
        let mut log = encode(&sample(), NOW);
        let whole = log.len();
        log.extend(encode_retired(1000));
        for length in (0..log.len()).filter(|length| *length != whole) {
            assert!(decoded(&log[..length]).is_err(), "{length} bytes");
        }
        assert_eq!(decoded(&log).unwrap(), sample()[1..]);
    }

    #[test]
    fn each_flipped_bit_is_found() {
        let mut log = encode(&sample(), NOW);
        log.extend(encode_retired(2000));
        for bit in 0..8 * log.len() {
            log[bit / 8] ^= 1 << (bit % 8);
            assert!(decoded(&log).is_err(), "bit {bit}");
            log[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(decoded(&log).is_ok());
    }

    #[test]
    fn hostile_descriptions_are_refused() {
        let first = || sample().remove(0);
        let twice = |change: fn(&mut SpilledObject)| {
            let mut other = sample().remove(1);
            change(&mut other);
            decoded(&encode(&[first(), other], NOW))
        };
        assert!(twice(|_| {}).is_ok());
        assert_eq!(twice(|other| other.id = first_id()), Err(Flaw::Damaged("an object twice")));
        assert_eq!(
            twice(|other| other.offset_bytes = 3),
            Err(Flaw::Damaged("an object without a record"))
        );
        let longer = |other: &mut SpilledObject| {
            (other.size_bytes, other.metadata.shape) = (24, Some(vec![3]));
        };
        assert_eq!(twice(longer), Err(Flaw::Damaged("an object without a record")));
        assert!(twice(|other| other.metadata.shape = Some(vec![u64::MAX, 2])).is_err());
        assert!(twice(|other| other.metadata.user = Bytes::from(vec![0; 4097])).is_err());
        assert!(twice(|other| other.metadata.shape = Some(vec![1; 65])).is_err());
        assert!(twice(|other| other.metadata.lifetime = Some(Arc::default())).is_ok());
        let many = u64::MAX.to_le_bytes();
        let mut log = Vec::new();
        frames::append(&mut log, &[&[END][..], &many].concat());
        assert!(decoded(&log).is_err(), "a wrong number of objects");
        let mut log = encode(&sample(), NOW);
        log.extend(encode_retired(1));
        assert_eq!(decoded(&log), Err(Flaw::Damaged("a retired record that does not exist")));
        let mut long = frames::MAGIC.to_vec();
        long.extend([0xff; 8]);
        assert!(decoded(&long).is_err(), "a length of 4 GiB");
        let mut open = encode(&sample(), NOW);
        open.truncate(open.len() - 21);
        assert_eq!(decoded(&open), Err(Flaw::Incomplete));
    }

    #[test]
    fn more_objects_than_a_file_has_are_refused() {
        let objects: Vec<SpilledObject> = (1..=RecoveredFile::MAX_OBJECTS as u64 + 1)
            .map(|number| object(number, &number.to_le_bytes(), Vec::new(), None))
            .collect();
        let records = records(&objects);
        assert!(decode(&encode(&objects, NOW), &records, NOW).is_err());
        assert!(decode(&encode(&objects[1..], NOW), &records, NOW).is_ok());
    }

    #[test]
    fn the_time_to_live_goes_on_while_no_store_runs() {
        let log = encode(&sample(), NOW);
        let after =
            |ms| decode(&log, &records(&sample()), BootTime(NOW.0 + ms)).unwrap()[0].ends_in;
        assert_eq!(after(4), Some(Duration::from_millis(3)));
        assert_eq!(after(8), Some(Duration::ZERO));
    }

    fn first_id() -> ObjectId {
        ObjectId::new("first").unwrap()
    }
}
