//! Totals of a shard's objects by prefix, computed in short turns.

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

use super::rows::{age_ms, millis};
use super::share::Share;
use crate::owner::ShardHandle;

/// Older totals are counted again at the next request.
const FRESH: Duration = Duration::from_secs(20);
/// Older totals are forgotten. Others answer requests while the shard counts again.
const STALE: Duration = Duration::from_secs(600);
/// Time after which a request returns. The next request continues its count.
const COUNT_LIMIT: Duration = Duration::from_secs(1);
const MAX_KEPT: usize = 16;

/// Totals of a prefix, and the time of their completion.
type Totals = (Instant, Arc<PrefixSums>);
type Kept = BTreeMap<Vec<u8>, Totals>;

/// Unfinished totals of a prefix: the time of their latest part, and the last counted id.
type Begun = (Instant, PrefixSums, Vec<u8>);

#[derive(Debug, Clone)]
pub(crate) struct Prefixes(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    kept: Kept,
    begun: BTreeMap<Vec<u8>, Begun>,
    share: Share,
}

impl Default for Prefixes {
    fn default() -> Self {
        let (kept, begun, share) = (Kept::new(), BTreeMap::new(), Share::new(Instant::now()));
        Self(Arc::new(Mutex::new(State { kept, begun, share })))
    }
}

impl Prefixes {
    /// Returns totals at most [`FRESH`] old. If counting takes longer, returns older totals, or
    /// the totals so far.
    pub(super) async fn of(&self, shard: &ShardHandle, prefix: Vec<u8>) -> Result<PrefixPage> {
        let until = Instant::now() + COUNT_LIMIT;
        // The shard counts one prefix at a time.
        let mut state = self.0.lock().await;
        state.kept.retain(|_, (at, _)| at.elapsed() < STALE);
        state.begun.retain(|_, (at, ..)| at.elapsed() < FRESH);
        let is_fresh = state.kept.get(&prefix).is_some_and(|(at, _)| at.elapsed() < FRESH);
        if !is_fresh {
            state.count(&prefix, shard, until).await?;
        }
        let page = |at: Instant, sums: &PrefixSums, is_partial| {
            PrefixPage::new(shard.uptime(), &prefix, sums, at.elapsed(), is_partial)
        };
        Ok(match (state.kept.get(&prefix), state.begun.get(&prefix)) {
            (Some((at, sums)), _) => page(*at, sums, false),
            (None, Some((at, sums, _))) => page(*at, sums, true),
            (None, None) => page(Instant::now(), &PrefixSums::of(prefix.clone()), true),
        })
    }
}

impl State {
    /// Counts at least one part, until all objects are counted or `until`.
    async fn count(&mut self, prefix: &[u8], shard: &ShardHandle, until: Instant) -> Result<()> {
        loop {
            // A call cancelled here leaves its unfinished totals to the next call.
            sleep_until(self.share.next()).await;
            let (sums, after) = match self.begun.remove(prefix) {
                Some((_, sums, after)) => (sums, after),
                None => (PrefixSums::of(prefix.to_vec()), Vec::new()),
            };
            self.share.begin(Instant::now());
            let turn = move |shard: &Shard| {
                let (mut sums, began) = (sums, Instant::now());
                let next = shard.sum_prefixes(&mut sums, &after);
                (sums, next, began.elapsed())
            };
            let (sums, next, took) = shard.inspect(turn).await?;
            let now = Instant::now();
            self.share.end(now, took);
            let Some(next) = next else {
                self.keep(prefix.to_vec(), sums);
                return Ok(());
            };
            make_room(&mut self.begun, prefix, |(at, ..)| *at);
            self.begun.insert(prefix.to_vec(), (now, sums, next.as_bytes().to_vec()));
            if now >= until {
                return Ok(());
            }
        }
    }

    fn keep(&mut self, prefix: Vec<u8>, sums: PrefixSums) {
        make_room(&mut self.kept, &prefix, |(at, _)| *at);
        self.kept.insert(prefix, (Instant::now(), Arc::new(sums)));
    }
}

/// Removes the oldest entry if `prefix` is new and [`MAX_KEPT`] are there.
fn make_room<T>(all: &mut BTreeMap<Vec<u8>, T>, prefix: &[u8], at: impl Fn(&T) -> Instant) {
    if all.len() >= MAX_KEPT && !all.contains_key(prefix) {
        let oldest = all.iter().min_by_key(|(_, one)| at(one)).map(|(prefix, _)| prefix.clone());
        oldest.map(|prefix| all.remove(&prefix));
    }
}

#[derive(Debug, Serialize)]
pub(super) struct PrefixPage {
    prefix: String,
    /// `true` while objects are left to count.
    is_partial: bool,
    counted_ms: u64,
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
    fn new(
        uptime: Duration,
        prefix: &[u8],
        sums: &PrefixSums,
        age: Duration,
        is_partial: bool,
    ) -> Self {
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
            is_partial,
            counted_ms: millis(age),
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
