//! Control plane: sessions between stores and shards, and reports for tools.

mod handshake;
mod load;
mod locations;
mod opening;
mod places;
mod problem;
mod replication;
mod shard_message;
mod shards;
mod store_message;

pub use handshake::{check_welcome, decode_hello, encode_hello, welcome};
pub use load::{decode_load, encode_load};
pub use locations::{decode_locations, encode_locations};
pub use opening::{MAX_OPENING_BYTES, PREFACE_BYTES, Preface};
pub use places::{decode_places, encode_places};
pub use problem::{decode_problems, encode_problems};
pub(crate) use replication::{decode_optional_obstacle, encode_optional_obstacle};
pub use shard_message::{decode_shard_batch, decode_to_store, encode_to_store};
pub use shards::{
    decode_list_step, decode_shard_list, encode_known_shards, encode_list_step, encode_shard_list,
};
pub(crate) use store_message::{decode_pull_outcome, encode_pull_outcome};
pub use store_message::{decode_store_batch, decode_to_shard, encode_to_shard};

use hoplite_core::error::Result;
use hoplite_core::id::NodeId;
use hoplite_core::shard::{LocationState, Retention};
use hoplite_core::topology::live::MAX_SLOW_PEERS;

use crate::bounds::check_count;
use crate::enumeration::enumeration;
use crate::v1;

enumeration!(encode_location_state, decode_location_state: LocationState, v1::LocationState, "location state" {
    Producing, Partial, Complete,
});
enumeration!(encode_retention, decode_retention: Retention, v1::Retention, "retention" { Pinned, Evictable });

pub(crate) fn encode_nodes(nodes: &[NodeId]) -> Vec<String> {
    nodes.iter().map(encode_node).collect()
}

fn decode_slow_peers(peers: &[String]) -> Result<Vec<NodeId>> {
    check_count("slow links", peers.len(), MAX_SLOW_PEERS)?;
    Ok(peers.iter().map(|peer| NodeId::new(peer)).collect::<Result<_, _>>()?)
}

fn encode_node(node: &NodeId) -> String {
    node.as_str().to_owned()
}
