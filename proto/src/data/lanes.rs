//! Messages that give a stream further connections (lanes) for its blocks.

use hoplite_core::error::{Error, Result};
use hoplite_core::plan::lanes::MAX_LANES;

use super::malformed;
use crate::v1;

/// Length of a stream's key.
pub const KEY_BYTES: usize = 16;

/// Names a stream to its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamKey(pub [u8; KEY_BYTES]);

/// Encodes the most lanes that a receiver permits for a stream. One, the default, becomes 0.
pub fn encode_max_lanes(max_lanes: usize) -> u32 {
    if max_lanes <= 1 { 0 } else { u32::try_from(max_lanes.min(MAX_LANES)).unwrap_or(0) }
}

/// Decodes the most lanes that a receiver permits, at most [`MAX_LANES`].
pub fn decode_max_lanes(max_lanes: u32) -> usize {
    usize::try_from(max_lanes).unwrap_or(MAX_LANES).clamp(1, MAX_LANES)
}

/// Encodes a request to open `count` further lanes for a stream.
pub fn encode_lanes(key: StreamKey, count: usize) -> v1::Lanes {
    v1::Lanes { key: key.0.to_vec().into(), count: u32::try_from(count).unwrap_or(u32::MAX) }
}

/// Decodes a request for further lanes: the stream's key, and their number.
pub fn decode_lanes(lanes: &v1::Lanes) -> Result<(StreamKey, usize)> {
    let count = usize::try_from(lanes.count).unwrap_or(usize::MAX);
    match count {
        0 => Err(malformed("no lanes to open")),
        1..=MAX_LANES => Ok((decode_key(&lanes.key)?, count)),
        _ => Err(Error::limit_exceeded("lanes of a stream", MAX_LANES as u64)),
    }
}

/// Encodes the message that makes its connection a lane. `other_streams` is the number of other
/// streams that the receiver takes in.
pub fn encode_lane(key: StreamKey, other_streams: usize) -> v1::Lane {
    let other_streams = u32::try_from(other_streams).unwrap_or(u32::MAX);
    v1::Lane { key: key.0.to_vec().into(), other_streams }
}

/// Decodes the message of [`encode_lane`]: the stream's key, and the number of other streams.
pub fn decode_lane(lane: &v1::Lane) -> Result<(StreamKey, usize)> {
    Ok((decode_key(&lane.key)?, usize::try_from(lane.other_streams).unwrap_or(usize::MAX)))
}

fn decode_key(key: &[u8]) -> Result<StreamKey> {
    key.try_into().map(StreamKey).map_err(|_| malformed("a key of a stream with another length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: StreamKey = StreamKey([7; KEY_BYTES]);

    #[test]
    fn requests_round_trip_and_are_checked() {
        for count in [1, MAX_LANES] {
            assert_eq!(decode_lanes(&encode_lanes(KEY, count)), Ok((KEY, count)));
        }
        assert!(decode_lanes(&encode_lanes(KEY, 0)).is_err());
        assert!(decode_lanes(&encode_lanes(KEY, MAX_LANES + 1)).is_err());
        for others in [0, 3] {
            assert_eq!(decode_lane(&encode_lane(KEY, others)), Ok((KEY, others)));
        }
        for key in [vec![], vec![7; KEY_BYTES - 1], vec![7; KEY_BYTES + 1]] {
            assert!(decode_lane(&v1::Lane { key: key.clone().into(), other_streams: 0 }).is_err());
            assert!(decode_lanes(&v1::Lanes { key: key.into(), count: 1 }).is_err());
        }
    }

    #[test]
    fn one_lane_leaves_no_trace_on_the_wire() {
        assert_eq!([0, 1, 2, 16, 1000].map(encode_max_lanes), [0, 0, 2, 16, MAX_LANES as u32]);
        assert_eq!([0, 1, 2, 16, u32::MAX].map(decode_max_lanes), [1, 1, 2, 16, MAX_LANES]);
    }
}
