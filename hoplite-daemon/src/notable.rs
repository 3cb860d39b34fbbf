//! Logging of troubles that strangers can cause.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts a trouble that anybody who reaches the port can cause; whether it is to be logged: the first, the second, the
/// fourth, and so on, so that nobody can fill the disk.
pub fn is_notable(counter: &AtomicU64) -> bool {
    (counter.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two()
}
