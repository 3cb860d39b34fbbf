use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const LEAST_STRIDE_BYTES: u64 = 1 << 20;
const STRIDES: u64 = 128;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Progress>>> = const { RefCell::new(None) };
}

/// Bytes that calls have moved and will move.
#[derive(Debug, Default)]
pub struct Progress {
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
}

impl Progress {
    /// Bytes written or arrived. Falls only if a call makes or reads an object again.
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// Size of all objects that calls have begun to move.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes.load(Ordering::Relaxed)
    }
}

/// Counts in `progress` the bytes that `future`'s calls move, on any thread: bytes that puts copy,
/// that arrive or are copied out for gets, and that a reduce's target has on this node. Cancel safe
/// if `future` is.
pub async fn tracked<F: Future>(progress: Arc<Progress>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let outer = CURRENT.replace(Some(Arc::clone(&progress)));
        let polled = future.as_mut().poll(context);
        CURRENT.set(outer);
        polled
    })
    .await
}

pub(crate) fn is_tracked() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

#[derive(Debug, Default)]
pub(crate) struct Part {
    progress: Option<Arc<Progress>>,
    total_bytes: u64,
    done_bytes: u64,
}

impl Part {
    pub(crate) fn reaches(&mut self, done_bytes: u64, total_bytes: u64) {
        if self.progress.is_none() {
            self.progress = CURRENT.with_borrow(Option::clone);
            self.total_bytes = total_bytes;
            if let Some(progress) = &self.progress {
                progress.total_bytes.fetch_add(total_bytes, Ordering::Relaxed);
            }
        }
        let Some(progress) = &self.progress else { return };
        let more_bytes = done_bytes.min(self.total_bytes).saturating_sub(self.done_bytes);
        progress.done_bytes.fetch_add(more_bytes, Ordering::Relaxed);
        self.done_bytes += more_bytes;
    }

    pub(crate) fn next_bytes(valid_bytes: u64, total_bytes: u64) -> u64 {
        if !is_tracked() {
            return total_bytes;
        }
        let stride_bytes = (total_bytes / STRIDES).max(LEAST_STRIDE_BYTES);
        valid_bytes.saturating_add(stride_bytes).min(total_bytes)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(progress) = &self.progress
            && self.done_bytes < self.total_bytes
        {
            progress.total_bytes.fetch_sub(self.total_bytes, Ordering::Relaxed);
            progress.done_bytes.fetch_sub(self.done_bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(progress: &Progress) -> (u64, u64) {
        (progress.done_bytes(), progress.total_bytes())
    }

    #[tokio::test]
    async fn parts_add_up_while_they_are_tracked() {
        let progress = Arc::new(Progress::default());
        let mut untracked = Part::default();
        untracked.reaches(1, 10);
        let kept = tracked(Arc::clone(&progress), async {
            let (mut first, mut second) = (Part::default(), Part::default());
            first.reaches(10, 100);
            tokio::task::yield_now().await;
            second.reaches(5, 50);
            first.reaches(30, 100);
            assert_eq!(counts(&progress), (35, 150));
            second.reaches(50, 50);
            drop(second);
            first
        })
        .await;
        assert!(!is_tracked());
        assert_eq!(counts(&progress), (80, 150));
        drop(kept);
        assert_eq!(
            counts(&progress),
            (50, 50),
            "an object that was not moved to its end does not count"
        );
    }

    #[tokio::test]
    async fn an_object_that_is_waited_for_is_counted_in_strides() {
        assert_eq!(Part::next_bytes(0, 1 << 30), 1 << 30);
        let strides = async {
            let large = Part::next_bytes(1 << 20, 1 << 30);
            (large, Part::next_bytes(0, 100), Part::next_bytes((1 << 30) - 1, 1 << 30))
        };
        let strides = tracked(Arc::default(), strides).await;
        assert_eq!(strides, ((1 << 20) + (8 << 20), 100, 1 << 30));
    }
}
