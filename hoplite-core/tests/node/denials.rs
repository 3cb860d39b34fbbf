//! Participants of collectives that come after it was told that there will be no target.

use std::time::Duration;

use hoplite_core::Error;
use hoplite_core::collective::{Agreement, CollectiveEvent};
use hoplite_core::node::*;
use hoplite_core::plan::collective::Kind;

use crate::harness::*;
use crate::members::*;
use crate::reducing::*;

fn deny(h: &mut Harness, error: &Error) {
    collective(h, CollectiveEvent::Denied { target: id("t"), error: error.clone() });
}

fn join(h: &mut Harness) -> (ClientId, CallId) {
    let agreement = Agreement::of(Kind::Allreduce, &reduce("t", &["a", "b"]));
    h.request(
        A,
        Request::Join { target: id("t"), agreement, is_again: false, source_bytes: SIZE, timeout: LONG },
    )
}

fn disagreement() -> Error {
    Error::TypeMismatch { id: id("t"), reason: "max, not sum".into() }
}

#[test]
fn who_comes_after_a_disagreement_is_told_of_it() {
    let mut h = Harness::new();
    deny(&mut h, &disagreement());
    let late = join(&mut h);
    h.pass(Duration::from_secs(9));
    h.assert_waits(late);
    // A clock is never exact.
    h.pass(Duration::from_millis(1001));
    assert_eq!(h.error(late), disagreement());
    h.pass(Duration::from_secs(1));
    let later = join(&mut h);
    h.pass(Duration::from_secs(11));
    h.assert_waits(later);
}

#[test]
fn another_attempt_that_begins_in_time_is_joined_after_a_disagreement() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    deny(&mut h, &disagreement());
    let late = join(&mut h);
    ask(&mut h, a.put);
    let combine = exchange(&mut h);
    h.view(late);
    h.pass(Duration::from_secs(11));
    leave(&mut h);
    end(&mut h, combine, CombineOutcome::Cancelled);
}

#[test]
fn who_comes_after_a_loss_waits_for_another_attempt() {
    let mut h = Harness::new();
    deny(&mut h, &Error::ObjectLost { id: id("t") });
    let late = join(&mut h);
    h.pass(Duration::from_secs(11));
    h.assert_waits(late);
}
