use std::time::Duration;

use hoplite_core::collective::{
    AttemptId, Decision, Failure, MAX_EXPLANATION_BYTES, MAX_PAIRS_PER_MEMBER,
    MAX_SOURCES_PER_MEMBER, Member, Plan, Report,
};
use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::node::{Position, ReduceRecord};
use hoplite_core::plan::collective::{MAX_MEMBERS, Schedule};
use hoplite_core::text::is_plain;

use super::frame::MAX_BLOCK_BYTES;
use super::{decode_failed_input, malformed};
use crate::bounds::{check_count, decode_address, decode_timeout, encode_id, encode_timeout};
use crate::directory::encode_pull_outcome;
use crate::reduce::{decode_agreement, encode_agreement};
use crate::v1::end::Outcome;
use crate::{error, metadata, v1};

/// A member's request for the bytes that another member must send to it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Take {
    pub target: ObjectId,
    /// The target's put id.
    pub put: PutId,
    /// Index of the requesting member.
    pub index: usize,
    /// First requested byte of the stream.
    pub offset_bytes: u64,
}

/// Encodes `take`.
pub fn encode_take(take: &Take) -> v1::Take {
    v1::Take {
        target: encode_id(&take.target),
        put: take.put.0,
        index: encode_index(take.index),
        offset_bytes: take.offset_bytes,
        ..Default::default()
    }
}

/// Decodes a member's request.
pub fn decode_take(take: v1::Take) -> Result<Take> {
    Ok(Take {
        target: ObjectId::new(&take.target)?,
        put: PutId(take.put),
        index: decode_index(take.index, MAX_MEMBERS)?,
        offset_bytes: take.offset_bytes,
    })
}

/// Encodes `plan`.
pub fn encode_plan(plan: &Plan) -> v1::Enlist {
    let member = |(index, member): (usize, &Member)| v1::SessionMember {
        node: member.node.as_str().to_owned(),
        address: member.address.to_string(),
        ranks: plan.ranks.get(index).into_iter().flatten().copied().map(encode_index).collect(),
    };
    let source = |(id, put): &(ObjectId, PutId)| v1::MemberSource { id: encode_id(id), put: put.0 };
    v1::Enlist {
        target: encode_id(&plan.target),
        attempt: Some(encode_attempt(plan.attempt)),
        put: plan.put.0,
        agreement: Some(encode_agreement(&plan.agreement)),
        size_bytes: plan.size_bytes,
        metadata: Some(metadata::encode(&plan.metadata)),
        radices: plan.schedule.radices().iter().map(|radix| encode_index(*radix)).collect(),
        frame_bytes: plan.frame_bytes,
        members: plan.members.iter().enumerate().map(member).collect(),
        index: encode_index(plan.index),
        sources: plan.sources.iter().map(source).collect(),
        timeout_ms: encode_timeout(plan.timeout),
        account: plan.explanation.clone(),
        ..Default::default()
    }
}

