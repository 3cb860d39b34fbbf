use std::time::Duration;

use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::shard::{Location, Locations, ObjectSummary, Origin};
use hoplite_core::topology::place::{EVERYWHERE, MAX_LEVELS, Path};

use super::{
    decode_location_state, decode_retention, decode_slow_peers, encode_location_state, encode_node,
    encode_nodes, encode_retention,
};
use crate::bounds::{
    MAX_LOCATIONS, check_count, decode_optional_node, decode_store_address, encode_address,
    encode_id, encode_optional_node,
};
use crate::{metadata, v1};

/// Encodes `locations`.
pub fn encode_locations(locations: &Locations) -> v1::Locations {
    v1::Locations {
        id: encode_id(&locations.id),
        object: locations.object.as_ref().map(encode_summary),
        locations: locations.locations.iter().map(encode_location).collect(),
    }
}

/// Decodes an object's locations, received on `plane`.
pub fn decode_locations(locations: v1::Locations, plane: Plane) -> Result<Locations> {
    check_count("locations of an object", locations.locations.len(), MAX_LOCATIONS)?;
    Ok(Locations {
        id: ObjectId::new(&locations.id)?,
        object: locations.object.map(decode_summary).transpose()?,
        locations: locations
            .locations
            .into_iter()
            .map(|location| decode_location(location, plane))
            .collect::<Result<_>>()?,
    })
}

fn encode_summary(object: &ObjectSummary) -> v1::ObjectSummary {
    let origin = object.origin.as_ref();
    v1::ObjectSummary {
        put: object.put.0,
        size_bytes: object.size_bytes,
        metadata: Some(metadata::encode(&object.metadata)),
        inline: object.inline,
        lost: object.lost,
        creator: encode_optional_node(origin.map(|origin| &origin.creator)),
        age_ms: origin.map_or(0, |origin| encode_millis(origin.age)),
        unused_ms: origin.and_then(|origin| origin.unused).map(encode_millis),
    }
}

fn encode_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn decode_summary(object: v1::ObjectSummary) -> Result<ObjectSummary, Error> {
    let origin = decode_optional_node(&object.creator)?.map(|creator| Origin {
        creator,
        age: Duration::from_millis(object.age_ms),
        unused: object.unused_ms.map(Duration::from_millis),
    });
    Ok(ObjectSummary {
        put: PutId(object.put),
        size_bytes: object.size_bytes,
        metadata: metadata::decode(object.metadata, object.size_bytes)?,
        inline: object.inline,
        lost: object.lost,
        origin,
    })
}

fn encode_location(location: &Location) -> v1::Location {
    v1::Location {
        node: encode_node(&location.node),
        data_address: encode_address(location.data_address),
        state: encode_location_state(location.state),
        retention: encode_retention(location.retention),
        pulling_from: encode_optional_node(location.pulling_from.as_ref()),
        groups: encode_levels(location.path),
        slow_peers: encode_nodes(&location.slow_peers),
    }
}

fn decode_location(location: v1::Location, plane: Plane) -> Result<Location> {
    Ok(Location {
        node: NodeId::new(&location.node)?,
        data_address: decode_store_address(&location.data_address, plane)?,
        state: decode_location_state(location.state, plane)?,
        retention: decode_retention(location.retention, plane)?,
        pulling_from: decode_optional_node(&location.pulling_from)?,
        path: decode_levels(&location.groups)?,
        slow_peers: decode_slow_peers(&location.slow_peers)?,
    })
}

pub(super) fn encode_levels(path: Path) -> Vec<u32> {
    let levels = path.iter().rposition(|group| *group != 0).map_or(0, |last| last + 1);
    path[..levels].to_vec()
}

pub(super) fn decode_levels(groups: &[u32]) -> Result<Path> {
    check_count("levels of groups", groups.len(), MAX_LEVELS)?;
    let mut path = EVERYWHERE;
    path[..groups.len()].copy_from_slice(groups);
    Ok(path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary;

    #[test]
    fn a_path_takes_no_more_levels_than_there_are() {
        assert_eq!(encode_levels(EVERYWHERE), []);
        assert_eq!(encode_levels([7, 0, 3, 0]), [7, 0, 3]);
        assert_eq!(decode_levels(&[7, 0, 3]), Ok([7, 0, 3, 0]));
        let error = decode_levels(&[1; MAX_LEVELS + 1]).unwrap_err();
        assert!(matches!(error, Error::LimitExceeded { .. }), "{error}");
    }

    proptest! {
        #[test]
        fn locations_round_trip(locations in arbitrary::locations()) {
            prop_assert_eq!(decode_locations(encode_locations(&locations), Plane::Local), Ok(locations));
        }
    }
}
