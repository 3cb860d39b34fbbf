use std::time::Duration;

use bytes::Bytes;
use hoplite_core::collective::{
    Agreement, AttemptId, CollectiveEffect, CollectiveEvent, Decision, Failure, Report,
};
use hoplite_core::node::*;
use hoplite_core::plan::collective::Collective;
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::{PullOutcome, ToStore};
use hoplite_core::{Dtype, Error, Metadata, PutId};

use crate::harness::*;
use crate::members::*;
use crate::reducing::*;

fn reject(h: &mut Harness, attempt: AttemptId, error: &Error) {
    collective(h, CollectiveEvent::Rejected { target: id("t"), attempt, error: error.clone() });
}

fn lost() -> Error {
    Error::ObjectLost { id: id("t") }
}

fn join(h: &mut Harness) -> (ClientId, CallId) {
    let agreement = Agreement::of(Collective::Allreduce, &reduce("t", &["a", "b"]));
    h.request(
        A,
        Request::Join {
            target: id("t"),
            agreement,
            is_again: false,
            source_bytes: SIZE,
            timeout: LONG,
        },
    )
}

fn disagreement() -> Error {
    Error::TypeMismatch { id: id("t"), reason: "max, not sum".into() }
}

#[test]
fn who_comes_after_a_disagreement_is_told_of_it() {
    let mut h = Harness::new();
    reject(&mut h, attempt(1), &disagreement());
    let late = join(&mut h);
    h.pass(Duration::from_secs(9));
    h.assert_waits(late);
    h.pass(Duration::from_millis(1001));
    assert_eq!(h.error(late), disagreement());
    h.pass(Duration::from_secs(1));
    let later = join(&mut h);
    h.pass(Duration::from_secs(11));
    h.assert_waits(later);
}

#[test]
fn who_comes_when_a_disagreement_is_almost_forgotten_waits_for_another_attempt() {
    let mut h = Harness::new();
    reject(&mut h, attempt(1), &disagreement());
    h.pass(Duration::from_millis(9_999));
    let late = join(&mut h);
    h.pass(Duration::from_millis(1_999));
    h.assert_waits(late);
    let of_another =
        CollectiveEvent::Rejected { target: id("u"), attempt: attempt(2), error: disagreement() };
    collective(&mut h, of_another);
    h.pass(Duration::from_millis(2));
    assert_eq!(h.error(late), disagreement());
}

#[test]
fn another_attempt_that_begins_in_time_is_joined_after_a_disagreement() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    reject(&mut h, attempt(1), &disagreement());
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
    reject(&mut h, attempt(1), &lost());
    let late = join(&mut h);
    h.pass(Duration::from_secs(11));
    h.assert_waits(late);
}

fn disagree(h: &mut Harness) -> Error {
    let call =
        h.request(A, Request::Collective(Collective::Allreduce, reduce("t", &["a", "b", "c"])));
    for name in ["t", "c"] {
        h.tell(unknown(name));
    }
    h.ready("a", 1, "n1");
    let mut other = complete("b", 2, &["n2"]);
    other.object.as_mut().expect("it is known").metadata.dtype = Dtype::F64;
    h.tell(other);
    let error = h.error(call);
    assert!(matches!(error, Error::TypeMismatch { .. }), "{error}");
    assert_eq!(rejected(h), [("n1".to_owned(), error.clone()), ("n2".to_owned(), error.clone())]);
    error
}

fn rejected(h: &mut Harness) -> Vec<(String, Error)> {
    let rejected = performed(h).into_iter().filter_map(|effect| match effect {
        CollectiveEffect::Reject { node, error, .. } => Some((node.to_string(), error)),
        _ => None,
    });
    rejected.collect()
}

#[test]
fn a_rank_whose_source_comes_after_a_disagreement_is_told_of_it() {
    let mut h = Harness::new();
    let error = disagree(&mut h);
    h.ready("c", 3, "n3");
    assert_eq!(rejected(&mut h), [("n3".to_owned(), error)]);
    h.ready("c", 3, "n4");
    assert_eq!(rejected(&mut h), []);
    assert!(h.subscriptions.is_empty());
}

#[test]
fn a_rank_whose_source_comes_too_late_or_for_another_attempt_is_told_nothing() {
    let mut h = Harness::new();
    disagree(&mut h);
    h.pass(Duration::from_secs(11));
    assert!(h.subscriptions.is_empty());
    h.ready("c", 3, "n3");
    assert_eq!(rejected(&mut h), []);
    disagree(&mut h);
    let again = h.request(A, Request::Reduce(reduce("t", &["d"])));
    h.ready("c", 3, "n3");
    assert_eq!(rejected(&mut h), []);
    h.assert_waits(again);
}

