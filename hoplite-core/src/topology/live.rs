//! Estimates of links from real transfers.
//!
//! Sources: the gain of 1/8 is that of TCP's smoothed round trip (RFC 6298); Cloud Collectives, section VI, proposes TCP_INFO.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::matrix::Link;
use crate::id::NodeId;
use crate::link::Delivery;
use crate::load::LinkLoad;
use crate::time::Time;

/// What a transfer says of its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The smallest round trip.
    pub round_trip_ns: u64,
    /// Picoseconds that each byte took.
    pub ps_per_byte: u64,
    /// `true` if the sender had too little to send, so that the rate says nothing of the link.
    pub is_application_limited: bool,
}

impl Sample {
    /// Picoseconds for each byte.
    const fn gap(bytes_per_second: u64) -> u64 {
        let rate = if bytes_per_second == 0 { 1 } else { bytes_per_second };
        1_000_000_000_000 / rate
    }
}

impl From<Delivery> for Sample {
    fn from(delivery: Delivery) -> Self {
        Self {
            round_trip_ns: 1000 * u64::from(delivery.round_trip_us),
            ps_per_byte: Self::gap(delivery.bytes_per_second),
            is_application_limited: delivery.is_application_limited,
        }
    }
}

/// Most peers whose links are estimated: 64 KB. Beyond that the one that was heard of longest ago goes.
pub const MAX_PEERS: usize = 1024;
/// A link that no transfer has used for so long, while others were, is not shown: its node may be gone.
const SHOWN_FOR: Duration = Duration::from_secs(600);
/// A link is slow if it is this many times worse than the median of all: as much as separates two levels of a network.
const SLOW_PERCENT: u64 = 150;
/// Fewer links have no median to be compared with.
const MIN_LINKS: usize = 3;
/// Most links that the directory is told of, to have transfers go elsewhere: those that carry least.
pub const MAX_TOLD: usize = 8;
/// If so many nodes of a group say that their link to one of it is slow, it is that node's own, and all from and to it count as slow.
pub const MIN_REPORTS: usize = 2;
/// It is told of links that carry less than half of what is usual. More than that also happens when a receiver has several senders.
const TOLD_PERCENT: u64 = 200;
/// The directory is told that a link has got slow when that has lasted for so long: what goes around it gains half of its time then.
const LASTING: Duration = Duration::from_secs(10);
/// It is told that a link is slow no more when that has lasted for so long. The usual order is hardly better than the one that goes
/// around the link, so nothing is lost, and what comes and goes changes no order each time.
const RECOVERED: Duration = Duration::from_secs(30);
/// How often that is looked at.
const JUDGED_EVERY: Duration = Duration::from_secs(1);

/// The links from one node to others, as its transfers show them.
#[derive(Debug, Clone, Default)]
pub struct PeerLinks {
    links: BTreeMap<NodeId, (Estimate, Time)>,
    /// Picoseconds for each byte of what this node receives.
    received_gap: Option<u32>,
    judged_at: Option<Time>,
    /// The slow links that the directory knows of.
    told: BTreeSet<NodeId>,
    /// Links that have got slow, or are not any more, of which the directory does not know: since when.
    turned: BTreeMap<NodeId, Time>,
}

/// What is known of the link to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerLink {
    /// The peer.
    pub peer: NodeId,
    /// The link, as it is estimated now.
    pub link: Link,
    /// `true` if it carries much less than most, or takes much longer.
    pub is_slow: bool,
}

impl From<PeerLink> for LinkLoad {
    fn from(PeerLink { peer, link, is_slow }: PeerLink) -> Self {
        const PICOSECONDS: u64 = 1_000_000_000_000;
        Self {
            peer,
            bytes_per_second: PICOSECONDS / u64::from(link.ps_per_byte).max(1),
            round_trip_ns: 2 * u64::from(link.alpha_ns),
            is_slow,
        }
    }
}

impl PeerLinks {
    /// Takes in a sample of a transfer to `peer`. One that the application limited is ignored.
    pub fn add(&mut self, now: Time, peer: &NodeId, sample: Sample) {
        if sample.is_application_limited {
            return;
        }
        if let Some((estimate, at)) = self.links.get_mut(peer) {
            estimate.add(sample);
            *at = now;
            return;
        }
        if self.links.len() >= MAX_PEERS {
            let oldest = self.links.iter().min_by_key(|(_, (_, at))| *at).map(|(peer, _)| peer.clone());
            oldest.and_then(|oldest| self.links.remove(&oldest));
        }
        let first =
            Link { alpha_ns: whole(sample.round_trip_ns / 2), ps_per_byte: whole(sample.ps_per_byte) };
        self.links.insert(peer.clone(), (Estimate::new(first), now));
    }

