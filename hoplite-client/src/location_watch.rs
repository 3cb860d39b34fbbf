//! Following where an object is.

use std::sync::Arc;

use futures::Stream;
use hoplite_core::ObjectId;
use hoplite_core::node::{self, CallId};
use hoplite_core::shard::Locations;
use tokio::sync::watch;

use crate::connection::{Connection, News};
use crate::error::Result;

/// The locations of one object, now and at every change.
///
/// Only the latest state is kept for a slow reader, so memory is bounded: what is skipped is outdated. The subscription
/// ends when this is dropped, which never blocks.
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

    /// Waits for the next state that was not returned yet; the first is the state now. `None` after an error.
    ///
    /// # Errors
    /// What the store answers instead of locations, or [`Error::ConnectionLost`](crate::Error::ConnectionLost). The
    /// watch has ended then.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
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

    /// The same as a [`Stream`].
    pub fn into_stream(self) -> impl Stream<Item = Result<Locations>> {
        futures::stream::unfold(self, async |mut watch| watch.next().await.map(|next| (next, watch)))
    }
}

impl Drop for LocationWatch {
    fn drop(&mut self) {
        self.connection.unsubscribe(self.call);
    }
}
