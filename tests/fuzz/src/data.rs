//! The data plane: frames from any peer.

use hoplite_core::checksum::crc32c;
use hoplite_core::error::Plane;
use hoplite_core::id::{NodeId, ObjectId};
use hoplite_core::node::MAX_HOP_INPUTS;
use hoplite_core::plan::collective::MAX_MEMBERS;
use hoplite_proto::data::drain::{decode_drain_answer, decode_drain_store, encode_drain_store};
use hoplite_proto::data::frame::{HEADER_BYTES, Header, Kind, MAX_BLOCK_BYTES};
use hoplite_proto::data::lanes::{decode_lane, decode_lanes, encode_lane, encode_lanes};
use hoplite_proto::data::probe::{
    checked_train_bytes, decode_arm, decode_finding, decode_measure, encode_arm, encode_finding,
    encode_measure,
};
use hoplite_proto::data::{
    decode_hop, decode_hop_failure, decode_known, decode_plan, decode_position, decode_pull,
    decode_reject, decode_report, decode_stop, decode_take, encode_hop, encode_plan, encode_pull,
    encode_take,
};
use hoplite_proto::{error, v1};
use prost::Message;

/// Reads frames until one is refused.
///
/// If the first byte is odd, first corrects each checksum: random ones never match.
pub fn stream(bytes: &[u8]) {
    let Some((choice, mut rest)) = bytes.split_first() else { return };
    while let Some((header, tail)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let header = if choice % 2 == 1 { repaired(*header, tail) } else { *header };
        let Ok(decoded) = Header::decode(&header) else { return };
        assert_eq!(decoded.encode(), header, "a header has one encoding");
        for length in 0..=HEADER_BYTES {
            assert_eq!(
                Header::check_start(&header[..length]),
                Ok(()),
                "a header starts as headers do"
            );
        }
        assert!(decoded.length_bytes() <= MAX_BLOCK_BYTES, "{decoded:?} is bounded");
        let length = decoded.length_bytes() as usize;
        let Some((payload, tail)) = tail.split_at_checked(length) else { return };
        if decoded.check_payload(crc32c(payload)).is_err() {
            return;
        }
        payload_of(decoded.kind(), payload);
        rest = tail;
    }
}

fn repaired(mut header: [u8; HEADER_BYTES], tail: &[u8]) -> [u8; HEADER_BYTES] {
    header[..5].copy_from_slice(b"HPLD\x01");
    header[6..8].fill(0);
    let length = usize::from(header[8]).min(tail.len());
    if header[9..12] == [0; 3] {
        header[8] = u8::try_from(length).expect("it was a byte before");
        header[12..16].copy_from_slice(&crc32c(&tail[..length]).to_le_bytes());
    }
    let checksum = crc32c(&header[..24]);
    header[24..].copy_from_slice(&checksum.to_le_bytes());
    header
}

