//! Timeouts between stores.

use std::time::Duration;

pub use crate::session::CONNECT_TIMEOUT;
pub use crate::stall::STALL_TIMEOUT;

/// The timeout of a handshake between stores, as long as [`SILENCE_TIMEOUT`].
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval at which a store without other messages sends keepalives, several per
/// [`SILENCE_TIMEOUT`].
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The silence after which a receiver gives up a sender. A busy host misses some keepalives.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for which a receiver accepts no bytes before its sender gives up. A receiver may
/// combine slowly, so this is several times [`SILENCE_TIMEOUT`].
pub const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time for which a hop or a member waits for memory. A hop's consumer can replace it, and
/// members can take the general path.
pub const ROOM_TIMEOUT: Duration = Duration::from_secs(2);
/// The wait of a member for a peer without a plan, which may wait for memory, then be silent.
pub const PLAN_TIMEOUT: Duration = ROOM_TIMEOUT.saturating_add(SILENCE_TIMEOUT);

/// Returns the wait of a member for a peer that sent `taken_bytes`. A peer that sent bytes had a
/// plan. If it has none now, it has restarted and gets none.
pub const fn plan_timeout(taken_bytes: u64) -> Duration {
    if taken_bytes == 0 { PLAN_TIMEOUT } else { RELEASE_TIMEOUT }
}

/// The wait of a receiver for the last message of a complete transfer. Without it, only the
/// connection is lost.
pub const FINAL_FRAMES_TIMEOUT: Duration = Duration::from_millis(100);
/// Time for which a coordinator waits until a hop or member confirms its release. Afterwards,
/// closing the connection has the same effect.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which a receiver keeps an idle connection to a sender.
pub const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which a sender keeps an idle connection: longer, so that the receiver usually closes
/// it.
pub const SERVER_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the time within which a sender passes on a producer's sign: a quarter of the interval,
/// so that the end of a long chain hears it in time.
pub fn news_interval(keepalive_interval: Duration) -> Duration {
    keepalive_interval / 4
}
