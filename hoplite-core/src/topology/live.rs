//! Estimates a node's links to its peers from real transfers.
//!
//! Sources: TCP's smoothed round trip (RFC 6298) for a sample's weight of 1/8; Cloud Collectives,
//! section VI, for TCP_INFO.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::matrix::Link;
use crate::id::NodeId;
use crate::link::Delivery;
use crate::load::LinkLoad;
use crate::time::Time;

/// A transfer's measurement of the link to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Shortest recent round trip in nanoseconds.
    pub round_trip_ns: u64,
    /// Time per byte in picoseconds.
    pub ps_per_byte: u64,
    /// `true` if the sender had too little to send.
    pub is_application_limited: bool,
}

impl Sample {
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

/// Most peers whose links are estimated, in 64 KB. A further peer replaces the peer with the oldest
/// sample.
pub const MAX_PEERS: usize = 1024;
/// While others are used, a link unused for this long is neither compared nor shown.
const SHOWN_TIME: Duration = Duration::from_secs(600);
/// A link is slow above this percentage of the median link's latency or time per byte. Links on two
/// levels of a network have about this ratio.
const SLOW_PERCENT: u64 = 150;
const MIN_LINKS: usize = 3;
/// Most slow links that a node reports.
pub const MAX_SLOW_PEERS: usize = 8;
/// If this many nodes report slow links to a node of their group, all its links count as slow.
pub const MIN_REPORTS: usize = 2;
/// A node reports a link above this percentage of the median link's time per byte. If several
/// senders share one receiver, ratios stay smaller.
const REPORTED_PERCENT: u64 = 200;
const MIN_SLOW_TIME: Duration = Duration::from_secs(10);
/// Time for which a reported link must be fast again to leave the report, because faults may be
/// intermittent.
const RECOVERED: Duration = Duration::from_secs(30);
const JUDGE_INTERVAL: Duration = Duration::from_secs(1);

/// Estimates of this node's links to its peers.
#[derive(Debug, Clone, Default)]
pub struct PeerLinks {
    links: BTreeMap<NodeId, (Estimate, Time)>,
    received_gap: Option<u32>,
    judged_at: Option<Time>,
    reported: BTreeSet<NodeId>,
    /// Peers whose link turned slow or fast since the last report, and the time of that change.
    turned: BTreeMap<NodeId, Time>,
}

/// Estimated link to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerLink {
    /// Node at the other end.
    pub peer: NodeId,
    /// Link's current estimate.
    pub link: Link,
    /// `true` if the rate or round trip is much worse than on most other links.
    pub is_slow: bool,
    /// Number of connections that filled the link in the last test of several numbers; `None`
    /// before a test.
    pub lanes: Option<usize>,
}

impl From<PeerLink> for LinkLoad {
    fn from(PeerLink { peer, link, is_slow, lanes }: PeerLink) -> Self {
        const PICOSECONDS: u64 = 1_000_000_000_000;
        Self {
            peer,
            bytes_per_second: PICOSECONDS / u64::from(link.ps_per_byte).max(1),
            round_trip_ns: 2 * u64::from(link.alpha_ns),
            is_slow,
            lanes: lanes.map_or(0, |lanes| u32::try_from(lanes).unwrap_or(u32::MAX)),
        }
    }
}

