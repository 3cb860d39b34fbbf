//! Connections that cannot be accepted.

use std::time::Duration;

/// How long to wait after a failed accept: usually no file descriptors are left, and trying at once is no use.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
