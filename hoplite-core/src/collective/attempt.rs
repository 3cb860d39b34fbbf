use super::{Decision, EnlistmentId, Failure, Report};
use crate::error::Error;
use crate::id::ObjectId;
use crate::plan::collective::Collective;

/// Coordinator's decision about one attempt at a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptState {
    /// Undecided: the member at the coordinator's store misses bytes. In a collective of parts,
    /// some member misses parts.
    Open,
    /// The members' copies are the target. In a collective of parts, all members have their parts.
    Committed,
    /// The attempt never makes the target.
    Aborted,
}

/// Action of the coordinator after a member's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptAction {
    /// Tell a member the decision.
    Tell(EnlistmentId, Decision),
    /// Release an unneeded member.
    Dismiss(EnlistmentId),
    /// Take the general path (a reduce and a broadcast) for this reason.
    FallBack(String),
    /// Fail the whole collective.
    Fail(Error),
}

/// Coordinator's state of an attempt.
#[derive(Debug)]
pub struct Attempt {
    kind: Collective,
    target: ObjectId,
    members: Vec<AttemptMember>,
    /// Member at the coordinator's store. Its last byte decides an allreduce, because its copy
    /// survives all other members.
    own: Option<EnlistmentId>,
    state: AttemptState,
}

#[derive(Debug)]
struct AttemptMember {
    enlistment: EnlistmentId,
    state: MemberState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberState {
    Exchanging,
    Filled,
    Out,
}

impl Attempt {
    /// Begins an attempt.
    pub fn new(
        kind: Collective,
        target: ObjectId,
        enlistments: impl IntoIterator<Item = EnlistmentId>,
        own: Option<EnlistmentId>,
    ) -> Self {
        let member = |enlistment| AttemptMember { enlistment, state: MemberState::Exchanging };
        let members = enlistments.into_iter().map(member).collect();
        Self { kind, target, members, own, state: AttemptState::Open }
    }

    pub(super) fn present(&self) -> usize {
        self.members.iter().filter(|member| member.state != MemberState::Out).count()
    }

    pub(super) fn awaits(&self, enlistment: EnlistmentId) -> bool {
        let is_of_enlistment = |member: &AttemptMember| member.enlistment == enlistment;
        self.members
            .iter()
            .any(|member| is_of_enlistment(member) && member.state != MemberState::Out)
    }

    /// Member at the coordinator's store.
    pub const fn own(&self) -> Option<EnlistmentId> {
        self.own
    }

    /// Coordinator's decision.
    pub const fn state(&self) -> AttemptState {
        self.state
    }

    /// Returns `true` once no member exchanges bytes, or after an abort.
    pub fn is_over(&self) -> bool {
        let is_exchanging = |member: &AttemptMember| member.state == MemberState::Exchanging;
        self.state == AttemptState::Aborted || !self.members.iter().any(is_exchanging)
    }

    /// Indices of members that have neither reported all bytes nor failed.
    pub fn unfinished(&self) -> impl Iterator<Item = usize> {
        let members = self.members.iter().enumerate();
        members
            .filter(|(_, member)| member.state == MemberState::Exchanging)
            .map(|(index, _)| index)
    }

    /// Handles a member's report.
    pub fn reported(&mut self, enlistment: EnlistmentId, report: Report) -> Vec<AttemptAction> {
        let index = self.members.iter().position(|member| member.enlistment == enlistment);
        let Some(index) = index.filter(|index| self.members[*index].state != MemberState::Out)
        else {
            return Vec::new();
        };
        self.members[index].state =
            if report == Report::Filled { MemberState::Filled } else { MemberState::Out };
        let Report::Failed(failure) = report else { return self.filled(enlistment) };
        if self.state != AttemptState::Open {
            return self.dismissals();
        }
        let (decision, end) = match failure {
            Failure::Disagrees(error) => (error.clone(), AttemptAction::Fail(error)),
            failure => {
                let error = Error::Superseded { id: self.target.clone() };
                (error, AttemptAction::FallBack(describe_failure(index, &failure)))
            }
        };
        let mut actions = self.give_up(&decision);
        actions.push(end);
        actions
    }

