//! Limits of a user: on connections, and on the memory of all requests together.
//!
//! One connection (seat) in sixteen is reserved for users without a connection, so that no user can
//! occupy the store.
//!
//! Requests that fit into the first buffer of their connection are free. A longer request takes
//! memory from two budgets of its user: one while it arrives, and one until its call ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hoplite_core::error::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most bytes of a user's long requests that arrive at once. One request always fits.
pub(super) const MAX_ARRIVING_BYTES: usize = 64 << 20;
/// Most bytes of a user's long open requests.
pub(super) const MAX_OPEN_BYTES: usize = 256 << 20;
/// Most ids in a user's open calls, twice a client's limit: a shard limits all clients of a node
/// together.
pub(super) const MAX_OPEN_IDS: usize = 2 << 16;
const UNIT_BYTES: usize = 1 << 10;

const SEATS_PER_KEPT_SEAT: usize = 16;

#[derive(Debug)]
pub(crate) struct Shares {
    seats: Arc<Semaphore>,
    max_clients: usize,
    kept_seats: usize,
    /// One request of this size always fits.
    max_request_bytes: usize,
    /// One request with this number of ids always fits.
    max_ids: usize,
    by_user: Mutex<HashMap<u32, Weak<Share>>>,
}

#[derive(Debug)]
pub(super) struct Share {
    arriving: Arc<Semaphore>,
    open: Arc<Semaphore>,
    ids: Arc<Semaphore>,
    max_open_bytes: usize,
    max_ids: usize,
}

impl Shares {
    pub(crate) fn new(max_clients: usize, max_request_bytes: usize, max_ids: usize) -> Self {
        let seats = Arc::new(Semaphore::new(max_clients.min(Semaphore::MAX_PERMITS)));
        let kept_seats = max_clients / SEATS_PER_KEPT_SEAT;
        Self {
            seats,
            max_clients,
            kept_seats,
            max_request_bytes,
            max_ids,
            by_user: Mutex::default(),
        }
    }

    /// Takes a seat for a client of `user`. `LimitExceeded` if no seat is free: a user with a
    /// connection gets no reserved seat.
    pub(super) fn enter(&self, user: u32) -> Result<Seat, Error> {
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        let known = by_user.get(&user).and_then(Weak::upgrade);
        let full = || Error::limit_exceeded("clients of a store", self.max_clients as u64);
        let only_kept_are_free = self.seats.available_permits() <= self.kept_seats;
        if known.is_some() && self.kept_seats > 0 && only_kept_are_free {
            let limit = self.max_clients.saturating_sub(self.kept_seats);
            return Err(Error::limit_exceeded(
                "clients of users who have one already",
                limit as u64,
            ));
        }
        let permit = Arc::clone(&self.seats).try_acquire_owned().map_err(|_| full())?;
        let share = known.unwrap_or_else(|| self.begin(&mut by_user, user));
        Ok(Seat { share, _permit: permit })
    }

    fn begin(&self, by_user: &mut HashMap<u32, Weak<Share>>, user: u32) -> Arc<Share> {
        by_user.retain(|_, share| share.strong_count() > 0);
        let budget = |bytes: usize| Arc::new(Semaphore::new(units(bytes) as usize));
        let max_open_bytes = MAX_OPEN_BYTES.max(self.max_request_bytes);
        let max_ids = MAX_OPEN_IDS.max(self.max_ids);
        let share = Arc::new(Share {
            arriving: budget(MAX_ARRIVING_BYTES.max(self.max_request_bytes)),
            open: budget(max_open_bytes),
            ids: Arc::new(Semaphore::new(max_ids)),
            max_open_bytes,
            max_ids,
        });
        by_user.insert(user, Arc::downgrade(&share));
        share
    }
}

#[derive(Debug)]
pub(super) struct Seat {
    pub(super) share: Arc<Share>,
    _permit: OwnedSemaphorePermit,
}

impl Share {
    pub(super) async fn arrive(&self, length_bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.arriving).acquire_many_owned(units(length_bytes)).await.ok()
    }

    /// Takes memory and ids from the user's budgets until the call ends, or returns
    /// `LimitExceeded`.
    pub(super) fn open(&self, length_bytes: usize, ids: usize) -> Result<OpenRoom, Error> {
        let take = |budget: &Arc<Semaphore>, count: u32| match count {
            0 => Ok(None),
            _ => Arc::clone(budget).try_acquire_many_owned(count).map(Some),
        };
        let bytes = take(&self.open, units(length_bytes)).map_err(|_| {
            Error::limit_exceeded("bytes of a user's open requests", self.max_open_bytes as u64)
        })?;
        let ids = take(&self.ids, u32::try_from(ids).unwrap_or(u32::MAX)).map_err(|_| {
            Error::limit_exceeded("ids of a user's open requests", self.max_ids as u64)
        })?;
        Ok(OpenRoom { _bytes: bytes, _ids: ids })
    }
}

