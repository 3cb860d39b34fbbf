//! A report that the command line and the dashboard show as JSON.

use std::sync::Arc;

use hoplite_core::load::Load;
use hoplite_core::tally::Tally;
use serde::Serialize;

/// Numbers of a store's load.
#[derive(Debug, Serialize)]
pub struct LoadNumbers(#[serde(with = "Numbers")] pub Arc<Load>);

#[derive(Serialize)]
#[serde(remote = "Load")]
struct Numbers {
    capacity_bytes: u64,
    free_bytes: u64,
    #[serde(getter = "Load::used_bytes")]
    used_bytes: u64,
    pinned_bytes: u64,
    evictable_bytes: u64,
    reserved_bytes: u64,
    copies: u64,
    clients: u64,
    hops: u64,
    sent_bytes: u64,
    received_bytes: u64,
    send_rate: u64,
    receive_rate: u64,
    failed_routes: u32,
    #[serde(flatten, with = "Calls")]
    tally: Tally,
}

#[derive(Serialize)]
#[serde(remote = "Tally")]
struct Calls {
    gets: u64,
    failures: u64,
}
