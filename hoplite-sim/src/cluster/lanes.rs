//! Connections (lanes) of streams, over links that limit the rate of each connection.
//!
//! The real [`HostLanes`] of each sender decides about a stream's lanes, which share its bytes
//! equally. A new lane starts after the time that a connection takes. A stream is starved while it
//! has sent all bytes that its sender has received.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_core::link::Delivery;
use hoplite_core::merge::LaneId;
use hoplite_core::node::CopyId;
use hoplite_core::plan::lanes::{
    HostLanes, LaneAction, Progress, Start, StreamId, Supply, lane_limit,
};

use super::transfers::{Reader, TransferId};
use super::{Application, Cluster, Network, node_id};

/// Time between two frames of a connection: each measurement of a rate includes several.
const FRAME_TIME: Duration = Duration::from_millis(2);

/// Limits each connection's rate, and a stream's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowCap {
    /// Highest rate of one connection.
    pub bytes_per_second: u64,
    /// Most lanes of one stream.
    pub max_lanes: usize,
}

#[derive(Default)]
pub(super) struct Lanes {
    hosts: BTreeMap<usize, Host>,
    streams: BTreeMap<Reader, Stream>,
}

struct Host {
    lanes: HostLanes,
    acknowledged_bytes: u64,
}

struct Stream {
    id: StreamId,
    sender: usize,
    acknowledged: BTreeMap<LaneId, u64>,
    resting: BTreeSet<LaneId>,
    /// Number of bytes that the receiver had when the stream last sent frames.
    last_bytes: u64,
}

impl Stream {
    fn active(&self) -> usize {
        (self.acknowledged.len() - self.resting.len()).max(1)
    }
}

impl Lanes {
    pub(super) fn fewest(&self, key: TransferId) -> usize {
        let streams = self.streams.range((key, 0)..=(key, usize::MAX));
        streams.map(|(_, stream)| stream.active()).min().unwrap_or(1)
    }
}

impl<A: Application> Cluster<A> {
    const fn flow_cap(&self) -> Option<FlowCap> {
        match self.config.network {
            Network::Flow { flow_cap, .. } => flow_cap,
            Network::Blocks { .. } => None,
        }
    }

    pub(super) fn begin_stream(&mut self, sender: usize, copy: CopyId, reader: Reader) {
        let Some(cap) = self.flow_cap() else { return };
        let Some(transfer) = self.transfers.get(&reader.0) else { return };
        let (store, filled) = (transfer.store, &self.stores[transfer.store].copies[&transfer.copy]);
        let last_bytes = filled.line.bytes_at(self.elapsed()) as u64;
        let max_lanes = lane_limit(cap.max_lanes, transfer.size_bytes.saturating_sub(last_bytes));
        let is_whole = self.stores[sender].copies[&copy].is_complete;
        let supply = if is_whole { Supply::Whole } else { Supply::Chain };
        let now = self.now();
        let first = Start { lanes: 1, is_settled: false };
        let host = self.lanes.hosts.entry(sender);
        let host =
            host.or_insert_with(|| Host { lanes: HostLanes::new(first), acknowledged_bytes: 0 });
        let id = host.lanes.begin(now, &node_id(store), (1, max_lanes), supply);
        let (acknowledged, resting) = (BTreeMap::new(), BTreeSet::new());
        self.lanes.streams.insert(reader, Stream { id, sender, acknowledged, resting, last_bytes });
        self.open_lanes(reader, id, 1);
        self.send_frames(reader, id);
    }

    pub(super) fn end_stream(&mut self, reader: Reader) {
        let Some(stream) = self.lanes.streams.remove(&reader) else { return };
        if let Some(host) = self.lanes.hosts.get_mut(&stream.sender) {
            host.lanes.end(stream.id);
        }
    }

