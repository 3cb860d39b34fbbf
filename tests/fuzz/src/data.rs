//! The data plane: frames from any peer.

use std::fmt::Debug;

use hoplite_core::checksum::crc32c;
use hoplite_core::error::{Plane, Result};
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
        Kind::Hello => decodes(payload, |hello: v1::DataHello| NodeId::new(&hello.node)),
        Kind::Pull => returns(payload, decode_pull, encode_pull),
        Kind::Combine => returns(payload, decode_hop, encode_hop),
        Kind::DigestRequest => {
            decodes(payload, |request: v1::DigestRequest| ObjectId::new(&request.id));
        }
        Kind::End => decodes(payload, end),
        Kind::Digest => decodes(payload, |_: v1::Digest| ()),
        Kind::Keepalive => decodes(payload, |_: v1::Keepalive| ()),
        Kind::Proof => decodes(payload, |_: v1::DataProof| ()),
        Kind::Enlist => {
            // Every plan that fits into an arena must yield a program.
            decodes(payload, |enlist| {
                decode_plan(enlist)
                    .ok()
                    .filter(|plan| plan.size_bytes < 1 << 50)
                    .map(|plan| plan.program())
            });
            returns(payload, decode_plan, encode_plan);
        }
        Kind::Take => returns(payload, decode_take, encode_take),
        Kind::Stop => decodes(payload, decode_stop),
        Kind::Reject => decodes(payload, decode_reject),
        Kind::AskPosition => decodes(payload, |_: v1::AskPosition| ()),
        Kind::Position => {
            decodes(payload, |position| decode_position(position, 1, 3));
            decodes(payload, decode_known);
        }
        Kind::ProbeReady => decodes(payload, |_: v1::ProbeReady| ()),
        Kind::Arm => returns(payload, |arm| decode_arm(&arm), |arm| encode_arm(*arm)),
        Kind::Measure => returns(payload, |measure| decode_measure(&measure), encode_measure),
        Kind::Found => returns(payload, |found| Ok(decode_finding(&found)), encode_finding),
        Kind::Lanes => {
            returns(
                payload,
                |lanes| decode_lanes(&lanes),
                |(key, count)| encode_lanes(*key, *count),
            );
        }
        Kind::Lane => {
            returns(payload, |lane| decode_lane(&lane), |(key, others)| encode_lane(*key, *others));
        }
        Kind::DrainStore => {
            let decode = |request| Ok(decode_drain_store(&request));
            returns(payload, decode, |timeout| encode_drain_store(*timeout));
        }
        Kind::DrainAnswer => decodes(payload, decode_drain_answer),
        Kind::Echo => decodes(payload, |_: v1::Echo| ()),
        Kind::TakeTrain => {
            decodes(payload, |train: v1::TakeTrain| checked_train_bytes(train.bytes))
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

fn decodes<M: Message + Default, T>(payload: &[u8], decode: impl FnOnce(M) -> T) {
    let _ = M::decode(payload).map(decode);
}

/// Checks that a valid message is the same after encoding and decoding.
fn returns<M: Message + Default, T: PartialEq + Debug>(
    payload: &[u8],
    decode: impl Fn(M) -> Result<T>,
    encode: impl Fn(&T) -> M,
) {
    if let Ok(Ok(value)) = M::decode(payload).map(&decode) {
        assert_eq!(decode(encode(&value)), Ok(value));
    }
}

fn end(end: v1::End) {
    let _ = decode_hop_failure(end.clone(), MAX_HOP_INPUTS);
    let _ = decode_report(end.clone(), MAX_MEMBERS);
    if let Some(reason) = end.error {
        let decoded = error::decode(reason, Plane::Data);
        let returned = error::decode(error::encode(&decoded), Plane::Data);
        assert_eq!(error::decode(error::encode(&returned), Plane::Data), decoded);
    }
}
