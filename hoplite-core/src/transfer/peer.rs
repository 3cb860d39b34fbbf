//! How long one store waits for another.

use std::time::Duration;

pub use crate::session::CONNECT_TIMEOUT;
pub use crate::stall::STALL_TIMEOUT;

/// The time that a peer may take to say who it is: as long as it may be silent later.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a store that has nothing to send says that it is alive. Several fit into [`SILENCE_TIMEOUT`].
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The time that a sender may send nothing at all, not even that it is alive: a host that is busy misses some keepalives.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that a receiver may accept nothing at all while there is something to send to it: it may be combining slowly, so this
/// is several times as long as it may be silent.
pub const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The time that a hop or a member of a session waits for room, at most. The consumer of a hop can do without it, and all members without
/// a session.
pub const ROOM_TIMEOUT: Duration = Duration::from_secs(2);
/// The time that a member of a session waits for one that has no plan yet: as long as that may wait for room, and as long as it may
/// be silent before the coordinator takes it for gone.
pub const PLAN_TIMEOUT: Duration = ROOM_TIMEOUT.saturating_add(SILENCE_TIMEOUT);

/// Returns the time that a member is waited for, given how many bytes were taken from it before. One that has given something had its plan: if
/// it has none now, it was started anew, and will have none.
pub const fn plan_timeout(taken_bytes: u64) -> Duration {
    if taken_bytes == 0 { PLAN_TIMEOUT } else { RELEASE_TIMEOUT }
}

/// The time that the last word on a transfer may take whose bytes are all there. It comes right behind them; what is lost by not
/// waiting is a connection.
pub const LAST_WORD_TIMEOUT: Duration = Duration::from_millis(100);
/// The time that a host may take to confirm that it has released a hop, or left a session: many round trips. Without the
/// confirmation the connection is closed, which releases it as well.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time that a receiver keeps an idle connection.
pub const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The time that a sender keeps an idle connection: longer than the receiver, so that it is rarely the one that closes.
pub const SERVER_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How soon after it has said something a sender passes on a new sign of a producer: a quarter of the interval, so that the
/// last of a long chain of relays hears of it long before it gives up.
pub fn news_interval(keepalive_interval: Duration) -> Duration {
    keepalive_interval / 4
}
