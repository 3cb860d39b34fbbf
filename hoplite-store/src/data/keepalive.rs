//! What a store says on a connection while its peer waits: that it is alive, and whether a producer is.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use hoplite_core::peer::news_interval;
use hoplite_core::stall::Sign;
use hoplite_core::time::Time;
use hoplite_proto::data::frame::Header;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::connection::{ConnectionError, PeerConnection};
use crate::copies::LiveCopy;

/// How this store says that it is alive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keepalive<'a> {
    /// The time that it may say nothing.
    pub(super) interval: Duration,
    /// The time at which this store started, as far as the data plane goes.
    pub(super) started: Instant,
    pub(super) awaited: Awaited<'a>,
}

/// What the peer waits for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Awaited<'a> {
    /// The bytes of this copy.
    Copy(&'a LiveCopy),
    /// A copy that this store may come to have: nobody is known to produce it yet.
    Receiver,
    /// What this store does itself.
    Producer,
}

/// How a wait ended.
pub(super) enum Until<T> {
    /// What was waited for is done.
    Done(T),
    /// The peer has sent a frame; the payload is still to be read.
    Frame(Header),
}

impl Keepalive<'_> {
    /// Waits for `work`, or for a frame of the peer, and says meanwhile that we are alive: again and again, and at once
    /// when there is a new sign of the producer, which those behind the peer wait for too.
    ///
    /// # Errors
    /// Why the connection is of no more use; the work is dropped then.
    pub(super) async fn until<T>(
        &self,
        connection: &mut PeerConnection,
        work: impl Future<Output = T>,
    ) -> Result<Until<T>, ConnectionError> {
        let mut work = pin!(work);
        let mut signs = None;
        loop {
            let sent_at = connection.sent_at();
            tokio::select! {
                biased;
                done = &mut work => return Ok(Until::Done(done)),
                header = connection.read_header() => return Ok(Until::Frame(header?)),
                // However often the sender of this store says something new, it is passed on a few times each interval.
                () = self.news(&mut signs, sent_at + news_interval(self.interval)) => {}
                () = sleep_until(sent_at + self.interval) => {}
            }
            connection.write_keepalive(self.sign()).await?;
        }
    }

    /// As [`until`](Self::until), for a peer that has nothing to say before it has its answer.
    pub(super) async fn during<T>(
        &self,
        connection: &mut PeerConnection,
        work: impl Future<Output = T>,
    ) -> Result<T, ConnectionError> {
        match self.until(connection, work).await? {
            Until::Done(done) => Ok(done),
            Until::Frame(_) => {
                Err(ConnectionError::Nonsense("a request while another one is being answered"))
            }
        }
    }

    /// The sign that is passed on now.
    pub(super) fn sign(&self) -> Sign {
        let now = Time::ZERO + self.started.elapsed();
        match self.awaited {
            Awaited::Copy(copy) => copy.sign(now),
            Awaited::Receiver => Sign::default(),
            Awaited::Producer => Sign(now.as_micros()),
        }
    }

    /// Waits for a new sign, for ever if there can be none, and until it may be passed on.
    async fn news(&self, signs: &mut Option<watch::Receiver<Sign>>, not_before: Instant) {
        let Awaited::Copy(copy) = self.awaited else { return pending().await };
        let signs = signs.get_or_insert_with(|| copy.signs());
        if signs.changed().await.is_err() {
            pending().await
        }
        sleep_until(not_before).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_producer_makes_signs() {
        let started = Instant::now();
        tokio::time::advance(Duration::from_secs(3)).await;
        let sign = |awaited| Keepalive { interval: Duration::from_secs(1), started, awaited }.sign();
        assert_eq!(sign(Awaited::Producer), Sign(3_000_000));
        assert_eq!(sign(Awaited::Receiver), Sign::default(), "else its receivers would wait for it for ever");
    }
}
