//! Totals of a shard's objects by prefix, computed in short turns. Kept totals answer later
//! requests, too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::error::Result;
use hoplite_core::id::NodeId;
use hoplite_core::shard::{PrefixSum, PrefixSums, Shard};
use hoplite_proto::dashboard::query::to_hex;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use super::rows::age_ms;
use super::share::Share;
use crate::owner::ShardHandle;

/// Age up to which kept totals answer requests.
const FRESH: Duration = Duration::from_secs(20);
const MAX_KEPT: usize = 16;

/// Totals for each prefix, with the time of their completion.
type Kept = BTreeMap<Vec<u8>, (Instant, Arc<PrefixSums>)>;

#[derive(Debug, Clone)]
pub(crate) struct Prefixes(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    kept: Kept,
    share: Share,
    /// Unfinished totals of a prefix, the time of their latest part, and the last counted id.
    begun: Option<(Instant, PrefixSums, Vec<u8>)>,
}

impl Default for Prefixes {
    fn default() -> Self {
        let share = Share::new(Instant::now());
        Self(Arc::new(Mutex::new(State { kept: Kept::new(), share, begun: None })))
    }
}

impl Prefixes {
    /// Counts objects with the prefix, their bytes and copies, or returns totals at most [`FRESH`]
    /// old.
    pub(super) async fn of(&self, shard: &ShardHandle, prefix: Vec<u8>) -> Result<PrefixPage> {
        // The shard counts one prefix at a time.
        let mut state = self.0.lock().await;
        state.kept.retain(|_, (at, _)| at.elapsed() < FRESH);
        let sums = match state.kept.get(&prefix) {
            Some((_, sums)) => Arc::clone(sums),
            None => state.add(prefix.clone(), shard).await?,
        };
        Ok(PrefixPage::new(shard.uptime(), &prefix, &sums))
    }
}

impl State {
    async fn add(&mut self, prefix: Vec<u8>, shard: &ShardHandle) -> Result<Arc<PrefixSums>> {
        let is_same = |(at, sums, _): &(Instant, PrefixSums, _)| {
            sums.prefix() == prefix && at.elapsed() < FRESH
        };
        loop {
            // A call cancelled here leaves its unfinished totals to the next call.
            sleep_until(self.share.next()).await;
            let (sums, after) = match self.begun.take().filter(is_same) {
                Some((_, sums, after)) => (sums, after),
                None => (PrefixSums::of(prefix.clone()), Vec::new()),
            };
            self.share.begin(Instant::now());
            let turn = move |shard: &Shard| {
                let (mut sums, began) = (sums, Instant::now());
                let next = shard.sum_prefixes(&mut sums, &after);
                (sums, next, began.elapsed())
            };
            let (sums, next, took) = shard.inspect(turn).await?;
            self.share.end(Instant::now(), took);
            match next {
                Some(next) => self.begun = Some((Instant::now(), sums, next.as_bytes().to_vec())),
                None => return Ok(self.keep(prefix, sums)),
            }
        }
    }

    fn keep(&mut self, prefix: Vec<u8>, sums: PrefixSums) -> Arc<PrefixSums> {
        let sums = Arc::new(sums);
        if self.kept.len() >= MAX_KEPT {
            let oldest =
                self.kept.iter().min_by_key(|(_, (at, _))| *at).map(|(prefix, _)| prefix.clone());
            oldest.map(|prefix| self.kept.remove(&prefix));
        }
        self.kept.insert(prefix, (Instant::now(), Arc::clone(&sums)));
        sums
    }
}

#[derive(Debug, Serialize)]
pub(super) struct PrefixPage {
    prefix: String,
    /// Groups, those with the most bytes first.
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

/// Returns printable text, even if `prefix` ends within a UTF-8 character.
fn readable(prefix: &[u8]) -> String {
    hoplite_core::text::escape(&String::from_utf8_lossy(prefix))
}
