//! A collective attempt: its coordinator and members, with messages, failures and deletes in any
//! order.

use std::collections::VecDeque;
use std::time::Duration;

use hoplite_core::collective::{
    Agreement, Attempt, AttemptAction, AttemptId, AttemptState, Decision, EnlistmentId, Failure,
    Member, MemberStage, Membership, Plan, Report,
};
use hoplite_core::node::{CombineId, CopyId, ReduceOrder};
use hoplite_core::plan::collective::{Collective, Schedule};
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::PullOutcome;
use hoplite_core::{Dtype, Error, Metadata, NodeId, ObjectId, PutId, Time};
use libfuzzer_sys::arbitrary::{Result, Unstructured};

const MAX_MEMBERS: usize = 6;
const MAX_RANKS_PER_MEMBER: usize = 3;

/// Runs an attempt.
pub fn events(bytes: &[u8]) {
    let _ = run(&mut Unstructured::new(bytes));
}

fn run(input: &mut Unstructured<'_>) -> Result<()> {
    let plans = plans(input)?;
    check_finals(&plans);
    let mut world = World::new(plans, input.int_in_range(0..=MAX_MEMBERS - 1)?);
    while !input.is_empty() {
        let member = input.int_in_range(0..=world.seats.len() - 1)?;
        match input.int_in_range(0..=9)? {
            0 | 1 => world.begin(member),
            2 | 3 => world.fill(member),
            4 | 5 => world.hear(member),
            6 | 7 => world.report(member),
            8 => match input.int_in_range(0..=2)? {
                0 => world.lose(member),
                1 => world.fail(member, failure(input, member)?),
                _ => world.leave(member),
            },
            _ => match input.int_in_range(0..=7)? {
                0 => world.delete(),
                1 => world.give_up(),
                _ => {}
            },
        }
        world.check();
    }
    world.finish();
    Ok(())
}

fn target() -> ObjectId {
    ObjectId::new("target").expect("it is short")
}

fn failure(input: &mut Unstructured<'_>, member: usize) -> Result<Failure> {
    let reason = Error::TypeMismatch { id: target(), reason: "max, not sum".into() };
    Ok(match input.int_in_range(0..=2)? {
        0 => Failure::Peer { index: member, outcome: PullOutcome::SenderStalled },
        1 => Failure::Refused(Error::ShuttingDown),
        _ => Failure::Disagrees(reason),
    })
}

fn plans(input: &mut Unstructured<'_>) -> Result<Vec<Plan>> {
    let kind = *input.choose(&[
        Collective::Allreduce,
        Collective::ReduceScatter,
        Collective::Allgather,
        Collective::AllToAll,
    ])?;
    let count = input.int_in_range(2..=MAX_MEMBERS)?;
    let schedule = match input.int_in_range(0..=2)? {
        0 => Schedule::ring(count),
        1 => Schedule::halving_doubling(count),
        _ => {
            Schedule::hierarchical(count, &[2, count / 2]).unwrap_or_else(|| Schedule::ring(count))
        }
    };
    let mut ranks: Vec<Vec<usize>> = (0..count).map(|rank| vec![rank]).collect();
    let mut participants = count;
    for _ in 0..input.int_in_range(0..=count)? {
        let member = input.int_in_range(0..=count - 1)?;
        if ranks[member].len() < MAX_RANKS_PER_MEMBER {
            ranks[member].push(participants);
            participants += 1;
        }
    }
    let elements = u64::from(input.int_in_range(0_u16..=300)?);
    let elements =
        if kind.properties().makes_target { elements } else { elements * participants as u64 };
    let members: Vec<Member> = (0..count)
        .map(|member| Member {
            node: NodeId::new(&format!("node-{member}")).expect("it is a name"),
            address: ([127, 0, 0, 1], 7000).into(),
        })
        .collect();
    let source = |rank: &usize| {
        (ObjectId::new([b's', *rank as u8]).expect("it is short"), PutId(*rank as u64))
    };
    let plan = |index: usize| Plan {
        target: target(),
        attempt: AttemptId { run: 1, number: 1 },
        put: PutId(1000),
        agreement: Agreement {
            kind,
            op: ReduceOp::Sum,
            order: ReduceOrder::Any,
            participants: participants as u32,
            sources: 0,
        },
        size_bytes: elements * Dtype::F32.size_bytes(),
        metadata: Metadata { dtype: Dtype::F32, ..Metadata::default() },
        schedule: schedule.clone(),
        frame_bytes: 16 << 10,
        members: members.clone(),
        index,
        ranks: if kind.properties().makes_target { Vec::new() } else { ranks.clone() },
        sources: ranks[index].iter().map(source).collect(),
        timeout: Duration::from_secs(2),
        explanation: String::new(),
    };
    Ok((0..count).map(plan).collect())
}

