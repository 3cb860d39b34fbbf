//! Returns memory to the system after a peak, which the allocator of the C library does only for the end of its heap.

use std::fs;
use std::time::Duration;

use hoplite_shm::{give_back_free_pages, kept_bytes};

/// How often the memory is looked at.
const INTERVAL: Duration = Duration::from_secs(5);
/// A daemon with less private memory is left alone.
const SMALL_BYTES: u64 = 32 << 20;
/// So much may be kept, and a quarter of what is resident: it is used again soon.
const KEPT_BYTES: u64 = 16 << 20;

/// Free memory that pays the effort to return it.
const WORTHWHILE_BYTES: u64 = 8 << 20;

/// Looks at the memory of this process for ever, and returns what is free.
pub(crate) async fn return_memory() {
    // Free pieces that are smaller than a page cannot be returned; so much was left last time.
    let mut left_bytes = 0;
    loop {
        tokio::time::sleep(INTERVAL).await;
        match tokio::task::spawn_blocking(move || look(left_bytes)).await {
            Ok(left) => left_bytes = left,
            Err(_) => return,
        }
    }
}

/// Returns free memory to the system if much more than `left_bytes` is kept. Answers how much is kept afterwards.
fn look(left_bytes: u64) -> u64 {
    let before = private_bytes();
    if before < SMALL_BYTES {
        return 0;
    }
    let kept = kept_bytes(before);
    if kept < KEPT_BYTES.max(before / 4) || kept < left_bytes + WORTHWHILE_BYTES {
        return kept.min(left_bytes);
    }
    give_back_free_pages();
    let after = private_bytes();
    tracing::debug!(before, after, "returned memory to the system");
    kept_bytes(after)
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
        look(0);
        assert!(before - private_bytes() > 64 << 20);
        drop(pieces);
    }
}
