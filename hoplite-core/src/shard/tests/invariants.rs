use std::collections::{BTreeMap, BTreeSet};

use super::super::entry::{EntryState, Pin};
use super::super::nodes::{NodeIndex, OpenRequest, Presence};
use super::super::*;
use crate::plan::broadcast::pulls_from;
use crate::topology::place::EVERYWHERE;

pub(super) fn check(shard: &Shard, now: Time) {
    for id in shard.waiting.keys() {
        assert!(
            shard.next_answer(now, id).is_none(),
            "a query waits although the shard can answer it"
        );
    }
    entries(shard);
    requests(shard);
    shard.check_replicas();
    for node in shard.nodes.iter() {
        let index = shard.nodes.index(&node.info.node).unwrap();
        for id in &node.holdings {
            assert!(shard.entries[id].copies.get(index).is_some(), "a holding is a location");
        }
        for (grant, id) in &node.receiving {
            assert_eq!(shard.grants.get(grant), Some(id));
            let mut own = shard.entries[id].transfers.iter();
            assert!(own.any(|(receiver, slot, _)| (receiver, slot) == (index, *grant)));
        }
        if let Presence::Away { .. } = node.presence {
            assert!(
                node.requests.is_empty() && node.receiving.is_empty(),
                "nothing is open without a session"
            );
        }
        assert!(node.requests.len() <= shard.max_open_requests());
    }
    for (id, group) in shard.held_back.keys() {
        let waits = shard
            .waiting
            .get(id)
            .is_some_and(|queue| queue.keys().any(|(other, _)| other == group));
        assert!(waits, "a held group has no waiting query");
    }
    assert!(
        shard.to_serve.is_empty() && shard.to_notify.is_empty(),
        "work is left after the event"
    );
    assert_eq!(shard.tombstones.len(), shard.due.tombstones.len());
    assert!(shard.deletions.keys().all(|key| shard.tombstones.contains_key(key)));
    let is_pending =
        |id| shard.deletions.iter().any(|((other, _), d)| other == id && !d.pending.is_empty());
    assert!(
        shard.deletions.keys().all(|(id, _)| is_pending(id)),
        "a finished deletion is still open"
    );
}

fn entries(shard: &Shard) {
    let limits = &shard.config.limits;
    assert!(
        shard.entries.len() <= limits.max_objects
            && shard.tombstones.len() <= limits.max_objects.max(1)
    );
    let (mut inline_bytes, mut links, mut rootless, mut lost) = (0, 0, 0, 0);
    for (id, entry) in &shard.entries {
        assert!(
            !shard.tombstones.contains_key(&(id.clone(), entry.put)),
            "a deleted put came back"
        );
        inline_bytes += entry.inline().map_or(0, |bytes| u64::try_from(bytes.len()).unwrap());
        links += entry.transfers.len();
        let slots = slots_taken(shard, entry);
        let mut nodes = BTreeSet::new();
        for location in entry.copies.iter() {
            assert!(nodes.insert(location.node), "one location per node");
            let record = shard.nodes.get(location.node).expect("a location is at a node");
            assert!(record.holdings.contains(id));
            let taken = slots.get(&location.node).copied().unwrap_or(0);
            assert_eq!(u32::from(location.free_slots) + taken, limits.slots_per_location);
            assert_eq!(location.is_disconnected, !record.is_connected());
            assert_eq!(location.path, record.place.path);
            assert!(location.pulling_from.is_none() || location.state == LocationState::Partial);
        }
        match entry.state() {
            EntryState::Live => assert!(entry.has_root()),
            EntryState::Rootless { .. } => {
                assert!(!entry.has_root());
                rootless += 1;
            }
            EntryState::Lost { .. } => {
                assert!(!entry.has_root() && !entry.has_followers());
                lost += 1;
            }
        }
        let complete =
            entry.copies.iter().filter(|location| location.state == LocationState::Complete);
        let mut usable = complete.filter(|location| shard.nodes.is_connected(location.node));
        // A node that came back publishes again before it is promoted.
        let fresh = usable.any(|location| {
            shard
                .nodes
                .get(location.node)
                .is_some_and(|node| node.session_number == location.session)
        });
        assert!(
            entry.pin() == Pin::Held || !fresh,
            "a complete copy is pinned when the pinned one is lost"
        );
        assert!(entry.pin() == Pin::Held || !entry.copies.is_pinned());
    }
    for id in shard.orphans.ids() {
        let entry = &shard.entries[id];
        assert!(entry.is_inline() && entry.pin() == Pin::Missing, "a store keeps an orphan");
    }
    assert_eq!(inline_bytes, shard.inline_bytes);
    assert_eq!(links, shard.grants.len());
    assert_eq!((rootless, lost), (shard.due.rootless.len(), shard.due.markers.len()));
}