fn check_finals(plans: &[Plan]) {
    for plan in plans {
        let program = plan.program();
        let finals =
            plan.finals(&program).into_iter().map(|step| program.steps()[step].range().clone());
        let mut finals: Vec<_> = finals.collect();
        finals.sort_by_key(|range| range.start);
        assert!(
            finals.windows(2).all(|pair| pair[0].end <= pair[1].start),
            "{plan:?}: {finals:?} overlap"
        );
        assert!(
            finals.last().is_none_or(|last| last.end <= plan.copy_bytes()),
            "{plan:?}: {finals:?} are too long"
        );
        let final_bytes: u64 = finals.iter().map(|range| range.end - range.start).sum();
        let part_bytes = plan.size_bytes / u64::from(plan.agreement.participants);
        let own_bytes = part_bytes * plan.sources.len() as u64;
        let expected = match plan.agreement.kind {
            Collective::Allreduce => plan.size_bytes,
            Collective::ReduceScatter => own_bytes,
            Collective::Allgather => plan.size_bytes - own_bytes,
            Collective::AllToAll => plan.size_bytes * plan.sources.len() as u64 - own_bytes,
        };
        assert_eq!(final_bytes, expected, "{plan:?}");
    }
}

struct World {
    session: Attempt,
    seats: Vec<Seat>,
    kind: Collective,
    own: usize,
    now: Time,
    decision: AttemptState,
    is_deleted: bool,
    end: Option<AttemptAction>,
}

struct Seat {
    member: Membership,
    decisions: VecDeque<Decision>,
    reports: VecDeque<Report>,
    has_reported: Option<Report>,
    has_left: bool,
    is_committed: bool,
    is_stopped: bool,
    is_dismissed: bool,
    ended_copies: usize,
    stage: MemberStage,
}

impl World {
    fn new(plans: Vec<Plan>, own: usize) -> Self {
        let kind = plans[0].agreement.kind;
        let own = own % plans.len();
        let enlistments = (0..plans.len() as u64).map(EnlistmentId);
        let session = Attempt::new(kind, target(), enlistments, Some(EnlistmentId(own as u64)));
        let seat = |plan: Plan| {
            let member = Membership::new(Box::new(plan), Time::ZERO);
            Seat {
                stage: member.stage(),
                member,
                decisions: VecDeque::new(),
                reports: VecDeque::new(),
                has_reported: None,
                has_left: false,
                is_committed: false,
                is_stopped: false,
                is_dismissed: false,
                ended_copies: 0,
            }
        };
        Self {
            session,
            seats: plans.into_iter().map(seat).collect(),
            kind,
            own,
            now: Time::ZERO,
            decision: AttemptState::Open,
            is_deleted: false,
            end: None,
        }
    }

    fn begin(&mut self, index: usize) {
        let number = index as u64;
        let member = &mut self.seats[index].member;
        if let MemberStage::AwaitingRoom = member.stage() {
            member.begin(CopyId(number), CombineId(number));
        }
    }

    fn fill(&mut self, index: usize) {
        self.now = self.now + Duration::from_micros(1);
        let seat = &mut self.seats[index];
        let MemberStage::Exchanging { .. } = seat.member.stage() else { return };
        let completed = seat.member.filled(self.now);
        if completed.is_some() {
            seat.ended_copies += 1;
        }
        if index == self.own || !self.kind.properties().makes_target || completed.is_some() {
            seat.reports.push_back(Report::Filled);
        }
    }

