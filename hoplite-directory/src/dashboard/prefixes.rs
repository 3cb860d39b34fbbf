//! A shard's objects by prefix.
//!
//! A sum examines all objects of the prefix, in short turns of the shard. It is kept for a while,
//! so that many tabs cost no more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::error::Result;
use hoplite_core::id::NodeId;
use hoplite_core::shard::{PrefixSum, PrefixSums, Shard};
use hoplite_proto::dashboard::query::to_hex;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::rows::age_ms;
use crate::owner::ShardHandle;

/// Time for which a sum is shown again.
const FRESH: Duration = Duration::from_secs(20);
const MAX_KEPT: usize = 16;

/// Sums by prefix, each with its time.
type Kept = BTreeMap<Vec<u8>, (Instant, Arc<PrefixSums>)>;

#[derive(Debug, Clone, Default)]
pub(crate) struct Prefixes(Arc<Mutex<Kept>>);

impl Prefixes {
    /// Returns sums that are at most [`FRESH`] old.
    pub(super) async fn of(&self, shard: &ShardHandle, prefix: Vec<u8>) -> Result<PrefixPage> {
        // Locked during a sum, because one at a time is enough for the shard.
        let mut kept = self.0.lock().await;
        kept.retain(|_, (at, _)| at.elapsed() < FRESH);
        let sums = match kept.get(&prefix) {
            Some((_, sums)) => Arc::clone(sums),
            None => {
                let sums = Arc::new(sum(shard, prefix.clone()).await?);
                if kept.len() >= MAX_KEPT {
                    let oldest = kept.iter().min_by_key(|(_, (at, _))| *at).map(|(prefix, _)| prefix.clone());
                    oldest.map(|prefix| kept.remove(&prefix));
                }
                kept.insert(prefix.clone(), (Instant::now(), Arc::clone(&sums)));
                sums
            }
        };
        Ok(PrefixPage::new(shard.uptime(), &prefix, &sums))
    }
}

async fn sum(shard: &ShardHandle, prefix: Vec<u8>) -> Result<PrefixSums> {
    let (mut sums, mut after) = (PrefixSums::of(prefix), Vec::new());
    loop {
        let turn = move |shard: &Shard| {
            let mut sums = sums;
            let next = shard.sum_prefixes(&mut sums, &after);
            (sums, next)
        };
        let (summed, next) = shard.inspect(turn).await?;
        let Some(next) = next else { return Ok(summed) };
        (sums, after) = (summed, next.as_bytes().to_vec());
    }
}

#[derive(Debug, Serialize)]
pub(super) struct PrefixPage {
    prefix: String,
    /// The groups, most bytes first.
    groups: Vec<Group>,
    more_groups: usize,
    rest: Group,
    total: Group,
}

#[derive(Debug, Serialize)]
struct Group {
    key: String,
    name: String,
    objects: u64,
    bytes: u64,
    copies: u64,
    oldest_ms: Option<u64>,
    newest_ms: Option<u64>,
    unused_ms: Option<u64>,
    creators: Vec<String>,
    more_creators: bool,
}

impl PrefixPage {
    fn new(uptime: Duration, prefix: &[u8], sums: &PrefixSums) -> Self {
        let group = |key: &[u8], sum: &PrefixSum| Group {
            key: to_hex(key),
            name: readable(key),
            objects: sum.objects,
            bytes: sum.bytes,
            copies: sum.copies,
            oldest_ms: sum.oldest.map(|at| age_ms(uptime, at)),
            newest_ms: sum.newest.map(|at| age_ms(uptime, at)),
            unused_ms: sum.used.map(|at| age_ms(uptime, at)),
            creators: sum.creators.iter().map(NodeId::to_string).collect(),
            more_creators: sum.has_more_creators,
        };
        let mut groups: Vec<Group> = sums.groups.iter().map(|(key, sum)| group(key, sum)).collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
        Self {
            prefix: readable(prefix),
            groups,
            more_groups: sums.more_groups,
            rest: group(b"", &sums.rest),
            total: group(prefix, &sums.total()),
        }
    }
}

/// A prefix may end within a character.
fn readable(prefix: &[u8]) -> String {
    hoplite_core::text::escape(&String::from_utf8_lossy(prefix))
}
