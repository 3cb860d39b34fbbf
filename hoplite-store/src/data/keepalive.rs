//! Keepalives to a waiting peer: they show that this store is alive, and forward signs that prove
//! the object's producer alive.

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

#[derive(Debug, Clone, Copy)]
pub(super) struct Keepalive<'a> {
    /// Longest time for which this store sends no frame.
    pub(super) interval: Duration,
    pub(super) started: Instant,
    pub(super) awaited: Awaited<'a>,
}

/// Source of the keepalives' signs that a producer of the bytes is alive.
#[derive(Debug, Clone, Copy)]
pub(super) enum Awaited<'a> {
    Copy(&'a LiveCopy),
    /// This store awaits the copy itself, and has no proof yet that a producer lives.
    Receiver,
    Producer,
}

pub(super) enum KeepaliveEvent<T> {
    Done(T),
    /// A frame whose payload is not read yet.
    Frame(Header),
}

impl Keepalive<'_> {
    /// Waits for `work`, or for a frame of the peer. Sends keepalives regularly, and sooner with
    /// new proof that the producer is alive. A broken connection drops the work.
    pub(super) async fn until<T>(
        &self,
        connection: &mut PeerConnection,
        work: impl Future<Output = T>,
    ) -> Result<KeepaliveEvent<T>, ConnectionError> {
        let mut work = pin!(work);
        let mut signs = None;
        loop {
            let sent_at = connection.sent_at();
            tokio::select! {
                biased;
                done = &mut work => return Ok(KeepaliveEvent::Done(done)),
                header = connection.read_header() => return Ok(KeepaliveEvent::Frame(header?)),
                () = self.next_sign(&mut signs, sent_at + news_interval(self.interval)) => {}
                () = sleep_until(sent_at + self.interval) => {}
            }
            connection.write_keepalive(self.sign()).await?;
        }
    }

    /// Acts as [`until`](Self::until) for a peer that must not send before the answer.
    pub(super) async fn during<T>(
        &self,
        connection: &mut PeerConnection,
        work: impl Future<Output = T>,
    ) -> Result<T, ConnectionError> {
        match self.until(connection, work).await? {
            KeepaliveEvent::Done(done) => Ok(done),
            KeepaliveEvent::Frame(_) => {
                Err(ConnectionError::Nonsense("a request while another one is being answered"))
            }
        }
    }

    pub(super) fn sign(&self) -> Sign {
        let now = Time::ZERO + self.started.elapsed();
        match self.awaited {
            Awaited::Copy(copy) => copy.sign(now),
            Awaited::Receiver => Sign::default(),
            Awaited::Producer => Sign(now.as_micros()),
        }
    }

    /// Waits for new proof that the producer is alive, but at least until `not_before`. Waits
    /// forever if no proof can come.
    async fn next_sign(&self, signs: &mut Option<watch::Receiver<Sign>>, not_before: Instant) {
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
    async fn only_a_producer_creates_signs() {
        let started = Instant::now();
        tokio::time::advance(Duration::from_secs(3)).await;
        let sign =
            |awaited| Keepalive { interval: Duration::from_secs(1), started, awaited }.sign();
        assert_eq!(sign(Awaited::Producer), Sign(3_000_000));
        assert_eq!(
            sign(Awaited::Receiver),
            Sign::default(),
            "else its receivers would wait for it for ever"
        );
    }
}