    fn hear(&mut self, index: usize) {
        let seat = &mut self.seats[index];
        let Some(decision) = seat.decisions.pop_front() else { return };
        match decision {
            Decision::Commit => {
                if seat.member.commit().is_some() {
                    seat.ended_copies += 1;
                    if self.kind.properties().makes_target {
                        seat.reports.push_back(Report::Filled);
                    }
                }
            }
            Decision::Stop(error)
                if !seat.member.is_committed() || matches!(error, Error::Deleted { .. }) =>
            {
                seat.drop_copy(self.now);
            }
            Decision::Stop(_) => {}
        }
    }

    fn report(&mut self, index: usize) {
        if let Some(report) = self.seats[index].reports.pop_front() {
            self.tell_coordinator(index, report);
        }
    }

    fn tell_coordinator(&mut self, index: usize, report: Report) {
        let seat = &mut self.seats[index];
        let is_out = seat.has_reported.as_ref().is_some_and(|said| *said != Report::Filled);
        if is_out || seat.is_stopped || seat.is_dismissed || self.session.is_over() {
            return;
        }
        seat.has_reported = Some(report.clone());
        let before = self.session.state();
        let actions = self.session.reported(EnlistmentId(index as u64), report.clone());
        let have_all = |seat: &Seat| seat.has_reported == Some(Report::Filled);
        let is_last = if !self.kind.properties().makes_target {
            self.seats.iter().all(have_all)
        } else {
            index == self.own
        };
        assert_eq!(
            before == AttemptState::Open && self.session.state() == AttemptState::Committed,
            before == AttemptState::Open && report == Report::Filled && is_last,
            "{report:?} of {index}, where {} decides",
            self.own
        );
        let gives_up =
            before == AttemptState::Open && self.session.state() == AttemptState::Aborted;
        assert_eq!(
            gives_up,
            before == AttemptState::Open && matches!(report, Report::Failed(_)),
            "{report:?}"
        );
        let ends = actions
            .iter()
            .filter(|action| matches!(action, AttemptAction::FallBack(_) | AttemptAction::Fail(_)));
        assert_eq!(ends.count(), usize::from(gives_up), "one way on, once: {actions:?}");
        let disagrees = matches!(report, Report::Failed(Failure::Disagrees(_)));
        if let Some(end) = actions.last().filter(|_| gives_up) {
            assert_eq!(matches!(end, AttemptAction::Fail(_)), disagrees, "{end:?}");
        }
        self.perform(before, actions);
    }

    fn lose(&mut self, index: usize) {
        if index != self.own {
            self.leave(index);
            self.seats[index].reports.clear();
            self.tell_coordinator(index, Report::Failed(Failure::Unreachable));
        }
    }

    fn leave(&mut self, index: usize) {
        let seat = &mut self.seats[index];
        seat.has_left = true;
        seat.decisions.clear();
        seat.drop_copy(self.now);
    }

    fn fail(&mut self, index: usize, failure: Failure) {
        let seat = &mut self.seats[index];
        if let MemberStage::AwaitingRoom | MemberStage::Exchanging { .. } = seat.member.stage() {
            seat.drop_copy(self.now);
            seat.reports.push_back(Report::Failed(failure));
        }
    }

    fn delete(&mut self) {
        if self.session.is_over() {
            return;
        }
        let before = self.session.state();
        let actions = self.session.deleted(&Error::Deleted { id: target() });
        self.is_deleted |= before == AttemptState::Committed;
        assert_eq!(actions.is_empty(), before != AttemptState::Committed, "{actions:?}");
        self.perform(before, actions);
    }

    fn give_up(&mut self) {
        let before = self.session.state();
        let actions = self.session.give_up(&Error::ShuttingDown);
        assert!(before == AttemptState::Open || actions.is_empty(), "it was decided: {actions:?}");
        self.perform(before, actions);
    }

    const fn tells(&self) -> bool {
        self.kind.properties().awaits_commit
    }

