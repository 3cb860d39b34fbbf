use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use hoplite_core::node::{self, Request as NodeRequest};
use hoplite_core::{Error as ObjectError, Operation};
use hoplite_proto::local::{Request, Response};

use super::{FakeStore, LONG, connect, pattern};
use crate::{
    AllreduceOptions, ByteRange, Client, Dtype, Error, Loss, Metadata, ObjectId, PutOptions,
    ReduceOp, ReduceOptions, ReduceOrder, Result, blocking,
};

fn id(text: &str) -> ObjectId {
    ObjectId::new(text).unwrap()
}

fn i32s() -> PutOptions {
    let metadata = Metadata { dtype: Dtype::I32, ..Metadata::default() };
    PutOptions { metadata, ..PutOptions::default() }
}

fn array(length_bytes: usize, seed: u8) -> Vec<u8> {
    pattern(length_bytes, seed)
}

fn sum<'a>(arrays: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let elements = |array: &Vec<u8>| -> Vec<i32> {
        array.chunks(4).map(|element| i32::from_le_bytes(element.try_into().unwrap())).collect()
    };
    let add = |sum: Vec<i32>, array: Vec<i32>| {
        sum.iter().zip(array).map(|(a, b)| a.wrapping_add(b)).collect()
    };
    let sum = arrays.into_iter().map(elements).reduce(add).unwrap();
    sum.into_iter().flat_map(i32::to_le_bytes).collect()
}

fn is_reduce(request: &Request) -> bool {
    matches!(request, Request::Node(NodeRequest::Reduce(_) | NodeRequest::Collective(..)))
}

fn is_join(request: &Request) -> bool {
    matches!(request, Request::Node(NodeRequest::Join { .. }))
}

fn is_get(request: &Request) -> bool {
    matches!(request, Request::Node(NodeRequest::Get { .. }))
}

fn is_follow(request: &Request) -> bool {
    matches!(request, Request::Node(hoplite_core::node::Request::Follow { .. }))
}

fn reduces(store: &FakeStore) -> Vec<node::Reduce> {
    let of_reduce = |request: &Request| match request {
        Request::Node(NodeRequest::Reduce(reduce) | NodeRequest::Collective(_, reduce)) => {
            Some(reduce.clone())
        }
        _ => None,
    };
    store.state().requests.iter().filter_map(of_reduce).collect()
}

fn object_error<T>(result: Result<T>) -> ObjectError {
    match result.err().expect("it must fail") {
        Error::Object(error) => error,
        other => panic!("another error: {other}"),
    }
}

#[tokio::test]
async fn a_reduce_waits_for_its_sources_and_names_them_as_they_joined() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let arrays: Vec<_> = (0..3).map(|seed| array(100, seed)).collect();
    client.put_with("b", &arrays[1], i32s()).await.unwrap();
    let (reduced, ()) =
        tokio::join!(client.reduce("t", ["a", "b", "c"], ReduceOp::Sum, LONG), async {
            store
                .until("the reduce waits", |state| {
                    state.count(is_reduce) == 1 && state.is_waiting()
                })
                .await;
            client.put_with("c", &arrays[2], i32s()).await.unwrap();
            client.put_with("a", &arrays[0], i32s()).await.unwrap();
        });
    assert_eq!(reduced.unwrap(), ["b", "c", "a"].map(id));
    let view = client.get("t", LONG).await.unwrap();
    assert!(view[..] == sum(&arrays)[..]);
    assert_eq!(view.metadata().dtype, Dtype::I32);
}

