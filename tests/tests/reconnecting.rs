use std::sync::Mutex;
use std::time::Duration;

use hoplite_client::{
    Client, ConnectOptions, Error, LostCall, Notice, PutOptions, ReduceOp, StoreAfterLoss, blocking,
};
use hoplite_core::Error as ObjectError;
use hoplite_tests::cluster::{Cluster, await_that};
use hoplite_tests::contents::bytes;

const TIME_LIMIT: Duration = Duration::from_secs(60);

#[test]
fn the_next_call_succeeds_or_reports_what_was_lost() {
    static NOTICES: Mutex<Vec<Notice>> = Mutex::new(Vec::new());
    let mut cluster = Cluster::of(2);
    let contents = bytes(1, 300_000);
    let listener = |notice: &Notice| NOTICES.lock().unwrap().push(notice.clone());
    let options =
        ConnectOptions { socket: cluster.socket(0), listener, ..ConnectOptions::default() };
    let threads = blocking::Client::connect_with(options.clone()).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let tasks = runtime.block_on(Client::connect_with(options)).unwrap();
    for round in 0..2 {
        let (only_here, copied) = (format!("only-{round}"), format!("copied-{round}"));
        threads.put(&only_here, &contents).unwrap();
        threads.put(&copied, &contents).unwrap();
        cluster.client(1).get(&copied, TIME_LIMIT).unwrap();
        let view = threads.get(&only_here, TIME_LIMIT).unwrap();
        let mut writer =
            threads.create(format!("unfinished-{round}"), 8, PutOptions::default()).unwrap();
        writer.write(b"1234").unwrap();
        cluster.kill_store(0);
        cluster.restart_store(0);
        runtime.block_on(tasks.put(format!("task-{round}"), b"1")).unwrap();
        threads.put(format!("thread-{round}"), b"1").unwrap();
        assert!(threads.is_connected() && tasks.is_connected());
        assert_eq!(threads.node().as_str(), "node-0");
        assert!(view[..] == contents[..], "a view outlives its store");
        let error = threads.get(&only_here, TIME_LIMIT).unwrap_err();
        assert!(matches!(error, Error::Object(ObjectError::ObjectLost { .. })), "{error}");
        assert!(threads.get(&copied, TIME_LIMIT).unwrap()[..] == contents[..]);
        writer.write(b"5678").unwrap();
        let error = writer.seal().unwrap_err();
        assert!(matches!(error, Error::ConnectionLost { call: LostCall::Ended, .. }), "{error}");
    }
    let notices = std::mem::take(&mut *NOTICES.lock().unwrap());
    assert_eq!(notices.len(), 4, "each client says so each time: {notices:?}");
    let anew = |notice: &Notice| {
        matches!(notice, Notice::Reconnected { store: StoreAfterLoss::StartedAnew, .. })
    };
    assert!(notices.iter().all(anew), "{notices:?}");
    cluster.assert_serves();
}

#[test]
fn an_interrupted_call_reports_if_it_may_be_retried() {
    let mut cluster = Cluster::of(1);
    let socket = cluster.socket(0);
    let threads = blocking::Client::connect(&socket).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let tasks = runtime.block_on(Client::connect(&socket)).unwrap();
    std::thread::scope(|scope| {
        let (threads, tasks, runtime) = (&threads, &tasks, &runtime);
        let repeatable = [
            scope.spawn(|| threads.get("a", TIME_LIMIT).map(drop)),
            scope.spawn(|| threads.gather(["b", "c"], TIME_LIMIT).map(drop)),
            scope.spawn(|| runtime.block_on(tasks.get_vec("d", TIME_LIMIT)).map(drop)),
        ];
        let not = [
            scope.spawn(|| threads.reduce("sum", ["late"], ReduceOp::Sum, TIME_LIMIT).map(drop)),
            scope.spawn(|| threads.barrier("meeting", 2, 1, TIME_LIMIT)),
            scope.spawn(|| runtime.block_on(tasks.barrier("other", 2, 0, TIME_LIMIT))),
        ];
        let client = cluster.client(0);
        await_that("all are in flight", || {
            let status = client.status().unwrap();
            status.shards[0].waiting_queries >= 5 && status.reduces >= 2
        });
        cluster.kill_store(0);
        for (calls, state) in [
            (repeatable.into_iter().collect::<Vec<_>>(), LostCall::Repeatable),
            (not.into_iter().collect(), LostCall::MayHaveHappened),
        ] {
            for call in calls {
                match call.join().unwrap().unwrap_err() {
                    error @ Error::ConnectionLost { call, .. } => {
                        assert_eq!(call, state, "{error}");
                        assert_eq!(error.is_retryable(), state == LostCall::Repeatable);
                    }
                    error => panic!("{error}"),
                }
            }
        }
    });
    cluster.restart_store(0);
    threads.put("late", b"1").unwrap();
    assert!(!runtime.block_on(tasks.contains("sum")).unwrap());
}
