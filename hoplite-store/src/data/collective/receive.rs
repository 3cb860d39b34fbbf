use std::ops::Range;

use futures::future::try_join_all;
use hoplite_core::collective::{BadBlock, Block, Break, Member, Resumes};
use hoplite_core::merge::LaneId;
use hoplite_core::node::CombineOutcome;
use hoplite_core::plan::collective::ReceiveMode;
use hoplite_core::plan::lanes::lane_limit;
use hoplite_core::plan::link::RateSample;
use hoplite_core::shard::PullOutcome;
use hoplite_daemon::warn_repeated;
use hoplite_proto::data::frame::{Header, Kind};
use hoplite_proto::data::lanes::encode_max_lanes;
use hoplite_proto::data::{Take, encode_take};
use hoplite_proto::{trace, v1};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::super::call::{Call, CallError};
use super::super::connection::ConnectionError;
use super::super::lanes::{Event, Incoming};
use super::super::metrics::count;
use super::super::puller::Puller;
use super::exchange::Exchange;
use crate::copies::LiveCopy;

/// The next stream of an all-to-all begins when a stream still misses this number of bytes, to hide
/// a round trip. Streams take turns, so that each link serves one pair of members.
const NEXT_BEGINS_BYTES: u64 = 64 << 10;

#[derive(Debug, thiserror::Error)]
enum ReceiveError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("one of several connections broke, or one of several routes")]
    LaneBroke,
    #[error("the peer has nothing to give")]
    NothingToSend,
    #[error("the member's own source is lost")]
    SourceLost,
}

impl From<BadBlock> for ReceiveError {
    fn from(bad: BadBlock) -> Self {
        ConnectionError::Nonsense(bad.reason()).into()
    }
}

impl ReceiveError {
    const fn cause(&self) -> Break {
        match self {
            Self::SourceLost => Break::SourceLost,
            Self::Connection(ConnectionError::Idle(_))
            | Self::Call(
                CallError::Connect(ConnectionError::Idle(_))
                | CallError::Connection(ConnectionError::Idle(_)),
            ) => Break::Silent,
            Self::NothingToSend => Break::NothingToSend,
            Self::Call(_) | Self::Connection(_) | Self::LaneBroke => Break::Broken,
        }
    }
}

impl Puller {
    /// Performs this member's part until `target` is complete, and calls `filled`. Then sends to
    /// other members until they are complete, or until `cancel`. Afterwards no stream reads this
    /// member's sources.
    pub(crate) async fn exchange(
        &self,
        exchange: &Exchange,
        target: &LiveCopy,
        cancel: &CancellationToken,
        filled: impl FnOnce() + Send,
    ) -> CombineOutcome {
        let received = cancel.run_until_cancelled(self.receive_all(exchange, target)).await;
        let outcome = match received {
            Some(Ok(())) => {
                let plan = exchange.plan();
                if !plan.properties().awaits_commit {
                    target.advance(target.size_bytes());
                }
                filled();
                exchange.finish(cancel).await;
                return CombineOutcome::Complete;
            }
            Some(Err((index, outcome))) => CombineOutcome::InputFailed { index, outcome },
            None => CombineOutcome::Cancelled,
        };
        let now = CancellationToken::new();
        now.cancel();
        exchange.finish(&now).await;
        outcome
    }

    async fn receive_all(
        &self,
        exchange: &Exchange,
        target: &LiveCopy,
    ) -> Result<(), (usize, PullOutcome)> {
        let own = exchange.plan().index;
        let fold =
            async { exchange.fold(target).await.map_err(|_| (own, PullOutcome::SenderHasNoCopy)) };
        let senders = exchange.senders();
        let plan = exchange.plan();
        let turns = plan.properties().is_paired.then(|| Semaphore::new(1));
        let receives = senders.into_iter().map(async |from| {
            if from == own {
                let copied = exchange.copy_own(target).await;
                return copied.map_err(|_| (own, PullOutcome::SenderHasNoCopy));
            }
            let turn = match &turns {
                Some(turns) => turns.acquire().await.ok(),
                None => None,
            };
            self.receive_from(exchange, target, from, turn).await.map_err(|outcome| (from, outcome))
        });
        tokio::try_join!(fold, try_join_all(receives)).map(drop)
    }

    /// Receives one member's bytes. If the stream breaks, releases `turn` to the next stream, and
    /// requests missing bytes again. Also releases `turn` near the end.
    async fn receive_from(
        &self,
        exchange: &Exchange,
        target: &LiveCopy,
        from: usize,
        mut turn: Option<SemaphorePermit<'_>>,
    ) -> Result<(), PullOutcome> {
        let member = &exchange.plan().members[from];
        let mut resumes = Resumes::new(self.now());
        loop {
            let error = match self.receive_stream(exchange, target, from, turn.take()).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let received_bytes = exchange.stream_from(from).position_bytes();
            let (id, node) = (&exchange.plan().target, &member.node);
            warn_repeated!(%id, peer = %node, %error, received_bytes, "a stream of an attempt broke");
            match resumes.broke(self.now(), received_bytes, error.cause()) {
                Some(pause) => sleep(pause).await,
                None => return Err(self.outcome_of(exchange, member, error)),
            }
        }
    }