impl PeerLinks {
    /// Adds a sample of the link to `peer`, unless the application limited its rate.
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
            let oldest =
                self.links.iter().min_by_key(|(_, (_, at))| *at).map(|(peer, _)| peer.clone());
            oldest.and_then(|oldest| self.links.remove(&oldest));
        }
        let first = Link {
            alpha_ns: whole(sample.round_trip_ns / 2),
            ps_per_byte: whole(sample.ps_per_byte),
        };
        self.links.insert(peer.clone(), (Estimate::new(first), now));
    }

    /// Records this node's receive rate, for [`Self::news`].
    pub fn received(&mut self, bytes_per_second: u64) {
        self.received_gap = Some(whole(Sample::gap(bytes_per_second)));
    }

    /// Returns the peers with slow links, slowest first, if the list has changed. Call this after
    /// each sample.
    ///
    /// A link becomes slow after 10 s below half of the usual rate: the median of all links, or
    /// with fewer than three links this node's receive rate. It recovers after 30 s at two thirds
    /// of the usual rate or more, or ten minutes without use.
    pub fn news(&mut self, now: Time) -> Option<Vec<NodeId>> {
        if self.judged_at.is_some_and(|judged_at| now.since(judged_at) < JUDGE_INTERVAL) {
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
                let percent =
                    if self.reported.contains(peer) { SLOW_PERCENT } else { REPORTED_PERCENT };
                exceeds(*gap, usual_gap, percent)
            })
            .collect();
        // A reported link stays on the list while it is slow.
        slow.sort_unstable_by_key(|(gap, peer)| {
            (Reverse(self.reported.contains(peer)), Reverse(*gap))
        });
        slow.truncate(MAX_SLOW_PEERS);
        slow.sort_unstable_by_key(|(gap, _)| Reverse(*gap));
        let slow: Vec<NodeId> = slow.into_iter().map(|(_, peer)| peer).collect();
        let is_turned = |peer: &NodeId| slow.contains(peer) != self.reported.contains(peer);
        let turned = slow.iter().chain(&self.reported).filter(|peer| is_turned(peer));
        let since = |peer: &NodeId| self.turned.get(peer).copied().unwrap_or(now);
        self.turned = turned.map(|peer| (peer.clone(), since(peer))).collect();
        // Only samples prove that a link is still slow.
        let is_lasting = |peer: &NodeId, since: Time| {
            let sampled = self.links.get(peer).map_or(now, |(_, at)| *at);
            let (until, lasting) =
                if slow.contains(peer) { (sampled, MIN_SLOW_TIME) } else { (now, RECOVERED) };
            until.since(since) >= lasting
        };
        let turned = self.turned.iter().filter(|(peer, since)| !is_lasting(peer, **since));
        let young: BTreeMap<NodeId, Time> =
            turned.map(|(peer, since)| (peer.clone(), *since)).collect();
        if young.len() == self.turned.len() {
            return None;
        }
        let is_young = |peer: &NodeId| young.contains_key(peer);
        let lasting = slow.iter().filter(|peer| !is_young(peer));
        let kept = self.reported.iter().filter(|peer| is_young(peer) && !slow.contains(peer));
        let mut reported: Vec<NodeId> = lasting.chain(kept).cloned().collect();
        reported.truncate(MAX_SLOW_PEERS);
        self.reported = reported.iter().cloned().collect();
        self.turned = young;
        Some(reported)
    }

    fn used(&self) -> (Vec<&NodeId>, Vec<Link>) {
        let latest = self.links.values().map(|(_, at)| *at).max().unwrap_or(Time::ZERO);
        let used = self.links.iter().filter(|(_, (_, at))| latest.since(*at) < SHOWN_TIME);
        used.map(|(peer, (estimate, _))| (peer, estimate.link())).unzip()
    }

    /// Recently used links, slowest first.
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
            .map(|(peer, link)| PeerLink {
                peer: peer.clone(),
                link: *link,
                is_slow: is_slow(link),
                lanes: None,
            })
            .collect();
        links.sort_by_key(|link| Reverse((link.link.ps_per_byte, link.link.alpha_ns)));
        links
    }
}

