//! The member's end of its connection to the coordinator of a collective.

use std::sync::Arc;

use hoplite_core::collective::{AttemptId, Decision, Plan, Report};
use hoplite_core::error::Error;
use hoplite_core::id::{NodeId, ObjectId};
use hoplite_core::node::ReduceRecord;
use hoplite_core::trace::TraceContext;
use hoplite_daemon::warn_repeated;
use hoplite_proto::data::frame::Kind;
use hoplite_proto::data::{decode_plan, decode_stop, encode_report};
use hoplite_proto::{trace, v1};
use tokio::sync::mpsc;

use super::super::connection::{ConnectionError, PeerConnection};
use super::super::cut::{CutWatch, unless_cut};
use super::super::keepalive::{Awaited, Keepalive, KeepaliveEvent};
use super::super::server::Server;
use super::super::serving::{HopHost, ServeSource};

pub(crate) trait MemberHost: Send + Sync + 'static {
    /// Takes part in the collective until the caller drops the returned value.
    fn enlist(self: &Arc<Self>, plan: Box<Plan>, trace: Option<TraceContext>) -> Enlisted;

    fn reject(self: &Arc<Self>, target: ObjectId, attempt: AttemptId, error: Error);

    fn how_made(&self, target: &ObjectId) -> Option<ReduceRecord>;
}

/// This store's part in a collective. The store leaves when the value is dropped.
pub(crate) struct Enlisted {
    /// At most two reports: `Filled`, then `Done` or `Failed`.
    reports: mpsc::Receiver<Report>,
    decide: Box<dyn Fn(Decision) + Send + Sync>,
    leave: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Enlisted {
    pub(crate) const MAX_REPORTS: usize = 2;

    pub(crate) fn new(
        reports: mpsc::Receiver<Report>,
        decide: impl Fn(Decision) + Send + Sync + 'static,
        leave: impl FnOnce() + Send + Sync + 'static,
    ) -> Self {
        Self { reports, decide: Box::new(decide), leave: Some(Box::new(leave)) }
    }
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        if let Some(leave) = self.leave.take() {
            leave();
        }
    }
}

impl<S: ServeSource + HopHost + MemberHost> Server<S> {
    /// Takes part until the collective ends or fails, or the coordinator is gone or silent for too
    /// long.
    pub(in super::super) async fn host_member(
        &self,
        connection: &mut PeerConnection,
        coordinator: &NodeId,
        enlist: v1::Enlist,
    ) -> Result<(), ConnectionError> {
        let trace = trace::decode(&enlist.trace);
        let plan = Box::new(decode_plan(enlist)?);
        let (target, put) = (plan.target.clone(), plan.put);
        tracing::debug!(%target, %put, %coordinator, schedule = %plan.schedule, index = plan.index, "joins an attempt");
        let mut enlisted = self.source.enlist(plan, trace);
        let watch = CutWatch::incoming(&self.config, coordinator, connection);
        let keepalive = self.keepalive(Awaited::Producer);
        let reports = forward_reports(connection, &mut enlisted, &keepalive);
        let ended = unless_cut(watch, reports).await;
        drop(enlisted);
        match &ended {
            Ok(end) => tracing::debug!(%target, %put, outcome = ?end.outcome(), "left an attempt"),
            Err(error) => {
                warn_repeated!(%target, %put, %coordinator, %error, "an attempt lost its coordinator");
            }
        }
        connection.write_control(Kind::End, &ended?).await
    }
}

async fn forward_reports(
    connection: &mut PeerConnection,
    enlisted: &mut Enlisted,
    keepalive: &Keepalive<'_>,
) -> Result<v1::End, ConnectionError> {
    let released = || v1::End { outcome: v1::end::Outcome::Released.into(), ..v1::End::default() };
    loop {
        match keepalive.until(connection, enlisted.reports.recv()).await? {
            KeepaliveEvent::Done(Some(Report::Filled)) => {
                connection.write_control(Kind::Filled, &()).await?
            }
            KeepaliveEvent::Done(report) => {
                let refused = hoplite_core::collective::Failure::Refused(Error::ShuttingDown);
                let report = report.unwrap_or(Report::Failed(refused));
                return Ok(encode_report(&report).unwrap_or_else(released));
            }
            KeepaliveEvent::Frame(header) => match header.kind() {
                Kind::Keepalive => connection.read_control::<()>(&header).await?,
                Kind::Commit => {
                    connection.read_control::<()>(&header).await?;
                    (enlisted.decide)(Decision::Commit);
                }
                Kind::Stop => {
                    let stop = connection.read_control::<v1::Stop>(&header).await?;
                    (enlisted.decide)(decode_stop(stop)?);
                    return Ok(released());
                }
                Kind::Release => {
                    connection.read_control::<()>(&header).await?;
                    return Ok(released());
                }
                kind => return Err(ConnectionError::Unexpected(kind)),
            },
        }
    }
}
