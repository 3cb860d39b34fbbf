//! The times for which one store waits for another.

use std::time::Duration;

pub use crate::session::CONNECT_TIMEOUT;
pub use crate::stall::STALL_TIMEOUT;

/// The time that a peer may take to introduce itself: as long as it may be silent later.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval of keepalives of a store that has nothing to send. Several fit into
/// [`SILENCE_TIMEOUT`].
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The longest silence of a sender. A busy host misses some keepalives.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which a receiver may accept no bytes. It may combine slowly, so this is several
/// times [`SILENCE_TIMEOUT`].
pub const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest time that a hop or a member of a collective waits for room. The consumer of a hop
/// can replace it, and all members can take the general path.
pub const ROOM_TIMEOUT: Duration = Duration::from_secs(2);
/// The time that a member waits for a peer without a plan. The peer may wait for room, and be
/// silent before the coordinator takes it for gone.
pub const PLAN_TIMEOUT: Duration = ROOM_TIMEOUT.saturating_add(SILENCE_TIMEOUT);

/// Returns the time that a member waits for a peer after it took `taken_bytes` from it. A peer that
/// has given bytes had a plan. If it has none now, it has restarted and gets none.
pub const fn plan_timeout(taken_bytes: u64) -> Duration {
    if taken_bytes == 0 { PLAN_TIMEOUT } else { RELEASE_TIMEOUT }
}

/// The time to wait for the last message of a transfer with all bytes. Without it, only the
/// connection is lost.
pub const LAST_WORD_TIMEOUT: Duration = Duration::from_millis(100);
/// The time that a host may take to confirm that it released a hop or left a collective. Without
/// the confirmation the connection is closed, which has the same effect.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for which a receiver keeps an idle connection.
pub const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for which a sender keeps an idle connection: longer than the receiver, which therefore
/// usually closes it.
pub const SERVER_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the time after which a sender passes on a new sign of a producer: a quarter of the
/// interval, so that the end of a long chain of relays hears it in time.
pub fn news_interval(keepalive_interval: Duration) -> Duration {
    keepalive_interval / 4
}
