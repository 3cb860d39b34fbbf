//! The coordinator's decision: whether what a session makes is the target.

use super::{EnlistmentId, Failure, Report, Word};
use crate::error::Error;
use crate::id::ObjectId;
use crate::plan::collective::Collective;

/// Whether what a session makes is the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The coordinator's own member has not all bytes yet; of parts: not all have theirs.
    Open,
    /// It is: for good. Of parts: all have theirs.
    Committed,
    /// It is not: for good.
    GivenUp,
}

/// What follows from a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionAction {
    /// Say this to a member.
    Tell(EnlistmentId, Word),
    /// A member is not needed any more.
    Dismiss(EnlistmentId),
    /// Do without a session, for this reason.
    FallBack(String),
    /// The whole collective has failed.
    Fail(Error),
}

/// One attempt, as its coordinator sees it.
#[derive(Debug)]
pub struct CollectiveSession {
    kind: Collective,
    target: ObjectId,
    seats: Vec<Seat>,
    /// The member that is the coordinator's own store, which decides an allreduce when it has all bytes: so its copy stands
    /// whatever becomes of the others, and nobody else has to say a thing before.
    own: Option<EnlistmentId>,
    decision: Decision,
}

#[derive(Debug)]
struct Seat {
    enlistment: EnlistmentId,
    state: SeatState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SeatState {
    Exchanging,
    Filled,
    Out,
}

impl CollectiveSession {
    /// A session of these members, who have just been asked. One of them is the coordinator's own store.
    pub fn new(
        kind: Collective,
        target: ObjectId,
        enlistments: impl IntoIterator<Item = EnlistmentId>,
        own: Option<EnlistmentId>,
    ) -> Self {
        let seat = |enlistment| Seat { enlistment, state: SeatState::Exchanging };
        let seats = enlistments.into_iter().map(seat).collect();
        Self { kind, target, seats, own, decision: Decision::Open }
    }

    /// What was decided.
    pub const fn decision(&self) -> Decision {
        self.decision
    }

    /// Returns `true` if there is nobody left to be heard or told.
    pub fn is_over(&self) -> bool {
        let is_exchanging = |seat: &Seat| seat.state == SeatState::Exchanging;
        self.decision == Decision::GivenUp || !self.seats.iter().any(is_exchanging)
    }

    /// The indices of the members that have neither all bytes nor failed.
    pub fn unfinished(&self) -> impl Iterator<Item = usize> {
        let seats = self.seats.iter().enumerate();
        seats.filter(|(_, seat)| seat.state == SeatState::Exchanging).map(|(index, _)| index)
    }

    /// A member has reported.
    pub fn reported(&mut self, enlistment: EnlistmentId, report: Report) -> Vec<SessionAction> {
        let index = self.seats.iter().position(|seat| seat.enlistment == enlistment);
        let Some(index) = index.filter(|index| self.seats[*index].state != SeatState::Out) else {
            return Vec::new();
        };
        self.seats[index].state = if report == Report::Filled { SeatState::Filled } else { SeatState::Out };
        let Report::Failed(failure) = report else { return self.filled(enlistment) };
        if self.decision != Decision::Open {
            return self.dismissals();
        }
        let (word, end) = match failure {
            Failure::Disagrees(error) => (error.clone(), SessionAction::Fail(error)),
            failure => {
                let error = Error::Superseded { id: self.target.clone() };
                (error, SessionAction::FallBack(describe_failure(index, &failure)))
            }
        };
        let mut actions = self.give_up(&word);
        actions.push(end);
        actions
    }

    fn filled(&mut self, enlistment: EnlistmentId) -> Vec<SessionAction> {
        let mut actions = Vec::new();
        if self.kind.is_of_parts() {
            // Each member has its own, whether the others get theirs or not: nobody waits for a word, unless they end together.
            if self.decision == Decision::Open && self.is_over() {
                self.decision = Decision::Committed;
                if self.kind.ends_together() {
                    actions.extend(self.words_to_all(&Word::Commit));
                }
            }
        } else if self.decision == Decision::Open && Some(enlistment) == self.own {
            self.decision = Decision::Committed;
            actions.extend(self.words_to_all(&Word::Commit));
        }
        actions.extend(self.dismissals());
        actions
    }

