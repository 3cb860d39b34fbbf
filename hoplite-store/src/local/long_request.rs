use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::error::{Error, Plane};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::shares::{MAX_ARRIVING_BYTES, Share};

/// Longest wait of a long request for the memory of the user's other requests.
pub(super) const ROOM_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the rest of a long request, because other requests wait for its memory.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) enum LongRequest {
    /// Waits until the user's memory limit permits the request; its rest stays unread.
    WaitsForRoom {
        room: Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>,
        until: Instant,
    },
    Arrives {
        _room: Option<OwnedSemaphorePermit>,
        until: Instant,
    },
}

impl LongRequest {
    pub(super) fn begin(share: Arc<Share>, length_bytes: usize) -> Self {
        let room = Box::pin(async move { share.arrive(length_bytes).await });
        Self::WaitsForRoom { room, until: Instant::now() + ROOM_TIMEOUT }
    }

    pub(super) const fn may_be_read(&self) -> bool {
        matches!(self, Self::Arrives { .. })
    }
}

pub(super) async fn progress(request: &mut Option<LongRequest>) -> Result<(), Error> {
    match request {
        None => std::future::pending().await,
        Some(LongRequest::WaitsForRoom { room, until }) => {
            let room = timeout_at(*until, room).await.map_err(|_| no_room())?;
            *request =
                Some(LongRequest::Arrives { _room: room, until: Instant::now() + ARRIVAL_TIMEOUT });
            Ok(())
        }
        Some(LongRequest::Arrives { until, .. }) => {
            sleep_until(*until).await;
            Err(Error::malformed(Plane::Local, "the rest of a long request did not come in time"))
        }
    }
}

pub(super) const fn no_room() -> Error {
    Error::limit_exceeded(
        "bytes of a user's requests and answers under way",
        MAX_ARRIVING_BYTES as u64,
    )
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::local::inbox::READ_BYTES;
    use crate::local::shares::{Seat, Shares};

    #[tokio::test(start_paused = true)]
    async fn a_long_request_that_is_sent_by_half_gives_its_room_back() {
        let shares = Shares::new(16, MAX_ARRIVING_BYTES, 1);
        let seats: Vec<Seat> = (0..3).map(|_| shares.enter(1).unwrap()).collect();
        let long =
            |index: usize, bytes| Some(LongRequest::begin(Arc::clone(&seats[index].share), bytes));
        let mut half = long(0, MAX_ARRIVING_BYTES);
        assert!(!half.as_ref().unwrap().may_be_read());
        progress(&mut half).await.unwrap();
        assert!(half.as_ref().unwrap().may_be_read());
        tokio::time::advance(ARRIVAL_TIMEOUT - ROOM_TIMEOUT / 2).await;
        let (mut first, mut second) = (long(1, MAX_ARRIVING_BYTES), long(2, READ_BYTES + 1));
        for _ in 0..3 {
            assert!(progress(&mut first).now_or_never().is_none());
            assert!(progress(&mut second).now_or_never().is_none());
        }
        let error = progress(&mut half).await.unwrap_err();
        assert!(error.to_string().contains("long request did not come in time"), "{error}");
        drop(half);
        assert!(progress(&mut second).now_or_never().is_none(), "the first one is first");
        progress(&mut first).await.unwrap();
        let error = progress(&mut second).await.unwrap_err();
        assert!(matches!(error, Error::LimitExceeded { .. }), "{error}");
    }
}
