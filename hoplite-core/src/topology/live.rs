//! Estimates of links from real transfers.
//!
//! Sources: the gain of 1/8 is that of TCP's smoothed round trip (RFC 6298); Cloud Collectives, section VI, proposes TCP_INFO.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::matrix::Link;
use crate::id::NodeId;
use crate::plan::blocks::Delivery;
use crate::time::Time;

/// What a transfer says of its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The smallest round trip.
    pub round_trip_ns: u64,
    /// Picoseconds that each byte took.
    pub ps_per_byte: u64,
    /// Whether the sender had too little to send, so that the rate says nothing of the link.
    pub is_application_limited: bool,
}

impl From<Delivery> for Sample {
    fn from(delivery: Delivery) -> Self {
        const PICOSECONDS: u64 = 1_000_000_000_000;
        Self {
            round_trip_ns: 1000 * u64::from(delivery.round_trip_us),
            ps_per_byte: PICOSECONDS / delivery.bytes_per_second.max(1),
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

/// The links from one node to others, as its transfers show them.
#[derive(Debug, Clone, Default)]
pub struct PeerLinks {
    links: BTreeMap<NodeId, (Estimate, Time)>,
}

/// What is known of the link to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerLink {
    /// The peer.
    pub peer: NodeId,
    /// The link, as it is estimated now.
    pub link: Link,
    /// Whether it carries much less than most, or takes much longer.
    pub is_slow: bool,
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
        let whole = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let first =
            Link { alpha_ns: whole(sample.round_trip_ns / 2), ps_per_byte: whole(sample.ps_per_byte) };
        self.links.insert(peer.clone(), (Estimate::new(first), now));
    }

    /// The links that were used lately, those that carry least first.
    pub fn worst_first(&self) -> Vec<PeerLink> {
        let latest = self.links.values().map(|(_, at)| *at).max().unwrap_or(Time::ZERO);
        let used = self.links.iter().filter(|(_, (_, at))| latest.since(*at) < SHOWN_FOR);
        let (peers, estimates): (Vec<&NodeId>, Vec<Link>) =
            used.map(|(peer, (estimate, _))| (peer, estimate.link())).unzip();
        let median = |value: fn(&Link) -> u32| {
            let mut values: Vec<u32> = estimates.iter().map(value).collect();
            values.sort_unstable();
            values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
        };
        let usual =
            Link { alpha_ns: median(|link| link.alpha_ns), ps_per_byte: median(|link| link.ps_per_byte) };
        let is_far = |value: u32, usual: u32| u64::from(value) * 100 > u64::from(usual) * SLOW_PERCENT;
        let is_slow = |link: &Link| {
            estimates.len() >= MIN_LINKS
                && (is_far(link.alpha_ns, usual.alpha_ns) || is_far(link.ps_per_byte, usual.ps_per_byte))
        };
        let named = peers.into_iter().zip(&estimates);
        let mut links: Vec<PeerLink> = named
            .map(|(peer, link)| PeerLink { peer: peer.clone(), link: *link, is_slow: is_slow(link) })
            .collect();
        links.sort_by_key(|link| Reverse((link.link.ps_per_byte, link.link.alpha_ns)));
        links
    }
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
