//! The times for which stores wait for each other.

use std::time::Duration;

pub use crate::session::CONNECT_TIMEOUT;
pub use crate::stall::STALL_TIMEOUT;

/// The time for an introduction: as long as a later silence.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval of an idle store's keepalives, several per [`SILENCE_TIMEOUT`].
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// A sender's longest silence. A busy host misses some keepalives.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which a receiver may accept no bytes. It may combine slowly, so this is several
/// times [`SILENCE_TIMEOUT`].
pub const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait of a hop or a member for room. A hop's consumer can replace it, and members can
/// take the general path.
pub const ROOM_TIMEOUT: Duration = Duration::from_secs(2);
/// The wait for a peer without a plan, which may wait for room, then be silent.
pub const PLAN_TIMEOUT: Duration = ROOM_TIMEOUT.saturating_add(SILENCE_TIMEOUT);

/// Returns the wait for a peer after it gave `taken_bytes`. One that gave bytes had a plan; without
/// one, it has restarted and gets none.
pub const fn plan_timeout(taken_bytes: u64) -> Duration {
    if taken_bytes == 0 { PLAN_TIMEOUT } else { RELEASE_TIMEOUT }
}

/// The wait for the last message of a complete transfer. Without it, only the connection is lost.
pub const LAST_WORD_TIMEOUT: Duration = Duration::from_millis(100);
/// The time to confirm the release of a hop or member. After it, closing the connection has the
/// same effect.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which a receiver keeps an idle connection.
pub const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which a sender keeps one: longer, so that the receiver usually closes it.
pub const SERVER_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns when a sender passes on a producer's sign: a quarter of the interval, so that the end of
/// a long chain hears it in time.
pub fn news_interval(keepalive_interval: Duration) -> Duration {
    keepalive_interval / 4
}
