//! How much memory the connections of one user may take together for requests.
//!
//! A request of usual length is free: it fits into the first buffer of its connection. A longer one, such as a wait for
//! thousands of ids, needs room in two budgets of its user: one while it arrives, and one until its call has ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most bytes of long requests that arrive at once on the connections of one user, and at least one request.
pub(super) const MAX_ARRIVING_BYTES: usize = 64 << 20;
/// Most bytes of long requests of one user whose calls are open.
pub(super) const MAX_OPEN_BYTES: usize = 256 << 20;
/// The unit of the budgets.
const UNIT_BYTES: usize = 1 << 10;

/// The shares of all users who have connections.
#[derive(Debug)]
pub(crate) struct Shares {
    /// The longest request; each user may send one of this length at any time.
    max_request_bytes: usize,
    by_user: Mutex<HashMap<u32, Weak<Share>>>,
}

/// The share of one user, over all their connections.
#[derive(Debug)]
pub(super) struct Share {
    arriving: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Shares {
    /// Returns empty shares for requests of up to `max_request_bytes`.
    pub(crate) fn new(max_request_bytes: usize) -> Self {
        Self { max_request_bytes, by_user: Mutex::default() }
    }

    /// Returns the share of `user`. It is kept for as long as it is held.
    pub(super) fn of(&self, user: u32) -> Arc<Share> {
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = by_user.get(&user).and_then(Weak::upgrade) {
            return share;
        }
        by_user.retain(|_, share| share.strong_count() > 0);
        let budget =
            |bytes: usize| Arc::new(Semaphore::new(units(bytes.max(self.max_request_bytes)) as usize));
        let share = Arc::new(Share { arriving: budget(MAX_ARRIVING_BYTES), open: budget(MAX_OPEN_BYTES) });
        by_user.insert(user, Arc::downgrade(&share));
        share
    }
}

impl Share {
    /// Waits for room for a request of `length_bytes` that arrives.
    pub(super) async fn arrive(&self, length_bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.arriving).acquire_many_owned(units(length_bytes)).await.ok()
    }

    /// Returns room for a request of `length_bytes` until its call has ended; `None` if there is not enough.
    pub(super) fn open(&self, length_bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.open).try_acquire_many_owned(units(length_bytes)).ok()
    }
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
        let shares = Shares::new(1 << 20);
        let (one, again, other) = (shares.of(1), shares.of(1), shares.of(2));
        let most = one.open(MAX_OPEN_BYTES).unwrap();
        assert!(again.open(1).is_none());
        assert!(other.open(1).is_some());
        drop(most);
        assert!(again.open(1).is_some());
        let arriving = one.arrive(MAX_ARRIVING_BYTES - 1).now_or_never().flatten().unwrap();
        assert!(again.arrive(1 << 20).now_or_never().is_none(), "it waits");
        drop(arriving);
        assert!(again.arrive(1 << 20).now_or_never().is_some());
        drop((one, again));
        drop(shares.of(3));
        assert_eq!(shares.by_user.lock().unwrap().len(), 2, "users without connections are forgotten");
    }

    #[test]
    fn the_longest_request_always_fits() {
        let shares = Shares::new(MAX_OPEN_BYTES * 2);
        let share = shares.of(1);
        assert!(share.open(MAX_OPEN_BYTES * 2).is_some());
        assert!(share.arrive(MAX_OPEN_BYTES * 2).now_or_never().is_some());
    }
}