    /// Once all are heard, nobody needs what another one gives any more.
    fn dismissals(&self) -> Vec<SessionAction> {
        if self.decision != Decision::Committed || !self.is_over() {
            return Vec::new();
        }
        let filled = self.seats.iter().filter(|seat| seat.state == SeatState::Filled);
        filled.map(|seat| SessionAction::Dismiss(seat.enlistment)).collect()
    }

    /// The target was deleted, which those who have not all of it cannot hear from the directory.
    pub fn deleted(&mut self, error: &Error) -> Vec<SessionAction> {
        if self.decision != Decision::Committed {
            return Vec::new();
        }
        let mut actions = Vec::new();
        for seat in self.seats.iter_mut().filter(|seat| seat.state == SeatState::Exchanging) {
            seat.state = SeatState::Out;
            actions.push(SessionAction::Tell(seat.enlistment, Word::Stop(error.clone())));
        }
        actions.extend(self.dismissals());
        actions
    }

    /// Gives the session up, unless its result is the target already. Those who wait for it at other nodes are told `error`.
    pub fn give_up(&mut self, error: &Error) -> Vec<SessionAction> {
        if self.decision != Decision::Open {
            return Vec::new();
        }
        self.decision = Decision::GivenUp;
        self.words_to_all(&Word::Stop(error.clone())).collect()
    }