#[test]
fn what_another_collective_or_none_has_made_is_no_answer_to_a_participant() {
    let mut h = Harness::new();
    h.put_f32("t", SMALL);
    let joined = join(&mut h);
    let reason = "a participant asks for sum of 2 sources in any order, but no collective made what is there";
    assert_eq!(h.error(joined), Error::TypeMismatch { id: id("t"), reason: reason.into() });
    let agreement =
        |op| Agreement::of(Collective::Allreduce, &Reduce { op, ..reduce("t", &["a", "b"]) });
    let request = Request::Join {
        target: id("u"),
        agreement: agreement(ReduceOp::Sum),
        is_again: false,
        source_bytes: SMALL,
        timeout: LONG,
    };
    let joined = h.request(A, request);
    let (shard, query) = h.query_of("u");
    let message = ToStore::Inline {
        request: query.request,
        id: id("u"),
        put: PutId(9),
        metadata: Metadata { agreement: Some(agreement(ReduceOp::Max)), ..f32s() },
        bytes: Bytes::from_static(&[0; SMALL as usize]).into(),
    };
    h.event(Event::FromShard { shard, message });
    let error = h.error(joined).to_string();
    let both = "a participant asks for sum of 2 sources in any order, rank 0 for max of 2 sources in any order";
    assert!(error.contains(both), "{error}");
}

#[test]
fn if_the_call_of_rank_0_is_cancelled_those_who_wait_elsewhere_are_told() {
    let mut h = Harness::new();
    let (client, call) =
        h.request(A, Request::Collective(Collective::Allreduce, reduce("t", &["a", "b", "c"])));
    for name in ["t", "c"] {
        h.tell(unknown(name));
    }
    h.ready("a", 1, "n1");
    h.pass(Duration::from_secs(1));
    h.ready("b", 2, "n2");
    h.event(Event::Request { client, call: CallId(999), request: Request::Cancel { call } });
    assert_eq!(rejected(&mut h), [("n1".to_owned(), lost()), ("n2".to_owned(), lost())]);
    h.put_f32("d", SIZE);
    let later = h.reduce("t", &["d"]);
    let (_, target) = h.publication();
    assert_eq!((target.id, target.metadata.agreement), (id("t"), None));
    h.assert_waits(later);
}

#[test]
fn who_has_joined_again_does_not_fail_when_the_same_is_said_twice() {
    let mut h = Harness::new();
    let first = join(&mut h);
    reject(&mut h, attempt(1), &disagreement());
    assert_eq!(h.error(first), disagreement());
    let again = join(&mut h);
    reject(&mut h, attempt(1), &disagreement());
    h.assert_waits(again);
    let other = Error::TypeMismatch { id: id("t"), reason: "min, not sum".into() };
    reject(&mut h, attempt(2), &other);
    assert_eq!(h.error(again), other);
}

#[test]
fn the_end_of_a_session_is_no_word_about_the_next_attempt() {
    for is_rejected_first in [false, true] {
        let mut h = Harness::new();
        let a = h.put_f32("a", SIZE);
        ask(&mut h, a.put);
        let combine = exchange(&mut h);
        let first = join(&mut h);
        let copy = h.view(first).copy;
        let say = |h: &mut Harness, is_rejected: bool| {
            if is_rejected { reject(h, ATTEMPT, &lost()) } else { tell(h, Decision::Stop(lost())) }
        };
        say(&mut h, is_rejected_first);
        assert!(
            h.effects.contains(&Effect::CopyFailed { copy, error: lost() }),
            "its reader is told"
        );
        let again = join(&mut h);
        say(&mut h, !is_rejected_first);
        leave(&mut h);
        end(&mut h, combine, CombineOutcome::Cancelled);
        h.assert_waits(again);
        reject(&mut h, ATTEMPT, &lost());
        h.assert_waits(again);
        reject(&mut h, attempt(ATTEMPT.number + 1), &lost());
        assert_eq!(h.error(again), lost());
    }
}

#[test]
fn a_session_that_was_given_up_before_its_plan_came_is_not_begun() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    reject(&mut h, ATTEMPT, &lost());
    let again = join(&mut h);
    ask(&mut h, a.put);
    let refused = Failure::Refused(Error::Superseded { id: id("t") });
    assert_eq!(performed(&mut h), [report(Report::Failed(refused))]);
    tell(&mut h, Decision::Stop(lost()));
    leave(&mut h);
    h.pass(Duration::from_secs(6));
    h.assert_waits(again);
}