    fn filled(&mut self, enlistment: EnlistmentId) -> Vec<AttemptAction> {
        let mut actions = Vec::new();
        let kind = self.kind.properties();
        let decides = if kind.makes_target { Some(enlistment) == self.own } else { self.is_over() };
        if self.state == AttemptState::Open && decides {
            self.state = AttemptState::Committed;
            if kind.awaits_commit {
                actions.extend(self.decisions_to_all(&Decision::Commit));
            }
        }
        actions.extend(self.dismissals());
        actions
    }

    fn dismissals(&self) -> Vec<AttemptAction> {
        if self.state != AttemptState::Committed || !self.is_over() {
            return Vec::new();
        }
        let filled = self.members.iter().filter(|member| member.state == MemberState::Filled);
        filled.map(|member| AttemptAction::Dismiss(member.enlistment)).collect()
    }

    /// Stops unfinished members after the target was deleted. A delete reaches only copies that the
    /// directory knows.
    pub fn deleted(&mut self, error: &Error) -> Vec<AttemptAction> {
        if self.state != AttemptState::Committed {
            return Vec::new();
        }
        let mut actions = Vec::new();
        for member in
            self.members.iter_mut().filter(|member| member.state == MemberState::Exchanging)
        {
            member.state = MemberState::Out;
            actions.push(AttemptAction::Tell(member.enlistment, Decision::Stop(error.clone())));
        }
        actions.extend(self.dismissals());
        actions
    }

    /// Aborts an undecided attempt, with `error` for its participants.
    pub fn give_up(&mut self, error: &Error) -> Vec<AttemptAction> {
        if self.state != AttemptState::Open {
            return Vec::new();
        }
        self.state = AttemptState::Aborted;
        self.decisions_to_all(&Decision::Stop(error.clone())).collect()
    }