    fn words_to_all(&self, word: &Word) -> impl Iterator<Item = SessionAction> {
        let present = self.seats.iter().filter(|seat| seat.state != SeatState::Out);
        present.map(|seat| SessionAction::Tell(seat.enlistment, word.clone()))
    }
}

/// What a member's failure means, for people.
pub(crate) fn describe_failure(index: usize, failure: &Failure) -> String {
    match failure {
        Failure::Unreachable => format!("member {index} could not be reached"),
        Failure::Peer { index: peer, outcome } => {
            format!("member {index} could not take from member {peer}: {outcome:?}")
        }
        Failure::Refused(error) | Failure::Disagrees(error) => format!("member {index} refused: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(members: u64) -> CollectiveSession {
        session_of(Collective::Allreduce, members)
    }

    fn session_of(kind: Collective, members: u64) -> CollectiveSession {
        let target = ObjectId::new("t").unwrap();
        CollectiveSession::new(kind, target, (0..members).map(EnlistmentId), Some(EnlistmentId(0)))
    }

    fn told(actions: &[SessionAction]) -> Vec<(u64, bool)> {
        let word = |action: &SessionAction| match action {
            SessionAction::Tell(to, word) => Some((to.0, *word == Word::Commit)),
            _ => None,
        };
        actions.iter().filter_map(word).collect()
    }

    #[test]
    fn the_coordinators_own_member_decides_and_the_last_ends_it() {
        let mut session = session(4);
        assert_eq!(session.reported(EnlistmentId(3), Report::Filled), [], "it was not told that this counts");
        let actions = session.reported(EnlistmentId(0), Report::Filled);
        assert_eq!(told(&actions), [(0, true), (1, true), (2, true), (3, true)]);
        assert_eq!(session.reported(EnlistmentId(1), Report::Done), []);
        let actions = session.reported(EnlistmentId(2), Report::Failed(Failure::Unreachable));
        assert_eq!(actions, [0, 3].map(|member| SessionAction::Dismiss(EnlistmentId(member))));
        assert!(session.is_over());
        assert_eq!(session.give_up(&Error::ShuttingDown), []);
        assert_eq!(session.decision(), Decision::Committed);
    }

    #[test]
    fn if_the_coordinators_own_member_fails_first_nobody_has_the_target() {
        let mut session = session(3);
        session.reported(EnlistmentId(1), Report::Done);
        let actions = session.reported(EnlistmentId(0), Report::Failed(Failure::Unreachable));
        assert_eq!(told(&actions), [(2, false)]);
        assert!(matches!(actions.last(), Some(SessionAction::FallBack(_))));
        assert!(session.is_over() && session.decision() == Decision::GivenUp);
    }

    #[test]
    fn those_who_have_left_are_not_dismissed() {
        let mut session = session(3);
        session.reported(EnlistmentId(0), Report::Filled);
        assert_eq!(session.reported(EnlistmentId(0), Report::Done), []);
        assert_eq!(session.reported(EnlistmentId(1), Report::Done), []);
        assert!(!session.is_over());
        assert_eq!(session.reported(EnlistmentId(2), Report::Done), []);
        assert!(session.is_over());
    }

    #[test]
    fn when_the_target_is_deleted_those_who_still_make_it_are_stopped() {
        let (mut session, error) = (session(3), Error::Deleted { id: ObjectId::new("t").unwrap() });
        assert_eq!(session.deleted(&error), [], "it was that of another attempt");
        session.reported(EnlistmentId(0), Report::Filled);
        let stop = |member| SessionAction::Tell(EnlistmentId(member), Word::Stop(error.clone()));
        assert_eq!(session.deleted(&error), [stop(1), stop(2), SessionAction::Dismiss(EnlistmentId(0))]);
        assert!(session.is_over());
    }

    #[test]
    fn who_has_its_parts_waits_for_no_word_but_gives_until_all_have_theirs() {
        let mut session = session_of(Collective::ReduceScatter, 2);
        assert_eq!(session.reported(EnlistmentId(1), Report::Filled), []);
        assert_eq!(session.decision(), Decision::Open);
        let dismissals = [0, 1].map(|member| SessionAction::Dismiss(EnlistmentId(member)));
        assert_eq!(session.reported(EnlistmentId(0), Report::Filled), dismissals);
        assert!(session.is_over() && session.decision() == Decision::Committed);
    }

    #[test]
    fn who_ends_together_with_the_others_is_told_when_all_have_what_is_for_them() {
        let mut session = session_of(Collective::AllToAll, 2);
        assert_eq!(session.reported(EnlistmentId(0), Report::Filled), []);
        let actions = session.reported(EnlistmentId(1), Report::Filled);
        assert_eq!(told(&actions), [(0, true), (1, true)]);
        assert!(actions.ends_with(&[0, 1].map(|member| SessionAction::Dismiss(EnlistmentId(member)))));
        assert!(session.is_over() && session.decision() == Decision::Committed);
    }

    #[test]
    fn if_one_does_not_get_its_parts_all_are_told_to_do_without() {
        let mut session = session_of(Collective::Allgather, 3);
        session.reported(EnlistmentId(1), Report::Filled);
        let actions = session.reported(EnlistmentId(2), Report::Failed(Failure::Unreachable));
        assert_eq!(told(&actions), [(0, false), (1, false)]);
        assert!(matches!(actions.last(), Some(SessionAction::FallBack(_))));
        assert!(session.is_over() && session.decision() == Decision::GivenUp);
    }

    #[test]
    fn after_it_was_given_up_nobody_can_commit() {
        let mut session = session(3);
        let actions = session.reported(EnlistmentId(2), Report::Failed(Failure::Unreachable));
        assert_eq!(told(&actions), [(0, false), (1, false)]);
        assert!(matches!(actions.last(), Some(SessionAction::FallBack(_))));
        for member in 0..3 {
            assert_eq!(session.reported(EnlistmentId(member), Report::Filled), []);
        }
        assert_eq!(session.decision(), Decision::GivenUp);
    }

    #[test]
    fn disagreement_fails_the_collective_and_everybody_hears_why() {
        let mut session = session(2);
        let error = Error::TypeMismatch { id: ObjectId::new("t").unwrap(), reason: "max, not sum".into() };
        let report = Report::Failed(Failure::Disagrees(error.clone()));
        let actions = session.reported(EnlistmentId(1), report);
        let stop = SessionAction::Tell(EnlistmentId(0), Word::Stop(error.clone()));
        assert_eq!(actions, [stop, SessionAction::Fail(error)]);
    }
}
