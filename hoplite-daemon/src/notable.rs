use std::sync::atomic::{AtomicU64, Ordering};

/// Counts an event that any peer can cause. Returns `true` for events 1, 2, 4, 8 and so on: logging
/// these does not fill the disk.
pub fn is_notable(counter: &AtomicU64) -> bool {
    (counter.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two()
}
