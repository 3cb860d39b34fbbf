use std::sync::Arc;

use hoplite_core::id::NodeId;
use hoplite_core::peer::plan_timeout;
use hoplite_core::trace::TraceContext;
use hoplite_proto::data::Take;
use hoplite_proto::data::frame::Kind;
use tokio::time::timeout;

use super::super::connection::{ConnectionError, PeerConnection};
use super::super::keepalive::Awaited;
use super::super::lanes::{Content, Cursor, ProgramBlocks};
use super::super::metrics::count;
use super::super::server::Server;
use super::super::serving::{Ending, HopHost, ServeRequest, ServeSource, Served, end_message};
use super::MemberHost;

impl<S: ServeSource + HopHost + MemberHost> Server<S> {
    /// Answers a member's request for blocks, which may arrive before the coordinator's plan.
    pub(in super::super) async fn answer_take(
        &self,
        connection: &mut PeerConnection,
        peer: &NodeId,
        take: &Take,
        (trace, max_lanes): (Option<TraceContext>, usize),
    ) -> Result<(), ConnectionError> {
        count(&self.metrics.serves, 1);
        let request = ServeRequest {
            peer: peer.clone(),
            id: take.target.clone(),
            put: take.put,
            awaits_hop: true,
            trace,
        };
        // If this store restarted after its enlistment, the plan may never arrive.
        let limit = plan_timeout(take.offset_bytes);
        let found =
            async { timeout(limit, self.source.serve(request)).await.ok().flatten()?.in_memory() };
        let served = self.keepalive(Awaited::Producer).during(connection, found).await?;
        let (ending, has_lanes) = match served {
            Some(served) => self.send_to_member(connection, peer, take, (served, max_lanes)).await,
            None => (Ok(Ending::NoCopy), false),
        };
        let (id, put, member) = (&take.target, take.put, take.index);
        match &ending {
            Ok(ending) => tracing::debug!(%id, %put, %peer, member, ?ending, "gave"),
            Err(error) => tracing::debug!(%id, %put, %peer, member, %error, "gave in part"),
        }
        match ending? {
            // The receiver knows the stream's length, and may already use the connection for
            // another request.
            Ending::Complete if !has_lanes => Ok(()),
            ending => connection.write_control(Kind::End, &end_message(ending)).await,
        }
    }

    /// Sends the stream. Returns `true` if this store requested lanes.
    async fn send_to_member(
        &self,
        connection: &mut PeerConnection,
        peer: &NodeId,
        take: &Take,
        (target, max_lanes): (Served, usize),
    ) -> (Result<Ending, ConnectionError>, bool) {
        let Some(exchange) = target.exchange().map(Arc::clone) else {
            return (Ok(Ending::NoCopy), false);
        };
        if !connection.carries(exchange.plan().most_bytes()) {
            return (Err(ConnectionError::Nonsense("this connection is for small objects")), false);
        }
        let is_member =
            exchange.plan().members.get(take.index).is_some_and(|member| member.node == *peer);
        let Some(sending) = exchange.begin_sending().filter(|_| is_member) else {
            return (Ok(Ending::NoCopy), false);
        };
        let cursor = Cursor::of_program(exchange.stream_to(take.index, take.offset_bytes));
        let content = Content::ProgramBlocks(ProgramBlocks::new(target, exchange, sending));
        self.send_stream(connection, peer, (content, cursor), max_lanes).await
    }
}
