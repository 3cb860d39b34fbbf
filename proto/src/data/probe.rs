//! Probes measure links between stores. An echo is a datagram that the peer returns; a train is a
//! row of blocks.
//!
//! A datagram has 32 bytes, numbers little-endian:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..4 | magic, `HPLE` |
//! | 4 | 1: request, 2: request that directly follows a reply, 3: reply |
//! | 5..8 | zero |
//! | 8..16 | the nonce of the pair in this round |
//! | 16..20 | number of the request |
//! | 20..24 | zero |
//! | 24..32 | of a reply: the last round-trip time that the sender of the reply has measured, in
//! nanoseconds |

use std::net::SocketAddr;
use std::time::Duration;

use hoplite_core::error::{Error, Plane, Result};
use hoplite_core::id::NodeId;
use hoplite_core::topology::probe::echo::{Echoes, Packet, PacketKind};
use hoplite_core::topology::probe::survey::{Finding, MAX_TRAIN_BYTES, SurveyWork};

use super::malformed;
use crate::bounds::decode_address;
use crate::v1;
use crate::v1::found::Finding as WireFinding;
use crate::v1::measure::Work as WireWork;

/// Length of a datagram.
pub const PACKET_BYTES: usize = 32;
const MAGIC: [u8; 4] = *b"HPLE";

/// Number of echoes per pair. 0 stands for `Probes::Auto`.
pub mod probes {
    use hoplite_core::topology::probe::{MAX_PROBES, Probes};

    /// Encodes `probes`.
    pub const fn encode(probes: Probes) -> u32 {
        match probes {
            Probes::Auto => 0,
            Probes::Count(count) => count,
        }
    }

    /// Decodes a number of echoes, at most [`MAX_PROBES`].
    pub fn decode(count: u32) -> Probes {
        if count == 0 { Probes::Auto } else { Probes::Count(count.min(MAX_PROBES)) }
    }
}

/// Encodes a datagram.
pub fn encode_packet(packet: &Packet) -> [u8; PACKET_BYTES] {
    let mut bytes = [0; PACKET_BYTES];
    bytes[0..4].copy_from_slice(&MAGIC);
    bytes[4] = match packet.kind {
        PacketKind::Ask { is_prompt: false } => 1,
        PacketKind::Ask { is_prompt: true } => 2,
        PacketKind::Reply => 3,
    };
    bytes[8..16].copy_from_slice(&packet.nonce.to_le_bytes());
    bytes[16..20].copy_from_slice(&packet.number.to_le_bytes());
    bytes[24..32].copy_from_slice(&packet.round_trip_ns.to_le_bytes());
    bytes
}

/// Decodes a datagram; `None` if invalid.
pub fn decode_packet(bytes: &[u8]) -> Option<Packet> {
    let bytes: &[u8; PACKET_BYTES] = bytes.try_into().ok()?;
    let [m0, m1, m2, m3, kind, 0, 0, 0, rest @ ..] = *bytes else { return None };
    let [a0, a1, a2, a3, a4, a5, a6, a7, n0, n1, n2, n3, 0, 0, 0, 0, rest @ ..] = rest else {
        return None;
    };
    let kind = match kind {
        1 => PacketKind::Ask { is_prompt: false },
        2 => PacketKind::Ask { is_prompt: true },
        3 => PacketKind::Reply,
        _ => return None,
    };
    ([m0, m1, m2, m3] == MAGIC).then(|| Packet {
        kind,
        nonce: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
        number: u32::from_le_bytes([n0, n1, n2, n3]),
        round_trip_ns: u64::from_le_bytes(rest),
    })
}

/// Request to answer a peer's echoes and trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arm {
    /// Nonce of the peer's requests.
    pub nonce: u64,
    /// Peer's address for datagrams, if any.
    pub asker: Option<SocketAddr>,
}

