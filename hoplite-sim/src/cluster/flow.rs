//! Transfers whose bytes flow and share links, for thousands of nodes.
//!
//! A copy grows at a constant rate, its *line*: the transfer's share of the links or, once the copy
//! has caught up, the rate of its inputs. Receivers learn of a new rate with the delay of bytes.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_core::block::publishable;
use hoplite_core::node::CopyId;

use super::line::{Line, ROUNDING_BYTES};
use super::transfers::{Connection, Ending, Input, Origin, Reader, TransferId};
use super::{Application, Cluster, Network};

#[derive(Debug, Default)]
pub(super) struct Flow {
    is_moving: bool,
    updates: u64,
}

#[derive(Debug, Default)]
pub(super) struct Nic {
    pub(super) inflows: usize,
    receiving: BTreeSet<TransferId>,
    sending: BTreeSet<Reader>,
}

impl Input {
    fn available(&self) -> Option<Line> {
        self.line.map(|line| Line { bytes: line.bytes - self.base_bytes as f64, ..line })
    }

    /// Returns the highest rate in bytes per nanosecond that this input permits to an output of
    /// `done` bytes; `None` if the output must wait.
    pub(super) fn allows(&self, done: f64, now: Duration) -> Option<f64> {
        let line = self.available()?;
        let is_behind = line.bytes_at(now) > done + ROUNDING_BYTES;
        match (is_behind, line.rate > 0.0) {
            (true, _) => Some(f64::INFINITY),
            (false, true) => Some(line.rate),
            (false, false) => None,
        }
    }

    const fn sender(&self) -> Option<usize> {
        match &self.origin {
            Origin::Elsewhere { remote, connection: Connection::Open(_) } => Some(remote.sender),
            _ => None,
        }
    }
}

impl<A: Application> Cluster<A> {
    const fn flows(&self) -> bool {
        matches!(self.config.network, Network::Flow { .. })
    }

    pub(super) fn begin_flow(&mut self, key: TransferId) {
        let now = self.elapsed();
        let Some(transfer) = self.transfers.get_mut(&key) else { return };
        let (store, copy) = (transfer.store, transfer.copy);
        let mut local = Vec::new();
        for (index, input) in transfer.inputs.iter_mut().enumerate() {
            match &mut input.origin {
                Origin::Here(copy) => local.push((index, Some(*copy))),
                Origin::Elsewhere { connection, .. } => {
                    *connection = Connection::Opening;
                    local.push((index, None));
                }
            }
        }
        let output = self.copy(store, copy);
        output.line = Line::flat(now, output.valid_bytes as f64);
        for (index, copy) in local {
            match copy {
                Some(copy) => self.follow_copy(store, copy, (key, index)),
                None => self.connect_input((key, index)),
            }
        }
    }

    pub(super) fn follow_copy(&mut self, store: usize, copy: CopyId, reader: Reader) {
        if self.flows() {
            self.copy(store, copy).readers.insert(reader);
            self.update_reader(store, copy, reader);
        }
    }

    pub(super) fn remove_reader(&mut self, store: usize, copy: CopyId, reader: Reader) {
        if let Some(copy) = self.stores[store].copies.get_mut(&copy) {
            copy.readers.remove(&reader);
        }
    }

    fn update_reader(&mut self, store: usize, copy: CopyId, (key, index): Reader) {
        let Network::Flow { latency, block_time, .. } = self.config.network else { return };
        let (now, copy) = (self.elapsed(), &self.stores[store].copies[&copy]);
        let (bytes, rate, is_whole) = (copy.line.bytes_at(now), copy.line.rate, copy.is_complete);
        let is_here = self.transfers.get(&key).is_some_and(|transfer| transfer.store == store);
        let delay = match (is_here, is_whole) {
            (true, _) => Duration::ZERO,
            (false, true) => latency,
            (false, false) => latency + block_time,
        };
        self.after(delay, move |cluster| {
            let since = cluster.elapsed();
            let transfer = cluster.transfers.get_mut(&key);
            let Some(input) = transfer.and_then(|transfer| transfer.inputs.get_mut(index)) else {
                return;
            };
            // News of the complete input may have arrived first.
            if !input.is_whole {
                (input.line, input.is_whole) = (Some(Line { since, bytes, rate }), is_whole);
                cluster.dirty.insert(key);
            }
        });
    }

    fn set_line(&mut self, store: usize, copy: CopyId, bytes: f64, rate: f64) {
        let since = self.elapsed();
        let grown = self.copy(store, copy);
        grown.line = Line { since, bytes: bytes.min(grown.size_bytes as f64), rate };
        for reader in grown.readers.clone() {
            self.update_reader(store, copy, reader);
        }
    }

    pub(super) fn announce_complete(&mut self, store: usize, copy: CopyId) {
        if self.flows() {
            let size = self.copy(store, copy).size_bytes as f64;
            self.set_line(store, copy, size, 0.0);
        }
    }

