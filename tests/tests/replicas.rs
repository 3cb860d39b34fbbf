use std::collections::BTreeSet;
use std::process::Command;

use hoplite_client::{Dtype, Error, Metadata, PutOptions, ReduceOptions, Replicas};
use hoplite_core::Error as ObjectError;
use hoplite_core::shard::Retention;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, program, refusal, retry};
use hoplite_tests::contents::bytes;

fn wanting(wanted: u8, awaited: u8) -> PutOptions {
    let replicas = Replicas { wanted, awaited, quorum: false };
    PutOptions { metadata: Metadata { replicas, ..Metadata::default() }, ..PutOptions::default() }
}

fn keepers(cluster: &Cluster, node: usize, id: &str) -> BTreeSet<String> {
    let described = retry("describe", || cluster.client(node).describe(id));
    let pinned = described
        .locations
        .locations
        .into_iter()
        .filter(|copy| copy.retention == Retention::Pinned);
    pinned.map(|copy| copy.node.to_string()).collect()
}

#[test]
fn a_put_with_replicas_survives_the_death_of_its_store() {
    let mut cluster = Cluster::of(4);
    let sizes = [100, 20_000, 200_000, 8 << 20];
    let client = cluster.client(0);
    for (number, size) in sizes.into_iter().enumerate() {
        client.put_with(format!("x{number}"), &bytes(size as u64, size), wanting(2, 0)).unwrap();
    }
    cluster.kill_store(0);
    for (number, size) in sizes.into_iter().enumerate() {
        let id = format!("x{number}");
        let got = cluster.client(1).get(&id, TIME_LIMIT).unwrap();
        assert!(got[..] == bytes(size as u64, size)[..], "{id} has other bytes");
    }
    await_that("new copies in place of the lost ones", || {
        (0..sizes.len()).all(|number| keepers(&cluster, 1, &format!("x{number}")).len() == 2)
    });
    await_that("no shortage", || {
        cluster.client(1).status().unwrap().shards.iter().all(|shard| shard.under_replicated == 0)
    });
    let last = keepers(&cluster, 1, "x3").into_iter().next().unwrap();
    cluster.kill_store(last.strip_prefix("node-").unwrap().parse().unwrap());
    let node = (1..4).find(|node| cluster.stores[*node].is_some()).unwrap();
    assert!(cluster.client(node).get("x3", TIME_LIMIT).unwrap()[..] == bytes(8 << 20, 8 << 20)[..]);
}

#[test]
fn many_objects_have_replicas_and_the_same_put_may_be_repeated() {
    let arguments = ["--replicas", "2"].map(str::to_owned).to_vec();
    let mut cluster =
        Cluster::start(Plan { nodes: 3, store_arguments: arguments, ..Plan::default() });
    let client = cluster.client(0);
    let contents: Vec<_> = [100, 8192, 20_000].map(|size| bytes(size as u64, size)).into();
    for options in [wanting(3, 0), PutOptions::default()] {
        let ids: Vec<_> =
            (0..3).map(|n| format!("{}/{n}", options.metadata.replicas.wanted)).collect();
        for _ in 0..2 {
            let put = client.put_many(ids.iter().zip(&contents), options.clone()).unwrap();
            assert!(put.iter().all(Result::is_ok), "{put:?}");
        }
        let wanted = usize::from(options.metadata.replicas.wanted.max(2));
        assert!(ids.iter().all(|id| keepers(&cluster, 0, id).len() == wanted));
    }
    cluster.kill_store(0);
    let views = cluster.client(1).get_many(["3/0", "3/1", "0/2"], TIME_LIMIT).unwrap();
    assert!(
        views.into_iter().zip(&contents).all(|(view, contents)| view.unwrap()[..] == contents[..])
    );
}

#[test]
fn a_repeated_put_may_want_more_copies_but_not_more_than_there_are_nodes() {
    let cluster = Cluster::of(3);
    let client = cluster.client(0);
    let contents = bytes(1, 1 << 20);
    for (first, id) in ["from-1", "from-2"].into_iter().enumerate() {
        client.put_with(id, &contents, wanting(first as u8 + 1, 0)).unwrap();
        let error = refusal(client.put_with(id, &contents, wanting(4, 0)));
        assert_eq!(error, ObjectError::NotEnoughNodes { wanted: 4, present: 3 });
        assert!(client.status().unwrap().shards.iter().all(|shard| shard.under_replicated == 0));
        client.put_with(id, &contents, wanting(3, 0)).unwrap();
        assert_eq!(keepers(&cluster, 1, id).len(), 3);
    }
}

