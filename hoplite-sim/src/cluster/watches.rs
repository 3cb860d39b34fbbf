use hoplite_core::Error;
use hoplite_core::node::{CallId, ClientId, CopyId, Event, Inspection, forwardable, is_news};
use hoplite_core::session::ANSWER_TIMEOUT;
use hoplite_core::shard::{Page, best_informed};

use super::network::LinkEnd;
use super::{Application, Cluster};

pub(super) type WatchKey = (usize, ClientId, CallId);

#[derive(Debug)]
pub(super) enum Watch {
    Copy { copy: CopyId, beyond_bytes: u64 },
    Shards { inspection: Inspection, pages: Vec<Option<Page>>, unanswered: usize },
}

impl<A: Application> Cluster<A> {
    pub(super) fn watch_copy(&mut self, key: WatchKey, copy: CopyId, beyond_bytes: u64) {
        self.watches.insert(key, Watch::Copy { copy, beyond_bytes });
    }

    pub(super) fn settle_follows(&mut self) {
        if self.watches.is_empty() {
            return;
        }
        let stores = &self.stores;
        let progressed = self.watches.iter().filter_map(|(key, watch)| {
            let Watch::Copy { copy, beyond_bytes } = watch else { return None };
            let copy = &stores[key.0].copies[copy];
            if let Some(error) = &copy.failure {
                return Some((*key, Err(error.clone())));
            }
            let (is_complete, end_bytes) = (copy.is_complete, copy.size_bytes);
            let valid_bytes =
                forwardable(copy.producer, is_complete, copy.valid_bytes, end_bytes, end_bytes);
            is_news(is_complete, valid_bytes, *beyond_bytes, end_bytes)
                .then_some((*key, Ok(valid_bytes)))
        });
        for (key, progress) in progressed.collect::<Vec<_>>() {
            self.watches.remove(&key);
            let (store, client, call) = key;
            self.store_event(store, Event::Followed { client, call, progress });
        }
    }

    pub(super) fn inspect(&mut self, key: WatchKey, inspection: Inspection, shards: Vec<usize>) {
        let (store, run) = (key.0, self.stores[key.0].run);
        let (pages, unanswered) = (vec![None; shards.len()], shards.len());
        self.watches.insert(key, Watch::Shards { inspection, pages, unanswered });
        for (position, shard) in shards.into_iter().enumerate() {
            let delay = self.latency();
            self.after(delay, move |cluster| {
                let page = cluster.page_of(key, shard);
                let delay = if page.is_some() { cluster.latency() } else { ANSWER_TIMEOUT };
                cluster.after(delay, move |cluster| {
                    if cluster.stores[store].is_running(run) {
                        cluster.inspected(key, position, page);
                    }
                });
            });
        }
    }

    fn page_of(&self, key: WatchKey, shard: usize) -> Option<Page> {
        let Watch::Shards { inspection, .. } = self.watches.get(&key)? else { return None };
        let is_linked = self.is_linked(LinkEnd::Store(key.0), LinkEnd::Shard(shard));
        let host = Some(&self.shards[shard]).filter(|host| host.is_alive && is_linked)?;
        Some(match inspection {
            Inspection::List { prefix, after, limit } => {
                let (objects, more) = host.shard.list(prefix, after, *limit);
                Page { objects, more }
            }
            Inspection::Describe { id } => {
                Page { objects: vec![host.shard.describe(id).locations], more: false }
            }
            Inspection::Status
            | Inspection::Cluster
            | Inspection::Probe { .. }
            | Inspection::DrainNode { .. }
            | Inspection::Shards
            | Inspection::ChangeShards { .. }
            | Inspection::ProbeProgress => Page { objects: Vec::new(), more: false },
        })
    }

    fn inspected(&mut self, key: WatchKey, position: usize, page: Option<Page>) {
        let Some(Watch::Shards { inspection, pages, unanswered }) = self.watches.get_mut(&key)
        else {
            return;
        };
        pages[position] = page;
        *unanswered -= 1;
        if *unanswered > 0 {
            return;
        }
        let pages = std::mem::take(pages);
        let answer = match inspection {
            Inspection::List { limit, .. } => Page::merge(pages, *limit),
            Inspection::Describe { .. } => {
                let known =
                    pages.iter().map(|page| page.as_ref().and_then(|page| page.objects.first()));
                best_informed(known).and_then(|best| pages.into_iter().nth(best).flatten())
            }
            Inspection::Status
            | Inspection::Cluster
            | Inspection::Probe { .. }
            | Inspection::DrainNode { .. }
            | Inspection::Shards
            | Inspection::ChangeShards { .. }
            | Inspection::ProbeProgress => pages.into_iter().flatten().next(),
        };
        self.watches.remove(&key);
        let (store, client, call) = key;
        self.store_event(store, Event::Inspected { client, call });
        A::inspected(self, store, client, call, answer.ok_or(Error::unavailable("the directory")));
    }
}