/// Encodes `arm`.
pub fn encode_arm(arm: Arm) -> v1::Arm {
    v1::Arm { nonce: arm.nonce, asker: encode_optional_address(arm.asker) }
}

/// Decodes and checks the request.
pub fn decode_arm(arm: &v1::Arm) -> Result<Arm> {
    Ok(Arm { nonce: arm.nonce, asker: decode_optional_address(&arm.asker)? })
}

/// Request to measure the link to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measure {
    /// Nonce for requests to the peer.
    pub nonce: u64,
    /// The peer.
    pub node: NodeId,
    /// Address of the peer's data plane.
    pub address: SocketAddr,
    /// Peer's address for datagrams, if any.
    pub echo_address: Option<SocketAddr>,
    /// Measurements to make: echoes or trains.
    pub work: SurveyWork,
}

/// Encodes `measure`.
pub fn encode_measure(measure: &Measure) -> v1::Measure {
    v1::Measure {
        nonce: measure.nonce,
        node: measure.node.as_str().to_owned(),
        address: measure.address.to_string(),
        echo_address: encode_optional_address(measure.echo_address),
        work: Some(match measure.work {
            SurveyWork::Echo { probes } => {
                WireWork::Echoes(v1::measure::Echoes { count: probes::encode(probes) })
            }
            SurveyWork::Train { bytes, at_least } => WireWork::Trains(v1::measure::Trains {
                bytes,
                at_least_us: u64::try_from(at_least.as_micros()).unwrap_or(u64::MAX),
            }),
        }),
    }
}

/// Decodes and checks the request.
pub fn decode_measure(measure: &v1::Measure) -> Result<Measure> {
    let work = match measure.work.ok_or(malformed("nothing to measure"))? {
        WireWork::Echoes(echoes) => SurveyWork::Echo { probes: probes::decode(echoes.count) },
        WireWork::Trains(trains) => SurveyWork::Train {
            bytes: checked_train_bytes(trains.bytes)?,
            at_least: Duration::from_micros(trains.at_least_us),
        },
    };
    Ok(Measure {
        nonce: measure.nonce,
        node: NodeId::new(&measure.node)?,
        address: decode_address(&measure.address, Plane::Data)?,
        echo_address: decode_optional_address(&measure.echo_address)?,
        work,
    })
}

/// Checks the length in bytes of a train, a burst of blocks.
pub fn checked_train_bytes(bytes: u64) -> Result<u64> {
    match bytes {
        0 => Err(malformed("an empty train")),
        bytes if bytes > MAX_TRAIN_BYTES => {
            Err(Error::limit_exceeded("bytes of a train", MAX_TRAIN_BYTES))
        }
        bytes => Ok(bytes),
    }
}

/// Encodes a measurement's result.
pub const fn encode_finding(finding: &Finding) -> v1::Found {
    let finding = match *finding {
        Finding::Echoes { echoes: Echoes { forth_ns, back_ns, count, lost }, by_tcp } => {
            Some(WireFinding::Echoes(v1::found::Echoes { forth_ns, back_ns, count, lost, by_tcp }))
        }
        Finding::Train { ps_per_byte, bytes } => {
            Some(WireFinding::Trains(v1::found::Trains { ps_per_byte, bytes }))
        }
        Finding::Nothing => None,
    };
    v1::Found { finding }
}

/// Decodes a measurement's result.
pub const fn decode_finding(found: &v1::Found) -> Finding {
    match found.finding {
        Some(WireFinding::Echoes(v1::found::Echoes { forth_ns, back_ns, count, lost, by_tcp })) => {
            Finding::Echoes { echoes: Echoes { forth_ns, back_ns, count, lost }, by_tcp }
        }
        Some(WireFinding::Trains(v1::found::Trains { ps_per_byte, bytes })) => {
            Finding::Train { ps_per_byte, bytes }
        }
        None => Finding::Nothing,
    }
}

fn encode_optional_address(address: Option<SocketAddr>) -> String {
    address.map_or_else(String::new, |address| address.to_string())
}

