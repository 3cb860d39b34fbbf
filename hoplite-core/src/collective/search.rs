use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::message::{AttemptId, MAX_PAIRS_PER_MEMBER, MAX_SOURCES_PER_MEMBER, Member};
use super::records::ReduceRecord;
use crate::id::{NodeId, ObjectId, PutId};
use crate::metadata::Metadata;
use crate::plan::collective::{Collective, MAX_MEMBERS, SlowLinks};
use crate::plan::link::LinkEstimate;
use crate::shard::{Location, LocationState, Locations, RequestId, Retention};
use crate::time::Time;
use crate::topology::place::Path;
use crate::topology::reported::Reports;
use crate::vocabulary::agreement::Agreement;
use crate::vocabulary::local::CallKey;
use crate::vocabulary::reduce::{Reduce, ReduceOrder};

const MAX_NAMED: usize = 4;
/// Shortest wait for missing sources: enough for some wake-ups and round trips to the directory.
const MIN_WAIT: Duration = Duration::from_millis(2);

/// Returns `false` if members never exchange bytes for these parameters.
pub(crate) fn promises_attempt(agreement: &Agreement, source_bytes: u64) -> bool {
    let all_bytes = source_bytes.saturating_mul(u64::from(agreement.participants));
    let is_large = all_bytes > agreement.kind.properties().max_general_bytes;
    agreement.order == ReduceOrder::Any && agreement.participants > 1 && is_large
}

#[derive(Debug)]
pub(super) struct CoordinatedCall {
    pub(super) key: Option<CallKey>,
    pub(super) started: Time,
    pub(super) kind: Collective,
    pub(super) request: Reduce,
    pub(super) existence: Option<RequestId>,
}

impl CoordinatedCall {
    pub(super) fn record(
        &self,
        link: LinkEstimate,
        now: Time,
        members: usize,
        plan: String,
    ) -> ReduceRecord {
        let Self { request, started, kind, .. } = self;
        let sources = request.sources.len();
        let agreement = Agreement::of(*kind, request);
        ReduceRecord {
            reduced: (sources, sources),
            hops: members,
            plan,
            link,
            elapsed: now.since(*started),
            ..ReduceRecord::of_another_store(&request.target, &agreement, link)
        }
    }

    pub(super) fn time_left(&self, now: Time) -> Duration {
        self.request.timeout.saturating_sub(now.since(self.started))
    }
}

#[derive(Debug, Clone)]
pub(super) struct SourceMember {
    pub(super) member: Member,
    pub(super) path: Path,
    pub(super) slow_peers: Vec<NodeId>,
    pub(super) ranks: Vec<usize>,
    pub(super) sources: Vec<(ObjectId, PutId)>,
}

#[derive(Debug)]
pub(super) struct Members {
    pub(super) members: Vec<SourceMember>,
    pub(super) size_bytes: u64,
    pub(super) metadata: Metadata,
}

impl Members {
    pub(super) fn slow_links(&self) -> SlowLinks {
        if self.members.iter().all(|member| member.slow_peers.is_empty()) {
            return SlowLinks::new();
        }
        let reported = |member: &SourceMember| {
            (member.member.node.clone(), member.path, member.slow_peers.clone())
        };
        let reports = Reports::new(self.members.iter().map(reported));
        let members = || self.members.iter().map(|member| &member.member.node).enumerate();
        let pairs = members().flat_map(|from| members().map(move |to| (from, to)));
        let slow = pairs.filter(|((_, from), (_, to))| reports.is_slow(from, to));
        slow.map(|((from, _), (to, _))| (from, to)).collect()
    }
}

#[derive(Debug)]
pub(super) enum SearchState {
    /// Waits for missing sources, until this time if limited.
    Waiting(Option<Time>),
    Ready(Members),
    General(&'static str),
}

#[derive(Debug)]
pub(super) struct Search {
    pub(super) call: CoordinatedCall,
    pub(super) attempt: AttemptId,
    pub(super) source_queries: Vec<RequestId>,
    pub(super) news: Vec<Option<Locations>>,
    first_at: Option<Time>,
    pub(super) is_new: bool,
    pub(super) due: Option<Time>,
}

impl Search {
    pub(super) fn new(
        call: CoordinatedCall,
        attempt: AttemptId,
        source_queries: Vec<RequestId>,
    ) -> Self {
        let news = vec![None; call.request.sources.len()];
        Self { call, attempt, source_queries, news, first_at: None, is_new: false, due: None }
    }

