use super::action::Context;
use super::message::{AttemptId, MAX_EXPLANATION_BYTES, Member, Plan};
use super::search::{CoordinatedCall, Members, SourceMember};
use crate::id::PutId;
use crate::peer::ROOM_TIMEOUT;
use crate::plan::Choice;
use crate::plan::collective::{Arrangement, Schedule, arrange, arrange_parts, frame_bytes};
use crate::text::cut;
use crate::time::Time;
use crate::topology::place::Path;
use crate::vocabulary::agreement::Agreement;

pub(super) fn plan_attempt(
    ctx: &Context<'_>,
    call: &CoordinatedCall,
    (attempt, put): (AttemptId, PutId),
    members: Members,
) -> (Plan, Vec<SourceMember>) {
    let CoordinatedCall { started, kind, request, .. } = call;
    let slow = members.slow_links();
    let Members { members, size_bytes, metadata } = members;
    let paths: Vec<Path> = members.iter().map(|member| member.path).collect();
    let Arrangement { order, choice, remark } = if kind.properties().makes_target {
        arrange(&paths, &slow, size_bytes, ctx.link, ctx.preference)
    } else {
        arrange_parts(&paths, &slow, size_bytes, ctx.link)
    };
    let members: Vec<SourceMember> = order.iter().map(|member| members[*member].clone()).collect();
    let stores: Vec<Member> = members.iter().map(|member| member.member.clone()).collect();
    let ranks = members
        .iter()
        .filter(|_| !kind.properties().makes_target)
        .map(|member| member.ranks.clone());
    let plan = Plan {
        target: request.target.clone(),
        attempt,
        put,
        agreement: Agreement::of(*kind, request),
        size_bytes,
        metadata,
        explanation: explanation(ctx, &choice, &remark, *started),
        schedule: choice.schedule,
        frame_bytes: frame_bytes(stores.len(), size_bytes),
        members: stores,
        index: 0,
        ranks: ranks.collect(),
        sources: Vec::new(),
        timeout: ROOM_TIMEOUT.min(call.time_left(ctx.now)),
    };
    (plan, members)
}

fn explanation(
    ctx: &Context<'_>,
    choice: &Choice<Schedule>,
    remark: &str,
    started: Time,
) -> String {
    let other = choice.runner_up.as_ref().map_or(String::new(), |(schedule, estimate)| {
        format!("; the next best is a {schedule}, {estimate:.1?}")
    });
    let remark = if remark.is_empty() { String::new() } else { format!(" ({remark})") };
    let explanation = format!(
        "estimated to take {:.1?}{remark}{other}; waited {:.1?}; rank 0 at {}",
        choice.estimate,
        ctx.now.since(started),
        ctx.node.as_str()
    );
    cut(explanation, MAX_EXPLANATION_BYTES)
}
