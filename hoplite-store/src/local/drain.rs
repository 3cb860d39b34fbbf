use std::net::SocketAddr;
use std::time::Duration;

use hoplite_core::error::Error;
use hoplite_core::id::NodeId;
use hoplite_core::node;
use hoplite_core::text::escape;
use hoplite_proto::local::Response;

use super::LocalPlane;
use super::nodes::nodes_of;
use crate::shard_link::ShardLink;

/// Drains a store. Without a timeout, only requests the progress of the drain.
pub(super) async fn drain_node(
    plane: &LocalPlane,
    shards: &[&ShardLink],
    node: &str,
    timeout: Option<Duration>,
) -> Result<Response, Error> {
    let known = nodes_of(shards).await?.addresses;
    let is_meant = |(name, address): &(_, _)| is_named(node, name, address);
    let Some(peer) = known.into_iter().find(is_meant) else {
        let reason = format!("no node {} is connected to the directory", escape(node)).into();
        return Err(Error::InvalidRequest { reason });
    };
    if peer.0 == plane.node {
        return Err(Error::invalid_request(
            "this is the store to drain: drain it without its address",
        ));
    }
    let report = plane.engine.asker().drain_store(&peer, timeout).await?;
    Ok(Response::Node(node::Response::Drain(report)))
}

fn is_named(text: &str, name: &NodeId, address: &SocketAddr) -> bool {
    name.as_str() == text || address.to_string() == text
}