#[test]
fn the_target_of_a_reduce_has_replicas() {
    let mut cluster = Cluster::of(3);
    let metadata = Metadata { dtype: Dtype::U8, ..Metadata::default() };
    let options = PutOptions { metadata, ..PutOptions::default() };
    let sources = ["a", "b"];
    for (node, id) in sources.into_iter().enumerate() {
        cluster.client(node).put_with(id, &[node as u8 + 1; 1 << 20], options.clone()).unwrap();
    }
    let reduce = |target: &str, replicas| {
        let options = ReduceOptions { replicas, ..ReduceOptions::default() };
        cluster.client(0).reduce_with(target, sources, options)
    };
    reduce("two", 2).unwrap();
    assert_eq!(keepers(&cluster, 0, "two").len(), 2);
    reduce("one", 0).unwrap();
    assert_eq!(keepers(&cluster, 0, "one").len(), 1);
    assert_eq!(refusal(reduce("four", 4)), ObjectError::NotEnoughNodes { wanted: 4, present: 3 });
    assert!(matches!(refusal(reduce("many", 65)), ObjectError::LimitExceeded { maximum: 64, .. }));
    let mut command = Command::new(program("hoplite"));
    command
        .arg("--socket")
        .arg(cluster.socket(0))
        .args(["reduce", "three", "a", "b", "--replicas", "3"]);
    assert!(command.status().unwrap().success());
    assert_eq!(keepers(&cluster, 0, "three").len(), 3);
    cluster.kill_store(0);
    assert!(cluster.client(1).get("two", TIME_LIMIT).unwrap().iter().all(|byte| *byte == 3));
}

#[test]
fn a_put_that_wants_more_copies_than_there_are_nodes_fails_at_once() {
    let cluster = Cluster::of(2);
    for size in [10, 1 << 20] {
        let error = refusal(cluster.client(0).put_with("x", &bytes(1, size), wanting(3, 0)));
        assert_eq!(error, ObjectError::NotEnoughNodes { wanted: 3, present: 2 });
        assert!(!cluster.client(1).contains("x").unwrap(), "nothing is left of it");
        cluster.client(0).put_with("x", &bytes(1, size), wanting(2, 0)).unwrap();
        cluster.client(0).delete(["x"], TIME_LIMIT).unwrap();
    }
    let error = cluster.client(0).put_with("x", b"", wanting(65, 0)).unwrap_err();
    assert!(
        matches!(error, Error::Object(ObjectError::LimitExceeded { maximum: 64, .. })),
        "{error}"
    );
}

#[test]
fn a_store_without_space_is_skipped() {
    let memory_of = [(1, "1MiB".to_owned())].into();
    let cluster = Cluster::start(Plan { nodes: 3, memory_of, ..Plan::default() });
    for number in 0..4 {
        let id = format!("x{number}");
        cluster.client(0).put_with(&id, &bytes(1, 4 << 20), wanting(2, 0)).unwrap();
        assert_eq!(keepers(&cluster, 0, &id), ["node-0", "node-2"].map(str::to_owned).into());
    }
}

#[test]
fn a_store_has_a_default_number_of_copies_and_a_put_may_return_after_the_first() {
    let arguments = ["--replicas", "2"].map(str::to_owned);
    let cluster =
        Cluster::start(Plan { nodes: 3, store_arguments: arguments.to_vec(), ..Plan::default() });
    for (number, size) in [10, 20_000, 1 << 20].into_iter().enumerate() {
        let id = format!("x{number}");
        cluster.client(0).put(&id, &bytes(1, size)).unwrap();
        assert_eq!(keepers(&cluster, 0, &id).len(), 2, "{size} bytes");
    }
    cluster.client(0).put_with("first", &bytes(1, 1 << 20), wanting(3, 1)).unwrap();
    await_that("the other copies", || keepers(&cluster, 0, "first").len() == 3);
    cluster.client(0).put_with("one", &bytes(1, 1 << 20), wanting(1, 0)).unwrap();
    assert_eq!(keepers(&cluster, 0, "one").len(), 1);
}

#[test]
fn the_directory_may_die_while_copies_exist() {
    let mut cluster = Cluster::start(Plan { nodes: 3, shards: 2, ..Plan::default() });
    for number in 0..6 {
        let id = format!("x{number}");
        cluster.client(0).put_with(&id, &bytes(1, 100_000), wanting(2, 0)).unwrap();
    }
    cluster.kill_shard(0);
    cluster.kill_store(0);
    await_that("new copies", || {
        (0..6).all(|number| keepers(&cluster, 1, &format!("x{number}")).len() == 2)
    });
    for number in 0..6 {
        let got = cluster.client(1).get(format!("x{number}"), TIME_LIMIT).unwrap();
        assert!(got[..] == bytes(1, 100_000)[..]);
    }
}
