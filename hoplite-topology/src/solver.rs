//! Runs an external SMT solver, to prove or improve an order.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::smt::{Answer, answer, query};
use crate::{Error, Model};
use hoplite_core::topology::Links;

const MAX_ANSWER_BYTES: u64 = 1 << 20;
/// Time in which the solver must exit after the time limit.
const GRACE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(10);

/// Reason why a solver gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SolverError {
    /// The program cannot be run.
    #[error("{}", path.display())]
    Program {
        /// The program.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The query cannot be written, or the answer is invalid.
    #[error(transparent)]
    Question(#[from] Error),
}

/// Runs the solver `program`, which takes z3's arguments, to find an order that costs less than
/// `below_ps`. Kills it shortly after `time`.
///
/// # Errors
/// [`SolverError`].
pub fn solve(
    program: &Path,
    links: Links<'_>,
    model: &Model,
    below_ps: u128,
    time: Duration,
) -> Result<Answer, SolverError> {
    let query = query(links, model, below_ps)?;
    let failed = |source| SolverError::Program { path: program.to_owned(), source };
    let text = run(program, query, time).map_err(failed)?;
    Ok(answer(&text, links.len())?)
}

fn run(program: &Path, query: String, time: Duration) -> io::Result<String> {
    let seconds = time.as_secs().max(1);
    let mut child = Command::new(program)
        .args(["-in".to_owned(), "-smt2".to_owned(), format!("-T:{seconds}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    // A solver may exit before it has read all.
    thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(query.as_bytes())));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stdout.map(|stdout| stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut text));
        sender.send(text)
    });
    let end = Instant::now() + Duration::from_secs(seconds) + GRACE;
    while child.try_wait()?.is_none() {
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            break;
        }
        thread::sleep(POLL);
    }
    let text = receiver.recv_timeout(GRACE).unwrap_or_default();
    Ok(String::from_utf8_lossy(&text).into_owned())
}
