//! Returns memory to the system after a peak, which the allocator of the C library does only for the end of its heap.

use std::fs;
use std::time::Duration;

use hoplite_shm::{give_back_free_pages, kept_bytes};

/// How often the memory is looked at.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long until the next look, at most, after looks that were of no use.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// A daemon with less private memory is left alone.
const SMALL_BYTES: u64 = 32 << 20;
/// So much may be kept, and a quarter of what is resident: it is used again soon.
const KEPT_BYTES: u64 = 16 << 20;

/// Looks at the memory of this process for ever, and returns what is free.
pub(crate) async fn return_memory() {
    let mut interval = INTERVAL;
    loop {
        tokio::time::sleep(interval).await;
        let looked = tokio::task::spawn_blocking(look).await;
        interval = match looked {
            Ok(Look::Useless) => (interval * 2).min(MAX_INTERVAL),
            Ok(Look::Little | Look::Returned) => INTERVAL,
            Err(_) => return,
        };
    }
}

/// What came of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Little is kept.
    Little,
    /// Memory was returned.
    Returned,
    /// Much is kept, in pieces smaller than a page.
    Useless,
}

fn look() -> Look {
    let before = private_bytes();
    if before < SMALL_BYTES || kept_bytes(before) < KEPT_BYTES.max(before / 4) {
        return Look::Little;
    }
    give_back_free_pages();
    let returned_bytes = before.saturating_sub(private_bytes());
    tracing::debug!(before, returned_bytes, "returned memory to the system");
    if returned_bytes > KEPT_BYTES / 2 { Look::Returned } else { Look::Useless }
}

/// The memory of this process that is resident and its own.
fn private_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = pages.split_whitespace().skip(1).map_while(|pages| pages.parse::<u64>().ok());
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_env = "gnu")]
    fn memory_that_is_freed_is_returned() {
        let fill = || (0..40_000).map(|_| vec![7_u8; 4000]).collect::<Vec<_>>();
        let mut pieces = fill();
        assert!(kept_bytes(private_bytes()) < 64 << 20);
        // One of sixteen stays: the heap has no free end.
        let mut number = 0;
        pieces.retain(|_| {
            number += 1;
            number % 16 == 0
        });
        assert!(kept_bytes(private_bytes()) > 100 << 20);
        let before = private_bytes();
        assert_eq!(look(), Look::Returned);
        assert!(before - private_bytes() > 64 << 20);
        drop(pieces);
    }
}
