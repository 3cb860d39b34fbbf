use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::NodeId;
use hoplite_core::link::Uplink;
use hoplite_core::shard::Placed;
use hoplite_core::topology::measured::{MAX_MEASURED_NODES, MAX_VERSION, MeasuredPlaces};

use super::encode_node;
use super::locations::{decode_levels, encode_levels};
use crate::bounds::check_count;
use crate::v1;

/// Encodes `places`.
pub fn encode_places(places: &MeasuredPlaces) -> v1::MeasuredPlaces {
    let encode = |(node, path): (&NodeId, &_)| v1::measured_places::Node {
        node: encode_node(node),
        groups: encode_levels(*path),
    };
    v1::MeasuredPlaces {
        version: places.version,
        uplinks_permille: encode_levels(places.uplink.levels()),
        nodes: places.paths.iter().map(encode).collect(),
    }
}

/// Decodes each node's measured groups.
pub fn decode_places(places: v1::MeasuredPlaces) -> Result<MeasuredPlaces> {
    check_count("measured nodes", places.nodes.len(), MAX_MEASURED_NODES)?;
    check_version(places.version)?;
    let count = places.nodes.len();
    let decode = |node: v1::measured_places::Node| {
        Ok((NodeId::new(&node.node)?, decode_levels(&node.groups)?))
    };
    let paths: std::collections::BTreeMap<_, _> =
        places.nodes.into_iter().map(decode).collect::<Result<_>>()?;
    if paths.len() < count {
        return Err(Error::malformed(Plane::Control, "the place of a node twice"));
    }
    let uplink = Uplink::of_levels(decode_levels(&places.uplinks_permille)?);
    Ok(MeasuredPlaces { version: places.version, uplink, paths })
}

pub(super) fn encode_placed(placed: Placed) -> v1::Placed {
    let Placed { version, path, uplink } = placed;
    v1::Placed {
        version,
        groups: encode_levels(path),
        uplinks_permille: encode_levels(uplink.levels()),
    }
}

pub(super) fn decode_placed(placed: v1::Placed) -> Result<Placed> {
    check_version(placed.version)?;
    let path = decode_levels(&placed.groups)?;
    let uplink = Uplink::of_levels(decode_levels(&placed.uplinks_permille)?);
    Ok(Placed { version: placed.version, path, uplink })
}

fn check_version(version: u64) -> Result<()> {
    let is_given = (1..=MAX_VERSION).contains(&version);
    is_given
        .then_some(())
        .ok_or(Error::malformed(Plane::Control, "a version of places that nobody gives"))
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    fn places(count: usize) -> MeasuredPlaces {
        let place = |number: usize| {
            let node = NodeId::new(&format!("node-{number:05}.cluster.example.com")).unwrap();
            (node, [0, 0, u32::MAX - number as u32 / 1000, u32::MAX - number as u32 / 40])
        };
        MeasuredPlaces {
            version: 1 << 41,
            uplink: Uplink::of_levels([250, 0, 1000, 4000]),
            paths: (0..count).map(place).collect(),
        }
    }

    #[test]
    fn ten_thousand_nodes_take_less_than_a_megabyte() {
        let places = places(10_000);
        let encoded = encode_places(&places);
        assert!(encoded.encoded_len() < 1 << 20, "{} bytes", encoded.encoded_len());
        assert_eq!(decode_places(encoded).unwrap(), places);
    }

    #[test]
    fn invalid_places_are_refused() {
        let refused = |change: fn(&mut v1::MeasuredPlaces)| {
            let mut places = encode_places(&places(3));
            change(&mut places);
            decode_places(places).unwrap_err()
        };
        assert!(matches!(
            refused(|places| places.nodes[0].node.clear()),
            Error::InvalidName { .. }
        ));
        for error in [
            refused(|places| places.nodes[0] = places.nodes[1].clone()),
            refused(|places| places.version = 0),
            refused(|places| places.version = MAX_VERSION + 1),
        ] {
            assert!(matches!(error, Error::Malformed { .. }), "{error:?}");
        }
        for error in [
            refused(|places| places.nodes[0].groups = vec![1; 5]),
            refused(|places| places.uplinks_permille = vec![1; 5]),
            refused(|places| places.nodes = vec![Default::default(); MAX_MEASURED_NODES + 1]),
        ] {
            assert!(matches!(error, Error::LimitExceeded { .. }), "{error:?}");
        }
    }
}
