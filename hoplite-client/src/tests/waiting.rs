use std::sync::Mutex;
use std::time::Duration;

use hoplite_core::reduce::ReduceOp;

use super::{FakeStore, LONG};
use crate::{Client, ConnectOptions, Notice, PutOptions, Result, blocking};

const LONG_WAIT: Duration = Duration::from_millis(500);

async fn reports<T>(
    store: &FakeStore,
    notices: &'static Mutex<Vec<String>>,
    call: impl Future<Output = Result<T>>,
    ids: &[&str],
) -> Vec<String> {
    let give = async {
        let noticed = async {
            while notices.lock().unwrap().is_empty() {
                tokio::time::sleep(LONG_WAIT / 10).await;
            }
        };
        tokio::time::timeout(LONG, noticed).await.expect("the call sends a notice");
        tokio::time::sleep(LONG_WAIT).await;
        for id in ids {
            store.produce(id, b"12345678", 8);
        }
    };
    let (ended, ()) = tokio::join!(call, give);
    ended.map(drop).unwrap();
    std::mem::take(&mut *notices.lock().unwrap())
}

#[tokio::test]
async fn a_call_that_waits_for_long_names_what_is_missing_once() {
    static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let store = FakeStore::start();
    let listener = |notice: &Notice| NOTICES.lock().unwrap().push(notice.to_string());
    let options = ConnectOptions {
        socket: store.socket(),
        listener,
        long_wait: LONG_WAIT,
        ..ConnectOptions::default()
    };
    let client = Client::connect_with(options.clone()).await.unwrap();
    let patient = ConnectOptions { long_wait: LONG, ..options.clone() };
    let patient = Client::connect_with(patient).await.unwrap();
    patient.put("here", b"12345678").await.unwrap();
    patient.get("here", 2 * LONG).await.unwrap();
    client.get("x", LONG_WAIT).await.unwrap_err();
    assert!(NOTICES.lock().unwrap().is_empty(), "no call has waited for longer");
    let waits = |text: &str| vec![text.replace("WAITS", "has waited 500ms and goes on: missing:")];
    let call = client.get("x", LONG);
    assert_eq!(reports(&store, &NOTICES, call, &["x"]).await, waits("get of x WAITS x"));
    let call = client.gather(["here", "y", "z"], LONG);
    assert_eq!(
        reports(&store, &NOTICES, call, &["y", "z"]).await,
        waits("gather of here WAITS y, z")
    );
    let call = client.reduce("sum", ["here", "late"], ReduceOp::Sum, LONG);
    assert_eq!(reports(&store, &NOTICES, call, &["late"]).await, waits("reduce of sum WAITS late"));
    let put = PutOptions { timeout: LONG, ..PutOptions::default() };
    let call = client.allgather(["own", "other"], 0, b"x", put);
    assert_eq!(
        reports(&store, &NOTICES, call, &["other"]).await,
        waits("allgather of own WAITS other")
    );
    let call = client.barrier("meeting", 3, 1, LONG);
    assert_eq!(
        reports(&store, &NOTICES, call, &["meeting"]).await,
        waits("barrier of meeting WAITS meeting/0, meeting/2"),
        "not once for each of its steps"
    );
    let threads = tokio::task::spawn_blocking(|| blocking::Client::connect_with(options))
        .await
        .unwrap()
        .unwrap();
    let call =
        async { tokio::task::spawn_blocking(move || threads.get("last", LONG)).await.unwrap() };
    assert_eq!(reports(&store, &NOTICES, call, &["last"]).await, waits("get of last WAITS last"));
}
