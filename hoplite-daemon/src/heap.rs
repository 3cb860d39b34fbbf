//! Returns freed memory to the system: the C library returns only the end of its heap.

use std::fs;
use std::time::Duration;

use hoplite_shm::{free_heap_bytes, return_free_pages};

const INTERVAL: Duration = Duration::from_secs(5);
const SMALL_BYTES: u64 = 32 << 20;
/// Freed bytes that the allocator may keep, unless a quarter of the process's private memory is
/// more.
const MAX_FREE_BYTES: u64 = 16 << 20;

const MIN_RETURN_BYTES: u64 = 8 << 20;

pub(crate) async fn return_memory() {
    // Free bytes that share pages with used memory.
    let mut left_bytes = 0;
    loop {
        tokio::time::sleep(INTERVAL).await;
        match tokio::task::spawn_blocking(move || return_free_memory(left_bytes)).await {
            Ok(left) => left_bytes = left,
            Err(_) => return,
        }
    }
}

/// Returns memory to the system if far more than `left_bytes` are free. Returns the number of bytes
/// that stay free.
fn return_free_memory(left_bytes: u64) -> u64 {
    let before = private_bytes();
    if before < SMALL_BYTES {
        return 0;
    }
    let free_bytes = free_heap_bytes(before);
    if free_bytes < MAX_FREE_BYTES.max(before / 4) || free_bytes < left_bytes + MIN_RETURN_BYTES {
        return free_bytes.min(left_bytes);
    }
    return_free_pages();
    let after = private_bytes();
    tracing::debug!(before, after, "returned memory to the system");
    free_heap_bytes(after)
}

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
        assert!(free_heap_bytes(private_bytes()) < 64 << 20);
        // One piece in sixteen stays, so the heap has no free end.
        let mut number = 0;
        pieces.retain(|_| {
            number += 1;
            number % 16 == 0
        });
        assert!(free_heap_bytes(private_bytes()) > 100 << 20);
        let before = private_bytes();
        return_free_memory(0);
        assert!(before - private_bytes() > 64 << 20);
        drop(pieces);
    }
}