    pub(super) fn located(&mut self, now: Time, index: usize, news: Locations) {
        if news.object.is_some() {
            self.first_at.get_or_insert(now);
        }
        if let Some(known) = self.news.get_mut(index) {
            *known = Some(news);
        }
    }

    pub(super) fn state(&self, now: Time, link: LinkEstimate, coordinator: &NodeId) -> SearchState {
        let (size_bytes, metadata) = match self.result() {
            Ok(Some(result)) => result,
            Ok(None) => return SearchState::Waiting(None),
            Err(reason) => return SearchState::General(reason),
        };
        let kind = self.call.kind.properties();
        let participants = self.call.request.sources.len();
        let Some(members) = self.members() else {
            let waits = kind.awaits_sources && participants <= MAX_MEMBERS;
            let due = self.first_at.filter(|_| !waits);
            return match due
                .map(|first_at| first_at + wait_limit(size_bytes, participants as u64, link))
            {
                Some(due) if due <= now => SearchState::General("not all sources came in time"),
                due => SearchState::Waiting(due),
            };
        };
        let is_member = members.iter().any(|member| member.member.node == *coordinator);
        let is_fit = members.iter().all(|member| member.sources.len() <= MAX_SOURCES_PER_MEMBER)
            && (kind.makes_target || participants <= MAX_MEMBERS)
            && (!kind.is_paired || members.iter().all(|member| self.has_few_pairs(member)));
        match members.len() {
            0 => SearchState::General("there are no members"),
            1 if !kind.is_paired => SearchState::General("all sources are at one node"),
            count if count > MAX_MEMBERS || !is_fit => {
                SearchState::General("there are too many members")
            }
            _ if !is_member => SearchState::General("rank 0 has no source at its node"),
            _ => SearchState::Ready(Members { members, size_bytes, metadata }),
        }
    }

    /// Result's size and metadata, or `None` before a source is located. The error is the reason
    /// for the general path.
    fn result(&self) -> Result<Option<(u64, Metadata)>, &'static str> {
        let CoordinatedCall { request, kind, .. } = &self.call;
        if request.order == ReduceOrder::Fixed {
            return Err("a fixed order needs one chain");
        }
        if request.count < request.sources.len() || request.range.is_some() {
            return Err("only a part of the sources is reduced");
        }
        let kind = kind.properties();
        let objects = self.news.iter().flatten().filter_map(|news| news.object.as_ref());
        let mut objects = objects.peekable();
        let Some(first) = objects.peek().copied() else { return Ok(None) };
        let (source_bytes, mut metadata) = (first.size_bytes, first.metadata.clone());
        for object in objects {
            let is_alike = object.size_bytes == source_bytes
                && (object.metadata.dtype, &object.metadata.shape)
                    == (metadata.dtype, &metadata.shape);
            if object.lost || !is_alike {
                return Err("the sources are not alike, or one is lost");
            }
            if object.metadata.user != metadata.user {
                if kind.is_paired {
                    return Err("the parts are not alike");
                }
                metadata.user = Bytes::new();
            }
        }
        if kind.is_paired && source_bytes == 0 {
            return Err("the parts of a participant differ in size");
        }
        let participants = request.sources.len() as u64;
        let all_bytes = source_bytes.saturating_mul(participants);
        if all_bytes <= kind.max_general_bytes {
            return Err("too small for an attempt");
        }
        if kind.combines && !request.op.is_defined_for(metadata.dtype)
            || !source_bytes.is_multiple_of(metadata.dtype.size_bytes())
        {
            return Err("the operation is not defined for the sources");
        }
        if kind.divides_sources
            && !source_bytes.is_multiple_of(participants * metadata.dtype.size_bytes())
        {
            return Err("the sources do not divide into equal parts");
        }
        let size_bytes = if kind.joins_sources { all_bytes } else { source_bytes };
        if !kind.makes_target {
            metadata.shape = None;
        }
        Ok(Some((size_bytes, metadata)))
    }

    fn has_few_pairs(&self, member: &SourceMember) -> bool {
        member.ranks.len() * self.call.request.sources.len().saturating_sub(1)
            <= MAX_PAIRS_PER_MEMBER
    }

    pub(super) fn missing_sources(&self) -> BTreeMap<usize, ObjectId> {
        let is_missing =
            |news: &Option<Locations>| news.as_ref().is_none_or(|news| news.locations.is_empty());
        let sources = self.call.request.sources.iter().enumerate().zip(&self.news);
        sources
            .filter(|(_, news)| is_missing(news))
            .map(|((rank, id), _)| (rank, id.clone()))
            .collect()
    }

