//! Changes of the list of shards. The commits arrive even if the coordinating store crashes.

use std::time::Duration;

use hoplite_core::placement::{ShardChange, ShardList};
use hoplite_core::shard::{ListStep, Proposal, may_commit};

use super::network::LinkEnd;
use super::{Application, Cluster, StoreHost, shard_name};

impl<A: Application> Cluster<A> {
    pub(crate) fn listed_shards(&self) -> Vec<usize> {
        (0..self.shards.len()).filter(|shard| self.list.contains(&shard_name(*shard))).collect()
    }

    pub(crate) fn live_shards(&self) -> Vec<usize> {
        self.listed_shards().into_iter().filter(|shard| self.shards[*shard].is_alive).collect()
    }

    /// Returns `true` if the next change may begin: all shards live and know the list and the
    /// objects, and all stores use the list.
    pub(crate) fn is_list_settled(&self) -> bool {
        let now = self.now();
        self.listed_shards().into_iter().all(|shard| {
            let host = &self.shards[shard];
            let known = host.shard.known_shards(now);
            host.is_alive
                && known.list == self.list
                && known.outdated == 0
                && known.stores == self.stores.len()
                && !known.is_filling
        })
    }

    /// Adds a new shard to the list, by the steps of `store`.
    pub(crate) fn add_shard(&mut self, store: usize) {
        let shard = self.shards.len();
        self.add_shard_host();
        for host in &mut self.stores {
            host.sessions.push(None);
            host.attempts.push(Default::default());
        }
        if !self.change_list(store, &ShardChange::Add(shard_name(shard)), Some(shard)) {
            self.end_shard(shard);
        }
    }

    pub(crate) fn remove_shard(&mut self, store: usize, shard: usize) {
        self.change_list(store, &ShardChange::Remove(shard_name(shard)), None);
    }

    fn change_list(&mut self, store: usize, change: &ShardChange, joining: Option<usize>) -> bool {
        let old = self.listed_shards();
        let list = self.list.changed(change).expect("the simulation chooses valid changes");
        let proposal = Proposal { list: list.clone(), proposer: self.fresh_number() };
        let accepted = old
            .iter()
            .filter(|shard| self.list_step(store, **shard, ListStep::Propose(proposal.clone())))
            .count();
        let may_commit = may_commit(accepted, old.len(), false, Duration::ZERO);
        self.note(|_| format!("store {store}: {accepted} shards accept {change:?}"));
        if may_commit {
            self.list = list;
        }
        for shard in old.into_iter().chain(joining.filter(|_| may_commit)) {
            let (delay, proposal) = (self.latency() + self.latency(), proposal.clone());
            self.after(delay, move |cluster| {
                let step = if may_commit {
                    ListStep::Commit(proposal)
                } else {
                    ListStep::Withdraw(proposal)
                };
                cluster.list_step(store, shard, step);
            });
        }
        may_commit
    }

    fn list_step(&mut self, store: usize, shard: usize, step: ListStep) -> bool {
        if !self.is_linked(LinkEnd::Store(store), LinkEnd::Shard(shard)) {
            return false;
        }
        let outcome =
            self.shard_turn(shard, |shard, now, effects| shard.change_list(now, step, effects));
        matches!(outcome, Some(Ok(())))
    }

    pub(super) fn shards_changed(&mut self, store: usize, added: &[usize], left: &[usize]) {
        let host = &self.stores[store];
        let run = host.run;
        let left: Vec<usize> = left.iter().map(|index| host.shards[*index]).collect();
        for index in added {
            let name = self.stores[store].node.shards().name(*index).to_owned();
            let shard = (0..self.shards.len()).find(|shard| shard_name(*shard) == name);
            let shard = shard.expect("stores know only shards of the simulation");
            self.stores[store].shards.push(shard);
            let delay = self.start_time();
            self.after(delay, move |cluster| cluster.connect(store, run, shard));
        }
        for shard in left {
            self.leave_shard(store, shard);
        }
    }

    pub(crate) fn end_unused_shards(&mut self) {
        for shard in 0..self.shards.len() {
            let name = shard_name(shard);
            let uses =
                |host: &StoreHost| host.is_alive && host.node.shards().list().contains(&name);
            if !self.list.contains(&name) && !self.stores.iter().any(uses) {
                self.end_shard(shard);
            }
        }
    }

    /// Takes over the list that all stores use, and ends all other shards. If all that know a list
    /// crash, it may be lost.
    pub(crate) fn conclude_changes(&mut self) {
        let lists: Vec<ShardList> =
            self.stores.iter().map(|host| host.node.shards().list()).collect();
        assert!(lists.windows(2).all(|two| two[0] == two[1]), "stores use the lists {lists:?}");
        if let Some(list) = lists.into_iter().next() {
            self.list = list;
        }
        self.end_unused_shards();
    }

    fn end_shard(&mut self, shard: usize) {
        self.crash_shard(shard);
        self.shards[shard].has_ended = true;
    }

    pub(crate) fn initial_list(&self) -> ShardList {
        ShardList::new((0..self.config.shards).map(shard_name))
    }
}