#[tokio::test]
async fn all_options_of_a_reduce_reach_the_store() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let arrays: Vec<_> = (0..3).map(|seed| array(100, seed)).collect();
    for (id, array) in ["a", "b", "c"].iter().zip(&arrays) {
        client.put_with(id, array, i32s()).await.unwrap();
    }
    let range = Some(ByteRange { offset_bytes: 8, length_bytes: 40 });
    let options = ReduceOptions {
        op: ReduceOp::Sum,
        num_objects: Some(2),
        order: ReduceOrder::Fixed,
        range,
        replicas: 2,
        timeout: Duration::from_secs(7),
    };
    assert_eq!(
        client.reduce_with("t", ["b", "a", "c"], options).await.unwrap(),
        ["a", "b"].map(id)
    );
    assert!(client.get("t", LONG).await.unwrap()[..] == sum(&arrays[..2])[8..48]);
    assert_eq!(
        reduces(&store),
        [node::Reduce {
            target: id("t"),
            sources: ["b", "a", "c"].map(id).into(),
            count: 2,
            op: ReduceOp::Sum,
            order: ReduceOrder::Fixed,
            range,
            replicas: 2,
            timeout: Duration::from_secs(7),
        }]
    );
}

#[tokio::test]
async fn a_reduce_that_makes_no_sense_is_not_sent() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let refused = async |target: &str, sources: &[&str], options| {
        object_error(client.reduce_with(target, sources, options).await)
    };
    let all = ReduceOptions::default();
    assert!(matches!(refused("t", &[], all.clone()).await, ObjectError::InvalidRequest { .. }));
    assert_eq!(
        refused("t", &["a", "b", "a"], all.clone()).await,
        ObjectError::DuplicateId { id: id("a") }
    );
    assert_eq!(
        refused("t", &["a", "t"], all.clone()).await,
        ObjectError::DuplicateId { id: id("t") }
    );
    for count in [0, 3] {
        let options = ReduceOptions { num_objects: Some(count), ..all.clone() };
        assert!(matches!(
            refused("t", &["a", "b"], options).await,
            ObjectError::InvalidRequest { .. }
        ));
    }
    let range = Some(ByteRange { offset_bytes: 8, length_bytes: u64::MAX });
    let endless = refused("t", &["a"], ReduceOptions { range, ..all.clone() }).await;
    assert!(matches!(endless, ObjectError::InvalidRequest { .. }));
    assert!(matches!(refused("", &["a"], all.clone()).await, ObjectError::InvalidId { .. }));
    let many = vec!["x"; (1 << 16) + 1];
    assert!(matches!(refused("t", &many, all).await, ObjectError::LimitExceeded { .. }));
    assert_eq!(store.state().count(is_reduce), 0);
}

#[tokio::test]
async fn the_store_s_errors_of_a_reduce_name_the_object() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    client.put_with("a", &array(100, 1), i32s()).await.unwrap();
    client.put_with("longer", &array(104, 2), i32s()).await.unwrap();
    let mismatch = client.reduce("t", ["a", "longer"], ReduceOp::Sum, LONG).await;
    assert!(
        matches!(object_error(mismatch), ObjectError::TypeMismatch { id: named, .. } if named == id("longer"))
    );
    let exists = client.reduce("longer", ["a"], ReduceOp::Sum, LONG).await;
    assert_eq!(object_error(exists), ObjectError::AlreadyExists { id: id("longer") });
    let late = client.reduce("t", ["a", "never"], ReduceOp::Sum, Duration::ZERO).await;
    assert!(matches!(
        object_error(late),
        ObjectError::Timeout { operation: Operation::Reduce, .. }
    ));
}

#[tokio::test]
async fn a_store_that_names_sources_which_it_was_not_given_is_not_believed() {
    for indices in [vec![0, 2], vec![1], vec![0, 1, 2]] {
        let store = FakeStore::start();
        let client = connect(&store).await;
        let (reduced, ()) =
            tokio::join!(client.reduce("t", ["a", "b"], ReduceOp::Sum, LONG), async {
                store.until("the reduce waits", |state| state.count(is_reduce) == 1).await;
                store.send_response(1, Ok(Response::Node(node::Response::Reduced { indices })));
            });
        assert!(matches!(reduced, Err(Error::ConnectionLost { reason: Loss::Protocol(_), .. })));
    }
}

