//! Detects that the route of an open connection is cut, from the kernel's retransmissions.

use std::time::Duration;

use super::RAIL_TIMEOUT;
use crate::link::Unacknowledged;

/// Interval at which a watched connection is inspected.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Retransmissions from which a connection is suspect: a lost keepalive causes one.
const SUSPECT_RETRANSMISSIONS: u32 = 2;

/// Result of an inspection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// The connection may work.
    Works,
    /// The peer must prove over another route that it is alive.
    Suspect,
    /// The route is cut.
    Cut,
}

/// Decides that a route is cut.
///
/// Silence alone is no proof, because a paused host sends no acknowledgements either. So the peer
/// must answer over another route, and then miss a retransmission over this one.
#[derive(Debug, Default)]
pub struct CutDetector(State);

#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    Unsuspected,
    /// The peer answered after this number of retransmissions.
    Answered(u32),
    /// A retransmission followed, whose acknowledgement may be in flight.
    Repeated,
}

impl CutDetector {
    /// Inspects the connection after a further [`LOOK_INTERVAL`].
    pub fn look(&mut self, seen: Unacknowledged) -> Finding {
        if !is_suspect(seen) {
            self.0 = State::Unsuspected;
            return Finding::Works;
        }
        match self.0 {
            State::Unsuspected => Finding::Suspect,
            State::Answered(before) if seen.retransmissions <= before => Finding::Works,
            State::Answered(_) => {
                self.0 = State::Repeated;
                Finding::Works
            }
            State::Repeated => Finding::Cut,
        }
    }

    /// Notes that the peer has just answered over another route.
    pub fn answered(&mut self, seen: Unacknowledged) {
        // The route may have recovered during a slow answer.
        if !is_suspect(seen) {
            self.0 = State::Unsuspected;
        } else {
            self.0 = State::Answered(seen.retransmissions);
        }
    }
}

fn is_suspect(seen: Unacknowledged) -> bool {
    seen.retransmissions >= SUSPECT_RETRANSMISSIONS && seen.silent_for >= RAIL_TIMEOUT
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seen(retransmissions: u32, silent_ms: u64) -> Unacknowledged {
        Unacknowledged { retransmissions, silent_for: Duration::from_millis(silent_ms) }
    }

    #[test]
    fn a_peer_that_answers_elsewhere_and_misses_a_retransmission_is_cut_off() {
        let mut detector = CutDetector::default();
        assert_eq!(detector.look(seen(0, 9000)), Finding::Works, "bytes were sent just now");
        assert_eq!(detector.look(seen(2, 500)), Finding::Suspect);
        assert_eq!(detector.look(seen(2, 750)), Finding::Suspect, "the peer has not answered");
        detector.answered(seen(2, 800));
        assert_eq!(detector.look(seen(2, 1000)), Finding::Works);
        assert_eq!(detector.look(seen(3, 1250)), Finding::Works, "its answer may be in flight");
        assert_eq!(detector.look(seen(3, 1500)), Finding::Cut);
    }

    #[test]
    fn an_acknowledgement_ends_the_suspicion() {
        let mut detector = CutDetector::default();
        for last in [seen(0, 1500), seen(3, 100)] {
            assert_eq!(detector.look(seen(2, 500)), Finding::Suspect);
            detector.answered(seen(2, 500));
            assert_eq!(detector.look(seen(3, 1000)), Finding::Works);
            assert_eq!(detector.look(last), Finding::Works);
        }
        assert_eq!(detector.look(seen(4, 500)), Finding::Suspect);
        detector.answered(seen(0, 100));
        assert_eq!(detector.look(seen(4, 500)), Finding::Suspect, "the earlier answer is old");
    }

    #[test]
    fn a_few_losses_are_normal() {
        let mut detector = CutDetector::default();
        assert_eq!(detector.look(seen(1, 900)), Finding::Works);
        assert_eq!(detector.look(seen(2, 499)), Finding::Works);
    }
}
