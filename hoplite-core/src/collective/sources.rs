//! The sources of a collective: where they are, and whether an attempt can begin.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::{Agreement, MAX_PAIRS_PER_MEMBER, MAX_SOURCES_PER_MEMBER, Member};
use crate::id::{NodeId, ObjectId, PutId};
use crate::metadata::Metadata;
use crate::plan::collective::{Collective, MAX_MEMBERS, SlowLinks};
use crate::plan::link::LinkEstimate;
use crate::shard::{Location, LocationState, Locations, Retention};
use crate::time::Time;
use crate::topology::place::Path;
use crate::topology::reported::Reports;
use crate::vocabulary::reduce::{Reduce, ReduceOrder};

/// The time to wait at least for those who are late: some wake-ups and round trips of the directory.
const MIN_WAIT: Duration = Duration::from_millis(2);

/// Returns `true` if an attempt is likely, where each source has so many bytes. Other collectives take the general path for sure.
pub fn promises_attempt(agreement: &Agreement, source_bytes: u64) -> bool {
    let all_bytes = source_bytes.saturating_mul(u64::from(agreement.participants));
    let is_large = all_bytes > agreement.kind.properties().max_general_bytes;
    agreement.order == ReduceOrder::Any && agreement.participants > 1 && is_large
}

/// A member of an attempt to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceMember {
    /// The member.
    pub member: Member,
    /// The groups that it is in.
    pub path: Path,
    /// The nodes to which its links are slow.
    pub slow_peers: Vec<NodeId>,
    /// The ranks whose sources it has.
    pub ranks: Vec<usize>,
    /// Their sources.
    pub sources: Vec<(ObjectId, PutId)>,
}

/// The members of an attempt to be, in the order of their lowest ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// The members.
    pub members: Vec<SourceMember>,
    /// The size of what is made.
    pub size_bytes: u64,
    /// The metadata of the target.
    pub metadata: Metadata,
}

impl Members {
    /// Returns the slow links between the members. A member of the same group reports a slow link. All links of a node are slow if
    /// enough members of its group report it. A slow link between groups is slow because of the uplink.
    pub fn slow_links(&self) -> SlowLinks {
        if self.members.iter().all(|member| member.slow_peers.is_empty()) {
            return SlowLinks::new();
        }
        let said =
            |member: &SourceMember| (member.member.node.clone(), member.path, member.slow_peers.clone());
        let reports = Reports::new(self.members.iter().map(said));
        let members = || self.members.iter().map(|member| &member.member.node).enumerate();
        let pairs = members().flat_map(|from| members().map(move |to| (from, to)));
        let slow = pairs.filter(|((_, from), (_, to))| reports.is_slow(from, to));
        slow.map(|((from, _), (to, _))| (from, to)).collect()
    }
}

/// The result of a search for sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlook {
    /// Not all sources are known yet. At this time the late ones have been waited for long enough.
    Waiting(Option<Time>),
    /// An attempt can begin.
    Ready(Members),
    /// The general path is taken, for this reason.
    General(&'static str),
}

/// Follows the sources of a collective.
#[derive(Debug)]
pub struct Sources {
    kind: Collective,
    request: Reduce,
    news: Vec<Option<Locations>>,
    first_at: Option<Time>,
}

impl Sources {
    /// Sources of which nothing is known yet.
    pub fn new(kind: Collective, request: Reduce) -> Self {
        let news = vec![None; request.sources.len()];
        Self { kind, request, news, first_at: None }
    }

    /// Returns the kind of collective.
    pub const fn kind(&self) -> Collective {
        self.kind
    }

    /// Returns the agreement of the participants.
    pub fn agreement(&self) -> Agreement {
        Agreement::of(self.kind, &self.request)
    }

    /// Returns the request.
    pub const fn request(&self) -> &Reduce {
        &self.request
    }

    /// Returns the request, and what the directory has told about each source.
    pub fn into_found(self) -> (Reduce, Vec<Option<Locations>>) {
        (self.request, self.news)
    }

    /// The directory told what it knows about a source.
    pub fn located(&mut self, now: Time, index: usize, news: Locations) {
        if news.object.is_some() {
            self.first_at.get_or_insert(now);
        }
        if let Some(known) = self.news.get_mut(index) {
            *known = Some(news);
        }
    }