fn payload_of(kind: Kind, payload: &[u8]) {
    match kind {
        Kind::Hello => {
            let _ = v1::DataHello::decode(payload).map(|hello| NodeId::new(&hello.node));
        }
        Kind::Pull => {
            if let Ok(Ok(pull)) = v1::Pull::decode(payload).map(decode_pull) {
                assert_eq!(decode_pull(encode_pull(&pull)), Ok(pull));
            }
        }
        Kind::Combine => {
            if let Ok(Ok(hop)) = v1::Combine::decode(payload).map(decode_hop) {
                assert_eq!(decode_hop(encode_hop(&hop)), Ok(hop));
            }
        }
        Kind::DigestRequest => {
            let _ = v1::DigestRequest::decode(payload).map(|request| ObjectId::new(&request.id));
        }
        Kind::End => {
            let Ok(end) = v1::End::decode(payload) else { return };
            let _ = decode_hop_failure(end.clone(), MAX_HOP_INPUTS);
            let _ = decode_report(end.clone(), MAX_MEMBERS);
            if let Some(reason) = end.error {
                let decoded = error::decode(reason, Plane::Data);
                let returned = error::decode(error::encode(&decoded), Plane::Data);
                assert_eq!(error::decode(error::encode(&returned), Plane::Data), decoded);
            }
        }
        Kind::Digest => {
            let _ = v1::Digest::decode(payload);
        }
        Kind::Keepalive => {
            let _ = v1::Keepalive::decode(payload);
        }
        Kind::Proof => {
            let _ = v1::DataProof::decode(payload);
        }
        Kind::Enlist => {
            if let Ok(Ok(plan)) = v1::Enlist::decode(payload).map(decode_plan) {
                // Every plan that fits into an arena must yield a program.
                if plan.size_bytes < 1 << 50 {
                    let _ = plan.program();
                }
                assert_eq!(decode_plan(encode_plan(&plan)), Ok(plan));
            }
        }
        Kind::Take => {
            if let Ok(Ok(take)) = v1::Take::decode(payload).map(decode_take) {
                assert_eq!(decode_take(encode_take(&take)), Ok(take));
            }
        }
        Kind::Stop => {
            let _ = v1::Stop::decode(payload).map(decode_stop);
        }
        Kind::Reject => {
            let _ = v1::Reject::decode(payload).map(decode_reject);
        }
        Kind::AskPosition => {
            let _ = v1::AskPosition::decode(payload);
        }
        Kind::Position => {
            let _ = v1::Position::decode(payload).map(|position| decode_position(position, 1, 3));
            let _ = v1::Position::decode(payload).map(decode_known);
        }
        Kind::ProbeReady => {
            let _ = v1::ProbeReady::decode(payload);
        }
        Kind::Arm => {
            if let Ok(Ok(arm)) = v1::Arm::decode(payload).map(|arm| decode_arm(&arm)) {
                assert_eq!(decode_arm(&encode_arm(arm)), Ok(arm));
            }
        }
        Kind::Measure => {
            let decoded = v1::Measure::decode(payload).map(|measure| decode_measure(&measure));
            if let Ok(Ok(measure)) = decoded {
                assert_eq!(decode_measure(&encode_measure(&measure)), Ok(measure));
            }
        }
        Kind::Found => {
            if let Ok(finding) = v1::Found::decode(payload).map(|found| decode_finding(&found)) {
                assert_eq!(decode_finding(&encode_finding(&finding)), finding);
            }
        }
        Kind::Lanes => {
            if let Ok(Ok((key, count))) =
                v1::Lanes::decode(payload).map(|lanes| decode_lanes(&lanes))
            {
                assert_eq!(decode_lanes(&encode_lanes(key, count)), Ok((key, count)));
            }
        }
        Kind::Lane => {
            if let Ok(Ok((key, others))) = v1::Lane::decode(payload).map(|lane| decode_lane(&lane))
            {
                assert_eq!(decode_lane(&encode_lane(key, others)), Ok((key, others)));
            }
        }
        Kind::DrainStore => {
            if let Ok(request) = v1::DrainStore::decode(payload) {
                let timeout = decode_drain_store(&request);
                assert_eq!(decode_drain_store(&encode_drain_store(timeout)), timeout);
            }
        }
        Kind::DrainAnswer => {
            let _ = v1::DrainAnswer::decode(payload).map(decode_drain_answer);
        }
        Kind::Echo => {
            let _ = v1::Echo::decode(payload);
        }
        Kind::TakeTrain => {
            let _ = v1::TakeTrain::decode(payload).map(|train| checked_train_bytes(train.bytes));
        }
        Kind::Combined
        | Kind::Release
        | Kind::Filled
        | Kind::Commit
        | Kind::Probe
        | Kind::Armed => {
            assert!(payload.is_empty(), "nothing is said with a {kind:?}")
        }
        Kind::Block => {}
    }
}
