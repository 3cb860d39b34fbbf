//! The spans of collectives. The coordinator's call has a child `enlist` for each remote member,
//! and each `enlist` has a child `take part` at the member. Each member has a span `exchange`.

use hoplite_core::TraceContext;
use hoplite_core::collective::{CollectiveEffect, CollectiveEvent, Decision, Plan, Report};
use hoplite_daemon::{Span, SpanKind};

use super::{Traces, Work, enter, number};

impl Traces {
    pub(super) fn collective_event(
        &mut self,
        event: &CollectiveEvent,
        given: Option<TraceContext>,
    ) -> Option<TraceContext> {
        match event {
            CollectiveEvent::Asked { membership, plan } => {
                let begin = |given| {
                    self.begin_for("take part", SpanKind::Server, Some(given), &plan.target)
                };
                let span = given.and_then(begin);
                let context = span.as_ref().map(Span::context);
                self.memberships.insert(*membership, (plan.put, span));
                context
            }
            CollectiveEvent::Told { membership, .. } => {
                self.memberships.get(membership)?.1.as_ref().map(Span::context)
            }
            CollectiveEvent::Left { membership } => {
                self.memberships.remove(membership);
                None
            }
            CollectiveEvent::Filled { combine } => {
                self.combines.get(combine).map(|exchange| exchange.parent)
            }
            CollectiveEvent::Reported { enlistment, report: Report::Failed(failure) } => {
                let enlistment = self.enlistments.remove(enlistment);
                enlistment.map(|enlistment| enlistment.end(format!("{failure:?}"), false))
            }
            CollectiveEvent::Reported { enlistment, report: Report::Done } => {
                self.enlistments.remove(enlistment).map(|enlistment| enlistment.parent)
            }
            CollectiveEvent::Reported { enlistment, report: Report::Filled } => {
                self.enlistments.get(enlistment).map(|enlistment| enlistment.parent)
            }
            CollectiveEvent::Rejected { .. } => None,
        }
    }

    pub(super) fn collective_effect(&mut self, effect: &CollectiveEffect) -> Option<TraceContext> {
        match effect {
            CollectiveEffect::Enlist { enlistment, plan } => {
                let parent = self.coordinator(plan)?;
                let mut span =
                    self.begin_for("enlist", SpanKind::Client, Some(parent), &plan.target)?;
                span.set("hoplite.member", plan.members[plan.index].node.to_string());
                Some(enter(&mut self.enlistments, *enlistment, Work { span, parent }))
            }
            CollectiveEffect::Tell { enlistment, decision: Decision::Stop(reason) } => {
                let enlistment = self.enlistments.remove(enlistment)?;
                Some(enlistment.end(reason.to_string(), false))
            }
            CollectiveEffect::Dismiss { enlistment } => {
                self.enlistments.remove(enlistment);
                None
            }
            CollectiveEffect::Report { membership, report: Report::Failed(failure) } => {
                if let Some((_, Some(span))) = self.memberships.get_mut(membership) {
                    span.fail(format!("{failure:?}"));
                }
                None
            }
            CollectiveEffect::StartExchange { combine, plan, .. } => {
                let membership = self.memberships.values().find(|(put, _)| *put == plan.put);
                let parent = match membership {
                    Some((_, span)) => span.as_ref().map(Span::context)?,
                    None => self.coordinator(plan)?,
                };
                let mut span =
                    self.begin_for("exchange", SpanKind::Internal, Some(parent), &plan.target)?;
                span.set("hoplite.schedule", plan.schedule.to_string());
                span.set("hoplite.size_bytes", number(plan.size_bytes));
                span.set("hoplite.members", number(plan.members.len() as u64));
                Some(enter(&mut self.combines, *combine, Work { span, parent }))
            }
            CollectiveEffect::Tell { .. }
            | CollectiveEffect::Report { .. }
            | CollectiveEffect::Reject { .. } => None,
        }
    }

    /// Returns the span of the coordinating call, if recorded.
    fn coordinator(&self, plan: &Plan) -> Option<TraceContext> {
        let callers = self.callers.get(&plan.target).into_iter().flatten();
        let mut coordinating =
            callers.filter(|(key, _)| self.coordinating.contains(key)).peekable();
        if coordinating.peek().is_none() {
            return self.cause;
        }
        coordinating.find_map(|(_, context)| *context)
    }
}