#[tokio::test]
async fn a_reduce_that_is_dropped_is_cancelled() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    tokio::select! {
        biased;
        _ = client.reduce("t", ["never"], ReduceOp::Sum, LONG) => panic!("there is nothing to reduce"),
        () = store.until("the reduce waits", |state| state.count(is_reduce) == 1) => {}
    }
    store.until("the cancel", |state| !state.is_waiting()).await;
}

#[tokio::test]
async fn a_gather_keeps_the_order_of_its_ids() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let ids: Vec<_> = (0..300).map(|number| format!("{number}")).collect();
    let (views, ()) = tokio::join!(client.gather(&ids, LONG), async {
        store.until("many gets wait", |state| state.count(is_get) == 256).await;
        for (number, id) in ids.iter().enumerate().rev() {
            client.put(id, &number.to_le_bytes()).await.unwrap();
        }
    });
    let views = views.unwrap();
    assert!(views.iter().enumerate().all(|(number, view)| view[..] == number.to_le_bytes()));
    assert!(client.gather(<[&str; 0]>::default(), LONG).await.unwrap().is_empty());
    drop(views);
    store.until("all references are back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn gathered_objects_stand_one_after_the_other_and_are_copied_while_they_arrive() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    const FIRST: usize = 1 << 20;
    const LARGE: usize = FIRST + 100_000;
    let pieces = [pattern(10_000, 1), pattern(0, 2), pattern(LARGE, 3), pattern(1, 4)];
    client.put("3", &pieces[3]).await.unwrap();
    let growing = store.produce("2", &pieces[2], FIRST);
    let mut out = vec![7; LARGE + 10_005];
    let (lengths, ()) = tokio::join!(
        client.gather_into(["0", "1", "2", "3"], &mut out, LONG),
        async {
            store.until("all are asked for", |state| state.count(is_get) == 4).await;
            client.put("1", &pieces[1]).await.unwrap();
            client.put("0", &pieces[0]).await.unwrap();
            let follows = |request: &Request| matches!(request, Request::Node(hoplite_core::node::Request::Follow { beyond_bytes, .. }) if *beyond_bytes == LARGE as u64 - 1);
            store.until("what is there is copied", move |state| state.count(follows) == 1).await;
            store.produce_more(growing, &pieces[2], FIRST..LARGE);
        }
    );
    assert_eq!(lengths.unwrap(), [10_000, 0, LARGE, 1]);
    assert!(out[..LARGE + 10_001] == pieces.concat()[..] && out[LARGE + 10_001..] == [7; 4]);
    assert!(client.gather_into(<[&str; 0]>::default(), &mut [], LONG).await.unwrap().is_empty());
    store.until("all references are back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn a_gather_fails_as_soon_as_one_get_does() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let bytes = pattern(10_000, 1);
    let lost = store.produce("lost", &bytes, 4096);
    let mut out = vec![0; 20_000];
    let (gathered, ()) =
        tokio::join!(client.gather_into(["lost", "never"], &mut out, LONG), async {
            store.until("it is copied", |state| state.count(is_follow) == 1).await;
            store.lose(lost);
        });
    assert_eq!(object_error(gathered), ObjectError::ObjectLost { id: id("lost") });

    client.put("a", &bytes).await.unwrap();
    let error =
        client.gather_into(["a", "a", "never"], &mut out[..15_000], LONG).await.unwrap_err();
    let expected = (20_000, 15_000);
    assert!(
        matches!(error, Error::BufferTooSmall { needed_bytes, given_bytes } if (needed_bytes, given_bytes) == expected),
        "{error}"
    );
    assert!(matches!(
        object_error(client.gather(["a", "never"], Duration::ZERO).await),
        ObjectError::Timeout { operation: Operation::Gather, waited: Duration::ZERO, .. }
    ));
    store.until("all references are back", |state| state.references() == 0).await;
    store.until("nothing waits", |state| !state.is_waiting()).await;
}

#[tokio::test]
async fn everybody_gathers_what_everybody_has() {
    let store = FakeStore::start();
    let ids = ["x/0", "x/1", "x/2"];
    let pieces: Vec<_> = (0..3).map(|rank| pattern(5000 * rank, 1)).collect();
    let client = connect(&store).await;
    let gathered = try_join_all(
        pieces
            .iter()
            .enumerate()
            .map(|(rank, piece)| client.allgather(ids, rank, piece, PutOptions::default())),
    );
    for views in gathered.await.unwrap() {
        assert!(views.iter().zip(&pieces).all(|(view, piece)| view[..] == piece[..]));
    }
    let error = object_error(client.allgather(ids, 3, b"", PutOptions::default()).await);
    assert!(matches!(error, ObjectError::InvalidRequest { .. }));
    let taken =
        object_error(client.allgather(["x/1", "never"], 0, b"other", PutOptions::default()).await);
    assert_eq!(taken, ObjectError::AlreadyExists { id: id("x/1") });
    store.until("all references are back", |state| state.references() == 0).await;
}

async fn allreduced(
    store: &FakeStore,
    arrays: &[Vec<u8>],
    options: &AllreduceOptions,
) -> Vec<Result<Vec<u8>>> {
    let sources: Arc<Vec<_>> =
        Arc::new((0..arrays.len()).map(|rank| id(&format!("s/{rank}"))).collect());
    let mut tasks = Vec::new();
    for (rank, array) in arrays.iter().cloned().enumerate() {
        let (client, sources, options) =
            (connect(store).await, Arc::clone(&sources), options.clone());
        tasks.push(tokio::spawn(async move {
            let late = async {
                if rank > 0 {
                    tokio::task::yield_now().await;
                }
                client.put_with(&sources[rank], &array, i32s()).await
            };
            let (result, put) = tokio::join!(client.allreduce("t", &*sources, rank, options), late);
            put.unwrap();
            result
        }));
    }
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

#[tokio::test]
async fn an_allreduce_is_coordinated_by_the_first_and_joined_by_all() {
    for participants in [1, 2, 5] {
        let store = FakeStore::start();
        let arrays: Vec<_> = (0..participants).map(|seed| array(1000, seed)).collect();
        for result in allreduced(&store, &arrays, &AllreduceOptions::default()).await {
            assert!(result.unwrap() == sum(&arrays), "{participants}");
        }
        let [reduce] = &reduces(&store)[..] else { panic!("one coordinator is enough") };
        assert_eq!(
            (&reduce.target, reduce.count, reduce.range),
            (&id("t"), usize::from(participants), None)
        );
        assert_eq!(reduce.sources[0], id("s/0"));
        assert_eq!(store.state().count(is_join), usize::from(participants));
        store.until("all references are back", |state| state.references() == 0).await;
    }
}

#[tokio::test]
async fn an_allreduce_that_cannot_succeed_fails_at_once() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let default = AllreduceOptions::default();
    let fail = async |sources: &[&str], rank, options: &AllreduceOptions| {
        client.allreduce("t", sources, rank, options.clone()).await.unwrap_err()
    };
    let error = fail(&["a", "b", "c"], 3, &default).await;
    assert!(matches!(error, Error::Object(ObjectError::InvalidRequest { .. })), "{error}");

    client.put("opaque", &[0; 40]).await.unwrap();
    let error = fail(&["a", "opaque", "c"], 1, &default).await;
    let Error::Object(ObjectError::TypeMismatch { id: named, reason }) = error else {
        panic!("{error}")
    };
    assert_eq!((named, &*reason), (id("opaque"), "sum is not defined for elements of type opaque"));

    for name in ["a", "b", "c"] {
        client.put_with(name, &array(40, 1), i32s()).await.unwrap();
    }
    let mut out = [0; 39];
    let error = client
        .allreduce_into("t", ["a", "b", "c"], 0, &mut out, default.clone())
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::BufferTooSmall { needed_bytes: 40, given_bytes: 39 }),
        "{error}"
    );
    assert_eq!(store.state().count(is_reduce), 0);

    client.put_with("longer", &array(44, 1), i32s()).await.unwrap();
    let error = fail(&["a", "b", "longer"], 0, &default).await;
    assert!(matches!(error, Error::Object(ObjectError::TypeMismatch { .. })), "{error}");
    let error = fail(&["a", "b", "a"], 1, &AllreduceOptions::default()).await;
    assert!(matches!(error, Error::Object(ObjectError::DuplicateId { .. })), "{error}");
    store.until("nothing waits", |state| !state.is_waiting()).await;
    store.until("all references are back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn the_reduce_says_why_its_target_was_lost() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let array = array(3 * 4096, 1);
    client.put_with("a", &array, i32s()).await.unwrap();
    client.put_with("b", &array, i32s()).await.unwrap();
    let options = AllreduceOptions::default();
    let reason = ObjectError::ObjectLost { id: id("c") };
    let (result, ()) = tokio::join!(client.allreduce("t", ["a", "b", "c"], 0, options), async {
        store.until("the reduce waits", |state| state.count(is_reduce) == 1).await;
        let target = store.produce("t", &array, 0);
        store.until("it is copied", |state| state.count(is_follow) == 1).await;
        store.lose(target);
        store.send_response(4, Err(reason.clone()));
    });
    assert_eq!(object_error(result), reason);
}