    fn open_lanes(&mut self, reader: Reader, id: StreamId, count: usize) {
        let Some(store) = self.transfers.get(&reader.0).map(|transfer| transfer.store) else {
            return;
        };
        let others = self.nics[store].inflows.saturating_sub(1);
        let Some(stream) = self.lanes.streams.get_mut(&reader).filter(|stream| stream.id == id)
        else {
            return;
        };
        let Some(host) = self.lanes.hosts.get_mut(&stream.sender) else { return };
        for _ in 0..count {
            let lane = host.lanes.join(id, None, others);
            stream.acknowledged.extend(lane.map(|lane| (lane, 0)));
        }
        self.dirty.insert(reader.0);
    }

    /// Runs every [`FRAME_TIME`] until the stream ends.
    fn send_frames(&mut self, reader: Reader, id: StreamId) {
        let Some(stream) = self.lanes.streams.get(&reader).filter(|stream| stream.id == id) else {
            return;
        };
        let lanes: Vec<LaneId> = stream.acknowledged.keys().copied().collect();
        let Some((mut progress, lane_bytes)) = self.progress(reader) else { return };
        let active = stream_active(&self.lanes, reader);
        let (now, mut requested) = (self.now(), 0);
        let Some(stream) = self.lanes.streams.get_mut(&reader) else { return };
        let Some(host) = self.lanes.hosts.get_mut(&stream.sender) else { return };
        for lane in lanes {
            let Some(acknowledged) = stream.acknowledged.get_mut(&lane) else { continue };
            if !stream.resting.contains(&lane) {
                *acknowledged += lane_bytes;
                host.acknowledged_bytes += lane_bytes;
            }
            let delivery = progress
                .delivery
                .map(|known| Delivery { acknowledged_bytes: *acknowledged, ..known });
            progress =
                Progress { delivery, acknowledged_bytes: host.acknowledged_bytes, ..progress };
            let turn = host.lanes.turn(now, id, lane, &progress);
            progress.starved = Duration::ZERO;
            if !turn.is_resting {
                stream.resting.clear();
            }
            match turn.action {
                LaneAction::Send => {}
                LaneAction::Ask(count) => requested += count,
                LaneAction::Rest => {
                    stream.resting.insert(lane);
                }
                LaneAction::Leave => {
                    stream.acknowledged.remove(&lane);
                    host.lanes.leave(id, lane, true);
                }
            }
        }
        if stream_active(&self.lanes, reader) != active {
            self.dirty.insert(reader.0);
        }
        if requested > 0 {
            let delay = self.connect_time();
            self.after(delay, move |cluster| cluster.open_lanes(reader, id, requested));
        }
        self.after(FRAME_TIME, move |cluster| cluster.send_frames(reader, id));
    }

    /// Returns the stream's progress, and each connection's bytes sent since its last frame.
    fn progress(&mut self, (key, index): Reader) -> Option<(Progress, u64)> {
        let now = self.elapsed();
        let latency = self.latency();
        let transfer = self.transfers.get(&key)?;
        let line = self.stores[transfer.store].copies.get(&transfer.copy)?.line;
        let done = line.bytes_at(now).min(transfer.size_bytes as f64);
        let is_starved = transfer.inputs[index].allows(done, now) != Some(f64::INFINITY);
        let left_bytes = transfer.size_bytes.saturating_sub(done as u64);
        let stream = self.lanes.streams.get_mut(&(key, index))?;
        let active = stream.active() as u64;
        let sent_bytes = (done as u64).saturating_sub(stream.last_bytes);
        stream.last_bytes = done as u64;
        let delivery = Delivery {
            bytes_per_second: (line.rate * 1e9) as u64 / active,
            round_trip_us: u32::try_from((2 * latency).as_micros()).unwrap_or(u32::MAX),
            ..Delivery::default()
        };
        let starved = if is_starved { FRAME_TIME } else { Duration::ZERO };
        let progress =
            Progress { delivery: Some(delivery), starved, left_bytes, acknowledged_bytes: 0 };
        Some((progress, sent_bytes / active))
    }
}

fn stream_active(lanes: &Lanes, reader: Reader) -> usize {
    lanes.streams.get(&reader).map_or(1, Stream::active)
}
