#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::scope;
use std::time::Duration;

use hoplite_client::blocking::Client;
use hoplite_client::{Error, PutOptions, Result};
use hoplite_core::Error as ObjectError;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, refusal, retry};
use hoplite_tests::contents::{bytes, seed};
use hoplite_tests::links::Links;

const FAILING_TIMEOUT: Duration = Duration::from_secs(2);
const SIZES: [usize; 5] = [0, 1, 1000, 70_001, 300_001];

fn cluster(nodes: usize) -> Cluster {
    let store_arguments = vec!["--no-prefault".to_owned()];
    Cluster::start(Plan { nodes, memory: "24MiB".to_owned(), store_arguments, ..Plan::default() })
}

fn shuffled(seed: u64, participants: usize) -> Vec<usize> {
    let keys = bytes(seed, participants);
    let mut ranks: Vec<usize> = (0..participants).collect();
    ranks.sort_by_key(|rank| keys[*rank]);
    ranks
}

fn part(from: usize, to: usize, size: Option<usize>) -> Vec<u8> {
    bytes((100 * from + to) as u64, size.unwrap_or(SIZES[(from + 2 * to) % SIZES.len()]))
}

fn parts(from: usize, participants: usize, size: Option<usize>) -> Vec<Vec<u8>> {
    (0..participants).map(|to| part(from, to, size)).collect()
}

fn within(timeout: Duration) -> PutOptions {
    PutOptions { timeout, ..PutOptions::default() }
}

fn exchange(
    client: &Client,
    (participants, size): (usize, Option<usize>),
    rank: usize,
    timeout: Duration,
) -> Result<Vec<Vec<u8>>> {
    let parts = parts(rank, participants, size);
    if rank.is_multiple_of(2) {
        let views = client.all_to_all("m", &parts, rank, within(timeout))?;
        return Ok(views.iter().map(|view| view.to_vec()).collect());
    }
    let mut out = vec![0; participants * size.unwrap_or(*SIZES.iter().max().unwrap())];
    let lengths = client.all_to_all_into("m", &parts, rank, &mut out, within(timeout))?;
    let mut rest = &out[..];
    Ok(lengths.into_iter().map(|length| rest.split_off(..length).unwrap().to_vec()).collect())
}

fn assert_exchanged(
    rank: usize,
    (participants, size): (usize, Option<usize>),
    given: Result<Vec<Vec<u8>>>,
) {
    let given = given.unwrap();
    assert_eq!(given.len(), participants);
    for (from, given) in given.iter().enumerate() {
        assert!(*given == part(from, rank, size), "from {from} to {rank} of {participants}");
    }
}

fn ids(cluster: &Cluster) -> Vec<String> {
    let page = retry("list", || cluster.client(0).list("", "", 1000));
    page.objects.iter().map(|object| object.id.to_string()).collect()
}

fn plan(cluster: &Cluster, node: usize) -> String {
    retry("describe", || cluster.client(node).describe("m")).reduce.expect("it remembers").plan
}

fn await_given_up(cluster: &Cluster) {
    await_that("the coordinator gives up", || plan(cluster, 0).starts_with("general path: member"));
}

fn missing<T>(result: Result<T>) -> Vec<usize> {
    match result.err().expect("it must fail") {
        Error::RanksMissing { ranks, .. } => ranks,
        other => panic!("another error: {other}"),
    }
}

fn assert_nothing_left(cluster: &mut Cluster) {
    assert_eq!(ids(cluster), <[&str; 0]>::default());
    for node in 0..cluster.stores.len() {
        cluster.await_empty(node);
    }
    cluster.assert_serves();
}

