//! Orders the frames of a stream over several connections (lanes).
//!
//! A lane's frames have increasing offsets. The receiver reads each lane's next header, then the
//! payload that continues the stream. Other frames wait in their sockets, the reorder buffer: TCP's
//! window slows down lanes that are ahead.
//!
//! Bytes count as lost with a broken lane once every other lane has a later frame. The receiver
//! then requests them again.

use std::collections::BTreeMap;
use std::ops::Range;

/// Number of a stream's connection (lane).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneId(pub usize);

/// Receiver's next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Read this connection's frame, which has the stream's next bytes.
    Read(LaneId),
    /// Wait: a connection is opening, or its next header is under way.
    Wait,
    /// Request these lost bytes again.
    Lost(Range<u64>),
}

/// Reason why a frame is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadFrame {
    /// The frame is empty, or ends past the stream's end.
    Length,
    /// The frame's bytes have arrived already, or another connection has them.
    Repeated,
    /// Earlier bytes are missing, although no connection broke.
    NotNext,
}

impl BadFrame {
    /// Describes the reason.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Length => "a block that is empty, or goes past the end",
            Self::Repeated => "a block with bytes that were sent already",
            Self::NotNext => "a block that is not the next one",
        }
    }
}

/// Merges the frames of several connections (lanes) into one stream.
#[derive(Debug, Clone, Default)]
pub struct Merge {
    /// Each connection's next frame, once its header has arrived.
    lanes: BTreeMap<LaneId, Option<Range<u64>>>,
    has_lost: bool,
    /// Offset from which the receiver last requested bytes.
    requested_bytes: Option<u64>,
}

impl Merge {
    /// Adds a connection.
    pub fn open(&mut self, lane: LaneId) {
        self.lanes.insert(lane, None);
    }

    /// Removes a finished connection.
    pub fn end(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
    }

    /// Removes a broken connection, which may have had requested bytes.
    pub fn lose(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
        (self.has_lost, self.requested_bytes) = (true, None);
    }

    /// Adds the header of a connection's next frame, with the bytes `frame`. The receiver lacks the
    /// bytes `wanted`.
    ///
    /// # Errors
    /// [`BadFrame`]: no correct sender sends such a frame.
    pub fn arrived(
        &mut self,
        lane: LaneId,
        frame: Range<u64>,
        wanted: Range<u64>,
    ) -> Result<(), BadFrame> {
        if frame.is_empty() || frame.end > wanted.end {
            return Err(BadFrame::Length);
        }
        let overlaps = |other: &Range<u64>| other.start < frame.end && frame.start < other.end;
        if frame.start < wanted.start || self.lanes.values().flatten().any(overlaps) {
            return Err(BadFrame::Repeated);
        }
        self.lanes.insert(lane, Some(frame));
        Ok(())
    }

    /// Returns the receiver's next action. The receiver has the bytes before `next_bytes` of a
    /// stream up to `end_bytes`. With `is_opening`, opening connections may have the next bytes.
    ///
    /// # Errors
    /// [`BadFrame::NotNext`] if bytes are missing although no connection broke, or after a request
    /// for them.
    pub fn step(
        &mut self,
        next_bytes: u64,
        end_bytes: u64,
        is_opening: bool,
    ) -> Result<Step, BadFrame> {
        let mut nearest_bytes = end_bytes;
        let mut is_waiting = is_opening;
        for (lane, frame) in &self.lanes {
            match frame {
                Some(frame) if frame.start == next_bytes => return Ok(Step::Read(*lane)),
                Some(frame) => nearest_bytes = nearest_bytes.min(frame.start),
                None => is_waiting = true,
            }
        }
        if is_waiting {
            return Ok(Step::Wait);
        }
        // The answer to a request begins with the first missing byte, so a second request is
        // futile.
        if !self.has_lost || self.requested_bytes.replace(next_bytes) == Some(next_bytes) {
            return Err(BadFrame::NotNext);
        }
        Ok(Step::Lost(next_bytes..nearest_bytes))
    }

    /// Notes that the payload of a connection's frame was read.
    pub fn consumed(&mut self, lane: LaneId) {
        if let Some(frame) = self.lanes.get_mut(&lane) {
            *frame = None;
        }
    }

