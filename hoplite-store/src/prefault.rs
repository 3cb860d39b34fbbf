//! Touches the arena's pages in the background, because the first write to a page costs far more
//! than later writes.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hoplite_shm::Arena;
use tokio_util::sync::CancellationToken;

/// Touches all pages on a separate thread until `stop`. Counts the touched bytes in `done_bytes`.
///
/// # Errors
/// The system lacks promised memory: a put or get that touched it would kill its process (SIGBUS).
pub(crate) async fn prefault(
    arena: Arc<Arena>,
    done_bytes: Arc<AtomicU64>,
    stop: CancellationToken,
) -> Result<(), hoplite_shm::Error> {
    let started = Instant::now();
    let touched = tokio::task::spawn_blocking(move || {
        arena.prefault(|bytes| {
            done_bytes.store(bytes, Ordering::Relaxed);
            if stop.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    })
    .await;
    let seconds = started.elapsed().as_secs_f64();
    match touched {
        Ok(Ok(())) => tracing::info!(seconds, "the arena's pages are touched"),
        Ok(Err(error @ hoplite_shm::Error::NotEnoughMemory { .. })) => return Err(error),
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot touch the arena's pages in advance; puts will touch them")
        }
        Err(error) => tracing::warn!(%error, "the task that touches the arena's pages ended"),
    }
    Ok(())
}