    /// Returns the outlook, seen from `coordinator`.
    pub fn outlook(&self, now: Time, link: LinkEstimate, coordinator: &NodeId) -> Outlook {
        if self.request.order == ReduceOrder::Fixed {
            return Outlook::General("a fixed order is that of one chain");
        }
        if self.request.count < self.request.sources.len() || self.request.range.is_some() {
            return Outlook::General("not all of all sources is reduced");
        }
        let kind = self.kind.properties();
        let objects = self.news.iter().flatten().filter_map(|news| news.object.as_ref());
        let mut objects = objects.peekable();
        let Some(first) = objects.peek().copied() else { return Outlook::Waiting(None) };
        let (source_bytes, mut metadata) = (first.size_bytes, first.metadata.clone());
        for object in objects {
            let is_alike = object.size_bytes == source_bytes
                && (object.metadata.dtype, &object.metadata.shape) == (metadata.dtype, &metadata.shape);
            if object.lost || !is_alike {
                return Outlook::General("the sources are not alike, or one is lost");
            }
            if object.metadata.user != metadata.user {
                if kind.is_paired {
                    return Outlook::General("the parts are not alike");
                }
                metadata.user = Bytes::new();
            }
        }
        if kind.is_paired && source_bytes == 0 {
            return Outlook::General("the parts of a participant differ in size");
        }
        let participants = self.request.sources.len() as u64;
        let all_bytes = source_bytes.saturating_mul(participants);
        if all_bytes <= kind.max_general_bytes {
            return Outlook::General("so little goes through one node at once");
        }
        if kind.combines && !self.request.op.is_defined_for(metadata.dtype)
            || !source_bytes.is_multiple_of(metadata.dtype.size_bytes())
        {
            return Outlook::General("the operation is not defined for the sources");
        }
        if kind.divides_sources && !source_bytes.is_multiple_of(participants * metadata.dtype.size_bytes()) {
            return Outlook::General("the sources do not divide into equal parts");
        }
        let size_bytes = if kind.joins_sources { all_bytes } else { source_bytes };
        if !kind.makes_target {
            metadata.shape = None;
        }
        let Some(members) = self.members() else {
            let waits = kind.awaits_sources && self.request.sources.len() <= MAX_MEMBERS;
            let due = self.first_at.filter(|_| !waits);
            return match due.map(|first_at| first_at + wait_limit(size_bytes, participants, link)) {
                Some(due) if due <= now => Outlook::General("not all sources came in time"),
                due => Outlook::Waiting(due),
            };
        };
        let is_member = members.iter().any(|member| member.member.node == *coordinator);
        let is_fit = members.iter().all(|member| member.sources.len() <= MAX_SOURCES_PER_MEMBER)
            && (kind.makes_target || self.request.sources.len() <= MAX_MEMBERS)
            && (!kind.is_paired || members.iter().all(|member| self.has_few_pairs(member)));
        match members.len() {
            0 => Outlook::General("there are no members"),
            1 if !kind.is_paired => Outlook::General("all sources are at one node"),
            count if count > MAX_MEMBERS || !is_fit => Outlook::General("there are too many members"),
            _ if !is_member => Outlook::General("rank 0 has no source at its node"),
            _ => Outlook::Ready(Members { members, size_bytes, metadata }),
        }
    }

    /// Returns `true` if the parts that the ranks of a member get from others are few enough to be named.
    fn has_few_pairs(&self, member: &SourceMember) -> bool {
        member.ranks.len() * self.request.sources.len().saturating_sub(1) <= MAX_PAIRS_PER_MEMBER
    }

    /// Returns the sources that are nowhere yet, by their ranks.
    pub fn missing_sources(&self) -> BTreeMap<usize, ObjectId> {
        let is_missing =
            |news: &Option<Locations>| news.as_ref().is_none_or(|news| news.locations.is_empty());
        let sources = self.request.sources.iter().enumerate().zip(&self.news);
        sources.filter(|(_, news)| is_missing(news)).map(|((rank, id), _)| (rank, id.clone())).collect()
    }

    /// Returns the stores of participants, as far as they are known.
    pub fn known_members(&self) -> Vec<Member> {
        let mut members: Vec<Member> = Vec::new();
        for location in self.news.iter().flatten().flat_map(|news| &news.locations) {
            if !members.iter().any(|member| member.node == location.node) && members.len() < MAX_MEMBERS {
                members.push(Member { node: location.node.clone(), address: location.data_address });
            }
        }
        members
    }

    /// Returns the members if all sources are somewhere.
    fn members(&self) -> Option<Vec<SourceMember>> {
        let mut members: Vec<SourceMember> = Vec::new();
        for (rank, (id, news)) in self.request.sources.iter().zip(&self.news).enumerate() {
            let news = news.as_ref()?;
            let source = (id.clone(), news.object.as_ref()?.put);
            let location = news.locations.iter().filter_map(preference).min_by_key(|(rank, _)| *rank)?.1;
            if let Some(found) = members.iter_mut().find(|member| member.member.node == location.node) {
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
}

/// Ranks the locations of a source, the smallest first; `None` for one that needs another one to become complete.
fn preference(location: &Location) -> Option<(u8, &Location)> {
    match location.state {
        LocationState::Producing => Some((0, location)),
        // The node that has put it is where a rank is; others have merely got it.
        LocationState::Complete if location.retention == Retention::Pinned => Some((1, location)),
        LocationState::Complete => Some((2, location)),
        LocationState::Partial => None,
    }
}

/// Returns the time for which a search waits for late sources after the first one is known: as long as the part of one member takes on
/// its link. So waiting in vain costs at most 1/n of the general path.
fn wait_limit(size_bytes: u64, participants: u64, link: LinkEstimate) -> Duration {
    let seconds = size_bytes as f64 / participants.max(1) as f64 / link.bytes_per_second.max(1) as f64;
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).max(MIN_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members in these racks, each with the members to which its links are slow.
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
    fn one_member_tells_of_a_link_and_two_of_a_node() {
        assert_eq!(slow_links(&[(0, &[1, 9]), (0, &[]), (0, &[])]), [(0, 1)]);
        assert_eq!(slow_links(&[(0, &[1]), (0, &[]), (0, &[1])]), [(0, 1), (1, 0), (1, 2), (2, 1)]);
    }

    #[test]
    fn between_racks_it_is_the_uplink_that_is_slow() {
        assert_eq!(slow_links(&[(1, &[1]), (2, &[]), (1, &[1])]), []);
        assert_eq!(slow_links(&[(1, &[1]), (2, &[]), (2, &[1])]), [(2, 1)]);
        // Of a node that is slow itself, all links are, those to other racks too.
        assert_eq!(
            slow_links(&[(1, &[]), (2, &[]), (2, &[1]), (2, &[1])]),
            [(0, 1), (1, 0), (1, 2), (1, 3), (2, 1), (3, 1)]
        );
    }
}
