//! The first messages of a session.

use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::{ClusterId, Incarnation, NodeId};
use hoplite_core::placement::{MAX_SHARD_NAME_BYTES, MAX_SHARDS, ShardList};
use hoplite_core::shard::{NodeInfo, ShardRun};

use super::encode_node;
use crate::bounds::{
    MAX_LABEL_KEY_BYTES, MAX_LABEL_VALUE_BYTES, MAX_LABELS, check_count, decode_store_address, encode_address,
};
use crate::{PROTOCOL_VERSION, v1};

/// A store's first message.
pub fn encode_hello(info: &NodeInfo, cluster: &ClusterId) -> v1::Hello {
    v1::Hello {
        version: PROTOCOL_VERSION,
        cluster: cluster.as_str().to_owned(),
        node: encode_node(&info.node),
        incarnation: info.incarnation.0,
        data_address: encode_address(info.data_address),
        labels: info.labels.iter().cloned().collect(),
        shards: info.shards.names().map(str::to_owned).collect(),
    }
}

/// Checks a store that joins `cluster`, and sorts its labels.
///
/// # Errors
/// [`Error::VersionMismatch`] first, then [`Error::ClusterMismatch`], then the description's
/// problem.
pub fn decode_hello(hello: v1::Hello, cluster: &ClusterId) -> Result<NodeInfo> {
    check_version(hello.version)?;
    cluster.check_same(&hello.cluster)?;
    check_count("labels", hello.labels.len(), MAX_LABELS)?;
    let mut labels: Vec<(String, String)> = hello.labels.into_iter().collect();
    let is_bounded = |(key, value): &(String, String)| {
        !key.is_empty() && key.len() <= MAX_LABEL_KEY_BYTES && value.len() <= MAX_LABEL_VALUE_BYTES
    };
    if !labels.iter().all(is_bounded) {
        return Err(Error::malformed(Plane::Control, "a label's key has 1 to 63 bytes, its value up to 255"));
    }
    labels.sort_unstable();
    check_count("directory shards", hello.shards.len(), MAX_SHARDS)?;
    if hello.shards.is_empty()
        || hello.shards.iter().any(|name| !(1..=MAX_SHARD_NAME_BYTES).contains(&name.len()))
    {
        return Err(Error::malformed(
            Plane::Control,
            "a store names the directory shards, in 1 to 260 bytes each",
        ));
    }
    Ok(NodeInfo {
        node: NodeId::new(&hello.node)?,
        incarnation: Incarnation(hello.incarnation),
        data_address: decode_store_address(&hello.data_address, Plane::Control)?,
        labels,
        shards: ShardList::new(hello.shards),
    })
}

/// A shard's first message.
pub const fn welcome(run: ShardRun) -> v1::Welcome {
    v1::Welcome { version: PROTOCOL_VERSION, run: run.0 }
}

/// Returns the shard's run.
///
/// # Errors
/// [`Error::VersionMismatch`].
pub fn check_welcome(welcome: &v1::Welcome) -> Result<ShardRun> {
    check_version(welcome.version)?;
    Ok(ShardRun(welcome.run))
}

fn check_version(theirs: u32) -> Result<()> {
    if theirs == PROTOCOL_VERSION {
        Ok(())
    } else {
        Err(Error::VersionMismatch { ours: PROTOCOL_VERSION, theirs })
    }
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
            version: PROTOCOL_VERSION,
            cluster: "test".to_owned(),
            node: "a".to_owned(),
            incarnation: 1,
            data_address: "127.0.0.1:7402".to_owned(),
            labels: std::collections::HashMap::new(),
            shards: vec!["shard:1".to_owned()],
        }
    }

    #[test]
    fn the_version_is_checked_before_all_else() {
        let hello = v1::Hello { version: 1, cluster: "?".to_owned(), node: String::new(), ..hello() };
        let error = decode_hello(hello, &cluster()).unwrap_err();
        assert_eq!(error, Error::VersionMismatch { ours: PROTOCOL_VERSION, theirs: 1 });
        assert!(check_welcome(&welcome(ShardRun(7))) == Ok(ShardRun(7)));
        assert!(check_welcome(&v1::Welcome { version: 0, run: 7 }).is_err());
    }

    #[test]
    fn other_clusters_and_bad_descriptions_are_refused() {
        let refusal = |hello| decode_hello(hello, &cluster()).unwrap_err();
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
        assert!(matches!(shards(vec!["s:1".to_owned(); 257]), Error::LimitExceeded { maximum: 256, .. }));
        for bad in [vec![], vec![String::new()], vec!["x".repeat(261)]] {
            assert!(matches!(shards(bad), Error::Malformed { .. }));
        }
    }

    proptest! {
        #[test]
        fn hellos_round_trip(info in arbitrary::node_info()) {
            prop_assert_eq!(decode_hello(encode_hello(&info, &cluster()), &cluster()), Ok(info));
        }
    }
}