/// Decodes a plan. Checks schedule, operation, whole elements, frame length, one member per part,
/// and an explanation without control characters.
pub fn decode_plan(enlist: v1::Enlist) -> Result<Plan> {
    check_count("members of an attempt", enlist.members.len(), MAX_MEMBERS)?;
    check_count("sources of a member", enlist.sources.len(), MAX_SOURCES_PER_MEMBER)?;
    check_count("stages of a schedule", enlist.radices.len(), MAX_MEMBERS)?;
    check_count("bytes of the explanation of a plan", enlist.account.len(), MAX_EXPLANATION_BYTES)?;
    if !is_plain(&enlist.account) {
        return Err(malformed("an explanation with control characters"));
    }
    if enlist.sources.is_empty() || enlist.members.len() < 2 {
        return Err(malformed("an attempt without members, or a member without sources"));
    }
    let radices = enlist.radices.iter().map(|radix| decode_index(*radix, MAX_MEMBERS + 1));
    let schedule =
        Schedule::hierarchical(enlist.members.len(), &radices.collect::<Result<Vec<_>>>()?);
    let schedule = schedule.ok_or(malformed("a schedule that does not fit the members"))?;
    let (size_bytes, frame_bytes) = (enlist.size_bytes, enlist.frame_bytes);
    let metadata = metadata::decode(enlist.metadata, size_bytes)?;
    let agreement = decode_agreement(enlist.agreement, Plane::Data)?;
    let (kind, element_bytes) = (agreement.kind.properties(), metadata.dtype.size_bytes());
    if kind.combines && !agreement.op.is_defined_for(metadata.dtype)
        || !size_bytes.is_multiple_of(element_bytes)
    {
        return Err(malformed("an operation that the elements do not have"));
    }
    if !(1..=u64::from(MAX_BLOCK_BYTES)).contains(&frame_bytes)
        || !frame_bytes.is_multiple_of(element_bytes)
    {
        return Err(malformed(
            "frames whose size is zero, too large, or not a whole number of elements",
        ));
    }
    let index = decode_index(enlist.index, enlist.members.len())?;
    let ranks = if kind.makes_target {
        Vec::new()
    } else {
        decode_ranks(&enlist.members, agreement.participants, size_bytes / element_bytes)?
    };
    if ranks.get(index).is_some_and(|ranks| ranks.len() != enlist.sources.len()) {
        return Err(malformed("a member whose sources are not those of its ranks"));
    }
    if kind.is_paired {
        let (own, all) = (enlist.sources.len(), agreement.participants as usize);
        check_count("parts that a member gets", own * all.saturating_sub(1), MAX_PAIRS_PER_MEMBER)?;
        if size_bytes.checked_mul(own as u64).is_none() {
            return Err(malformed("parts of more bytes than can be counted"));
        }
    }
    let members = enlist.members.into_iter().map(|member| {
        let address = decode_address(&member.address, Plane::Data)?;
        Ok(Member { node: NodeId::new(&member.node)?, address })
    });
    let members: Vec<Member> = members.collect::<Result<_>>()?;
    let sources = enlist.sources.into_iter();
    Ok(Plan {
        target: ObjectId::new(&enlist.target)?,
        attempt: decode_attempt(enlist.attempt)?,
        put: PutId(enlist.put),
        agreement,
        size_bytes,
        metadata,
        schedule,
        frame_bytes,
        index,
        ranks,
        members,
        sources: sources
            .map(|source| Ok((ObjectId::new(&source.id)?, PutId(source.put))))
            .collect::<Result<_>>()?,
        timeout: decode_timeout(enlist.timeout_ms),
        explanation: enlist.account,
    })
}

fn decode_ranks(
    members: &[v1::SessionMember],
    participants: u32,
    elements: u64,
) -> Result<Vec<Vec<usize>>> {
    let participants = decode_index(participants, MAX_MEMBERS + 1)?;
    let mut is_seen = vec![false; participants];
    let mut decode = |member: &v1::SessionMember| {
        check_count("ranks of a member", member.ranks.len(), MAX_SOURCES_PER_MEMBER)?;
        let ranks = member.ranks.iter().map(|rank| decode_index(*rank, participants));
        let ranks = ranks.collect::<Result<Vec<usize>>>()?;
        let is_new = ranks.iter().all(|rank| !std::mem::replace(&mut is_seen[*rank], true));
        if is_new { Ok(ranks) } else { Err(malformed("a rank at two members")) }
    };
    let ranks = members.iter().map(&mut decode).collect::<Result<Vec<_>>>()?;
    let is_whole = participants > 0 && elements.is_multiple_of(participants as u64);
    if !is_whole || is_seen.contains(&false) || ranks.iter().any(Vec::is_empty) {
        return Err(malformed("parts that are not equal, or at no member"));
    }
    Ok(ranks)
}

/// Encodes a member's last report; `None` if the member continues.
pub fn encode_report(report: &Report) -> Option<v1::End> {
    let failure = match report {
        Report::Filled => return None,
        Report::Done => {
            return Some(v1::End { outcome: Outcome::Complete.into(), ..Default::default() });
        }
        Report::Failed(failure) => failure,
    };
    let refused = |outcome: Outcome, reason: &Error| v1::End {
        outcome: outcome.into(),
        error: Some(error::encode(reason)),
        ..Default::default()
    };
    Some(match failure {
        Failure::Peer { index, outcome } => v1::End {
            outcome: Outcome::InputFailed.into(),
            failed_input: Some(v1::FailedInput {
                index: encode_index(*index),
                outcome: encode_pull_outcome(*outcome),
            }),
            ..Default::default()
        },
        Failure::Refused(reason) => refused(Outcome::Refused, reason),
        Failure::Disagrees(reason) => refused(Outcome::Disagrees, reason),
        Failure::Unreachable => refused(Outcome::Refused, &Error::unavailable("the store")),
    })
}