fn report(report: Report) -> CollectiveEffect {
    CollectiveEffect::Report { membership: MEMBERSHIP, report }
}

#[test]
fn a_target_that_is_deleted_when_it_is_decided_is_no_word_about_the_next_attempt() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    ask(&mut h, a.put);
    let combine = exchange(&mut h);
    let deleted = Error::Deleted { id: id("t") };
    tell(&mut h, Decision::Commit);
    tell(&mut h, Decision::Stop(deleted.clone()));
    let again = join(&mut h);
    reject(&mut h, ATTEMPT, &deleted);
    h.assert_waits(again);
    leave(&mut h);
    end(&mut h, combine, CombineOutcome::Cancelled);
}

#[test]
fn who_waits_without_a_session_is_told_of_its_end_once() {
    for has_failed in [false, true] {
        let mut h = Harness::new();
        let waiting = join(&mut h);
        if has_failed {
            ask(&mut h, PutId(77));
            let refused = Failure::Refused(Error::ObjectLost { id: id("a") });
            assert_eq!(reports(&mut h), [Report::Failed(refused)]);
        }
        h.assert_waits(waiting);
        reject(&mut h, ATTEMPT, &lost());
        assert_eq!(h.error(waiting), lost());
        let again = join(&mut h);
        if has_failed {
            tell(&mut h, Decision::Stop(lost()));
            leave(&mut h);
        }
        reject(&mut h, ATTEMPT, &lost());
        h.assert_waits(again);
    }
}

#[test]
fn a_coordinator_names_its_latest_attempt() {
    for falls_back in [false, true] {
        let mut h = Harness::new();
        let (_, _, combine, attempt) = coordinate_attempt(&mut h, Collective::Allreduce);
        if falls_back {
            let outcome = PullOutcome::SenderHasNoCopy;
            end(&mut h, combine, CombineOutcome::InputFailed { index: 1, outcome });
        }
        performed(&mut h);
        h.gone(A);
        let rejected = performed(&mut h).into_iter().find_map(|effect| match effect {
            CollectiveEffect::Reject { attempt, error, .. } => Some((attempt, error)),
            _ => None,
        });
        let (named, error) = rejected.expect("the other store is told");
        assert_eq!((named.run, error), (attempt.run, lost()));
        assert_eq!(
            named.number > attempt.number,
            falls_back,
            "the general path is another attempt"
        );
        assert!(named.includes(attempt));
    }
}

#[test]
fn a_plan_of_an_older_attempt_is_refused() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    reject(&mut h, attempt(ATTEMPT.number + 1), &lost());
    ask(&mut h, a.put);
    let refused = Failure::Refused(Error::Superseded { id: id("t") });
    assert_eq!(reports(&mut h), [Report::Failed(refused)]);
    leave(&mut h);
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    reject(&mut h, AttemptId { run: 2, number: ATTEMPT.number + 1 }, &lost());
    ask(&mut h, a.put);
    let combine = exchange(&mut h);
    leave(&mut h);
    end(&mut h, combine, CombineOutcome::Cancelled);
}

#[test]
fn a_rejection_of_an_older_attempt_is_no_word_about_a_newer_one() {
    let mut h = Harness::new();
    let (joined, combine) = asked_for_a_small_target(&mut h);
    reject(&mut h, attempt(ATTEMPT.number - 1), &lost());
    h.assert_waits(joined);
    reject(&mut h, ATTEMPT, &lost());
    assert_eq!(h.error(joined), lost());
    leave(&mut h);
    end(&mut h, combine, CombineOutcome::Cancelled);
}

#[test]
fn no_client_says_what_participants_have_agreed_to() {
    let mut h = Harness::new();
    let agreement = Agreement::of(Collective::Allreduce, &reduce("t", &["a", "b"]));
    let metadata = Metadata { agreement: Some(agreement), ..f32s() };
    let create = Request::Create {
        id: id("t"),
        size_bytes: SIZE,
        metadata: metadata.clone(),
        timeout: LONG,
    };
    let created = h.request(B, create);
    assert_eq!(h.view(created).metadata, f32s());
    let bytes = Bytes::from_static(&[0; SMALL as usize]);
    h.request(
        B,
        Request::Put { id: id("u"), metadata, bytes, confirm: Confirm::No, timeout: LONG },
    );
    let published = h.publications().into_iter().find(|(_, published)| published.id == id("u"));
    assert_eq!(published.expect("it is published").1.metadata, f32s());
}