    fn outcome_of(&self, exchange: &Exchange, member: &Member, error: ReceiveError) -> PullOutcome {
        let id = &exchange.plan().target;
        match error {
            ReceiveError::Call(error) => self.outcome(id, &member.node, &error),
            ReceiveError::Connection(error) => self.outcome(id, &member.node, &error.into()),
            ReceiveError::LaneBroke => PullOutcome::SenderUnreachable,
            ReceiveError::NothingToSend | ReceiveError::SourceLost => PullOutcome::SenderHasNoCopy,
        }
    }

    async fn receive_stream(
        &self,
        exchange: &Exchange,
        target: &LiveCopy,
        from: usize,
        mut turn: Option<SemaphorePermit<'_>>,
    ) -> Result<(), ReceiveError> {
        let plan = exchange.plan();
        let mut stream = exchange.stream_from(from);
        let request = Take {
            target: plan.target.clone(),
            put: plan.put,
            index: plan.index,
            offset_bytes: stream.position_bytes(),
        };
        let member = &plan.members[from];
        let peer = (member.node.clone(), member.address);
        count(&self.metrics.pulls, 1);
        let end_bytes = stream.position_bytes() + stream.left_bytes();
        let max_lanes = lane_limit(self.config.max_lanes, stream.left_bytes());
        let request = v1::Take {
            trace: trace::encode(exchange.trace()),
            max_lanes: encode_max_lanes(max_lanes),
            ..encode_take(&request)
        };
        let call = Call::begin(self, peer.clone(), Kind::Take, &request).await?;
        let mut lanes = Incoming::new(self, peer, call, max_lanes);
        let mut sample = RateSample::default();
        let mut received = Vec::new();
        while !stream.is_over() {
            turn.take_if(|_| stream.left_bytes() < NEXT_BEGINS_BYTES);
            let (lane, header) = next_block(&mut lanes, stream.position_bytes()..end_bytes).await?;
            let block = stream.check(header.offset_bytes(), u64::from(header.length_bytes()))?;
            let taken = self.receive_block(
                exchange,
                target,
                &block,
                (&mut lanes, lane),
                &header,
                &mut received,
            );
            if let Err(error) = taken.await {
                let ReceiveError::Connection(error) = error else { return Err(error) };
                lanes.lost(lane, error.into())?;
                return Err(ReceiveError::LaneBroke);
            }
            lanes.consumed(lane);
            exchange.done(&mut stream, &block);
            count(&self.metrics.received_bytes, block.length_bytes());
            sample.arrived(self.now(), block.length_bytes());
            target.advance(exchange.final_bytes());
        }
        self.transferred(sample);
        lanes.finish_silent(end_bytes).await;
        Ok(())
    }

    async fn receive_block(
        &self,
        exchange: &Exchange,
        target: &LiveCopy,
        block: &Block,
        (lanes, lane): (&mut Incoming<'_>, LaneId),
        header: &Header,
        received: &mut Vec<u8>,
    ) -> Result<(), ReceiveError> {
        match block.mode {
            Some(ReceiveMode::Replace) => {
                exchange.wait_until_ready(block).await.map_err(|_| ReceiveError::SourceLost)?;
                lanes.resume();
                lanes
                    .connection(lane)?
                    .read_block(header, target.buffer(), block.range.start)
                    .await?;
            }
            Some(ReceiveMode::Combine) => {
                // Reads the block before it waits for the sources, so that the sender can continue.
                received.resize(header.length_bytes() as usize, 0);
                lanes.connection(lane)?.read_payload(header, received).await?;
                exchange.wait_until_ready(block).await.map_err(|_| ReceiveError::SourceLost)?;
                lanes.resume();
                exchange.combine_into(block, target, received);
            }
            None => return Err(ReceiveError::NothingToSend),
        }
        Ok(())
    }
}

/// Block at the start of `missing`. Skips keepalives.
async fn next_block(
    lanes: &mut Incoming<'_>,
    missing: Range<u64>,
) -> Result<(LaneId, Header), ReceiveError> {
    loop {
        match lanes.next(missing.start, missing.end).await? {
            Event::Block(lane, header) => return Ok((lane, header)),
            Event::Sign(_) => {}
            Event::Lost(_) => return Err(ConnectionError::Closed.into()),
            Event::End(_) => return Err(ReceiveError::NothingToSend),
        }
    }
}