#[derive(Debug, Default)]
pub(super) struct OpenRoom {
    _bytes: Option<OwnedSemaphorePermit>,
    _ids: Option<OwnedSemaphorePermit>,
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX >> 3).min(u32::MAX >> 3)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn the_connections_of_one_user_share_and_those_of_others_do_not() {
        let shares = Shares::new(10, 1 << 20, 1);
        let enter = |user| shares.enter(user).unwrap().share;
        let (one, again, other) = (enter(1), enter(1), enter(2));
        let most = one.open(MAX_OPEN_BYTES, 0).unwrap();
        assert!(again.open(1, 0).is_err());
        assert!(other.open(1, 0).is_ok());
        drop(most);
        assert!(again.open(1, 0).is_ok());
        let arriving = one.arrive(MAX_ARRIVING_BYTES - 1).now_or_never().flatten().unwrap();
        assert!(again.arrive(1 << 20).now_or_never().is_none(), "it waits");
        drop(arriving);
        assert!(again.arrive(1 << 20).now_or_never().is_some());
        drop((one, again));
        drop(enter(3));
        assert_eq!(
            shares.by_user.lock().unwrap().len(),
            2,
            "users without connections are forgotten"
        );
    }

    #[test]
    fn the_ids_of_one_user_are_bounded_over_all_connections() {
        let shares = Shares::new(10, 1, 1);
        let enter = |user| shares.enter(user).unwrap().share;
        let (one, again, other) = (enter(1), enter(1), enter(2));
        let half = one.open(0, MAX_OPEN_IDS / 2).unwrap();
        let rest = again.open(0, MAX_OPEN_IDS / 2).unwrap();
        let error = again.open(0, 2).unwrap_err().to_string();
        assert!(error.contains("ids of a user's open requests are limited to 131072"), "{error}");
        other.open(0, MAX_OPEN_IDS).unwrap();
        drop((half, rest));
        again.open(0, MAX_OPEN_IDS).unwrap();
    }

    #[test]
    fn no_user_keeps_all_others_out() {
        let shares = Shares::new(3 * SEATS_PER_KEPT_SEAT, 1, 1);
        let mut seats: Vec<Seat> = std::iter::from_fn(|| shares.enter(1).ok()).collect();
        assert_eq!(seats.len(), 3 * SEATS_PER_KEPT_SEAT - 3);
        let others: Vec<Seat> = (2..5).map_while(|user| shares.enter(user).ok()).collect();
        assert_eq!(others.len(), 3, "each of them had none");
        let full = shares.enter(5).unwrap_err().to_string();
        assert!(full.contains("clients of a store are limited to 48"), "{full}");
        drop(others);
        let kept = shares.enter(1).unwrap_err().to_string();
        assert!(kept.contains("are limited to 45"), "{kept}");
        seats.pop();
        assert!(shares.enter(1).is_ok());
    }

    #[test]
    fn a_store_for_few_clients_keeps_no_seats() {
        let shares = Shares::new(2, 1, 1);
        let seats = (shares.enter(1), shares.enter(1));
        assert!(seats.0.is_ok() && seats.1.is_ok());
        assert!(shares.enter(2).is_err());
    }

    #[test]
    fn the_longest_request_always_fits() {
        let shares = Shares::new(1, MAX_OPEN_BYTES * 2, 1);
        let share = shares.enter(1).unwrap().share;
        assert!(share.open(MAX_OPEN_BYTES * 2, 0).is_ok());
        assert!(share.arrive(MAX_OPEN_BYTES * 2).now_or_never().is_some());
    }

    #[test]
    fn an_error_names_the_budget_of_the_store() {
        let (bytes, ids) = (MAX_OPEN_BYTES * 2, MAX_OPEN_IDS * 2);
        let share = Shares::new(1, bytes, ids).enter(1).unwrap().share;
        let _most = share.open(bytes, ids).unwrap();
        let (no_bytes, no_ids) = (share.open(1, 0).unwrap_err(), share.open(0, 1).unwrap_err());
        assert!(no_bytes.to_string().contains(&bytes.to_string()), "{no_bytes}");
        assert!(no_ids.to_string().contains(&ids.to_string()), "{no_ids}");
    }
}
