//! The coordinator's end of its connection to a member of a collective.

use bytes::Bytes;
use hoplite_core::collective::{AttemptId, Decision, Failure, Plan, Report};
use hoplite_core::error::Error;
use hoplite_core::id::ObjectId;
use hoplite_core::node::Position;
use hoplite_core::peer::RELEASE_TIMEOUT;
use hoplite_core::trace::TraceContext;
use hoplite_daemon::warn_repeated;
use hoplite_proto::data::frame::Kind;
use hoplite_proto::data::{
    decode_known, decode_position, decode_report, encode_plan, encode_reject, encode_stop,
};
use hoplite_proto::{trace, v1};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::super::call::{Call, CallError};
use super::super::connection::{ConnectionError, PeerConnection};
use super::super::cut::unless_cut;
use super::super::keepalive::{Awaited, Keepalive, KeepaliveEvent};
use super::super::metrics::count;
use super::super::pool::Peer;
use super::super::puller::Puller;

/// Decisions for one store of a collective: at most one `Commit`, or `Stop`. When the channel
/// closes, the store leaves the collective.
pub(crate) type Decisions = mpsc::Receiver<Decision>;

impl Puller {
    /// Lets the store at `plan.index` take part in a collective until `decisions` close. Passes its
    /// reports to `report`.
    ///
    /// Dropping the future also ends the membership.
    pub(crate) async fn enlist(
        &self,
        plan: &Plan,
        mut decisions: Decisions,
        trace: Option<TraceContext>,
        report: &(dyn Fn(Report) + Send + Sync),
    ) {
        if let Err(error) = self.try_enlist(plan, &mut decisions, trace, report).await {
            let member = &plan.members[plan.index].node;
            warn_repeated!(id = %plan.target, %member, %error, "a member of an attempt cannot be reached");
            if matches!(&error, CallError::Connection(error) if error.is_malformed()) {
                count(&self.metrics.corrupt_frames, 1);
            }
            report(Report::Failed(Failure::Unreachable));
        }
    }

    /// Tells a store that the attempt to make `target` failed. Clients of an unreachable store
    /// notice the failure later.
    pub(crate) async fn reject(
        &self,
        peer: &Peer,
        target: &ObjectId,
        attempt: AttemptId,
        reason: &Error,
    ) {
        let sent = async {
            let mut call = Call::begin(
                self,
                peer.clone(),
                Kind::Reject,
                &encode_reject(target, attempt, reason),
            )
            .await?;
            let header = call.read_header().await?;
            call.connection().read_control::<v1::End>(&header).await?;
            call.finish();
            Ok::<(), CallError>(())
        };
        if let Err(error) = sent.await {
            tracing::debug!(%target, peer = %peer.0, %error, "a store could not be told of a failure");
        }
    }

    /// Peer's progress with `target`; `None` if the peer takes no part.
    pub(crate) async fn request_position(
        &self,
        peer: &Peer,
        target: &ObjectId,
        (member, members): (usize, usize),
    ) -> Result<Option<Position>, Error> {
        decode_position(self.request(peer, target).await?, member, members)
    }

    pub(crate) async fn request_reduce_record(
        &self,
        peer: &Peer,
        target: &ObjectId,
    ) -> Result<Option<v1::ReduceRecord>, Error> {
        decode_known(self.request(peer, target).await?)
    }

    async fn request(&self, peer: &Peer, target: &ObjectId) -> Result<v1::Position, Error> {
        let asked = v1::AskPosition { target: Bytes::copy_from_slice(target.as_bytes()) };
        let answered = async {
            let mut call = Call::begin(self, peer.clone(), Kind::AskPosition, &asked).await?;
            let header = call.read_header().await?;
            if header.kind() != Kind::Position {
                return Err(ConnectionError::Unexpected(header.kind()).into());
            }
            let known = call.connection().read_control::<v1::Position>(&header).await?;
            call.finish();
            Ok::<_, CallError>(known)
        };
        answered.await.map_err(|error| {
            tracing::debug!(%target, peer = %peer.0, %error, "a store does not say what it knows");
            Error::unavailable("another store")
        })
    }

    async fn try_enlist(
        &self,
        plan: &Plan,
        decisions: &mut Decisions,
        trace: Option<TraceContext>,
        report: &(dyn Fn(Report) + Send + Sync),
    ) -> Result<(), CallError> {
        let interval = self.config.keepalive_interval;
        let keepalive = Keepalive { interval, started: Instant::now(), awaited: Awaited::Producer };
        let member = &plan.members[plan.index];
        let peer = (member.node.clone(), member.address);
        let enlist = v1::Enlist { trace: trace::encode(trace), ..encode_plan(plan) };
        let mut call = Call::begin(self, peer, Kind::Enlist, &enlist).await?;
        let first = async {
            tokio::select! {
                header = call.read_header() => header.map(KeepaliveEvent::Frame),
                decision = decisions.recv() => Ok(KeepaliveEvent::Done(decision)),
            }
        };
        let first = match timeout(interval, first).await {
            Ok(first) => Some(first?),
            Err(_) => None,
        };
        let watch = call.watch();
        unless_cut(watch, direct(call.connection(), (decisions, &keepalive), first, plan, report))
            .await?;
        call.finish();
        Ok(())
    }
}

/// Directs a member, which has sent `first`, until it leaves.
async fn direct(
    connection: &mut PeerConnection,
    (decisions, keepalive): (&mut Decisions, &Keepalive<'_>),
    mut first: Option<KeepaliveEvent<Option<Decision>>>,
    plan: &Plan,
    report: &(dyn Fn(Report) + Send + Sync),
) -> Result<(), ConnectionError> {
    loop {
        let next = match first.take() {
            Some(first) => first,
            None => keepalive.until(connection, decisions.recv()).await?,
        };
        match next {
            KeepaliveEvent::Done(Some(Decision::Commit)) => {
                connection.write_control(Kind::Commit, &()).await?
            }
            KeepaliveEvent::Done(Some(Decision::Stop(reason))) => {
                connection.write_control(Kind::Stop, &encode_stop(&reason)).await?;
                return confirmed(connection).await;
            }
            KeepaliveEvent::Done(None) => {
                connection.write_control(Kind::Release, &()).await?;
                return confirmed(connection).await;
            }
            KeepaliveEvent::Frame(header) => match header.kind() {
                Kind::Keepalive => connection.read_control::<()>(&header).await?,
                Kind::Filled => {
                    connection.read_control::<()>(&header).await?;
                    report(Report::Filled);
                }
                Kind::End => {
                    let end = connection.read_control::<v1::End>(&header).await?;
                    report(decode_report(end, plan.members.len())?);
                    return Ok(());
                }
                kind => return Err(ConnectionError::Unexpected(kind)),
            },
        }
    }
}

async fn confirmed(connection: &mut PeerConnection) -> Result<(), ConnectionError> {
    let confirmed = async {
        loop {
            let header = connection.read_header().await?;
            match header.kind() {
                Kind::Keepalive | Kind::Filled => connection.read_control::<()>(&header).await?,
                Kind::End => return connection.read_control::<v1::End>(&header).await.map(|_| ()),
                kind => return Err(ConnectionError::Unexpected(kind)),
            }
        }
    };
    timeout(RELEASE_TIMEOUT, confirmed).await.map_err(|_| ConnectionError::Idle(RELEASE_TIMEOUT))?
}