    /// Takes in at which rate this node receives.
    pub fn received(&mut self, bytes_per_second: u64) {
        self.received_gap = Some(whole(Sample::gap(bytes_per_second)));
    }

    /// The peers to which the links have been slow for long, those first that carry least, if these are others than when this was
    /// asked last; asked after a sample.
    ///
    /// A link is slow for that if it carries less than half of what is usual: the median of the links to others, or, if there are too few of them, what this
    /// node receives. It is slow no more if it carries as much as most, as [`worst_first`](Self::worst_first) has it, and that for
    /// longer. A link that is used no more is tried again after ten minutes.
    pub fn news(&mut self, now: Time) -> Option<Vec<NodeId>> {
        if self.judged_at.is_some_and(|judged_at| now.since(judged_at) < JUDGED_EVERY) {
            return None;
        }
        self.judged_at = Some(now);
        let (peers, estimates) = self.used();
        let usual_gap = match estimates.len() {
            MIN_LINKS.. => median(&estimates, |link| link.ps_per_byte),
            _ => self.received_gap?,
        };
        let links = peers.into_iter().zip(estimates);
        let mut slow: Vec<(u32, NodeId)> = links
            .map(|(peer, link)| (link.ps_per_byte, peer.clone()))
            .filter(|(gap, peer)| {
                let percent = if self.told.contains(peer) { SLOW_PERCENT } else { TOLD_PERCENT };
                exceeds(*gap, usual_gap, percent)
            })
            .collect();
        // Those that were told first: one that is still slow has not recovered because others are slower.
        slow.sort_unstable_by_key(|(gap, peer)| (Reverse(self.told.contains(peer)), Reverse(*gap)));
        slow.truncate(MAX_TOLD);
        slow.sort_unstable_by_key(|(gap, _)| Reverse(*gap));
        let slow: Vec<NodeId> = slow.into_iter().map(|(_, peer)| peer).collect();
        let is_turned = |peer: &NodeId| slow.contains(peer) != self.told.contains(peer);
        let turned = slow.iter().chain(&self.told).filter(|peer| is_turned(peer));
        let since = |peer: &NodeId| self.turned.get(peer).copied().unwrap_or(now);
        self.turned = turned.map(|peer| (peer.clone(), since(peer))).collect();
        // Only samples of the link itself show that it goes on being slow: one that is used no more is not.
        let is_lasting = |peer: &NodeId, since: Time| {
            let sampled = self.links.get(peer).map_or(now, |(_, at)| *at);
            let (until, lasting) = if slow.contains(peer) { (sampled, LASTING) } else { (now, RECOVERED) };
            until.since(since) >= lasting
        };
        let turned = self.turned.iter().filter(|(peer, since)| !is_lasting(peer, **since));
        // These wait, so that the next news are as lasting.
        let young: BTreeMap<NodeId, Time> = turned.map(|(peer, since)| (peer.clone(), *since)).collect();
        if young.len() == self.turned.len() {
            return None;
        }
        let is_young = |peer: &NodeId| young.contains_key(peer);
        let lasting = slow.iter().filter(|peer| !is_young(peer));
        let kept = self.told.iter().filter(|peer| is_young(peer) && !slow.contains(peer));
        let mut told: Vec<NodeId> = lasting.chain(kept).cloned().collect();
        told.truncate(MAX_TOLD);
        self.told = told.iter().cloned().collect();
        self.turned = young;
        Some(told)
    }

    /// The peers, and the links to them, that were used lately.
    fn used(&self) -> (Vec<&NodeId>, Vec<Link>) {
        let latest = self.links.values().map(|(_, at)| *at).max().unwrap_or(Time::ZERO);
        let used = self.links.iter().filter(|(_, (_, at))| latest.since(*at) < SHOWN_FOR);
        used.map(|(peer, (estimate, _))| (peer, estimate.link())).unzip()
    }

    /// The links that were used lately, those that carry least first.
    pub fn worst_first(&self) -> Vec<PeerLink> {
        let (peers, estimates) = self.used();
        let usual_alpha = median(&estimates, |link| link.alpha_ns);
        let usual_gap = median(&estimates, |link| link.ps_per_byte);
        let is_slow = |link: &Link| {
            estimates.len() >= MIN_LINKS
                && (exceeds(link.alpha_ns, usual_alpha, SLOW_PERCENT)
                    || exceeds(link.ps_per_byte, usual_gap, SLOW_PERCENT))
        };
        let named = peers.into_iter().zip(&estimates);
        let mut links: Vec<PeerLink> = named
            .map(|(peer, link)| PeerLink { peer: peer.clone(), link: *link, is_slow: is_slow(link) })
            .collect();
        links.sort_by_key(|link| Reverse((link.link.ps_per_byte, link.link.alpha_ns)));
        links
    }
}