fn decode_optional_address(text: &str) -> Result<Option<SocketAddr>> {
    if text.is_empty() { Ok(None) } else { decode_address(text, Plane::Data).map(Some) }
}

#[cfg(test)]
mod tests {
    use hoplite_core::topology::probe::Probes;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn packet() -> impl Strategy<Value = Packet> {
        let kind = prop_oneof![
            Just(PacketKind::Reply),
            any::<bool>().prop_map(|is_prompt| PacketKind::Ask { is_prompt }),
        ];
        (kind, any::<u64>(), any::<u32>(), any::<u64>()).prop_map(
            |(kind, nonce, number, round_trip_ns)| Packet { kind, nonce, number, round_trip_ns },
        )
    }

    proptest! {
        #[test]
        fn packets_round_trip(packet in packet()) {
            prop_assert_eq!(decode_packet(&encode_packet(&packet)), Some(packet));
        }

        #[test]
        fn what_is_decoded_is_what_was_encoded(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(packet) = decode_packet(&bytes) {
                prop_assert_eq!(&encode_packet(&packet)[..], &bytes[..]);
            }
            let _ = v1::Arm::decode(&bytes[..]).map(|arm| decode_arm(&arm));
            let _ = v1::Measure::decode(&bytes[..]).map(|measure| decode_measure(&measure));
            let _ = v1::Found::decode(&bytes[..]).map(|found| decode_finding(&found));
        }
    }

    #[test]
    fn damaged_packets_are_none() {
        let packet = Packet { kind: PacketKind::Reply, nonce: 1, number: 2, round_trip_ns: 3 };
        let bytes = encode_packet(&packet);
        for index in (0..8).chain(20..24) {
            let mut damaged = bytes;
            damaged[index] ^= 0x80;
            assert_eq!(decode_packet(&damaged), None, "byte {index}");
        }
        assert_eq!(decode_packet(&bytes[..31]), None);
    }

    #[test]
    fn directions_round_trip_and_are_checked() {
        let asker: SocketAddr = "10.0.0.1:4000".parse().unwrap();
        for asker in [None, Some(asker)] {
            let arm = Arm { nonce: 7, asker };
            assert_eq!(decode_arm(&encode_arm(arm)), Ok(arm));
        }
        assert!(decode_arm(&v1::Arm { nonce: 7, asker: "x".to_owned() }).is_err());
        let train = SurveyWork::Train { bytes: 1 << 20, at_least: Duration::from_millis(10) };
        for work in [
            SurveyWork::Echo { probes: Probes::Auto },
            SurveyWork::Echo { probes: Probes::Count(3) },
            train,
        ] {
            let node = NodeId::new("n").unwrap();
            let measure =
                Measure { nonce: 7, node, address: asker, echo_address: Some(asker), work };
            assert_eq!(decode_measure(&encode_measure(&measure)), Ok(measure.clone()));
            let refused = |change: fn(&mut v1::Measure)| {
                let mut wire = encode_measure(&measure);
                change(&mut wire);
                decode_measure(&wire).is_err()
            };
            assert!(refused(|wire| wire.work = None));
            assert!(refused(|wire| wire.node.clear()));
            assert!(refused(|wire| wire.address.clear()));
            assert!(refused(|wire| wire.echo_address = "10.0.0.1:0".to_owned()));
        }
        assert!(
            checked_train_bytes(0).is_err() && checked_train_bytes(MAX_TRAIN_BYTES + 1).is_err()
        );
        let echoes = Echoes { forth_ns: 1, back_ns: 2, count: 3, lost: 4 };
        for finding in [
            Finding::Nothing,
            Finding::Echoes { echoes, by_tcp: true },
            Finding::Train { ps_per_byte: 800, bytes: 9 },
        ] {
            assert_eq!(decode_finding(&encode_finding(&finding)), finding);
        }
    }
}
