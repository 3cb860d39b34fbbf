//! Chooses the lanes that a receiver gives up while bytes arrive over other routes.

use std::time::Duration;

use crate::merge::LaneId;
use crate::peer::KEEPALIVE_INTERVAL;
use crate::plan::rails::RAIL_TIMEOUT;

/// Most [`RAIL_TIMEOUT`]s without a block before lost bytes are requested again.
const MOST_TIMEOUTS: u32 = 3;

/// A lane on which a receiver awaits bytes.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "most names say it")]
pub struct WaitingLane {
    pub lane: LaneId,
    pub route: usize,
    /// Time since its last byte.
    pub silent_for: Duration,
    /// `true` if it has a block that must wait for other lanes.
    pub has_block: bool,
}

/// Lanes that the receiver gives up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GiveUp {
    /// All: the sender may have no bytes after the lost ones.
    All,
    /// These lanes, silent for at least this time.
    Silent(Vec<LaneId>, Duration),
}

/// Silence of a stream, in [`RAIL_TIMEOUT`]s without a block.
#[derive(Debug, Default)]
pub struct Silence {
    timeouts: u32,
}

impl Silence {
    /// Ends the silence, because a block was read.
    pub fn end(&mut self) {
        self.timeouts = 0;
    }

    /// Returns the lanes to give up after a further [`RAIL_TIMEOUT`]. With `awaits_request`, a lane
    /// has broken, and its bytes are not requested again yet.
    pub fn next(&mut self, lanes: &[WaitingLane], awaits_request: bool) -> GiveUp {
        self.timeouts += 1;
        let has_block = lanes.iter().any(|lane| lane.has_block);
        if awaits_request && !has_block && self.timeouts > MOST_TIMEOUTS {
            return GiveUp::All;
        }
        let works = |route: usize| {
            let is_heard = |lane: &&WaitingLane| lane.has_block && lane.silent_for < RAIL_TIMEOUT;
            lanes.iter().filter(is_heard).any(|lane| lane.route == route)
        };
        let suspects: Vec<&WaitingLane> =
            lanes.iter().filter(|lane| !lane.has_block && !works(lane.route)).collect();
        // Among several routes, keepalives reveal working ones.
        let is_one = suspects.windows(2).all(|two| two[0].route == two[1].route);
        let limit = if is_one { RAIL_TIMEOUT } else { KEEPALIVE_INTERVAL + RAIL_TIMEOUT };
        let silent = suspects.iter().filter(|lane| lane.silent_for >= limit);
        GiveUp::Silent(silent.map(|lane| lane.lane).collect(), limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = RAIL_TIMEOUT;
    const LONGER: Duration = KEEPALIVE_INTERVAL.saturating_add(RAIL_TIMEOUT);

    fn lane(number: usize, route: usize, silent_for: Duration, has_block: bool) -> WaitingLane {
        WaitingLane { lane: LaneId(number), route, silent_for, has_block }
    }

    #[test]
    fn a_silent_route_loses_its_lanes_while_another_has_a_block() {
        let lanes = [
            lane(0, 0, Duration::ZERO, true),
            lane(1, 0, LONG, false),
            lane(2, 1, LONG, false),
            lane(3, 1, LONG / 2, false),
        ];
        let lost = Silence::default().next(&lanes, false);
        assert_eq!(lost, GiveUp::Silent(vec![LaneId(2)], LONG));
    }

    #[test]
    fn routes_without_blocks_have_time_for_a_keepalive() {
        let lanes = |silent_for| [lane(0, 0, LONG, false), lane(1, 1, silent_for, false)];
        let mut silence = Silence::default();
        assert_eq!(silence.next(&lanes(LONG), false), GiveUp::Silent(vec![], LONGER));
        let lost = silence.next(&lanes(LONGER), false);
        assert_eq!(lost, GiveUp::Silent(vec![LaneId(1)], LONGER));
    }

    #[test]
    fn a_block_on_a_route_without_recent_bytes_proves_nothing() {
        let lanes = [lane(0, 0, LONG, true), lane(1, 0, LONG, false)];
        let lost = Silence::default().next(&lanes, false);
        assert_eq!(lost, GiveUp::Silent(vec![LaneId(1)], LONG));
    }

    #[test]
    fn lost_bytes_of_a_silent_sender_are_requested_after_some_timeouts() {
        let lanes = [lane(0, 0, Duration::ZERO, false)];
        let mut silence = Silence::default();
        let nothing = GiveUp::Silent(vec![], LONG);
        for _ in 0..MOST_TIMEOUTS {
            assert_eq!(silence.next(&lanes, true), nothing);
        }
        assert_eq!(silence.next(&lanes, false), nothing);
        assert_eq!(silence.next(&lanes, true), GiveUp::All);
        silence.end();
        assert_eq!(silence.next(&lanes, true), nothing);
    }
}
