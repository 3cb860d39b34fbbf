use std::collections::VecDeque;
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hoplite_core::collective::{Block, Stream};
use hoplite_core::plan::lanes::Supply;
use tokio::time::timeout;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::super::collective::Exchange;
use super::super::connection::{ConnectionError, PeerConnection};
use super::super::keepalive::Awaited;
use super::super::serving::{Ending, Served};

/// Time limit to send the rest of a block whose copy fails. The `End` after the block has the
/// reason.
const LAST_BLOCK_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(in super::super) enum Content {
    Copy(Served),
    Hop(Served),
    ProgramBlocks(ProgramBlocks),
}

/// Blocks of a collective for one member.
#[derive(Debug)]
pub(in super::super) struct ProgramBlocks {
    target: Served,
    exchange: Arc<Exchange>,
    /// Blocks that the stream's connections have taken, in order; `true` if a block was sent.
    claimed: Mutex<VecDeque<(Block, bool)>>,
    _sending: TaskTrackerToken,
}

#[derive(Debug)]
pub(in super::super) struct Cursor {
    /// First byte that no connection has taken.
    pub(super) next_bytes: u64,
    pub(super) end_bytes: u64,
    program: Option<Stream>,
}

#[derive(Debug)]
pub(super) struct Piece {
    pub(super) range: Range<u64>,
    block: Option<Block>,
}

impl Cursor {
    pub(in super::super) const fn of_copy(part: Range<u64>) -> Self {
        Self { next_bytes: part.start, end_bytes: part.end, program: None }
    }

    pub(in super::super) fn of_program(program: Stream) -> Self {
        let next_bytes = program.position_bytes();
        Self { next_bytes, end_bytes: next_bytes + program.left_bytes(), program: Some(program) }
    }

    pub(in super::super) const fn left_bytes(&self) -> u64 {
        self.end_bytes - self.next_bytes
    }
}

impl ProgramBlocks {
    pub(in super::super) fn new(
        target: Served,
        exchange: Arc<Exchange>,
        sending_token: TaskTrackerToken,
    ) -> Self {
        Self { target, exchange, claimed: Mutex::default(), _sending: sending_token }
    }

    async fn ready(&self, block: &Block) -> Result<(), Ending> {
        let is_ready = tokio::select! {
            ready = self.exchange.wait_until_ready(block) => ready.is_ok(),
            () = self.exchange.ended() => false,
            () = self.target.failed() => false,
        };
        if is_ready { Ok(()) } else { Err(Ending::NoCopy) }
    }

    async fn send(
        &self,
        connection: &mut PeerConnection,
        block: &Block,
    ) -> Result<(), ConnectionError> {
        let (origin, range) = self.exchange.origin(block, &self.target);
        let sending = connection.write_part(block.position_bytes, range, origin.buffer());
        tokio::select! {
            biased;
            sent = sending => sent?,
            () = self.exchange.ended() => return Err(ConnectionError::Closed),
        }
        // A block counts as sent only after all blocks before it.
        let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, is_sent)) = claimed.iter_mut().find(|(claimed, _)| claimed == block) {
            *is_sent = true;
        }
        while let Some((sent, true)) = claimed.front() {
            self.exchange.sent(sent);
            claimed.pop_front();
        }
        Ok(())
    }
}

impl Content {
    pub(super) fn supply(&self, cursor: &Cursor) -> Supply {
        match self {
            Self::Copy(served) if served.valid_bytes() >= cursor.end_bytes => Supply::Whole,
            _ => Supply::Chain,
        }
    }

    /// `false` for the output of a partial reduce, whose receiver also waits for other inputs.
    pub(super) const fn measures_link(&self) -> bool {
        !matches!(self, Self::Hop(_))
    }

    pub(super) fn awaited(&self) -> Awaited<'_> {
        match self {
            Self::Copy(served) | Self::Hop(served) => Awaited::Copy(served),
            Self::ProgramBlocks(_) => Awaited::Producer,
        }
    }

    /// Waits for the next bytes to send: at most `most_bytes` of a collective, or all available
    /// bytes of a copy.
    pub(super) async fn ready(&self, cursor: &Cursor, most_bytes: u64) -> Result<Piece, Ending> {
        let start = cursor.next_bytes;
        match self {
            Self::Copy(served) | Self::Hop(served) => {
                match served.beyond_within(start, cursor.end_bytes).await {
                    Err(_) => Err(Ending::NoCopy),
                    Ok(valid_bytes) if valid_bytes <= start => Err(Ending::Complete),
                    Ok(valid_bytes) => Ok(Piece { range: start..valid_bytes, block: None }),
                }
            }
            Self::ProgramBlocks(blocks) => {
                let next = cursor.program.as_ref().and_then(|program| program.next(most_bytes));
                let Some(block) = next else { return Err(Ending::Complete) };
                blocks.ready(&block).await?;
                Ok(Piece { range: start..start + block.length_bytes(), block: Some(block) })
            }
        }
    }

    pub(super) fn claim(&self, cursor: &mut Cursor, piece: Piece, most_bytes: u64) -> Piece {
        let Range { start, end } = piece.range;
        let length_bytes = most_bytes.min(end - start);
        let block = cursor.program.as_ref().and_then(|program| program.next(length_bytes));
        if let (Self::ProgramBlocks(blocks), Some(block), Some(program)) =
            (self, &block, &mut cursor.program)
        {
            program.skip(block);
            let mut claimed = blocks.claimed.lock().unwrap_or_else(PoisonError::into_inner);
            claimed.push_back((block.clone(), false));
        }
        cursor.next_bytes = start + length_bytes;
        Piece { range: start..cursor.next_bytes, block }
    }

    pub(super) async fn send(
        &self,
        connection: &mut PeerConnection,
        piece: &Piece,
    ) -> Result<(), ConnectionError> {
        match (self, &piece.block) {
            (Self::ProgramBlocks(blocks), Some(block)) => blocks.send(connection, block).await,
            (Self::ProgramBlocks(_), None) => Err(ConnectionError::Closed),
            (Self::Copy(served) | Self::Hop(served), _) => {
                send_block(connection, served, piece.range.clone()).await
            }
        }
    }
}

async fn send_block(
    connection: &mut PeerConnection,
    served: &Served,
    range: Range<u64>,
) -> Result<(), ConnectionError> {
    let mut sending = pin!(connection.write_block(range, served.buffer()));
    tokio::select! {
        biased;
        sent = &mut sending => return sent,
        () = served.failed() => {}
    }
    let limit = LAST_BLOCK_TIMEOUT;
    timeout(limit, sending).await.map_err(|_| ConnectionError::Idle(limit))?
}
