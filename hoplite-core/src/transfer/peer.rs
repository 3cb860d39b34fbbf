//! Timeouts between stores.

use std::time::Duration;

pub use crate::session::CONNECT_TIMEOUT;
pub use crate::stall::STALL_TIMEOUT;

/// Timeout of a handshake between stores.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which a store without other messages sends keepalives, several per
/// [`SILENCE_TIMEOUT`].
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Silence after which a receiver gives up a sender: several keepalives, because a busy host misses
/// some.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a sender gives up a receiver that accepts no bytes: several times
/// [`SILENCE_TIMEOUT`], because receivers may combine slowly.
pub const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait of a node for memory. Then its reduce replaces the node, or its allreduce becomes a
/// reduce and a broadcast.
pub const ROOM_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which a member waits for a peer to begin: the peer's longest wait for memory, then its
/// longest silence.
pub const PLAN_TIMEOUT: Duration = ROOM_TIMEOUT.saturating_add(SILENCE_TIMEOUT);

/// Returns the time for which a member waits for a peer to begin. A peer that sent `taken_bytes`
/// before has restarted, and will not begin.
pub const fn plan_timeout(taken_bytes: u64) -> Duration {
    if taken_bytes == 0 { PLAN_TIMEOUT } else { RELEASE_TIMEOUT }
}

/// Time for which a receiver with all bytes waits for the last message, before it gives up only the
/// connection.
pub const FINAL_FRAMES_TIMEOUT: Duration = Duration::from_millis(100);
/// Time for which a coordinator waits until a node confirms the end of its work, before it closes
/// the connection.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which a receiver keeps an idle connection to a sender.
pub const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which a sender keeps an idle connection: longer, so receivers usually close it.
pub const SERVER_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the time within which a sender forwards a producer's sign of life: a quarter of the
/// interval, because chains are long.
pub fn news_interval(keepalive_interval: Duration) -> Duration {
    keepalive_interval / 4
}