fn slots_taken(shard: &Shard, entry: &Entry) -> BTreeMap<NodeIndex, u32> {
    let mut slots: BTreeMap<NodeIndex, u32> = BTreeMap::new();
    let slow: Vec<_> =
        entry.transfers.slow().map(|(receiver, grant, _)| (receiver, grant)).collect();
    let is_slow = entry.transfers.iter().filter(|(.., link)| link.is_slow);
    assert_eq!(slow, is_slow.map(|(receiver, grant, _)| (receiver, grant)).collect::<Vec<_>>());
    for (receiver, grant, link) in entry.transfers.iter() {
        *slots.entry(link.sender).or_default() += 1;
        assert_ne!(link.sender, receiver, "a node pulls from itself");
        assert!(shard.grants.contains_key(&grant));
        assert!(shard.nodes.is_connected(receiver));
        if let Some(copy) = entry.copies.get(link.sender) {
            let is_slow = shard.is_slow(entry, copy, receiver);
            assert_eq!(link.is_slow, is_slow, "a transfer does not reflect its slow link");
        }
        let is_cycle = pulls_from(link.sender, receiver, |node| entry.transfers.senders_of(node));
        assert!(!is_cycle, "grants form no cycle");
    }
    for (sender, taken) in &slots {
        assert_eq!(entry.transfers.served_by(*sender), *taken);
        assert!(
            *taken <= shard.config.limits.slots_per_location,
            "no copy serves more than its slots"
        );
    }
    for (receiver, grant, link) in entry.transfers.iter() {
        for group in &link.leaves {
            let mut leaving = entry.transfers.leaving(*group);
            assert!(leaving.any(|(other, slot, _)| (other, slot) == (receiver, grant)));
        }
    }
    slots
}

fn requests(shard: &Shard) {
    let (mut queries, mut subscriptions, mut held, mut patient) = (0, 0, 0, 0);
    for record in shard.nodes.iter() {
        let node = shard.nodes.index(&record.info.node).unwrap();
        for (request, open) in &record.requests {
            match open {
                OpenRequest::Query(query) => {
                    queries += 1;
                    assert_eq!(
                        shard.waiting[&query.id].get(&(query.group, query.arrival)),
                        Some(&(node, *request))
                    );
                    let entry = shard.entries.get(&query.id);
                    let has_begun = entry.is_some_and(|entry| {
                        entry.copies.get(node).is_some() || shard.serves(entry, node)
                    });
                    assert!(
                        query.group == EVERYWHERE || !has_begun,
                        "a receiver that serves others waits in its group"
                    );
                    assert!(
                        entry.is_none_or(|entry| !entry.is_lost() && !entry.is_inline()),
                        "a query waits for an object that is lost or inline"
                    );
                }
                OpenRequest::Subscription(id, _) => {
                    subscriptions += 1;
                    assert!(shard.subscribers[id].contains(&(node, *request)));
                }
                OpenRequest::Delete(id, put) => {
                    assert!(
                        shard.deletions[&(id.clone(), *put)]
                            .requesters
                            .contains_key(&(node, *request))
                    );
                }
                OpenRequest::HeldDelete(id) => {
                    held += 1;
                    assert!(shard.held_deletes[id].contains_key(&(node, *request)));
                    assert!(!shard.entries.contains_key(id), "a delete of a known id is held");
                }
                OpenRequest::AwaitingDelete(id) => {
                    patient += 1;
                    assert!(shard.absent.is_awaited_by(id, &(node, *request)));
                }
            }
        }
    }
    shard.absent.check(patient);
    assert_eq!(held, shard.held_deletes.values().map(BTreeMap::len).sum::<usize>());
    assert_eq!(queries, shard.due.queries.len());
    assert_eq!(queries, shard.waiting.values().map(|queue| queue.len()).sum::<usize>());
    assert_eq!(subscriptions, shard.subscriptions);
    assert_eq!(
        subscriptions,
        shard.subscribers.values().map(|subscribers| subscribers.len()).sum::<usize>()
    );
    assert!(shard.due.wait_limits.len() <= queries);
}