#[test]
fn each_participant_gets_its_parts_from_all() {
    let seed = seed();
    let nodes = 8;
    let mut cluster = cluster(nodes);
    for participants in [1, 2, 5, 8, 10] {
        for size in [None, Some(1), Some(1001), Some(70_001)] {
            let what = (participants, size);
            scope(|scope| {
                let calls: Vec<_> = shuffled(seed ^ participants as u64, participants)
                    .into_iter()
                    .map(|rank| {
                        let client = cluster.client(rank % nodes);
                        (rank, scope.spawn(move || exchange(&client, what, rank, TIME_LIMIT)))
                    })
                    .collect();
                for (rank, call) in calls {
                    assert_exchanged(rank, what, call.join().unwrap());
                }
            });
            assert_eq!(ids(&cluster), <[&str; 0]>::default(), "after {what:?}");
            if participants > 1 {
                let plan = plan(&cluster, 0);
                let pairs = format!("pairs of {}, estimated", participants.min(nodes));
                let expected = if size.is_some() {
                    &pairs
                } else {
                    "general path: the parts of a participant"
                };
                assert!(plan.starts_with(expected), "{plan}");
            }
        }
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn nodes_with_different_numbers_of_ranks_exchange_together() {
    let mut cluster = cluster(2);
    let what = (4, Some(10_240));
    scope(|scope| {
        let calls = [0, 1, 2, 3].map(|rank| {
            let client = cluster.client(rank.min(1));
            scope.spawn(move || exchange(&client, what, rank, TIME_LIMIT))
        });
        for (rank, call) in calls.into_iter().enumerate() {
            assert_exchanged(rank, what, call.join().unwrap());
        }
    });
    let plan = plan(&cluster, 0);
    assert!(plan.starts_with("pairs of 2, estimated"), "{plan}");
    for store in &cluster.stores {
        let log = store.as_ref().unwrap().log();
        assert!(!log.contains("closed a connection"), "{log}");
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn all_ranks_of_one_node_exchange_there() {
    let mut cluster = cluster(1);
    let what = (4, Some(50_000));
    scope(|scope| {
        let calls = [0, 1, 2, 3].map(|rank| {
            let client = cluster.client(0);
            scope.spawn(move || exchange(&client, what, rank, TIME_LIMIT))
        });
        for (rank, call) in calls.into_iter().enumerate() {
            assert_exchanged(rank, what, call.join().unwrap());
        }
    });
    assert!(plan(&cluster, 0).starts_with("pairs of 1"));
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_late_rank_is_waited_for() {
    for size in [None, Some(70_001)] {
        let (mut cluster, what) = (cluster(3), (3, size));
        scope(|scope| {
            let call = |rank: usize| {
                let client = cluster.client(rank);
                scope.spawn(move || exchange(&client, what, rank, TIME_LIMIT))
            };
            let early = [call(0), call(1)];
            await_that("what the others have for the late one", || {
                let expected: &[&str] =
                    if size.is_some() { &["m/0", "m/1"] } else { &["m/0/2", "m/1/2"] };
                ids(&cluster).iter().filter(|id| *id != "m").eq(expected)
            });
            assert!(early.iter().all(|call| !call.is_finished()));
            assert_exchanged(2, what, call(2).join().unwrap());
            for (rank, call) in early.into_iter().enumerate() {
                assert_exchanged(rank, what, call.join().unwrap());
            }
        });
        assert_nothing_left(&mut cluster);
    }
}

#[test]
fn parts_of_another_size_fail_all_participants() {
    let mut cluster = cluster(3);
    let sizes = [Some(1000), None, Some(2000)];
    scope(|scope| {
        let calls = [0, 1, 2].map(|rank| {
            let client = cluster.client(rank);
            scope.spawn(move || exchange(&client, (3, sizes[rank]), rank, TIME_LIMIT))
        });
        for (rank, call) in calls.into_iter().enumerate() {
            for (from, given) in call.join().unwrap().unwrap().into_iter().enumerate() {
                assert!(given == part(from, rank, sizes[from]), "from {from} to {rank}");
            }
        }
    });
    assert!(plan(&cluster, 0).starts_with("general path: "));
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_rank_that_never_comes_to_an_exchange_is_named() {
    let mut cluster = cluster(3);
    scope(|scope| {
        let call = |rank: usize| {
            let client = cluster.client(rank);
            scope.spawn(move || exchange(&client, (3, Some(1000)), rank, FAILING_TIMEOUT))
        };
        for (rank, call) in [call(0), call(1)].into_iter().enumerate() {
            let missing = missing(call.join().unwrap());
            assert!(
                missing == [2] || missing.ends_with(&[2]) && missing[0] == 1 - rank,
                "{missing:?}"
            );
        }
    });
    assert_eq!(ids(&cluster), ["m/0", "m/1"]);
    let client = cluster.client(0);
    let error = refusal(client.all_to_all("m", &[b"a", b"b", b"c"], 0, within(TIME_LIMIT)));
    assert!(
        matches!(&error, ObjectError::AlreadyExists { id } if id.as_bytes() == b"m/0"),
        "{error}"
    );
    assert_eq!(client.delete(["m/0", "m/1"], TIME_LIMIT).unwrap(), 2);
    assert_nothing_left(&mut cluster);
}

#[test]
fn no_participant_passes_a_barrier_before_all_have_called() {
    let seed = seed();
    let nodes = 8;
    let mut cluster = cluster(nodes);
    for participants in [1, 2, 5, 8, 10] {
        let name = format!("b-{participants}");
        let mut order = shuffled(seed ^ participants as u64, participants);
        let last = order.pop().unwrap();
        let called = AtomicUsize::new(0);
        scope(|scope| {
            let call = |rank: usize| {
                let (client, name, called) = (cluster.client(rank % nodes), &name, &called);
                scope.spawn(move || {
                    called.fetch_add(1, Ordering::SeqCst);
                    client.barrier(name, participants, rank, TIME_LIMIT).unwrap();
                    assert_eq!(called.load(Ordering::SeqCst), participants);
                })
            };
            let early: Vec<_> = order.iter().map(|rank| call(*rank)).collect();
            let all_but_one = |id: &String| id.starts_with(&format!("{name}/"));
            await_that("all but one", || {
                ids(&cluster).iter().filter(|id| all_but_one(id)).count() == participants - 1
            });
            assert!(early.iter().all(|call| !call.is_finished()));
            for call in early.into_iter().chain([call(last)]) {
                call.join().unwrap();
            }
        });
        assert_eq!(ids(&cluster), [&*name], "the objects of the ranks are gone");
        assert_eq!(cluster.client(0).delete([&name], TIME_LIMIT).unwrap(), 1);
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn ranks_that_never_come_to_a_barrier_are_named() {
    let mut cluster = cluster(2);
    let meet = |ranks: &[usize], timeout: Duration| {
        scope(|scope| {
            let call = |rank: &usize| {
                let (client, rank) = (cluster.client(*rank % 2), *rank);
                scope.spawn(move || client.barrier("b", 4, rank, timeout))
            };
            let calls: Vec<_> = ranks.iter().map(call).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
        })
    };
    for (rank, expected) in [(3, vec![0, 1, 2]), (1, vec![0, 2]), (0, vec![2])] {
        let met = meet(&[rank], FAILING_TIMEOUT / 4);
        assert_eq!(met.into_iter().map(missing).collect::<Vec<_>>(), [expected]);
    }
    let met = meet(&[0, 1], FAILING_TIMEOUT / 2);
    assert_eq!(met.into_iter().map(missing).collect::<Vec<_>>(), [[2], [2]]);
    let is_used = |error: &ObjectError| matches!(error, ObjectError::AlreadyExists { id } if id.as_bytes() == b"b");
    for (rank, met) in meet(&[0, 1, 2, 3], TIME_LIMIT).into_iter().enumerate() {
        let is_over = matches!(&met, Err(Error::Object(error)) if is_used(error));
        assert!(met.is_ok() || is_over && [1, 3].contains(&rank), "{rank}: {met:?}");
    }
    for error in meet(&[0, 1, 2, 3], TIME_LIMIT).into_iter().map(refusal) {
        assert!(is_used(&error), "{error}");
    }
    assert_eq!(ids(&cluster), ["b"]);
    cluster.client(1).delete(["b"], TIME_LIMIT).unwrap();
    meet(&[0, 1, 2, 3], TIME_LIMIT).into_iter().for_each(Result::unwrap);
    cluster.client(1).delete(["b"], TIME_LIMIT).unwrap();
    assert_nothing_left(&mut cluster);
}

const SENDER: usize = 1;
const RECEIVER: usize = 2;
const LARGE: usize = 700_001;
const HALF: u64 = 350_000;

fn linked() -> (Cluster, Links) {
    let links = Links::new(3);
    let store_arguments = vec!["--no-prefault".to_owned()];
    let shard_arguments = vec!["--node-grace=300ms".to_owned()];
    let (memory, advertised) = ("24MiB".to_owned(), links.addresses());
    let plan =
        Plan { nodes: 3, memory, store_arguments, shard_arguments, advertised, ..Plan::default() };
    let cluster = Cluster::start(plan);
    links.attach(&cluster);
    (cluster, links)
}

fn disturbed(
    cluster: &mut Cluster,
    links: &Links,
    timeout: Duration,
    disturb: impl FnOnce(&mut Cluster),
) -> Vec<Result<Vec<Vec<u8>>>> {
    links.mark();
    links.hold(SENDER, RECEIVER, HALF);
    scope(|scope| {
        let calls = [0, 1, 2].map(|rank| {
            let client = cluster.client(rank);
            scope.spawn(move || exchange(&client, (3, Some(LARGE)), rank, timeout))
        });
        links.await_held(SENDER, RECEIVER);
        assert!(calls.iter().all(|call| !call.is_finished()), "nobody goes on before all can");
        disturb(cluster);
        links.open();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    })
}

#[test]
fn an_exchange_survives_links_that_break_or_are_silent() {
    let (mut cluster, links) = linked();
    for (between, is_silent) in
        [((SENDER, RECEIVER), false), ((0, RECEIVER), false), ((SENDER, RECEIVER), true)]
    {
        let results = disturbed(&mut cluster, &links, TIME_LIMIT, |cluster| {
            if is_silent {
                links.silence(between.0, between.1);
                await_given_up(cluster);
            } else {
                links.reset(between.0, between.1);
            }
        });
        for (rank, given) in results.into_iter().enumerate() {
            assert_exchanged(rank, (3, Some(LARGE)), given);
        }
        assert_eq!(ids(&cluster), <[&str; 0]>::default());
        let plan = plan(&cluster, 0);
        // Broken streams resume. A lost or silent member leads to one reduce, the general path.
        let goes_on = (between, is_silent) == ((SENDER, RECEIVER), false);
        assert!(
            plan.starts_with(if goes_on { "pairs of 3" } else { "general path: member" }),
            "{plan}"
        );
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_store_that_dies_in_an_exchange_fails_it_at_the_others() {
    for killed in [0, SENDER] {
        let (mut cluster, links) = linked();
        let timeout = FAILING_TIMEOUT * 3;
        let results = disturbed(&mut cluster, &links, timeout, |cluster| {
            cluster.kill_store(killed);
            if killed == SENDER {
                await_given_up(cluster);
            }
        });
        for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != killed) {
            let error = result.err().unwrap_or_else(|| panic!("{rank} has parts of {killed}"));
            let is_named =
                matches!(&error, Error::RanksMissing { ranks, .. } if *ranks == [killed]);
            assert!(is_named, "{rank} without {killed}: {error}");
        }
        let client = cluster.client(RECEIVER);
        let page = retry("list", || client.list("", "", 1000));
        client.delete(page.objects.iter().map(|object| &object.id), TIME_LIMIT).unwrap();
        cluster.restart_store(killed);
        links.attach(&cluster);
        assert_nothing_left(&mut cluster);
    }
}
