//! The thread for what many small calls wait for: the local plane, and the sessions with the directory.
//!
//! A get of a small object passes from the socket of a client to the session with a shard and back. On one thread that takes
//! no switch to another one. Pulls of small objects run here too. Other pulls, combinations and whatever else moves bytes run on the threads of the main runtime: calls of
//! clients must not wait behind them.

use std::future::Future;
use std::io;
use std::thread;

use tokio::runtime::{Builder, EnterGuard, Handle};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct ControlThread {
    runtime: Handle,
    tasks: TaskTracker,
}

impl ControlThread {
    /// Starts the thread. It ends when those of its `tasks` have ended that were started before `stop`.
    pub(crate) fn start(stop: CancellationToken) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, tasks) = (runtime.handle().clone(), TaskTracker::new());
        let own_tasks = tasks.clone();
        thread::Builder::new().name("control".to_owned()).spawn(move || {
            runtime.block_on(async {
                stop.cancelled().await;
                own_tasks.close();
                own_tasks.wait().await;
            });
        })?;
        Ok(Self { runtime: handle, tasks })
    }

    /// Runs `task` on the thread.
    pub(crate) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.tasks.spawn_on(task, &self.runtime)
    }

    /// Its runtime.
    pub(crate) const fn handle(&self) -> &Handle {
        &self.runtime
    }

    /// What is made while the guard lives, and starts tasks, starts them on the thread.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// Ends when its tasks have ended.
    pub(crate) async fn ended(&self) {
        self.tasks.wait().await;
    }
}
