//! The rejections that a store has heard of: targets that will not be made.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::time::Time;

/// The time for which a store remembers that a target will not be made: far longer than a client takes to join again.
pub(super) const DENIAL_TTL: Duration = Duration::from_secs(10);
/// The time for which a participant waits at least for another attempt after a disagreement: for ranks that try again at the same
/// time, and a store that is busy.
pub(super) const MIN_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Most targets that are remembered as such.
pub(super) const MAX_DENIALS: usize = 256;

/// The latest rejections.
#[derive(Debug, Default)]
pub(super) struct Rejections {
    /// The targets that this store has heard lately will not be made, and when, oldest first.
    denials: VecDeque<(ObjectId, Time, Error)>,
    /// The attempts that this store has heard were given up, oldest first.
    given_up: VecDeque<PutId>,
}

impl Rejections {
    /// Remembers a rejection. Returns `true` if it is known.
    pub(super) fn remember_denial(&mut self, now: Time, target: &ObjectId, error: &Error) -> bool {
        let is_old = |(_, at, _): &(ObjectId, Time, Error)| now.since(*at) > DENIAL_TTL + MIN_ATTEMPT_TIMEOUT;
        while self.denials.front().is_some_and(is_old) {
            self.denials.pop_front();
        }
        if self.denials.iter().any(|(id, _, known)| id == target && known == error) {
            return true;
        }
        if self.denials.len() >= MAX_DENIALS {
            self.denials.pop_front();
        }
        self.denials.push_back((target.clone(), now, error.clone()));
        false
    }

    /// Returns `true` if this store has heard that the attempt was given up which was to make `put`.
    pub(super) fn is_given_up(&self, put: PutId) -> bool {
        self.given_up.contains(&put)
    }

    /// As [`Rejections::is_given_up`], and remembers it.
    pub(super) fn remember_given_up(&mut self, put: PutId) -> bool {
        if self.is_given_up(put) {
            return true;
        }
        if self.given_up.len() >= MAX_DENIALS {
            self.given_up.pop_front();
        }
        self.given_up.push_back(put);
        false
    }

    /// Returns the latest rejection of a target.
    pub(super) fn denial(&self, target: &ObjectId) -> Option<&Error> {
        let found = self.denials.iter().rev().find(|(id, ..)| id == target);
        found.map(|(_, _, error)| error)
    }

    /// Returns the latest disagreement about a target, and the time at which it is too old to tell newcomers.
    pub(super) fn disagreement(&self, target: &ObjectId) -> Option<(Time, &Error)> {
        let is_told = |(id, _, error): &&(ObjectId, Time, Error)| id == target && is_disagreement(error);
        self.denials.iter().rev().find(is_told).map(|(_, at, error)| (*at + DENIAL_TTL, error))
    }

    /// Another attempt to make a target begins. Rejections of earlier ones do not hold for it.
    pub(super) fn forget(&mut self, target: &ObjectId) {
        self.denials.retain(|(denied, ..)| denied != target);
    }
}

/// Returns `true` if an error says that participants disagree.
pub(super) fn is_disagreement(error: &Error) -> bool {
    matches!(error, Error::TypeMismatch { .. })
}
