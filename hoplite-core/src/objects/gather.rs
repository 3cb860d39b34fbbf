//! Reserves memory for a reduce step's output and for its spilled inputs: all or none.
//!
//! In a small arena, inputs that are loaded one by one would evict each other.

use super::Objects;
use super::gatherings::Gathering;
use super::notice::SpaceWaiter;
use crate::error::Error;
use crate::extent::{Extent, HEADER_BYTES};
use crate::message::CopyId;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gathered {
    /// Memory for the output. All inputs are in the arena.
    Here(Extent),
    /// The waiter is queued: memory is lacking, or inputs are loading.
    Coming,
    Failed(Error),
}

impl Objects {
    /// Reserves the memory and loads spilled inputs. Repeat the call until it returns `Here`, or
    /// call [`Objects::stop_gathering`]. Until then, the inputs stay in the arena.
    pub(crate) fn gather(
        &mut self,
        waiter: SpaceWaiter,
        inputs: &[CopyId],
        size_bytes: u64,
    ) -> Gathered {
        let now = self.ctx.now();
        if let Some(error) = inputs.iter().find_map(|input| self.copies[input].spill_error(now)) {
            return Gathered::Failed(error);
        }
        if inputs.iter().any(|input| self.copies[input].is_away()) {
            // A load has not begun, or has failed.
            self.stop_gathering(&waiter);
        }
        if !self.gatherings.contains(&waiter) {
            match self.begin_gathering(inputs, size_bytes) {
                Ok(Some(gathering)) => self.gatherings.insert(waiter.clone(), gathering),
                Ok(None) => {
                    self.copies.wait_for_space(waiter);
                    return Gathered::Coming;
                }
                Err(error) => return Gathered::Failed(error),
            }
        }
        if !inputs.iter().all(|input| self.copies[input].is_resident()) {
            self.copies.wait_for_space(waiter);
            return Gathered::Coming;
        }
        match self.gatherings.remove(&waiter) {
            Some(Gathering { room, inputs }) => {
                self.copies.let_go_after_search(&mut self.ctx, &inputs);
                Gathered::Here(room)
            }
            None => Gathered::Coming,
        }
    }

    /// Returns `None`, and reserves nothing, if the output and spilled inputs do not fit now.
    fn begin_gathering(
        &mut self,
        inputs: &[CopyId],
        size_bytes: u64,
    ) -> Result<Option<Gathering>, Error> {
        let mut inputs = inputs.to_vec();
        inputs.sort_unstable();
        inputs.dedup();
        let length_of = |size_bytes: u64| HEADER_BYTES + size_bytes;
        let lengths = inputs.iter().map(|input| length_of(self.copies[input].size_bytes));
        let together_bytes = length_of(size_bytes) + lengths.sum::<u64>();
        if together_bytes > self.copies.capacity_bytes() {
            return Err(self.copies.never_fit(self.ctx.node(), inputs.len(), together_bytes));
        }
        for input in &inputs {
            self.copies.hold(*input);
        }
        let away: Vec<CopyId> =
            inputs.iter().copied().filter(|input| self.copies[input].is_away()).collect();
        let lengths = away.iter().map(|input| length_of(self.copies[input].size_bytes));
        let missing_bytes = size_bytes + lengths.sum::<u64>();
        let rooms =
            if self.copies.may_fit(missing_bytes) { self.rooms(size_bytes, &away) } else { None };
        let Some((room, rooms)) = rooms else {
            self.copies.let_go_after_search(&mut self.ctx, &inputs);
            return Ok(None);
        };
        for (input, room) in away.into_iter().zip(rooms) {
            self.copies.begin_load(&mut self.ctx, input, room);
        }
        Ok(Some(Gathering { room, inputs }))
    }

    fn rooms(&mut self, size_bytes: u64, away: &[CopyId]) -> Option<(Extent, Vec<Extent>)> {
        let room = self.allocate(size_bytes)?;
        let mut rooms = Vec::with_capacity(away.len());
        for input in away {
            let Some(found) = self.allocate_again(self.copies[input].size_bytes) else {
                self.copies.give_back_after_search(rooms.into_iter().chain([room]));
                return None;
            };
            rooms.push(found);
        }
        Some((room, rooms))
    }

    pub(crate) fn stop_gathering(&mut self, waiter: &SpaceWaiter) {
        self.copies.stop_waiting_for_space(waiter);
        let Some(Gathering { room, inputs }) = self.gatherings.remove(waiter) else { return };
        self.copies.give_back(room);
        for input in inputs {
            self.let_go(input);
        }
    }
}
