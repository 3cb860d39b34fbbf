use std::collections::BTreeMap;
use std::net::SocketAddr;

use futures::future::join_all;
use hoplite_core::error::{Error, Plane};
use hoplite_core::id::NodeId;
use hoplite_core::session::ANSWER_TIMEOUT;
use hoplite_core::topology::Place;
use hoplite_core::topology::place::Path;
use hoplite_proto::bounds::decode_address;
use hoplite_proto::status::from_status;
use hoplite_proto::v1;
use tokio::time::timeout;

use crate::shard_link::ShardLink;

#[derive(Default)]
pub(super) struct Known {
    pub(super) addresses: BTreeMap<NodeId, SocketAddr>,
    pub(super) labels: BTreeMap<String, Path>,
}

pub(super) async fn nodes_of(shards: &[&ShardLink]) -> Result<Known, Error> {
    let asked = shards
        .iter()
        .map(|link| async { ask(link.client().status(v1::StatusRequest::default())).await });
    let mut nodes = Known::default();
    let mut is_known = false;
    for status in join_all(asked).await.into_iter().flatten() {
        is_known = true;
        let is_reached =
            |node: &v1::status_reply::Node| node.connected && !node.data_address.is_empty();
        for node in status.nodes.into_iter().filter(is_reached) {
            let address = decode_address(&node.data_address, Plane::Control)?;
            let labels: Vec<(String, String)> = node.labels.into_iter().collect();
            nodes.labels.insert(node.node.clone(), Place::of_labels(&labels).path);
            nodes.addresses.insert(NodeId::new(&node.node)?, address);
        }
    }
    if is_known { Ok(nodes) } else { Err(Error::unavailable("the directory")) }
}

pub(super) async fn ask<T>(
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, Error> {
    match timeout(ANSWER_TIMEOUT, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(from_status(&status)),
        Err(_) => Err(Error::unavailable("a directory shard")),
    }
}
