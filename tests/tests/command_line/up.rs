use super::*;

#[test]
fn up_goes_on_without_a_drained_store_and_ends_with_the_last() {
    let mut up = Up::start(3, 1);
    assert!(up.put(0, "x", &pattern(100_000), &[]).status.success());
    up.succeed(0, &["drain"]);
    up.daemon.await_log("node-0 has stopped; the other stores go on");
    assert_eq!(up.succeed(1, &["get", "x", "-o", "-"]), pattern(100_000));
    up.succeed(1, &["drain"]);
    up.daemon.await_log("node-1 has stopped; the other stores go on");
    assert_eq!(up.succeed(2, &["get", "x", "-o", "-"]), pattern(100_000));
    assert!(up.daemon.is_running());
    up.succeed(2, &["delete", "x"]);
    up.succeed(2, &["drain"]);
    assert_eq!(up.daemon.exit_code(), 0);
    assert!(!up.cluster().exists());
}

#[test]
fn stop_does_not_claim_that_a_store_of_up_is_absent() {
    let mut up = Up::start(1, 1);
    let text = up.fail(0, &["stop"]);
    assert!(
        text.contains("a store runs at") && text.contains("`hoplite start` did not start it"),
        "{text}"
    );
    assert!(up.daemon.is_running());
    up.succeed(0, &["status"]);
    assert_eq!(
        up.succeed(1, &["stop"]).last_chunk(),
        Some(b"node-1.sock\n"),
        "no store was started there"
    );
}
