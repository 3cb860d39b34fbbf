//! The giving end of a stream between two members.

use hoplite_core::id::NodeId;
use hoplite_core::peer::plan_timeout;
use hoplite_core::plan::link::SAMPLE_INTERVAL;
use hoplite_core::trace::TraceContext;
use hoplite_proto::data::Take;
use hoplite_proto::data::frame::Kind;
use tokio::time::{Instant, timeout};

use super::super::connection::{ConnectionError, PeerConnection};
use super::super::keepalive::Awaited;
use super::super::metrics::count;
use super::super::server::Server;
use super::super::serving::{Ending, HopHost, ServeRequest, ServeSource, end_message};
use super::MemberHost;
use super::exchange::Exchange;
use crate::copies::LiveCopy;

impl<S: ServeSource + HopHost + MemberHost> Server<S> {
    /// Sends the bytes that this member's program gives to another member, whose request may come
    /// before the plan.
    pub(in super::super) async fn answer_take(
        &self,
        connection: &mut PeerConnection,
        peer: &NodeId,
        take: &Take,
        trace: Option<TraceContext>,
    ) -> Result<(), ConnectionError> {
        count(&self.metrics.serves, 1);
        let request = ServeRequest {
            peer: peer.clone(),
            id: take.target.clone(),
            put: take.put,
            awaits_hop: true,
            trace,
        };
        // The plan may never come: this store may have restarted after it was enlisted.
        let limit = plan_timeout(take.offset_bytes);
        let found = async { timeout(limit, self.source.serve(request)).await.ok().flatten() };
        let served = self.keepalive(Awaited::Producer).during(connection, found).await?;
        let ending = match served.as_ref().and_then(|served| served.exchange()) {
            Some(exchange) => {
                let served = served.as_deref().expect("its exchange was found");
                if !connection.carries(exchange.plan().most_bytes()) {
                    return Err(ConnectionError::Nonsense("this connection is for small objects"));
                }
                self.give(connection, peer, take, exchange, served).await
            }
            None => Ok(Ending::NoCopy),
        };
        let (id, put, member) = (&take.target, take.put, take.index);
        match &ending {
            Ok(ending) => tracing::debug!(%id, %put, %peer, member, ?ending, "gave"),
            Err(error) => tracing::debug!(%id, %put, %peer, member, %error, "gave in part"),
        }
        match ending? {
            // The taker knows the length of the stream, and may already use the connection for
            // another request.
            Ending::Complete => Ok(()),
            ending => connection.write_control(Kind::End, &end_message(ending)).await,
        }
    }

    async fn give(
        &self,
        connection: &mut PeerConnection,
        peer: &NodeId,
        take: &Take,
        exchange: &Exchange,
        target: &LiveCopy,
    ) -> Result<Ending, ConnectionError> {
        let is_member = exchange.plan().members.get(take.index).is_some_and(|member| member.node == *peer);
        let Some(_giving) = exchange.begin_giving().filter(|_| is_member) else { return Ok(Ending::NoCopy) };
        let keepalive = self.keepalive(Awaited::Producer);
        let mut sample_at = Instant::now() + SAMPLE_INTERVAL;
        let mut stream = exchange.stream_to(take.index, take.offset_bytes);
        while let Some(block) = stream.next(u64::MAX) {
            let ready = async {
                tokio::select! {
                    ready = exchange.may_do(&block) => ready.is_ok(),
                    () = exchange.ended() => false,
                    () = target.failed() => false,
                }
            };
            if !keepalive.during(connection, ready).await? {
                return Ok(Ending::NoCopy);
            }
            let (origin, range) = exchange.origin(&block, target);
            let sending = connection.write_part(block.position_bytes, range, origin.buffer());
            tokio::select! {
                biased;
                sent = sending => sent?,
                // A frame is cut short, so the connection cannot be used again.
                () = exchange.ended() => return Err(ConnectionError::Closed),
            }
            count(&self.metrics.sent_bytes, block.length_bytes());
            let now = Instant::now();
            if now >= sample_at {
                self.sample(&mut sample_at, now, peer, connection.delivery());
            }
            exchange.done(&mut stream, &block);
        }
        Ok(Ending::Complete)
    }
}