fn whole(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn median(links: &[Link], value: fn(&Link) -> u32) -> u32 {
    let mut values: Vec<u32> = links.iter().map(value).collect();
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

fn exceeds(value: u32, usual: u32, percent: u64) -> bool {
    u64::from(value) * 100 > u64::from(usual) * percent
}

/// Moving average of a link's samples, in units of 1/8 to keep small changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    alpha_eighths: u64,
    gap_eighths: u64,
}

impl Estimate {
    /// Makes an average that starts at `link`.
    pub const fn new(link: Link) -> Self {
        Self { alpha_eighths: 8 * link.alpha_ns as u64, gap_eighths: 8 * link.ps_per_byte as u64 }
    }

    /// Moves the average by 1/8 of the difference to a sample. Ignores an application-limited rate.
    pub fn add(&mut self, sample: Sample) {
        if sample.is_application_limited {
            return;
        }
        let eighths = |average: u64, value: u64| average - average / 8 + value.min(u32::MAX.into());
        self.alpha_eighths = eighths(self.alpha_eighths, sample.round_trip_ns / 2);
        self.gap_eighths = eighths(self.gap_eighths, sample.ps_per_byte);
    }

    /// Averages as a link.
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
    fn application_limited_samples_are_ignored() {
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
        links.add(
            Time::ZERO,
            &peer(5),
            Sample { is_application_limited: true, ..sample(20_000, 80_000) },
        );
        assert!(
            links.worst_first().iter().all(|link| !link.is_slow),
            "the application was slow, not the link"
        );
        for _ in 0..8 {
            links.add(Time::ZERO, &peer(5), sample(20_000, 8000));
            links.add(Time::ZERO, &peer(6), sample(200_000, 800));
        }
        let slow: Vec<NodeId> = links
            .worst_first()
            .into_iter()
            .filter(|link| link.is_slow)
            .map(|link| link.peer)
            .collect();
        assert_eq!(slow, [peer(5), peer(6)]);
    }

    fn news(
        links: &mut PeerLinks,
        from_s: u64,
        to_s: u64,
        gaps: &[u64],
    ) -> Vec<(u64, Vec<NodeId>)> {
        let mut reported = Vec::new();
        for step in from_s * 50..to_s * 50 {
            let now = Time::from_micros(step * 20_000);
            for (number, gap) in gaps.iter().enumerate() {
                links.add(now, &peer(number), sample(20_000, *gap));
            }
            reported.extend(links.news(now).map(|peers| (step / 50, peers)));
        }
        reported
    }

    #[test]
    fn lasting_changes_are_reported_once() {
        let mut links = PeerLinks::default();
        assert_eq!(news(&mut links, 0, 30, &[800, 800, 800, 800]), []);
        assert_eq!(news(&mut links, 30, 35, &[800, 800, 8000, 1200]), []);
        assert_eq!(news(&mut links, 35, 60, &[800, 800, 800, 1200]), []);
        let reported = news(&mut links, 60, 120, &[800, 800, 8000, 4000]);
        assert_eq!(reported, [(70, vec![peer(2)]), (71, vec![peer(2), peer(3)])]);
        assert_eq!(news(&mut links, 120, 180, &[800, 800, 800, 4000]), [(151, vec![peer(3)])]);
        assert_eq!(news(&mut links, 180, 240, &[800, 800, 800, 800]), [(211, vec![])]);
    }

    #[test]
    fn an_intermittent_link_stays_slow() {
        let mut links = PeerLinks::default();
        assert_eq!(news(&mut links, 0, 30, &[800, 800, 800, 800]), []);
        assert_eq!(news(&mut links, 30, 42, &[800, 800, 800, 8000]), [(40, vec![peer(3)])]);
        for round in 0..10 {
            let from_s = 42 + 40 * round;
            assert_eq!(news(&mut links, from_s, from_s + 25, &[800, 800, 800, 800]), []);
            assert_eq!(news(&mut links, from_s + 25, from_s + 40, &[800, 800, 800, 8000]), []);
        }
        assert_eq!(news(&mut links, 442, 600, &[800, 800, 800, 1400]), []);
        assert_eq!(news(&mut links, 600, 660, &[800, 800, 800, 1100]).len(), 1);
        assert_eq!(
            news(&mut links, 660, 720, &[800, 800, 800, 1400]),
            [],
            "a partly recovered link does not become slow again"
        );
    }

    #[test]
    fn a_slow_link_is_measured_by_its_receiver() {
        let mut links = PeerLinks::default();
        assert_eq!(news(&mut links, 0, 30, &[8000]), [], "nothing to compare it with");
        links.received(1_000_000_000);
        assert_eq!(news(&mut links, 30, 60, &[8000]), [(40, vec![peer(0)])]);
        links.received(150_000_000);
        assert_eq!(news(&mut links, 60, 100, &[8000]), [(90, vec![])]);
    }

    #[test]
    fn reports_are_bounded_and_slowest_first() {
        let mut links = PeerLinks::default();
        let gaps: Vec<u64> =
            (0..30).map(|number| if number < 10 { 8000 + number } else { 800 }).collect();
        let reported = news(&mut links, 0, 60, &gaps);
        assert_eq!(reported, [(10, (2..10).rev().map(peer).collect::<Vec<_>>())]);
    }

    #[test]
    fn one_bad_sample_is_not_reported() {
        let mut links = PeerLinks::default();
        links.add(Time::ZERO, &peer(3), sample(20_000, 80_000));
        assert_eq!(news(&mut links, 0, 60, &[800, 800, 800]), []);
    }

    #[test]
    fn an_unused_link_is_forgotten() {
        let mut links = PeerLinks::default();
        assert_eq!(news(&mut links, 0, 30, &[800, 800, 800, 8000]).len(), 1);
        let reported = news(&mut links, 30, 700, &[800, 800, 800]);
        assert_eq!(reported.iter().map(|(_, peers)| peers.len()).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn links_to_a_few_peers_are_not_slow() {
        let mut links = PeerLinks::default();
        links.add(Time::ZERO, &peer(0), sample(20_000, 800));
        links.add(Time::ZERO, &peer(1), sample(20_000, 8000));
        assert!(links.worst_first().iter().all(|link| !link.is_slow));
    }

    #[test]
    fn the_peer_with_the_oldest_sample_is_forgotten() {
        let mut links = PeerLinks::default();
        for number in 0..MAX_PEERS + 10 {
            links.add(Time::from_micros(number as u64), &peer(number), sample(20_000, 800));
            links.add(Time::from_micros(number as u64), &peer(0), sample(20_000, 800));
        }
        let known = links.worst_first();
        links.add(Time::ZERO + SHOWN_TIME * 2, &peer(0), sample(20_000, 800));
        assert_eq!(links.worst_first().len(), 1, "the others were not used lately");
        assert_eq!(known.len(), MAX_PEERS);
        assert!(known.iter().any(|link| link.peer == peer(0)));
        assert!(known.iter().all(|link| link.peer != peer(1)));
    }
}
