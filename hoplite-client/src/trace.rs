//! Sends a call's trace to the store, in the format of W3C Trace Context.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::OnceLock;

use hoplite_core::TraceContext;

thread_local! {
    static CURRENT: Cell<Option<TraceContext>> = const { Cell::new(None) };
}

fn inherited() -> Option<TraceContext> {
    static INHERITED: OnceLock<Option<TraceContext>> = OnceLock::new();
    *INHERITED.get_or_init(|| std::env::var("TRACEPARENT").ok()?.parse().ok())
}

pub(crate) fn current() -> Option<TraceContext> {
    CURRENT.get().or_else(inherited)
}

/// Makes the calls of this thread in `trace` until the result is dropped. `None` stands for
/// `TRACEPARENT` in the environment.
///
/// ```
/// # fn example(client: &hoplite_client::blocking::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let span = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse()?;
/// let traced = hoplite_client::enter_trace(Some(span));
/// let view = client.get("weights", std::time::Duration::from_secs(5))?;
/// drop(traced);
/// # Ok(())
/// # }
/// ```
#[must_use = "the trace is left when this is dropped"]
pub fn enter_trace(trace: Option<TraceContext>) -> EnteredTrace {
    EnteredTrace { previous: CURRENT.replace(trace), not_send: std::marker::PhantomData }
}

/// Guard of [`enter_trace`]: leaves the trace when dropped.
#[derive(Debug)]
pub struct EnteredTrace {
    previous: Option<TraceContext>,
    not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for EnteredTrace {
    fn drop(&mut self) {
        CURRENT.set(self.previous);
    }
}

/// Makes the calls of `future` in `trace`, on any thread. Cancel safe if `future` is.
pub async fn traced<F: Future>(trace: TraceContext, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let _entered = enter_trace(Some(trace));
        future.as_mut().poll(context)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_trace_is_left_where_it_was_entered() {
        let span = |last| TraceContext::new([1; 16], [last; 8], true);
        let outer = enter_trace(span(1));
        let seen = traced(span(2).unwrap(), async {
            let before = current();
            tokio::task::yield_now().await;
            (before, current())
        });
        assert_eq!(seen.await, (span(2), span(2)));
        {
            let _inner = enter_trace(span(3));
            assert_eq!(current(), span(3));
        }
        assert_eq!(current(), span(1));
        drop(outer);
        assert_eq!(current(), inherited());
    }
}