/// Decodes the last report of a member of a collective with `members` members.
pub fn decode_report(end: v1::End, members: usize) -> Result<Report> {
    let failure = match (end.outcome(), end.error, end.failed_input) {
        (Outcome::Complete, ..) => return Ok(Report::Done),
        (Outcome::Refused, Some(reason), _) => Failure::Refused(error::decode(reason, Plane::Data)),
        (Outcome::Disagrees, Some(reason), _) => {
            Failure::Disagrees(error::decode(reason, Plane::Data))
        }
        (Outcome::InputFailed, _, Some(failed)) => {
            let (index, outcome) = decode_failed_input(&failed, members)?;
            Failure::Peer { index, outcome }
        }
        _ => return Err(malformed("an end that says nothing of the member")),
    };
    Ok(Report::Failed(failure))
}

/// Encodes an abort.
pub fn encode_stop(reason: &Error) -> v1::Stop {
    v1::Stop { error: Some(error::encode(reason)) }
}

/// Decodes an abort.
pub fn decode_stop(stop: v1::Stop) -> Result<Decision> {
    let reason = stop.error.ok_or(malformed("an attempt that is aborted for no reason"))?;
    Ok(Decision::Stop(error::decode(reason, Plane::Data)))
}

/// Encodes a rejected attempt.
pub fn encode_reject(target: &ObjectId, attempt: AttemptId, reason: &Error) -> v1::Reject {
    let (target, attempt) = (encode_id(target), encode_attempt(attempt));
    v1::Reject { target, error: Some(error::encode(reason)), attempt: Some(attempt) }
}

/// Decodes a rejection: target, failed attempt, and reason.
pub fn decode_reject(reject: v1::Reject) -> Result<(ObjectId, AttemptId, Error)> {
    let reason = reject.error.ok_or(malformed("a target that is rejected for no reason"))?;
    let attempt = decode_attempt(reject.attempt)?;
    Ok((ObjectId::new(&reject.target)?, attempt, error::decode(reason, Plane::Data)))
}

fn encode_attempt(AttemptId { run, number }: AttemptId) -> v1::AttemptId {
    v1::AttemptId { run, number }
}

fn decode_attempt(attempt: Option<v1::AttemptId>) -> Result<AttemptId> {
    let v1::AttemptId { run, number } = attempt.ok_or(malformed("a message of no attempt"))?;
    Ok(AttemptId { run, number })
}

/// Encodes a member's progress.
pub fn encode_position(position: Position) -> v1::MemberPosition {
    let Position { member, members, stage, copy: _, final_bytes, size_bytes } = position;
    let (member, members) = (encode_index(member), encode_index(members));
    v1::MemberPosition { member, members, stage, final_bytes, size_bytes, node: String::new() }
}

/// Decodes the progress of `member`; `None` if the store reports none.
pub fn decode_position(
    position: v1::Position,
    member: usize,
    members: usize,
) -> Result<Option<Position>> {
    let Some(position) = position.position else { return Ok(None) };
    let v1::MemberPosition { stage, final_bytes, size_bytes, .. } = position;
    if (position.member, position.members) != (encode_index(member), encode_index(members)) {
        return Err(malformed("the position of another member"));
    }
    check_count("bytes of a position", stage.len(), MAX_EXPLANATION_BYTES)?;
    if !is_plain(&stage) || final_bytes > size_bytes {
        return Err(malformed("a position that cannot be"));
    }
    Ok(Some(Position { member, members, stage, copy: None, final_bytes, size_bytes }))
}

/// Encodes a store's record, without the progress of other stores.
pub fn encode_record(record: ReduceRecord) -> v1::ReduceRecord {
    let ReduceRecord { target: _, op, reduced, hops, plan, link, elapsed, .. } = record;
    let ReduceRecord { mendings, restarts, is_running, position, .. } = record;
    let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    v1::ReduceRecord {
        op: op.name().into(),
        reduced: reduced.0 as u64,
        sources: reduced.1 as u64,
        hops: hops as u64,
        plan,
        bytes_per_second: link.bytes_per_second,
        latency_us: micros(link.latency),
        elapsed_us: micros(elapsed),
        mendings,
        restarts,
        is_running,
        position: position.map(encode_position),
        positions: Vec::new(),
    }
}

/// Encodes a store's record, with its own progress.
pub fn encode_known(record: Option<ReduceRecord>) -> v1::Position {
    let mut record = record.map(encode_record);
    let position = record.as_mut().and_then(|record| record.position.take());
    v1::Position { position, record }
}

