use std::pin::pin;
use std::time::Duration;

use hoplite_core::node::Request as NodeRequest;
use hoplite_core::session::ANSWER_TIMEOUT;
use hoplite_core::{Error as ObjectError, Operation};
use hoplite_proto::local::{Request, Response};

use super::{FakeStore, LONG, connect};
use crate::{Client, Error, Loss, PutOptions, blocking};

fn is_get(request: &Request) -> bool {
    matches!(request, Request::Node(NodeRequest::Get { .. }))
}

fn is_lost(error: &Error) -> bool {
    matches!(error, Error::ConnectionLost { .. })
}

#[tokio::test]
async fn a_cancelled_call_gives_its_late_reference_back() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    client.put("a", &[7; 5000]).await.unwrap();
    store.until("the put is done", |state| state.references() == 0).await;
    store.hold_answers();
    {
        let get = client.get("a", LONG);
        let create = client.create("b", 10, PutOptions::default());
        let asked = store.until("both calls are there", |state| state.references() == 2);
        tokio::select! {
            biased;
            _ = get => panic!("answered"),
            _ = create => panic!("answered"),
            () = asked => {}
        }
    }
    let cancelled =
        |request: &Request| matches!(request, Request::Node(NodeRequest::Cancel { .. }));
    store.until("both are cancelled", move |state| state.count(cancelled) == 2).await;
    store.send_held();
    store.until("both references are back", |state| state.references() == 0).await;
    assert!(!store.state().has("b"), "the created copy was released instead of aborted");
    client.put("c", b"x").await.unwrap();
}

#[tokio::test]
async fn an_answer_that_was_delivered_but_never_looked_at_is_given_back() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    client.put("a", &[7; 5000]).await.unwrap();
    store.until("the put is done", |state| state.references() == 0).await;
    let mut get = Box::pin(client.get("a", LONG));
    assert!(futures::poll!(&mut get).is_pending());
    client.status().await.unwrap();
    drop(get);
    store.until("the reference is back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn all_calls_in_flight_fail_when_the_store_goes_but_views_stay() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    client.put("a", &[7; 5000]).await.unwrap();
    let view = client.get("a", LONG).await.unwrap();
    let mut writer = client.create("b", 10, PutOptions::default()).await.unwrap();
    let mut watch = client.watch("a").await.unwrap();
    watch.next().await.unwrap().unwrap();
    let closing = async {
        store.until("calls wait", |state| state.count(is_get) == 3).await;
        store.close_all();
    };
    let (one, other, ()) =
        tokio::join!(client.get("never", LONG), client.get("neither", LONG), closing);
    assert!(is_lost(&one.unwrap_err()));
    assert!(is_lost(&other.unwrap_err()));
    while let Some(Ok(_)) = watch.next().await {}
    assert!(watch.next().await.is_none());
    assert!(is_lost(&writer.write(b"x").unwrap_err()));
    client.put("c", b"x").await.unwrap();
    assert!(is_lost(&writer.write(b"x").unwrap_err()));
    assert!(view.iter().all(|byte| *byte == 7));
}

async fn answers_that_have_arrived_count(store: &FakeStore, client: &Client) -> crate::Result<()> {
    client.put("a", &[7; 5000]).await?;
    store.hold_answers();
    let mut answered = pin!(client.get("a", LONG));
    let mut unanswered = pin!(client.get("never", LONG));
    assert!(futures::poll!(&mut answered).is_pending());
    assert!(futures::poll!(&mut unanswered).is_pending());
    store.wait_until("both calls are there", |state| state.count(is_get) == 2);
    store.send_held();
    store.close_all();
    let late = client.connection();
    let late = late.call_node(NodeRequest::DrainProgress, Operation::Connect, LONG);
    assert!(is_lost(&late.await.unwrap_err()));
    assert!(!client.is_connected());
    assert_eq!(answered.await?[..], [7; 5000]);
    assert!(is_lost(&unanswered.await.unwrap_err()));
    Ok(())
}

#[tokio::test]
async fn answers_that_have_arrived_count_although_a_later_request_meets_a_closed_socket() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    answers_that_have_arrived_count(&store, &client).await.unwrap();
    client.put("b", b"x").await.unwrap();
}

#[test]
fn answers_that_have_arrived_count_for_a_blocking_client_too() {
    let store = FakeStore::start();
    let client = blocking::Client::connect(store.socket()).unwrap();
    let no_pause = || Err("waited for an answer that had arrived");
    let driven = client.drive(LONG, LONG, no_pause, async |client| {
        answers_that_have_arrived_count(&store, client).await
    });
    driven.unwrap().unwrap();
    client.put("b", b"x").unwrap();
}

