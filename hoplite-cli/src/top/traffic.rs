use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use hoplite_client::{Location, ObjectId};
use hoplite_proto::v1::LoadReport;
use hoplite_proto::v1::load_report::{Link, Reduce, Transfer};
use hoplite_proto::v1::status_reply::Node;

use super::cluster::Snapshot;

const MAX_ROWS: usize = 1000;

pub(super) fn transfers<'a>(snapshot: &'a Snapshot, prefix: &str) -> Vec<(&'a Node, &'a Transfer)> {
    let mut all = told(snapshot, |load| &load.transfers);
    all.retain(|(_, transfer)| transfer.id.starts_with(prefix.as_bytes()));
    all.sort_by_key(|(_, transfer)| Reverse(transfer.rate));
    all.truncate(MAX_ROWS);
    all
}

pub(super) fn reduces<'a>(snapshot: &'a Snapshot, prefix: &str) -> Vec<(&'a Node, &'a Reduce)> {
    let mut all = told(snapshot, |load| &load.reduces);
    all.retain(|(_, reduce)| reduce.target.starts_with(prefix.as_bytes()));
    all.sort_by_key(|(_, reduce)| Reverse(reduce.elapsed_ms));
    all.truncate(MAX_ROWS);
    all
}

/// Returns the links that begin or end at nodes whose names begin with `prefix`: slow ones first,
/// then by ascending bandwidth.
pub(super) fn links<'a>(snapshot: &'a Snapshot, prefix: &str) -> Vec<(&'a Node, &'a Link)> {
    let mut all = told(snapshot, |load| &load.links);
    all.retain(|(node, link)| node.node.starts_with(prefix) || link.peer.starts_with(prefix));
    all.sort_by_key(|(_, link)| (!link.is_slow, link.bytes_per_second));
    all.truncate(MAX_ROWS);
    all
}

fn told<'a, T>(
    snapshot: &'a Snapshot,
    what: impl Fn(&'a LoadReport) -> &'a Vec<T>,
) -> Vec<(&'a Node, &'a T)> {
    let nodes = snapshot.directory.iter().flat_map(|reply| &reply.nodes);
    let loads = nodes.filter_map(|node| Some((node, node.load.as_ref()?)));
    loads.flat_map(|(node, load)| what(load).iter().map(move |one| (node, one))).collect()
}

pub(super) fn id(bytes: &[u8]) -> Option<ObjectId> {
    ObjectId::new(bytes).ok()
}

/// Sorts copies so that each copy follows its sender. Adds each copy's depth in the tree.
pub(super) fn tree(copies: &[Location]) -> Vec<(usize, &Location)> {
    let names: BTreeSet<_> = copies.iter().map(|copy| &copy.node).collect();
    let mut receivers: BTreeMap<_, Vec<&Location>> = BTreeMap::new();
    let mut open: Vec<(usize, &Location)> = Vec::new();
    for copy in copies.iter().rev() {
        match copy.pulling_from.as_ref().filter(|sender| names.contains(sender)) {
            Some(sender) => receivers.entry(sender).or_default().push(copy),
            None => open.push((0, copy)),
        }
    }
    let mut shown = Vec::new();
    while let Some((depth, copy)) = open.pop() {
        shown.push((depth, copy));
        let next = receivers.remove(&copy.node).unwrap_or_default();
        open.extend(next.into_iter().map(|receiver| (depth + 1, receiver)));
    }
    // Shards can disagree for a moment. Copies in a cycle have no root.
    shown.extend(receivers.into_values().flatten().map(|copy| (0, copy)));
    shown
}

#[cfg(test)]
mod tests {
    use hoplite_client::{LocationState, NodeId, Retention};
    use hoplite_core::topology::place::EVERYWHERE;

    use super::*;

    fn copy(node: &str, from: Option<&str>) -> Location {
        let name = |name: &str| NodeId::new(name).unwrap();
        Location {
            node: name(node),
            data_address: "127.0.0.1:1".parse().unwrap(),
            state: LocationState::Partial,
            retention: Retention::Evictable,
            pulling_from: from.map(name),
            path: EVERYWHERE,
            slow_peers: Vec::new(),
        }
    }

    #[test]
    fn each_copy_is_behind_the_one_that_it_is_pulled_from() {
        let copies = [
            copy("a", None),
            copy("b", Some("a")),
            copy("c", Some("b")),
            copy("d", Some("a")),
            copy("e", Some("gone")),
            copy("x", Some("y")),
            copy("y", Some("x")),
        ];
        let shown: Vec<_> =
            tree(&copies).into_iter().map(|(depth, copy)| (depth, copy.node.to_string())).collect();
        let shown: Vec<_> = shown.iter().map(|(depth, node)| (*depth, node.as_str())).collect();
        assert_eq!(shown, [(0, "a"), (1, "b"), (2, "c"), (1, "d"), (0, "e"), (0, "y"), (0, "x")]);
    }
}