fn whole(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// The lower median; zero of nothing.
fn median(links: &[Link], value: fn(&Link) -> u32) -> u32 {
    let mut values: Vec<u32> = links.iter().map(value).collect();
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

fn exceeds(value: u32, usual: u32, percent: u64) -> bool {
    u64::from(value) * 100 > u64::from(usual) * percent
}

/// The moving average of a link; in 1/8 units, so that small changes are not lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    alpha_eighths: u64,
    gap_eighths: u64,
}

impl Estimate {
    /// Starts from what is known of a link.
    pub const fn new(link: Link) -> Self {
        Self { alpha_eighths: 8 * link.alpha_ns as u64, gap_eighths: 8 * link.ps_per_byte as u64 }
    }

    /// Moves by an eighth of the way to a sample; a sample that the application limited is ignored.
    pub fn add(&mut self, sample: Sample) {
        if sample.is_application_limited {
            return;
        }
        let eighths = |average: u64, value: u64| average - average / 8 + value.min(u32::MAX.into());
        self.alpha_eighths = eighths(self.alpha_eighths, sample.round_trip_ns / 2);
        self.gap_eighths = eighths(self.gap_eighths, sample.ps_per_byte);
    }

    /// The link as it is estimated now.
    pub fn link(&self) -> Link {
        let whole = |eighths: u64| (eighths / 8).min(u32::MAX.into()) as u32;
        Link { alpha_ns: whole(self.alpha_eighths), ps_per_byte: whole(self.gap_eighths) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { alpha_ns: 10_000, ps_per_byte: 800 };

    fn sample(round_trip_ns: u64, ps_per_byte: u64) -> Sample {
        Sample { round_trip_ns, ps_per_byte, is_application_limited: false }
    }

    #[test]
    fn averages_move_by_an_eighth() {
        let mut estimate = Estimate::new(LINK);
        estimate.add(sample(36_000, 1600));
        assert_eq!(estimate.link(), Link { alpha_ns: 11_000, ps_per_byte: 900 });
        for _ in 0..200 {
            estimate.add(sample(36_000, 1600));
        }
        let Link { alpha_ns, ps_per_byte } = estimate.link();
        assert!((17_990..=18_000).contains(&alpha_ns) && (1590..=1600).contains(&ps_per_byte));
    }

    #[test]
    fn a_steady_link_keeps_its_estimate() {
        let mut estimate = Estimate::new(LINK);
        for _ in 0..1000 {
            estimate.add(sample(20_000, 800));
        }
        assert_eq!(estimate.link(), LINK);
        estimate.add(sample(u64::MAX, u64::MAX));
        assert!(estimate.link().alpha_ns < u32::MAX);
    }

    #[test]
    fn samples_that_the_application_limited_are_ignored() {
        let mut estimate = Estimate::new(LINK);
        estimate.add(Sample { is_application_limited: true, ..sample(1_000_000, 1_000_000) });
        assert_eq!(estimate.link(), LINK);
    }

    fn peer(number: usize) -> NodeId {
        NodeId::new(&format!("n{number}")).unwrap()
    }

    #[test]
    fn a_link_that_gets_slow_is_noticed() {
        let mut links = PeerLinks::default();
        for number in 0..8 {
            links.add(Time::ZERO, &peer(number), sample(20_000, 800));
        }
        assert!(links.worst_first().iter().all(|link| link.link == LINK && !link.is_slow));
        links.add(Time::ZERO, &peer(5), Sample { is_application_limited: true, ..sample(20_000, 80_000) });
        assert!(
            links.worst_first().iter().all(|link| !link.is_slow),
            "the application was slow, not the link"
        );
        for _ in 0..8 {
            links.add(Time::ZERO, &peer(5), sample(20_000, 8000));
            links.add(Time::ZERO, &peer(6), sample(200_000, 800));
        }
        let slow: Vec<NodeId> =
            links.worst_first().into_iter().filter(|link| link.is_slow).map(|link| link.peer).collect();
        assert_eq!(slow, [peer(5), peer(6)]);
    }

    /// Samples every 20 ms for so long, of links that take so long for each byte; returns all news.
    fn news(links: &mut PeerLinks, from_s: u64, to_s: u64, gaps: &[u64]) -> Vec<(u64, Vec<NodeId>)> {
        let mut told = Vec::new();
        for step in from_s * 50..to_s * 50 {
            let now = Time::from_micros(step * 20_000);
            for (number, gap) in gaps.iter().enumerate() {
                links.add(now, &peer(number), sample(20_000, *gap));
            }
            told.extend(links.news(now).map(|peers| (step / 50, peers)));
        }
        told
    }

    #[test]
    fn what_lasts_is_told_once() {
        let mut links = PeerLinks::default();
        assert_eq!(news(&mut links, 0, 30, &[800, 800, 800, 800]), []);
        // Shorter than that, or less than twice as long.
        assert_eq!(news(&mut links, 30, 35, &[800, 800, 8000, 1200]), []);
        assert_eq!(news(&mut links, 35, 60, &[800, 800, 800, 1200]), []);
        let told = news(&mut links, 60, 120, &[800, 800, 8000, 4000]);
        assert_eq!(told, [(70, vec![peer(2)]), (71, vec![peer(2), peer(3)])]);
        assert_eq!(news(&mut links, 120, 180, &[800, 800, 800, 4000]), [(151, vec![peer(3)])]);
        assert_eq!(news(&mut links, 180, 240, &[800, 800, 800, 800]), [(211, vec![])]);
    }

    #[test]
    fn a_link_that_comes_and_goes_stays_slow() {
        let mut links = PeerLinks::default();
        assert_eq!(news(&mut links, 0, 30, &[800, 800, 800, 800]), []);
        assert_eq!(news(&mut links, 30, 42, &[800, 800, 800, 8000]), [(40, vec![peer(3)])]);
        for round in 0..10 {
            let from_s = 42 + 40 * round;
            assert_eq!(news(&mut links, from_s, from_s + 25, &[800, 800, 800, 800]), []);
            assert_eq!(news(&mut links, from_s + 25, from_s + 40, &[800, 800, 800, 8000]), []);
        }
        // So does one that has got better, but not as good as others.
        assert_eq!(news(&mut links, 442, 600, &[800, 800, 800, 1400]), []);
        assert_eq!(news(&mut links, 600, 660, &[800, 800, 800, 1100]).len(), 1);
        assert_eq!(news(&mut links, 660, 720, &[800, 800, 800, 1400]), [], "nor is it slow again then");
    }

    #[test]
    fn one_slow_link_is_known_by_what_the_node_receives() {
        let mut links = PeerLinks::default();
        assert_eq!(news(&mut links, 0, 30, &[8000]), [], "nothing to compare it with");
        links.received(1_000_000_000);
        assert_eq!(news(&mut links, 30, 60, &[8000]), [(40, vec![peer(0)])]);
        links.received(150_000_000);
        assert_eq!(news(&mut links, 60, 100, &[8000]), [(90, vec![])]);
    }

    #[test]
    fn no_more_are_told_than_may_be_and_the_slowest_first() {
        let mut links = PeerLinks::default();
        let gaps: Vec<u64> = (0..30).map(|number| if number < 10 { 8000 + number } else { 800 }).collect();
        let told = news(&mut links, 0, 60, &gaps);
        assert_eq!(told, [(10, (2..10).rev().map(peer).collect::<Vec<_>>())]);
    }

    #[test]
    fn one_bad_moment_is_not_told() {
        let mut links = PeerLinks::default();
        links.add(Time::ZERO, &peer(3), sample(20_000, 80_000));
        assert_eq!(news(&mut links, 0, 60, &[800, 800, 800]), []);
    }

    #[test]
    fn a_link_that_is_used_no_more_is_forgotten() {
        let mut links = PeerLinks::default();
        assert_eq!(news(&mut links, 0, 30, &[800, 800, 800, 8000]).len(), 1);
        let told = news(&mut links, 30, 700, &[800, 800, 800]);
        assert_eq!(told.iter().map(|(_, peers)| peers.len()).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn links_to_a_few_peers_are_not_slow() {
        let mut links = PeerLinks::default();
        links.add(Time::ZERO, &peer(0), sample(20_000, 800));
        links.add(Time::ZERO, &peer(1), sample(20_000, 8000));
        assert!(links.worst_first().iter().all(|link| !link.is_slow));
    }

    #[test]
    fn the_peer_that_was_heard_of_longest_ago_is_forgotten() {
        let mut links = PeerLinks::default();
        for number in 0..MAX_PEERS + 10 {
            links.add(Time::from_micros(number as u64), &peer(number), sample(20_000, 800));
            links.add(Time::from_micros(number as u64), &peer(0), sample(20_000, 800));
        }
        let known = links.worst_first();
        links.add(Time::ZERO + SHOWN_FOR * 2, &peer(0), sample(20_000, 800));
        assert_eq!(links.worst_first().len(), 1, "the others were not used lately");
        assert_eq!(known.len(), MAX_PEERS);
        assert!(known.iter().any(|link| link.peer == peer(0)));
        assert!(known.iter().all(|link| link.peer != peer(1)));
    }
}