#[tokio::test]
async fn the_connection_stays_open_for_views_and_closes_with_the_last() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    client.put("a", &[7; 5000]).await.unwrap();
    let view = client.get("a", LONG).await.unwrap();
    let other = client.get("a", LONG).await.unwrap();
    drop(client);
    std::thread::spawn(move || drop(other)).join().unwrap();
    store.until("one reference is back", |state| state.references() == 1).await;
    assert_eq!(store.state().ended_clients, 0);
    drop(view);
    store.until("the end of the connection", |state| state.ended_clients == 1).await;
}

#[tokio::test]
async fn nonsense_from_the_store_breaks_the_connection() {
    let view = hoplite_core::node::ObjectView {
        copy: hoplite_core::node::CopyId(1 << 40),
        extent: hoplite_core::extent::Extent { offset_bytes: 1 << 40, length_bytes: 128 },
        put: crate::PutId(1),
        size_bytes: 10,
        metadata: crate::Metadata::default(),
        is_stale: false,
    };
    let object = Response::Node(hoplite_core::node::Response::Object(view));
    let progress = Response::Node(hoplite_core::node::Response::Progress { valid_bytes: 1 });
    let nonsense: [&dyn Fn(&FakeStore); 6] = [
        // A frame above the limit; an invalid message; an unexpected or wrong answer; memory
        // outside the arena; a reason for closing.
        &|store| store.send_raw(&[255; 4]),
        &|store| store.send_raw(&[3, 0, 0, 0, 255, 255, 255]),
        &|store| store.send_response(99, Ok(progress.clone())),
        &|store| store.send_response(3, Ok(progress.clone())),
        &|store| store.send_response(3, Ok(object.clone())),
        &|store| store.send_response(0, Err(ObjectError::ShuttingDown)),
    ];
    for (index, send) in nonsense.iter().enumerate() {
        let store = FakeStore::start();
        let client = connect(&store).await;
        client.put("a", &[7; 5000]).await.unwrap();
        let view = client.get("a", LONG).await.unwrap();
        let (result, ()) = tokio::join!(client.get("never", LONG), async {
            store.until("the call waits", |state| state.count(is_get) == 2).await;
            send(&store);
        });
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::ConnectionLost { reason: Loss::Protocol(_), .. }),
            "{index}: {error}"
        );
        client.put("b", b"x").await.unwrap();
        drop(client);
        store.until("the new connection closes", |state| state.ended_clients == 1).await;
        assert_eq!(view[..], [7; 5000]);
        drop(view);
        store.until("the old connection closes", |state| state.ended_clients == 2).await;
    }
}

#[tokio::test]
async fn errors_of_the_store_reach_the_caller() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let error = client.get("never", Duration::ZERO).await.unwrap_err();
    assert!(
        matches!(error, Error::Object(ObjectError::Timeout { operation: Operation::Get, .. })),
        "{error}"
    );
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_frozen_store_costs_no_more_than_the_timeout_and_slack() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    store.set_paused(true);
    tokio::time::pause();
    let is_in_time = |started: tokio::time::Instant, timeout: Duration| {
        (timeout..timeout + Duration::from_secs(1)).contains(&started.elapsed())
    };
    for timeout in [Duration::from_secs(3), Duration::ZERO] {
        let started = tokio::time::Instant::now();
        let error = client.get("a", timeout).await.unwrap_err();
        assert!(matches!(error, Error::Object(ObjectError::Timeout { .. })), "{error}");
        assert!(is_in_time(started, timeout));
    }
    let started = tokio::time::Instant::now();
    let error = client.locate("a", Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, Error::Object(ObjectError::Timeout { .. })), "{error}");
    assert!(is_in_time(started, ANSWER_TIMEOUT));
    tokio::time::resume();
    store.set_paused(false);
    store
        .until("the late cancels", |state| {
            state.count(|request| matches!(request, Request::Node(NodeRequest::Cancel { .. }))) == 3
        })
        .await;
}

#[tokio::test]
async fn references_come_back_even_if_the_socket_is_full_when_they_are_dropped() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    client.put("a", &[7; 5000]).await.unwrap();
    let mut views = Vec::new();
    for _ in 0..3000 {
        views.push(client.get("a", LONG).await.unwrap());
    }
    store.until("the put is done", |state| state.references() == 3000).await;
    store.set_paused(true);
    std::thread::spawn(move || drop(views)).join().unwrap();
    store.set_paused(false);
    store.wait_until("all references are back", |state| state.references() == 0);
}

#[test]
fn the_end_of_the_runtime_ends_calls_but_not_views() {
    let store = FakeStore::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (client, view) = runtime.block_on(async {
        let client = connect(&store).await;
        client.put("a", &[7; 5000]).await.unwrap();
        let view = client.get("a", LONG).await.unwrap();
        (client, view)
    });
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(client.get("a", LONG)).unwrap()[..], [7; 5000]);
    assert_eq!(view[..], [7; 5000]);
    store.wait_until("the other reference is back", |state| state.references() == 1);
    drop(view);
    store.wait_until("the reference is back", |state| state.references() == 0);
}
