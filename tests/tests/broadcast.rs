use hoplite_client::PutOptions;
use hoplite_proto::v1::StatusRequest;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, directory, retry};
use hoplite_tests::contents::bytes;

#[test]
fn an_object_moves_from_node_to_node() {
    let cluster = Cluster::of(2);
    for length in [0, 1, 4095, 4096, 4097, 65_535, 65_536, 5 << 20] {
        let id = format!("object-{length}");
        let expected = bytes(7, length);
        cluster.client(0).put(id.as_str(), &expected).unwrap();
        let view = cluster.client(1).get(id.as_str(), TIME_LIMIT).unwrap();
        assert!(view[..] == expected[..], "{length} bytes arrive as they were put");
    }
}

#[test]
fn a_get_costs_the_directory_five_messages() {
    const GETS: u64 = 20;
    await_that("a measurement without a lost session", || {
        let cluster = Cluster::start(Plan { nodes: 2, shards: 3, ..Plan::default() });
        let is_lost = || {
            let has_lost = |log: &str| {
                log.contains("lost the directory shard") || log.contains("shard ended the session")
            };
            cluster.stores.iter().flatten().any(|store| has_lost(&store.log()))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let addresses: Vec<String> = cluster
            .client(0)
            .status()
            .unwrap()
            .shards
            .into_iter()
            .map(|shard| shard.address)
            .collect();
        let messages = || -> u64 {
            let of_shard = |address: &String| {
                runtime.block_on(async {
                    let mut client = directory(address);
                    let status =
                        client.status(StatusRequest::default()).await.unwrap().into_inner();
                    status.received_messages + status.sent_messages
                })
            };
            addresses.iter().map(of_shard).sum()
        };
        for number in 0..GETS {
            cluster.client(0).put(format!("object-{number}"), &bytes(number, 200_000)).unwrap();
        }
        await_that("all verdicts", || messages() == 8 * GETS || is_lost());
        for number in 0..GETS {
            let view = cluster.client(1).get(format!("object-{number}"), TIME_LIMIT).unwrap();
            assert!(view[..] == bytes(number, 200_000)[..]);
        }
        await_that("five messages for each get", || messages() == (8 + 5) * GETS || is_lost());
        !is_lost()
    });
}

#[test]
fn receivers_that_come_together_relay() {
    let nodes = 6;
    let cluster = Cluster::start(Plan { nodes, ..Plan::default() });
    let expected = bytes(8, 8 << 20);
    std::thread::scope(|scope| {
        let receivers: Vec<_> = (1..nodes)
            .map(|node| {
                let client = cluster.client(node);
                scope.spawn(move || client.get("weights", TIME_LIMIT).map(|view| view.to_vec()))
            })
            .collect();
        let client = cluster.client(0);
        await_that("all of them", || {
            client.status().unwrap().shards[0].waiting_queries == nodes as u64 - 1
        });
        client.put("weights", &expected).unwrap();
        for receiver in receivers {
            assert!(receiver.join().unwrap().unwrap() == expected);
        }
    });
    let sent = |node: usize| cluster.client(node).status().unwrap().sent_bytes;
    await_that("each receiver to have pulled the object, once", || {
        (0..nodes).map(sent).sum::<u64>() == 5 * (8 << 20)
    });
    // Copies serve one receiver at a time, and all come early: nearly a chain.
    assert!(sent(0) <= 2 * (8 << 20), "the origin sent {} bytes", sent(0));
}

#[test]
fn receivers_that_come_late_are_served_by_earlier_ones() {
    let nodes = 5;
    let cluster = Cluster::start(Plan { nodes, ..Plan::default() });
    let size = 4 << 20;
    let expected = bytes(9, size);
    let mut writer =
        cluster.client(0).create("weights", size as u64, PutOptions::default()).unwrap();
    writer.write(&expected[..size / 2]).unwrap();
    std::thread::scope(|scope| {
        let mut receivers = Vec::new();
        for node in 1..nodes {
            let client = cluster.client(node);
            receivers.push(scope.spawn(move || client.get_vec("weights", TIME_LIMIT)));
            let client = cluster.client(node);
            await_that("half of it", || client.status().unwrap().received_bytes >= size as u64 / 2);
        }
        let senders = cluster.senders(0, "weights");
        assert_eq!(senders, (1..nodes).map(|node| (node, node - 1)).collect(), "a chain");
        writer.write(&expected[size / 2..]).unwrap();
        writer.seal().unwrap();
        for receiver in receivers {
            assert!(receiver.join().unwrap().unwrap() == expected);
        }
    });
    for node in 0..nodes {
        let client = cluster.client(node);
        let expected = if node + 1 < nodes { size as u64 } else { 0 };
        await_that("each node to serve one receiver, the last one nobody", || {
            client.status().unwrap().sent_bytes == expected
        });
    }
    let description = retry("describe", || cluster.client(0).describe("weights"));
    assert_eq!(description.grants.len(), nodes - 1);
    for (grant, receiver) in description.grants.iter().zip(1..) {
        assert_eq!(grant.receiver, format!("node-{receiver}"));
        assert_eq!(grant.sender, format!("node-{}", receiver - 1));
        assert!(!grant.reason.is_empty(), "the directory says why");
    }
}

#[test]
fn many_objects_cross_in_all_directions_at_once() {
    let nodes = 4;
    let cluster = Cluster::start(Plan { nodes, ..Plan::default() });
    let contents =
        |node: usize, number: usize| bytes((node * 100 + number) as u64, 1 + number * 40_001);
    std::thread::scope(|scope| {
        for node in 0..nodes {
            let client = cluster.client(node);
            scope.spawn(move || {
                for number in 0..8 {
                    client.put(format!("{node}/{number}"), &contents(node, number)).unwrap();
                }
            });
            for reader in 0..nodes {
                let client = cluster.client(reader);
                scope.spawn(move || {
                    for number in 0..8 {
                        let view = client.get(format!("{node}/{number}"), TIME_LIMIT).unwrap();
                        assert!(
                            view[..] == contents(node, number)[..],
                            "object {node}/{number} on node {reader}"
                        );
                    }
                });
            }
        }
    });
}

#[test]
fn readers_run_ahead_of_the_writer_on_every_node() {
    let nodes = 3;
    let cluster = Cluster::start(Plan { nodes, ..Plan::default() });
    let size = 1 << 20;
    let expected = bytes(10, size);
    let mut writer =
        cluster.client(0).create("stream", size as u64, PutOptions::default()).unwrap();
    let mut readers: Vec<_> = (0..nodes)
        .map(|node| cluster.client(node).get_reader("stream", TIME_LIMIT).unwrap())
        .collect();
    let mut piece = vec![0; size];
    for start in (0..size).step_by(size / 4) {
        writer.write(&expected[start..start + size / 4]).unwrap();
        for reader in &mut readers {
            let end = (start + size / 4).min(size - 4096);
            while usize::try_from(reader.position_bytes()).unwrap() < end {
                let from = usize::try_from(reader.position_bytes()).unwrap();
                let length = reader.read(&mut piece, TIME_LIMIT).unwrap();
                assert!(piece[..length] == expected[from..from + length]);
            }
        }
    }
    writer.seal().unwrap();
    for reader in &mut readers {
        assert_eq!(reader.read(&mut piece, TIME_LIMIT).unwrap(), 4096);
        assert!(piece[..4096] == expected[size - 4096..]);
        assert_eq!(reader.read(&mut piece, TIME_LIMIT).unwrap(), 0);
    }
}