    pub(super) fn settle_copy(&mut self, store: usize, copy: CopyId, ending: Ending) {
        if !self.flows() {
            return;
        }
        let now = self.elapsed();
        let filled = self.copy(store, copy);
        let done = filled.line.bytes_at(now).max(0.0) as u64;
        filled.valid_bytes = match ending {
            Ending::Complete => filled.size_bytes,
            _ => publishable(done, filled.size_bytes),
        };
        let valid = filled.valid_bytes as f64;
        self.set_line(store, copy, valid, 0.0);
    }

    pub(super) fn stop_flows_from(&mut self, store: usize) {
        if !self.flows() {
            return;
        }
        let now = self.elapsed();
        let copies = self.stores[store].copies.iter();
        let lines: Vec<(CopyId, f64)> =
            copies.map(|(id, copy)| (*id, copy.line.bytes_at(now))).collect();
        for (copy, bytes) in lines {
            self.set_line(store, copy, bytes, 0.0);
        }
    }

    pub(super) fn settle_flows(&mut self) {
        while let Some(key) = self.dirty.pop_first() {
            self.update_rate(key);
        }
    }

    fn update_rate(&mut self, key: TransferId) {
        let now = self.elapsed();
        let Some(transfer) = self.transfers.get(&key) else { return };
        let (store, copy) = (transfer.store, transfer.copy);
        let line = self.stores[store].copies[&copy].line;
        let (done, size) = (line.bytes_at(now), transfer.size_bytes as f64);
        if done + ROUNDING_BYTES >= size {
            return self.end_transfer(key, Ending::Complete);
        }
        let allowed = transfer.inputs.iter().try_fold(f64::INFINITY, |least: f64, input| {
            input.allows(done, now).map(|allowed| least.min(allowed))
        });
        self.set_moving(key, allowed.is_some());
        let rate = allowed.map_or(0.0, |allowed| allowed.min(self.share(key)));
        if (rate - line.rate).abs() > line.rate * 1e-9 {
            self.set_line(store, copy, done, rate);
        }
        let line = Line { since: now, bytes: done, rate };
        let Some(transfer) = self.transfers.get_mut(&key) else { return };
        transfer.flow.updates += 1;
        let update = transfer.flow.updates;
        let meetings =
            transfer.inputs.iter().filter(|input| input.allows(done, now) == Some(f64::INFINITY));
        let meetings = meetings.filter_map(|input| line.meets(input.available()?, now));
        let next = meetings.chain(line.meets(Line::flat(now, size), now)).min_by(f64::total_cmp);
        let Some(delay) = next.map(|delay| Duration::from_nanos(delay.ceil().max(1.0) as u64))
        else {
            return;
        };
        self.after(delay, move |cluster| {
            if cluster.transfers.get(&key).is_some_and(|transfer| transfer.flow.updates == update) {
                cluster.dirty.insert(key);
            }
        });
    }

    fn share(&self, key: TransferId) -> f64 {
        let Network::Flow { bytes_per_second, flow_cap, .. } = self.config.network else {
            return 0.0;
        };
        let transfer = &self.transfers[&key];
        let senders = transfer.inputs.iter().filter_map(Input::sender);
        let outflows = senders.map(|sender| self.nics[sender].sending.len()).max().unwrap_or(0);
        let flows = outflows.max(self.nics[transfer.store].inflows).max(1);
        let of_links = bytes_per_second as f64 / flows as f64;
        let of_lanes = flow_cap.map_or(f64::INFINITY, |cap| {
            cap.bytes_per_second as f64 * self.lanes.fewest(key) as f64
        });
        of_links.min(of_lanes) / 1e9
    }

    /// Makes a transfer use or leave its links, and updates others on these links.
    pub(super) fn set_moving(&mut self, key: TransferId, is_moving: bool) {
        let Some(transfer) = self.transfers.get_mut(&key) else { return };
        if std::mem::replace(&mut transfer.flow.is_moving, is_moving) == is_moving {
            return;
        }
        let is_remote = |input: &&Input| matches!(input.origin, Origin::Elsewhere { .. });
        let inflows = transfer.inputs.iter().filter(is_remote).count();
        let nic = &mut self.nics[transfer.store];
        if is_moving {
            nic.inflows += inflows;
            nic.receiving.insert(key);
        } else {
            nic.inflows -= inflows;
            nic.receiving.remove(&key);
        }
        if inflows > 0 {
            self.dirty.extend(nic.receiving.iter().filter(|other| **other != key));
        }
        for (index, input) in transfer.inputs.iter().enumerate() {
            let Some(sender) = input.sender() else { continue };
            let sending = &mut self.nics[sender].sending;
            let _ = if is_moving {
                sending.insert((key, index))
            } else {
                sending.remove(&(key, index))
            };
            self.dirty
                .extend(sending.iter().map(|(other, _)| *other).filter(|other| *other != key));
        }
    }
}
