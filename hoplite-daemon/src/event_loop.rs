use std::future::Future;
use std::os::fd::OwnedFd;
use std::{io, thread};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A thread with its own tokio runtime, for tasks that never compute long.
///
/// With several threads, waking a task also wakes a thread, which costs more than a small message.
#[derive(Debug, Clone)]
pub struct EventLoop {
    runtime: Handle,
    tasks: TaskTracker,
}

impl EventLoop {
    /// Starts the thread. After `stop`, it ends with its last task.
    ///
    /// # Errors
    /// System errors.
    pub fn start(name: &str, stop: CancellationToken) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let event_loop = Self { runtime: runtime.handle().clone(), tasks: TaskTracker::new() };
        let tasks = event_loop.tasks.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(async {
                stop.cancelled().await;
                tasks.close();
                tasks.wait().await;
            });
        })?;
        Ok(event_loop)
    }

    /// Starts a task on the thread; drops it after the thread's end.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.tasks.spawn_on(task, &self.runtime)
    }

    /// Runtime of the thread, which drops tasks spawned here when the thread ends.
    pub const fn handle(&self) -> &Handle {
        &self.runtime
    }

    /// Waits for `stop` and the end of all tasks.
    pub async fn ended(&self) {
        self.tasks.wait().await;
    }
}

/// Registers `fd` with the runtime of this task.
///
/// # Errors
/// System errors.
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe, for types that may close the descriptor; an OwnedFd does not"
    )]
    AsyncFd::with_interest(fd, interest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tasks_run_on_the_thread_and_are_waited_for() {
        let stop = CancellationToken::new();
        let event_loop = EventLoop::start("loop", stop.clone()).unwrap();
        let name =
            event_loop.spawn(async { thread::current().name().map(str::to_owned) }).await.unwrap();
        assert_eq!(name.as_deref(), Some("loop"));
        let last = event_loop.spawn({
            let stop = stop.clone();
            async move {
                stop.cancelled().await;
                tokio::task::yield_now().await;
                true
            }
        });
        stop.cancel();
        event_loop.ended().await;
        assert!(last.await.unwrap());
    }
}