    fn perform(&mut self, before: AttemptState, actions: Vec<AttemptAction>) {
        let decision = self.session.state();
        let commits =
            before == AttemptState::Open && decision == AttemptState::Committed && self.tells();
        let stops = before == AttemptState::Open && decision == AttemptState::Aborted;
        for action in actions {
            match action {
                AttemptAction::Tell(to, decision) => {
                    let seat = &mut self.seats[to.0 as usize];
                    assert!(
                        !seat.is_out() && !seat.is_stopped && !seat.is_dismissed,
                        "{to:?} hears {decision:?}"
                    );
                    match &decision {
                        Decision::Commit => {
                            assert!(
                                commits && !seat.is_committed,
                                "{to:?} is told at once, and once"
                            );
                            seat.is_committed = true;
                        }
                        Decision::Stop(error) => {
                            let is_deleted =
                                self.is_deleted && matches!(error, Error::Deleted { .. });
                            assert!(
                                stops && !seat.is_committed || is_deleted,
                                "{to:?} hears {error}"
                            );
                            seat.is_stopped = true;
                        }
                    }
                    if !seat.has_left {
                        seat.decisions.push_back(decision);
                    }
                }
                AttemptAction::Dismiss(whom) => {
                    let seat = &mut self.seats[whom.0 as usize];
                    assert!(
                        decision == AttemptState::Committed && self.session.is_over(),
                        "{whom:?} is needed"
                    );
                    assert!(
                        !seat.is_out() && !seat.is_stopped && !seat.is_dismissed,
                        "{whom:?} has gone"
                    );
                    seat.is_dismissed = true;
                }
                end => {
                    assert!(stops && self.end.is_none(), "{end:?} after {:?}", self.end);
                    self.end = Some(end);
                }
            }
        }
        if commits {
            let forgotten = self.seats.iter().any(|seat| !seat.is_committed && !seat.is_out());
            assert!(!forgotten, "all who are there hear of it");
        }
    }

    fn check(&mut self) {
        let decision = self.session.state();
        assert!(
            self.decision == AttemptState::Open || self.decision == decision,
            "{:?} is for good",
            self.decision
        );
        self.decision = decision;
        assert!(
            decision != AttemptState::Aborted || self.session.is_over(),
            "nobody is waited for"
        );
        let tells = self.tells();
        for seat in &mut self.seats {
            let stage = seat.member.stage();
            let goes_on =
                order(stage) >= order(seat.stage) && (order(seat.stage) < 3 || stage == seat.stage);
            assert!(goes_on, "{:?} becomes {stage:?}", seat.stage);
            seat.stage = stage;
            assert!(seat.ended_copies <= 1, "a copy is the target, or dropped, once");
            if stage == MemberStage::Complete {
                assert!(
                    seat.is_committed && seat.member.is_committed(),
                    "it is complete without a word"
                );
                assert!(
                    decision == AttemptState::Committed && self.end.is_none(),
                    "the general path makes another one"
                );
                assert!(tells, "parts are no target");
            }
        }
    }

    fn finish(&mut self) {
        for index in 0..self.seats.len() {
            while !self.seats[index].decisions.is_empty() || !self.seats[index].reports.is_empty() {
                self.hear(index);
                self.report(index);
                self.check();
            }
            self.tell_coordinator(index, Report::Failed(Failure::Unreachable));
            self.leave(index);
            self.check();
        }
        assert!(self.session.is_over(), "it ends with its members");
        assert_ne!(self.session.state(), AttemptState::Open, "it is decided");
        for seat in &self.seats {
            assert_eq!(seat.member.growing_copy(), None, "nothing is left");
            let has_gone = seat.is_out() || seat.is_stopped || seat.is_dismissed;
            assert!(has_gone, "nobody is forgotten");
        }
    }
}

impl Seat {
    fn is_out(&self) -> bool {
        self.has_reported.as_ref().is_some_and(|report| *report != Report::Filled)
    }

    fn drop_copy(&mut self, now: Time) {
        if self.member.fail(now).is_some() {
            self.ended_copies += 1;
        }
    }
}

/// A stage only advances, and the last two stages never change.
const fn order(stage: MemberStage) -> u8 {
    match stage {
        MemberStage::AwaitingRoom => 0,
        MemberStage::Exchanging { .. } => 1,
        MemberStage::Filled { .. } => 2,
        MemberStage::Complete => 3,
        MemberStage::Over => 4,
    }
}