    /// Returns `true` if a connection has broken.
    pub const fn has_lost(&self) -> bool {
        self.has_lost
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const END: u64 = 1000;

    fn lanes_of(cuts: &[(u64, usize)], lanes: usize) -> Vec<VecDeque<Range<u64>>> {
        let mut queues = vec![VecDeque::new(); lanes];
        let mut start = 0;
        for (length, lane) in cuts.iter().cycle() {
            let end = (start + length).min(END);
            queues[lane % lanes].push_back(start..end);
            start = end;
            if start == END {
                break;
            }
        }
        queues
    }

    fn receive(
        mut queues: Vec<VecDeque<Range<u64>>>,
        broken: usize,
        survivors: usize,
    ) -> Vec<Range<u64>> {
        let mut merge = Merge::default();
        let mut opening: VecDeque<_> = (1..queues.len()).map(LaneId).collect();
        merge.open(LaneId(0));
        queues[broken].truncate(survivors);
        let (mut next, mut read) = (0, Vec::new());
        while next < END {
            match merge.step(next, END, !opening.is_empty()).unwrap() {
                Step::Read(lane) => {
                    let frame = merge.lanes[&lane].clone().unwrap();
                    assert_eq!(frame.start, next);
                    next = frame.end;
                    read.push(frame);
                    merge.consumed(lane);
                }
                Step::Wait => {
                    for (number, queue) in queues.iter_mut().enumerate() {
                        let lane = LaneId(number);
                        if merge.lanes.get(&lane).is_none_or(Option::is_some) {
                            continue;
                        }
                        match queue.pop_front() {
                            Some(frame) => merge.arrived(lane, frame, next..END).unwrap(),
                            None if number == broken => merge.lose(lane),
                            None => merge.end(lane),
                        }
                    }
                    opening.pop_front().into_iter().for_each(|lane| merge.open(lane));
                }
                Step::Lost(range) => {
                    queues.push(VecDeque::from([range]));
                    merge.open(LaneId(queues.len() - 1));
                }
            }
        }
        read
    }

    proptest! {
        #[test]
        fn each_byte_is_read_once_and_in_order(
            cuts in prop::collection::vec((1..90_u64, 0..8_usize), 1..40),
            lanes in 1..8_usize,
            (broken, survivors) in (0..8_usize, 0..20_usize),
        ) {
            let read = receive(lanes_of(&cuts, lanes), broken % lanes, survivors);
            let ends: Vec<u64> = read.iter().map(|frame| frame.end).collect();
            prop_assert_eq!(read.iter().map(|frame| frame.start).skip(1).collect::<Vec<_>>(), &ends[..ends.len() - 1]);
            prop_assert_eq!((read[0].start, ends[ends.len() - 1]), (0, END));
        }

        #[test]
        fn arbitrary_frames_never_repeat_a_byte(
            frames in prop::collection::vec((0..4_usize, any::<u8>(), any::<u8>(), 0..10_u8), 0..60),
        ) {
            let (mut merge, mut next) = (Merge::default(), 0);
            (0..4).for_each(|lane| merge.open(LaneId(lane)));
            for (lane, start, length, fate) in frames {
                let (lane, start) = (LaneId(lane), u64::from(start));
                match fate {
                    0 => merge.lose(lane),
                    1 => merge.end(lane),
                    _ if merge.lanes.get(&lane) == Some(&None) => {
                        let _ = merge.arrived(lane, start..start + u64::from(length), next..256);
                    }
                    _ => {}
                }
                if let Ok(Step::Read(lane)) = merge.step(next, 256, false) {
                    let frame = merge.lanes[&lane].clone().unwrap();
                    prop_assert!(frame.start == next && frame.end > next && frame.end <= 256);
                    next = frame.end;
                    merge.consumed(lane);
                }
            }
        }
    }

    #[test]
    fn bad_frames_are_named() {
        let mut merge = Merge::default();
        [0, 1].into_iter().for_each(|lane| merge.open(LaneId(lane)));
        assert_eq!(merge.arrived(LaneId(0), 10..10, 0..100), Err(BadFrame::Length));
        assert_eq!(merge.arrived(LaneId(0), 90..101, 0..100), Err(BadFrame::Length));
        assert_eq!(merge.arrived(LaneId(0), 5..20, 10..100), Err(BadFrame::Repeated));
        assert_eq!(merge.arrived(LaneId(0), 20..30, 10..100), Ok(()));
        assert_eq!(merge.arrived(LaneId(1), 29..40, 10..100), Err(BadFrame::Repeated));
        assert_eq!(merge.arrived(LaneId(1), 30..40, 10..100), Ok(()));
        assert_eq!(merge.step(10, 100, true), Ok(Step::Wait), "a third lane may have the bytes");
        assert_eq!(merge.step(10, 100, false), Err(BadFrame::NotNext), "no lane was lost");
    }

    #[test]
    fn lost_bytes_are_requested_once() {
        let mut merge = Merge::default();
        [0, 1].into_iter().for_each(|lane| merge.open(LaneId(lane)));
        merge.arrived(LaneId(0), 20..30, 10..100).unwrap();
        merge.lose(LaneId(1));
        assert_eq!(merge.step(10, 100, true), Ok(Step::Wait));
        assert_eq!(merge.step(10, 100, false), Ok(Step::Lost(10..20)));
        assert_eq!(
            merge.step(10, 100, false),
            Err(BadFrame::NotNext),
            "the answer did not bring them"
        );
        merge.open(LaneId(2));
        merge.lose(LaneId(2));
        assert_eq!(merge.step(10, 100, false), Ok(Step::Lost(10..20)), "the answer was lost too");
    }
}