#[tokio::test]
async fn what_a_client_has_put_itself_it_does_not_ask_about() {
    let store = FakeStore::start();
    let (client, other) = (connect(&store).await, connect(&store).await);
    let arrays = [array(40, 1), array(40, 2)];
    client.put_with("a", &arrays[0], i32s()).await.unwrap();
    let mut writer = client.create("b", 40, i32s()).await.unwrap();
    writer.write(&arrays[1]).unwrap();
    writer.seal().await.unwrap();
    for (client, target, asks_first) in [(&client, "t", false), (&other, "u", true)] {
        let before = store.state().requests.len();
        let result = client.allreduce(target, ["a", "b"], 0, AllreduceOptions::default()).await;
        assert!(result.unwrap() == sum(&arrays), "{target}");
        let state = store.state();
        let first =
            state.requests[before..].iter().find(|request| is_get(request) || is_join(request));
        assert_eq!(is_get(first.unwrap()), asks_first, "{target}");
    }
    store.until("all references are back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn a_source_that_others_have_replaced_is_looked_at_again() {
    let store = FakeStore::start();
    let (client, other) = (connect(&store).await, connect(&store).await);
    let arrays = [array(40, 1), array(40, 2)];
    for (round, then_bytes) in [20, 44].into_iter().enumerate() {
        client.put_with("a", &array(then_bytes, 3), i32s()).await.unwrap();
        other.delete(["a"], LONG).await.unwrap();
        for (name, array) in [("a", &arrays[0]), ("b", &arrays[1])] {
            other.put_with(name, array, i32s()).await.unwrap();
        }
        let (mut out, options) = ([0; 40], AllreduceOptions::default());
        other.reduce(format!("t{round}"), ["a", "b"], ReduceOp::Sum, LONG).await.unwrap();
        let sources = ["b", "a"];
        let length = client
            .allreduce_into(format!("t{round}"), sources, 1, &mut out, options)
            .await
            .unwrap();
        assert!(length == 40 && out[..] == sum(&arrays), "{then_bytes}");
        other.delete(["a", "b"], LONG).await.unwrap();
    }
    store.until("all references are back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn who_waits_for_others_looks_at_its_source() {
    let store = FakeStore::start();
    let (client, other) = (connect(&store).await, connect(&store).await);
    let arrays = [array(40, 1), array(40, 2)];
    client.put_with("a", &array(20, 3), i32s()).await.unwrap();
    other.delete(["a"], LONG).await.unwrap();
    let (mut out, options) = ([0; 40], AllreduceOptions::default());
    let (result, ()) =
        tokio::join!(client.allreduce_into("t", ["a", "b"], 0, &mut out, options), async {
            store.until("the source is looked at", |state| state.count(is_get) == 1).await;
            other.put_with("a", &arrays[0], i32s()).await.unwrap();
            store.until("it has joined anew", |state| state.count(is_join) == 2).await;
            assert_eq!(store.state().count(is_reduce), 1, "it goes on to coordinate");
            other.put_with("b", &arrays[1], i32s()).await.unwrap();
        });
    assert_eq!(result.unwrap(), 40);
    assert!(out[..] == sum(&arrays));
    store.until("all references are back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn participants_that_disagree_on_the_size_do_not_mix_their_results() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    client.put_with("a", &array(40, 1), i32s()).await.unwrap();
    client.put_with("b", &array(44, 1), i32s()).await.unwrap();
    client.put_with("t", &array(44, 1), i32s()).await.unwrap();
    let error = client.allreduce("t", ["b", "a"], 1, AllreduceOptions::default()).await;
    assert!(
        matches!(object_error(error), ObjectError::TypeMismatch { id: named, .. } if named == id("t"))
    );
}

#[test]
fn collectives_of_the_blocking_client_are_those_of_the_asynchronous_one() {
    let store = FakeStore::start();
    let arrays: Vec<_> = (0..3).map(|seed| array(10_000, seed)).collect();
    let ids = ["s/0", "s/1", "s/2"];
    let options = AllreduceOptions::default();
    std::thread::scope(|scope| {
        for (rank, array) in arrays.iter().enumerate() {
            let (store, arrays, options) = (&store, &arrays, options.clone());
            scope.spawn(move || {
                let client = blocking::Client::connect(store.socket()).unwrap();
                let views = client.allgather(ids, rank, array, i32s()).unwrap();
                assert!(views.iter().zip(arrays).all(|(view, array)| view[..] == array[..]));
                assert!(client.allreduce("t", ids, rank, options.clone()).unwrap() == sum(arrays));
                let mut out = vec![0; 10_000];
                assert_eq!(
                    client.allreduce_into("u", ids, rank, &mut out, options).unwrap(),
                    10_000
                );
                assert!(out == sum(arrays));
            });
        }
    });
    let client = blocking::Client::connect(store.socket()).unwrap();
    assert_eq!(client.reduce("v", ids, ReduceOp::Sum, LONG).unwrap().len(), 3);
    let options = ReduceOptions { num_objects: Some(2), ..ReduceOptions::default() };
    assert_eq!(client.reduce_with("w", ids, options).unwrap().len(), 2);
    let views = client.gather(["v", "w"], LONG).unwrap();
    assert!(views[0][..] == sum(&arrays)[..]);
    let mut out = vec![0; 20_000];
    assert_eq!(client.gather_into(["v", "w"], &mut out, LONG).unwrap(), [10_000, 10_000]);
    assert!(out[10_000..] == views[1][..]);
}

#[test]
fn a_frozen_store_ends_the_blocking_gather_of_many_objects() {
    let store = FakeStore::start();
    let client = blocking::Client::connect(store.socket()).unwrap();
    client.put("a", b"x").unwrap();
    store.wait_until("the put is done", |state| state.references() == 0);
    let view = client.get("a", LONG).unwrap();
    store.set_paused(true);
    drop(view);
    let ids: Vec<_> = (0..100).map(|number| format!("{number}")).collect();
    let error = client.gather(&ids, Duration::ZERO).unwrap_err();
    assert!(
        matches!(error, Error::Object(ObjectError::Timeout { operation: Operation::Gather, .. })),
        "{error}"
    );
    store.set_paused(false);
}

#[test]
fn collectives_may_be_moved_between_threads() {
    fn is_send(_: impl Send) {}
    let _ = |client: &'static Client| {
        is_send(client.reduce("t", ["a"], ReduceOp::Sum, LONG));
        is_send(client.gather(["a"], LONG));
        is_send(client.gather_into(["a"], &mut [], LONG));
        is_send(client.allgather(["a"], 0, b"", PutOptions::default()));
        is_send(client.allreduce("t", ["a"], 0, AllreduceOptions::default()));
    };
}
