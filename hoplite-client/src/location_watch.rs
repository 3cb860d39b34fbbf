use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use hoplite_core::node::{self, CallId};
use hoplite_core::shard::Locations;
use hoplite_core::{ObjectId, Operation};
use tokio::sync::watch;

use crate::connection::{Connection, News};
use crate::error::{Error, Result};

/// Follows the locations of one object: the present ones, then each change.
///
/// A slow reader gets only the latest locations. Dropping the watch never blocks.
#[derive(Debug)]
pub struct LocationWatch {
    connection: Arc<Connection>,
    call: CallId,
    news: watch::Receiver<News>,
    ended: bool,
}

impl LocationWatch {
    pub(crate) fn open(connection: &Arc<Connection>, id: ObjectId) -> Result<Self> {
        let (call, news) = connection.subscribe(node::Request::Subscribe { id })?;
        Ok(Self { connection: Arc::clone(connection), call, news, ended: false })
    }

    /// Returns the present locations at the first call, then waits for the next change. Returns
    /// `None` after an error. Cancel safe.
    ///
    /// # Errors
    /// The store's error, or [`Error::ConnectionLost`]. Both end the watch.
    pub async fn next(&mut self) -> Option<Result<Locations>> {
        if self.ended {
            return None;
        }
        let news = match self.news.changed().await {
            Ok(()) => self.news.borrow_and_update().clone(),
            Err(_) => None,
        };
        let next = match news {
            Some(news) => news.map_err(Into::into),
            None => Err(self.connection.lost()),
        };
        self.ended = next.is_err();
        Some(next)
    }

    /// Acts as [`next`](Self::next), for at most `timeout`. Returns `Ok(None)` after an error.
    /// Cancel safe.
    ///
    /// # Errors
    /// `Timeout`, after which the watch can be used again. The errors of [`next`](Self::next).
    pub async fn next_within(&mut self, timeout: Duration) -> Result<Option<Locations>> {
        let connection = Arc::clone(&self.connection);
        match connection.within(timeout, pin!(self.next())).await {
            Some(next) => next.transpose(),
            None => Err(Error::timeout(Operation::Locate, timeout)),
        }
    }

    /// Turns the watch into a [`Stream`].
    pub fn into_stream(self) -> impl Stream<Item = Result<Locations>> {
        futures::stream::unfold(self, async |mut watch| {
            watch.next().await.map(|next| (next, watch))
        })
    }
}

impl Drop for LocationWatch {
    fn drop(&mut self) {
        self.connection.unsubscribe(self.call);
    }
}