    fn decisions_to_all(&self, decision: &Decision) -> impl Iterator<Item = AttemptAction> {
        let present = self.members.iter().filter(|member| member.state != MemberState::Out);
        present.map(|member| AttemptAction::Tell(member.enlistment, decision.clone()))
    }
}

pub(crate) fn describe_failure(index: usize, failure: &Failure) -> String {
    match failure {
        Failure::Unreachable => format!("member {index} could not be reached"),
        Failure::Peer { index: peer, outcome } => {
            format!("member {index} could not take from member {peer}: {outcome:?}")
        }
        Failure::Refused(error) | Failure::Disagrees(error) => {
            format!("member {index} refused: {error}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(members: u64) -> Attempt {
        attempt_of(Collective::Allreduce, members)
    }

    fn attempt_of(kind: Collective, members: u64) -> Attempt {
        let target = ObjectId::new("t").unwrap();
        Attempt::new(kind, target, (0..members).map(EnlistmentId), Some(EnlistmentId(0)))
    }

    fn commits(actions: &[AttemptAction]) -> Vec<(u64, bool)> {
        let decision = |action: &AttemptAction| match action {
            AttemptAction::Tell(to, decision) => Some((to.0, *decision == Decision::Commit)),
            _ => None,
        };
        actions.iter().filter_map(decision).collect()
    }

    #[test]
    fn the_coordinators_member_commits_and_the_last_member_ends_the_attempt() {
        let mut attempt = attempt(4);
        assert_eq!(
            attempt.reported(EnlistmentId(3), Report::Filled),
            [],
            "it was not told that this counts"
        );
        let actions = attempt.reported(EnlistmentId(0), Report::Filled);
        assert_eq!(commits(&actions), [(0, true), (1, true), (2, true), (3, true)]);
        assert_eq!(attempt.reported(EnlistmentId(1), Report::Done), []);
        let actions = attempt.reported(EnlistmentId(2), Report::Failed(Failure::Unreachable));
        assert_eq!(actions, [0, 3].map(|member| AttemptAction::Dismiss(EnlistmentId(member))));
        assert!(attempt.is_over());
        assert_eq!(attempt.give_up(&Error::ShuttingDown), []);
        assert_eq!(attempt.state(), AttemptState::Committed);
    }

    #[test]
    fn a_failure_of_the_coordinators_member_leaves_no_target() {
        let mut attempt = attempt(3);
        attempt.reported(EnlistmentId(1), Report::Done);
        let actions = attempt.reported(EnlistmentId(0), Report::Failed(Failure::Unreachable));
        assert_eq!(commits(&actions), [(2, false)]);
        assert!(matches!(actions.last(), Some(AttemptAction::FallBack(_))));
        assert!(attempt.is_over() && attempt.state() == AttemptState::Aborted);
    }

    #[test]
    fn members_that_left_are_not_dismissed() {
        let mut attempt = attempt(3);
        attempt.reported(EnlistmentId(0), Report::Filled);
        assert_eq!(attempt.reported(EnlistmentId(0), Report::Done), []);
        assert_eq!(attempt.reported(EnlistmentId(1), Report::Done), []);
        assert!(!attempt.is_over());
        assert_eq!(attempt.reported(EnlistmentId(2), Report::Done), []);
        assert!(attempt.is_over());
    }

    #[test]
    fn a_delete_of_the_target_stops_its_members() {
        let (mut attempt, error) = (attempt(3), Error::Deleted { id: ObjectId::new("t").unwrap() });
        assert_eq!(attempt.deleted(&error), [], "it was that of another attempt");
        attempt.reported(EnlistmentId(0), Report::Filled);
        let stop =
            |member| AttemptAction::Tell(EnlistmentId(member), Decision::Stop(error.clone()));
        assert_eq!(
            attempt.deleted(&error),
            [stop(1), stop(2), AttemptAction::Dismiss(EnlistmentId(0))]
        );
        assert!(attempt.is_over());
    }

    #[test]
    fn a_complete_member_of_parts_sends_until_all_members_are_complete() {
        let mut attempt = attempt_of(Collective::ReduceScatter, 2);
        assert_eq!(attempt.reported(EnlistmentId(1), Report::Filled), []);
        assert_eq!(attempt.state(), AttemptState::Open);
        let dismissals = [0, 1].map(|member| AttemptAction::Dismiss(EnlistmentId(member)));
        assert_eq!(attempt.reported(EnlistmentId(0), Report::Filled), dismissals);
        assert!(attempt.is_over() && attempt.state() == AttemptState::Committed);
    }

    #[test]
    fn members_that_end_together_are_notified_when_all_are_complete() {
        let mut attempt = attempt_of(Collective::AllToAll, 2);
        assert_eq!(attempt.reported(EnlistmentId(0), Report::Filled), []);
        let actions = attempt.reported(EnlistmentId(1), Report::Filled);
        assert_eq!(commits(&actions), [(0, true), (1, true)]);
        assert!(
            actions.ends_with(&[0, 1].map(|member| AttemptAction::Dismiss(EnlistmentId(member))))
        );
        assert!(attempt.is_over() && attempt.state() == AttemptState::Committed);
    }

    #[test]
    fn a_member_without_its_parts_stops_the_attempt_of_all() {
        let mut attempt = attempt_of(Collective::Allgather, 3);
        attempt.reported(EnlistmentId(1), Report::Filled);
        let actions = attempt.reported(EnlistmentId(2), Report::Failed(Failure::Unreachable));
        assert_eq!(commits(&actions), [(0, false), (1, false)]);
        assert!(matches!(actions.last(), Some(AttemptAction::FallBack(_))));
        assert!(attempt.is_over() && attempt.state() == AttemptState::Aborted);
    }

    #[test]
    fn an_aborted_attempt_cannot_commit() {
        let mut attempt = attempt(3);
        let actions = attempt.reported(EnlistmentId(2), Report::Failed(Failure::Unreachable));
        assert_eq!(commits(&actions), [(0, false), (1, false)]);
        assert!(matches!(actions.last(), Some(AttemptAction::FallBack(_))));
        for member in 0..3 {
            assert_eq!(attempt.reported(EnlistmentId(member), Report::Filled), []);
        }
        assert_eq!(attempt.state(), AttemptState::Aborted);
    }

    #[test]
    fn disagreement_fails_the_collective_at_all_participants_with_the_reason() {
        let mut attempt = attempt(2);
        let error =
            Error::TypeMismatch { id: ObjectId::new("t").unwrap(), reason: "max, not sum".into() };
        let report = Report::Failed(Failure::Disagrees(error.clone()));
        let actions = attempt.reported(EnlistmentId(1), report);
        let stop = AttemptAction::Tell(EnlistmentId(0), Decision::Stop(error.clone()));
        assert_eq!(actions, [stop, AttemptAction::Fail(error)]);
    }
}
