//! Attempts that have ended at this store. It refuses plans of these or older attempts, and ignores
//! repeated rejections.

use std::collections::VecDeque;
use std::time::Duration;

use super::message::AttemptId;
use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::time::Time;

/// Time for which joining participants get the error of a failed attempt.
pub(super) const REJECTION_TTL: Duration = Duration::from_secs(10);
/// Shortest wait of a participant for the next attempt after ranks disagreed about the operation.
/// Ranks retry at the same time, but a store may be busy.
pub(super) const MIN_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
pub(super) const MAX_REJECTIONS: usize = 256;
/// Most remembered ended attempts: enough for some seconds, while members may still request bytes.
const MAX_LEFT_ATTEMPTS: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Outcomes {
    left: VecDeque<(ObjectId, AttemptId, PutId)>,
    rejected: VecDeque<Rejection>,
}

#[derive(Debug)]
struct Rejection {
    target: ObjectId,
    attempt: AttemptId,
    at: Time,
    error: Option<Error>,
}

impl Outcomes {
    pub(super) fn record_left(&mut self, target: ObjectId, attempt: AttemptId, put: PutId) {
        push(&mut self.left, MAX_LEFT_ATTEMPTS, (target, attempt, put));
    }

    /// Notes a rejected attempt. Returns `false` if it, or a newer attempt, was already rejected.
    pub(super) fn reject(
        &mut self,
        now: Time,
        target: &ObjectId,
        attempt: AttemptId,
        error: Option<&Error>,
    ) -> bool {
        let is_new = !self.is_rejected(target, attempt);
        if is_new {
            let rejection =
                Rejection { target: target.clone(), attempt, at: now, error: error.cloned() };
            push(&mut self.rejected, MAX_REJECTIONS, rejection);
        }
        is_new
    }

    fn is_rejected(&self, target: &ObjectId, attempt: AttemptId) -> bool {
        self.rejected.iter().any(|known| known.target == *target && known.attempt.includes(attempt))
    }

    pub(super) fn is_over(&self, target: &ObjectId, attempt: AttemptId) -> bool {
        let mut left = self.left.iter();
        left.any(|(id, known, _)| id == target && known.includes(attempt))
            || self.is_rejected(target, attempt)
    }

    pub(super) fn has_left(&self, put: PutId) -> bool {
        self.left.iter().any(|(_, _, known)| *known == put)
    }

    fn recent_errors(&self, now: Time, target: &ObjectId) -> impl Iterator<Item = (Time, &Error)> {
        let of_target = self.rejected.iter().rev().filter(move |known| known.target == *target);
        let fresh = of_target
            .filter(move |known| now.since(known.at) <= REJECTION_TTL + MIN_ATTEMPT_TIMEOUT);
        fresh.filter_map(|known| Some((known.at, known.error.as_ref()?)))
    }

    pub(super) fn rejection(&self, now: Time, target: &ObjectId) -> Option<&Error> {
        self.recent_errors(now, target).next().map(|(_, error)| error)
    }

    /// Returns the latest disagreement of ranks, and the time until which it is the error of
    /// joining participants.
    pub(super) fn disagreement(&self, now: Time, target: &ObjectId) -> Option<(Time, &Error)> {
        let found = self.recent_errors(now, target).find(|(_, error)| is_disagreement(error));
        found.map(|(at, error)| (at + REJECTION_TTL, error))
    }

    pub(super) fn forget_rejections(&mut self, target: &ObjectId) {
        for known in self.rejected.iter_mut().filter(|known| known.target == *target) {
            known.error = None;
        }
    }
}

pub(super) fn is_disagreement(error: &Error) -> bool {
    matches!(error, Error::TypeMismatch { .. })
}

fn push<T>(queue: &mut VecDeque<T>, limit: usize, item: T) {
    if queue.len() >= limit {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_over_when_it_or_a_newer_one_of_its_coordinator_is() {
        let (target, other) = (ObjectId::new("t").unwrap(), ObjectId::new("u").unwrap());
        let attempt = |run, number| AttemptId { run, number };
        let lost = Error::ObjectLost { id: target.clone() };
        let mut outcomes = Outcomes::default();
        assert!(outcomes.reject(Time::ZERO, &target, attempt(1, 5), Some(&lost)));
        for older in [4, 5] {
            assert!(!outcomes.reject(Time::ZERO, &target, attempt(1, older), Some(&lost)));
            assert!(outcomes.is_over(&target, attempt(1, older)));
        }
        assert!(
            !outcomes.is_over(&target, attempt(1, 6)) && !outcomes.is_over(&target, attempt(2, 4))
        );
        assert!(!outcomes.is_over(&other, attempt(1, 5)));
        outcomes.record_left(target.clone(), attempt(2, 4), PutId(9));
        assert!(outcomes.is_over(&target, attempt(2, 4)) && outcomes.has_left(PutId(9)));
        assert!(
            outcomes.reject(Time::ZERO, &target, attempt(2, 4), Some(&lost)),
            "its participants may wait"
        );
    }

    #[test]
    fn a_rejection_ends_with_the_next_attempt_and_with_time() {
        let target = ObjectId::new("t").unwrap();
        let error = Error::TypeMismatch { id: target.clone(), reason: "max, not sum".into() };
        let attempt = AttemptId { run: 1, number: 5 };
        let mut outcomes = Outcomes::default();
        outcomes.reject(Time::ZERO, &target, attempt, Some(&error));
        let has_error_at = |outcomes: &Outcomes, seconds| {
            outcomes.rejection(Time::ZERO + Duration::from_secs(seconds), &target).is_some()
        };
        assert!(has_error_at(&outcomes, 12) && !has_error_at(&outcomes, 13));
        outcomes.forget_rejections(&target);
        assert!(!has_error_at(&outcomes, 0) && outcomes.is_over(&target, attempt));
    }
}
