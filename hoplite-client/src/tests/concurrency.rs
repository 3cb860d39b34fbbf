use std::sync::Arc;

use futures::future::join_all;

use super::{FakeStore, LONG, connect, pattern};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_a_connection() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let tasks = (0..50_u8).map(|seed| {
        let client = client.clone();
        tokio::spawn(async move {
            for round in 0..20 {
                let id = format!("{seed}/{round}");
                let bytes = Arc::new(pattern(usize::from(seed) * 100, seed));
                client.put(&id, &bytes).await.unwrap();
                assert_eq!(client.get(&id, LONG).await.unwrap()[..], bytes[..]);
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    store.until("all references are back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn one_object_is_waited_for_by_many() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let gets = join_all((0..1000).map(|_| client.get("late", LONG)));
    let put = async {
        store.until("somebody waits", super::fake_store::State::is_waiting).await;
        client.put("late", b"here").await.unwrap();
    };
    let (views, ()) = futures::future::join(gets, put).await;
    assert!(views.iter().all(|view| view.as_ref().unwrap()[..] == *b"here"));
}