    pub(super) fn known_members(&self) -> Vec<Member> {
        let mut members: Vec<Member> = Vec::new();
        for location in self.news.iter().flatten().flat_map(|news| &news.locations) {
            if !members.iter().any(|member| member.node == location.node)
                && members.len() < MAX_MEMBERS
            {
                members
                    .push(Member { node: location.node.clone(), address: location.data_address });
            }
        }
        members
    }

    fn members(&self) -> Option<Vec<SourceMember>> {
        let mut members: Vec<SourceMember> = Vec::new();
        for (rank, (id, news)) in self.call.request.sources.iter().zip(&self.news).enumerate() {
            let news = news.as_ref()?;
            let source = (id.clone(), news.object.as_ref()?.put);
            let location =
                news.locations.iter().filter_map(preference).min_by_key(|(rank, _)| *rank)?.1;
            if let Some(found) =
                members.iter_mut().find(|member| member.member.node == location.node)
            {
                found.ranks.push(rank);
                found.sources.push(source);
            } else {
                let member = Member { node: location.node.clone(), address: location.data_address };
                let (path, slow_peers) = (location.path, location.slow_peers.clone());
                let (ranks, sources) = (vec![rank], vec![source]);
                members.push(SourceMember { member, path, slow_peers, ranks, sources });
            }
        }
        Some(members)
    }

    pub(super) fn record(&self, link: LinkEstimate, now: Time) -> ReduceRecord {
        let missing = self.missing_sources();
        let named: Vec<String> =
            missing.values().take(MAX_NAMED).map(ToString::to_string).collect();
        let more = if missing.len() > named.len() { " and others" } else { "" };
        let plan = if missing.is_empty() {
            "no plan yet: all sources are there".to_owned()
        } else {
            format!("no plan yet: waits for the sources {}{more}", named.join(" "))
        };
        let sources = self.call.request.sources.len();
        let known = self.call.record(link, now, 0, plan);
        ReduceRecord { reduced: (sources - missing.len(), sources), is_running: true, ..known }
    }
}

/// Returns the location and its rank as a candidate for a member, 0 for the best. Returns `None`
/// for a partial copy, which depends on another copy.
fn preference(location: &Location) -> Option<(u8, &Location)> {
    match location.state {
        LocationState::Producing => Some((0, location)),
        // A pinned copy is usually at the node that made the put.
        LocationState::Complete if location.retention == Retention::Pinned => Some((1, location)),
        LocationState::Complete => Some((2, location)),
        LocationState::Partial => None,
    }
}

/// Returns the longest wait for missing sources: the time to move one rank's part over its link. So
/// a vain wait prolongs a collective of n ranks by at most 1/n.
fn wait_limit(size_bytes: u64, participants: u64, link: LinkEstimate) -> Duration {
    let seconds =
        size_bytes as f64 / participants.max(1) as f64 / link.bytes_per_second.max(1) as f64;
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).max(MIN_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow_links(members: &[(u32, &[usize])]) -> Vec<(usize, usize)> {
        let name = |number: usize| NodeId::new(&format!("n{number}")).unwrap();
        let member = |(number, (rack, slow)): (usize, &(u32, &[usize]))| SourceMember {
            member: Member { node: name(number), address: "127.0.0.1:1".parse().unwrap() },
            path: [0, 0, *rack, 0],
            slow_peers: slow.iter().map(|peer| name(*peer)).collect(),
            ranks: vec![number],
            sources: Vec::new(),
        };
        let members = members.iter().enumerate().map(member).collect();
        let members = Members { members, size_bytes: 0, metadata: Metadata::default() };
        members.slow_links().into_iter().collect()
    }

    #[test]
    fn one_report_marks_a_link_slow_and_two_mark_the_node() {
        assert_eq!(slow_links(&[(0, &[1, 9]), (0, &[]), (0, &[])]), [(0, 1)]);
        assert_eq!(slow_links(&[(0, &[1]), (0, &[]), (0, &[1])]), [(0, 1), (1, 0), (1, 2), (2, 1)]);
    }

    #[test]
    fn the_slow_link_between_racks_is_the_uplink() {
        assert_eq!(slow_links(&[(1, &[1]), (2, &[]), (1, &[1])]), []);
        assert_eq!(slow_links(&[(1, &[1]), (2, &[]), (2, &[1])]), [(2, 1)]);
        assert_eq!(
            slow_links(&[(1, &[]), (2, &[]), (2, &[1]), (2, &[1])]),
            [(0, 1), (1, 0), (1, 2), (1, 3), (2, 1), (3, 1)]
        );
    }
}