/// Decodes a store's record, if it has one.
pub fn decode_known(known: v1::Position) -> Result<Option<v1::ReduceRecord>> {
    let v1::Position { position, record } = known;
    let Some(record) = record else { return Ok(None) };
    if !is_plain(&record.op) || !is_plain(&record.plan) {
        return Err(malformed("a record that cannot be shown"));
    }
    let position = match position {
        Some(position) => {
            let members =
                usize::try_from(position.members).ok().filter(|members| *members <= MAX_MEMBERS);
            let members = members.ok_or(malformed("too many members"))?;
            let member = decode_index(position.member, members)?;
            decode_position(
                v1::Position { position: Some(position), record: None },
                member,
                members,
            )?
        }
        None => None,
    };
    Ok(Some(v1::ReduceRecord {
        position: position.map(encode_position),
        positions: Vec::new(),
        ..record
    }))
}

fn encode_index(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

fn decode_index(index: u32, count: usize) -> Result<usize> {
    let index = usize::try_from(index).ok().filter(|index| *index < count);
    index.ok_or(malformed("a member that is not there"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::super::frame::MAX_CONTROL_BYTES;
    use super::*;
    use crate::arbitrary;

    proptest! {
        #[test]
        fn plans_round_trip(plan in arbitrary::plan()) {
            prop_assert_eq!(decode_plan(encode_plan(&plan)), Ok(plan));
        }

        #[test]
        fn reports_round_trip(report in arbitrary::member_report(MAX_MEMBERS)) {
            let end = encode_report(&report).unwrap();
            prop_assert_eq!(decode_report(end, MAX_MEMBERS), Ok(report));
        }

        #[test]
        fn rejections_round_trip(plan in arbitrary::plan()) {
            let error = Error::ObjectLost { id: plan.target.clone() };
            let reject = encode_reject(&plan.target, plan.attempt, &error);
            prop_assert_eq!(decode_reject(reject), Ok((plan.target, plan.attempt, error)));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = v1::Enlist::decode(&bytes[..]).map(decode_plan);
            let _ = v1::Take::decode(&bytes[..]).map(decode_take);
            let _ = v1::Stop::decode(&bytes[..]).map(decode_stop);
            let _ = v1::Reject::decode(&bytes[..]).map(decode_reject);
            let _ = v1::End::decode(&bytes[..]).map(|end| decode_report(end, 2));
            let _ = v1::Position::decode(&bytes[..]).map(decode_known);
        }
    }

    #[test]
    fn what_another_store_knows_is_checked_before_it_is_shown() {
        let position =
            v1::MemberPosition { member: 1, members: 2, size_bytes: 8, ..Default::default() };
        let record =
            v1::ReduceRecord { op: "sum".into(), plan: "ring of 2".into(), ..Default::default() };
        let known = |position: Option<v1::MemberPosition>, record: &v1::ReduceRecord| {
            decode_known(v1::Position { position, record: Some(record.clone()) })
        };
        assert_eq!(decode_known(v1::Position::default()), Ok(None));
        assert_eq!(known(None, &record), Ok(Some(record.clone())));
        let whole = v1::ReduceRecord { position: Some(position.clone()), ..record.clone() };
        assert_eq!(known(Some(position.clone()), &record), Ok(Some(whole.clone())));
        let gossip = v1::ReduceRecord { positions: vec![position.clone()], ..whole.clone() };
        assert_eq!(known(Some(position.clone()), &gossip), Ok(Some(whole)));
        let wrong = [
            v1::MemberPosition { member: 2, ..position.clone() },
            v1::MemberPosition { members: u32::MAX, ..position.clone() },
            v1::MemberPosition { final_bytes: 9, ..position.clone() },
            v1::MemberPosition { stage: "\u{1b}[2J".into(), ..position },
        ];
        for position in wrong {
            assert!(matches!(known(Some(position), &record), Err(Error::Malformed { .. })));
        }
        let record = v1::ReduceRecord { plan: "ring\nof 2".into(), ..record };
        assert!(matches!(known(None, &record), Err(Error::Malformed { .. })));
    }

    fn enlist(members: usize, sources: usize) -> v1::Enlist {
        let node = |index| format!("{index:063}");
        v1::Enlist {
            target: vec![7; 255].into(),
            attempt: Some(v1::AttemptId { run: u64::MAX, number: u64::MAX }),
            put: u64::MAX,
            agreement: Some(v1::Agreement {
                op: 1,
                participants: 256,
                sources: u64::MAX,
                is_ordered: false,
                collective: v1::Collective::Allreduce.into(),
            }),
            size_bytes: 4096,
            metadata: Some(v1::Metadata {
                dtype: v1::Dtype::F32.into(),
                shape: None,
                user: vec![1; 4096].into(),
                ..Default::default()
            }),
            radices: vec![u32::try_from(members).unwrap()],
            frame_bytes: 16 << 10,
            members: (0..members)
                .map(|index| v1::SessionMember {
                    node: node(index),
                    address: "[1::2]:65535".to_owned(),
                    ranks: vec![u32::try_from(index).unwrap()],
                })
                .collect(),
            index: 1,
            sources: vec![v1::MemberSource { id: vec![8; 255].into(), put: u64::MAX }; sources],
            timeout_ms: 2000,
            trace: vec![7; 25].into(),
            account: "x".repeat(MAX_EXPLANATION_BYTES),
        }
    }

    #[test]
    fn the_largest_plan_fits_in_a_frame() {
        let largest = enlist(MAX_MEMBERS, MAX_SOURCES_PER_MEMBER);
        assert!(largest.encoded_len() <= MAX_CONTROL_BYTES as usize, "{}", largest.encoded_len());
        assert!(decode_plan(largest).is_ok());
    }

    #[test]
    fn plans_are_checked() {
        let refused = |change: fn(&mut v1::Enlist)| {
            let mut enlist = enlist(4, 1);
            change(&mut enlist);
            decode_plan(enlist).is_err()
        };
        assert!(!refused(|_| {}));
        assert!(!refused(|plan| plan.radices = vec![2, 2]));
        assert!(refused(|plan| plan.radices = vec![2, 3]));
        assert!(refused(|plan| plan.radices = vec![0]));
        assert!(refused(|plan| plan.radices = vec![u32::MAX, u32::MAX]));
        assert!(refused(|plan| plan.radices = vec![1; 300]));
        assert!(refused(|plan| plan.index = 4));
        assert!(refused(|plan| plan.members.truncate(1)));
        assert!(refused(|plan| plan.members = vec![plan.members[0].clone(); MAX_MEMBERS + 1]));
        assert!(refused(|plan| plan.members[0].address = "x".to_owned()));
        assert!(refused(|plan| plan.sources.clear()));
        assert!(refused(
            |plan| plan.sources = vec![plan.sources[0].clone(); MAX_SOURCES_PER_MEMBER + 1]
        ));
        assert!(refused(|plan| plan.size_bytes = 4095));
        assert!(refused(|plan| plan.frame_bytes = 0));
        assert!(refused(|plan| plan.frame_bytes = 2 << 20));
        assert!(refused(|plan| plan.frame_bytes = 4098));
        assert!(refused(|plan| plan.account.push('x')));
        for disturbing in ["\x1b[2J", "a\nline", "\u{9b}", "\u{202e}"] {
            assert!(
                decode_plan(v1::Enlist { account: disturbing.to_owned(), ..enlist(4, 1) }).is_err()
            );
        }
        assert!(!refused(|plan| plan.account = "3.2\u{b5}s".to_owned()));
        assert!(refused(|plan| plan.attempt = None));
        assert!(refused(|plan| plan.agreement = None));
        assert!(refused(|plan| plan.target.clear()));
        assert!(refused(|plan| plan.agreement.as_mut().unwrap().collective = 0));
        let refused_parts = |participants, change: fn(&mut v1::Enlist)| {
            let mut enlist = enlist(4, 1);
            let agreement = enlist.agreement.as_mut().unwrap();
            agreement.collective = v1::Collective::Allgather.into();
            agreement.participants = participants;
            change(&mut enlist);
            decode_plan(enlist).is_err()
        };
        assert!(!refused_parts(4, |_| {}));
        assert!(refused_parts(3, |_| {}), "a rank that is none");
        assert!(refused_parts(5, |_| {}), "a rank that nobody has");
        assert!(refused_parts(0, |plan| plan
            .members
            .iter_mut()
            .for_each(|member| member.ranks.clear())));
        assert!(refused_parts(4, |plan| plan.members[0].ranks = vec![1]), "one that two have");
        assert!(refused_parts(5, |plan| plan.members[1].ranks.push(4)), "more ranks than sources");
        assert!(refused_parts(4, |plan| plan.size_bytes -= 4), "parts that are not alike");
        assert!(refused_parts(u32::MAX, |_| {}));
        assert!(
            decode_take(v1::Take { target: vec![1].into(), index: 256, ..Default::default() })
                .is_err()
        );
        assert!(decode_stop(v1::Stop { error: None }).is_err());
        let target = ObjectId::new("t").unwrap();
        let (attempt, lost) =
            (AttemptId { run: 1, number: 2 }, Error::ObjectLost { id: target.clone() });
        let whole = encode_reject(&target, attempt, &lost);
        assert!(decode_reject(v1::Reject { attempt: None, ..whole.clone() }).is_err());
        assert!(decode_reject(v1::Reject { error: None, ..whole }).is_err());
    }
}
