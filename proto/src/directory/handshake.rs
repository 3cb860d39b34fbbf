use hoplite_core::Version;
use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::{ClusterId, Incarnation, NodeId};
use hoplite_core::shard::{NodeInfo, ShardRun};

use super::encode_node;
use super::shards::decode_shard_list;
use crate::bounds::{
    MAX_LABEL_KEY_BYTES, MAX_LABEL_VALUE_BYTES, MAX_LABELS, check_count, decode_store_address,
    encode_address,
};
use crate::v1;

/// Encodes a store's first message. The store speaks the versions up to `info.version`.
pub fn encode_hello(info: &NodeInfo, cluster: &ClusterId) -> v1::Hello {
    v1::Hello {
        version: Version::OLDEST.number(),
        newest_version: info.version.number(),
        cluster: cluster.as_str().to_owned(),
        node: encode_node(&info.node),
        incarnation: info.incarnation.0,
        data_address: encode_address(info.data_address),
        labels: info.labels.iter().cloned().collect(),
        shards: info.shards.names().map(str::to_owned).collect(),
        shards_version: info.shards.version(),
    }
}

/// Decodes the first message of a store that joins `cluster`. This side speaks versions up to
/// `newest`. The result has the session's version, and labels sorted by key.
///
/// # Errors
/// [`Error::VersionMismatch`] first, then [`Error::ClusterMismatch`], then the violated rule.
pub fn decode_hello(hello: v1::Hello, cluster: &ClusterId, newest: Version) -> Result<NodeInfo> {
    let version = newest.agree(hello.version, hello.newest_version)?;
    cluster.check_same(&hello.cluster)?;
    check_count("labels", hello.labels.len(), MAX_LABELS)?;
    let mut labels: Vec<(String, String)> = hello.labels.into_iter().collect();
    let is_bounded = |(key, value): &(String, String)| {
        !key.is_empty() && key.len() <= MAX_LABEL_KEY_BYTES && value.len() <= MAX_LABEL_VALUE_BYTES
    };
    if !labels.iter().all(is_bounded) {
        return Err(Error::malformed(
            Plane::Control,
            "a label's key has 1 to 63 bytes, its value up to 255",
        ));
    }
    labels.sort_unstable();
    let shards = v1::ShardList { version: hello.shards_version, names: hello.shards };
    Ok(NodeInfo {
        node: NodeId::new(&hello.node)?,
        incarnation: Incarnation(hello.incarnation),
        data_address: decode_store_address(&hello.data_address, Plane::Control)?,
        labels,
        shards: decode_shard_list(shards)?,
        version,
    })
}

/// Encodes the first message of a shard's run, which speaks versions up to `newest`.
pub const fn welcome(run: ShardRun, newest: Version) -> v1::Welcome {
    v1::Welcome { version: Version::OLDEST.number(), newest_version: newest.number(), run: run.0 }
}

/// Checks a shard's first message. This side speaks versions up to `newest`. Returns the shard's
/// run and the session's version.
pub fn check_welcome(welcome: &v1::Welcome, newest: Version) -> Result<(ShardRun, Version)> {
    let version = newest.agree(welcome.version, welcome.newest_version)?;
    Ok((ShardRun(welcome.run), version))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary;

    fn cluster() -> ClusterId {
        ClusterId::new("test").unwrap()
    }

    fn hello() -> v1::Hello {
        v1::Hello {
            version: Version::OLDEST.number(),
            newest_version: Version::NEWEST.number(),
            cluster: "test".to_owned(),
            node: "a".to_owned(),
            incarnation: 1,
            data_address: "127.0.0.1:7402".to_owned(),
            labels: std::collections::HashMap::new(),
            shards: vec!["shard:1".to_owned()],
            shards_version: 0,
        }
    }

    #[test]
    fn the_version_is_checked_before_all_else() {
        let hello = v1::Hello {
            version: 1,
            newest_version: 7,
            cluster: "?".to_owned(),
            node: String::new(),
            ..hello()
        };
        let error = decode_hello(hello, &cluster(), Version::NEWEST).unwrap_err();
        assert_eq!(error, Error::VersionMismatch { ours: 8, theirs: 7 });
        let welcome = |version, newest_version| v1::Welcome { version, newest_version, run: 7 };
        assert!(check_welcome(&welcome(0, 7), Version::NEWEST).is_err());
        let next = Version::NEWEST.number() + 1;
        assert!(check_welcome(&welcome(next, next), Version::NEWEST).is_err());
    }

    #[test]
    fn a_session_uses_the_newest_version_of_both_sides() {
        for (store, shard) in [(8, 9), (9, 8), (8, 8), (9, 9)]
            .map(|(store, shard)| (Version::new(store).unwrap(), Version::new(shard).unwrap()))
        {
            let decoded = decode_hello(
                v1::Hello { newest_version: store.number(), ..hello() },
                &cluster(),
                shard,
            );
            assert_eq!(decoded.unwrap().version, store.min(shard));
            let welcome = welcome(ShardRun(7), shard);
            assert_eq!(check_welcome(&welcome, store), Ok((ShardRun(7), store.min(shard))));
        }
        // A program that speaks version 8 only.
        let old = v1::Hello { version: 8, newest_version: 0, ..hello() };
        assert_eq!(
            decode_hello(old, &cluster(), Version::NEWEST).unwrap().version,
            Version::OLDEST
        );
        let old = v1::Welcome { version: 8, newest_version: 0, run: 7 };
        assert_eq!(check_welcome(&old, Version::NEWEST), Ok((ShardRun(7), Version::OLDEST)));
    }

    #[test]
    fn other_clusters_and_bad_descriptions_are_refused() {
        let refusal = |hello| decode_hello(hello, &cluster(), Version::NEWEST).unwrap_err();
        assert_eq!(
            refusal(v1::Hello { cluster: "other".to_owned(), ..hello() }),
            Error::ClusterMismatch { ours: "test".to_owned(), theirs: "other".to_owned() }
        );
        assert!(matches!(
            refusal(v1::Hello { node: "a b".to_owned(), ..hello() }),
            Error::InvalidName { .. }
        ));
        let unreachable = v1::Hello { data_address: "0.0.0.0:0".to_owned(), ..hello() };
        assert!(matches!(refusal(unreachable), Error::Malformed { .. }));
        let many = (0..33).map(|key| (key.to_string(), String::new())).collect();
        assert!(matches!(
            refusal(v1::Hello { labels: many, ..hello() }),
            Error::LimitExceeded { maximum: 32, .. }
        ));
        let long = [("rack".to_owned(), "x".repeat(256))].into();
        assert!(matches!(refusal(v1::Hello { labels: long, ..hello() }), Error::Malformed { .. }));
        let shards = |shards| refusal(v1::Hello { shards, ..hello() });
        assert!(matches!(
            shards(vec!["s:1".to_owned(); 257]),
            Error::LimitExceeded { maximum: 256, .. }
        ));
        for bad in [vec![], vec![String::new()], vec!["x".repeat(261)], vec!["s:1".to_owned(); 2]] {
            assert!(matches!(shards(bad), Error::Malformed { .. }));
        }
        let late = v1::Hello { shards_version: u64::MAX, ..hello() };
        assert!(matches!(refusal(late), Error::Malformed { .. }));
    }

    proptest! {
        #[test]
        fn hellos_round_trip(info in arbitrary::node_info()) {
            let decoded = decode_hello(encode_hello(&info, &cluster()), &cluster(), Version::NEWEST);
            prop_assert_eq!(decoded, Ok(info));
        }
    }
}
