//! Timeouts between stores.

use std::time::Duration;

pub use crate::session::CONNECT_TIMEOUT;
pub use crate::stall::STALL_TIMEOUT;

/// The timeout of a handshake between stores, as long as [`SILENCE_TIMEOUT`].
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval at which a store without other messages sends keepalives, several per
/// [`SILENCE_TIMEOUT`].
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The silence after which a receiver gives up a sender, several keepalives long because a busy
/// host misses some.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a sender gives up a receiver that accepts no bytes. This is several times
/// [`SILENCE_TIMEOUT`], because a receiver may combine slowly.
pub const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time for which a reduce's hop or a collective's member waits for memory. A hop's
/// consumer can replace the hop, and members can take the general path.
pub const ROOM_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which a member of a collective waits for a peer without a plan. The peer may wait for
/// memory, then be silent.
pub const PLAN_TIMEOUT: Duration = ROOM_TIMEOUT.saturating_add(SILENCE_TIMEOUT);

/// Returns the time for which a member waits for a plan of a peer that sent `taken_bytes`. A peer
/// that sent bytes and has no plan has restarted, and gets none.
pub const fn plan_timeout(taken_bytes: u64) -> Duration {
    if taken_bytes == 0 { PLAN_TIMEOUT } else { RELEASE_TIMEOUT }
}

/// Time for which a receiver waits for the last message of a complete transfer. Without it, only
/// the connection is lost.
pub const FINAL_FRAMES_TIMEOUT: Duration = Duration::from_millis(100);
/// Time for which a coordinator waits until a node that combines for it, or a member, confirms its
/// release. Afterwards, closing the connection has the same effect.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which a receiver keeps an idle connection to a sender.
pub const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which a sender keeps an idle connection: longer, so that the receiver usually closes
/// it.
pub const SERVER_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the time within which a sender passes on a producer's sign of life: a quarter of the
/// interval, so that the end of a long chain hears it in time.
pub fn news_interval(keepalive_interval: Duration) -> Duration {
    keepalive_interval / 4
}
