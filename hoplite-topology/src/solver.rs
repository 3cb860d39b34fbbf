//! An external SMT solver, if there is one: it may prove that an order is best, or find a better one.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::smt::{Answer, answer, question};
use crate::{Error, Model};
use hoplite_core::topology::Links;

/// A model has a line for each of at most a few hundred names.
const MAX_ANSWER_BYTES: u64 = 1 << 20;
/// A solver that is told to end may take so long to do it.
const GRACE: Duration = Duration::from_secs(1);
/// How often it is looked at.
const POLL: Duration = Duration::from_millis(10);

/// The reason for which a solver gives no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SolverError {
    /// The program cannot be run.
    #[error("{}", path.display())]
    Program {
        /// The program.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The question cannot be asked, or the answer is none.
    #[error(transparent)]
    Question(#[from] Error),
}

/// Asks `program`, which understands z3's arguments, for an order that costs less than `below_ps`. It is told to end after `time`,
/// and ended a little later.
///
/// # Errors
/// [`SolverError`].
pub fn ask(
    program: &Path,
    links: Links<'_>,
    model: &Model,
    below_ps: u128,
    time: Duration,
) -> Result<Answer, SolverError> {
    let question = question(links, model, below_ps)?;
    let failed = |source| SolverError::Program { path: program.to_owned(), source };
    let text = run(program, question, time).map_err(failed)?;
    Ok(answer(&text, links.len())?)
}

fn run(program: &Path, question: String, time: Duration) -> io::Result<String> {
    let seconds = time.as_secs().max(1);
    let mut child = Command::new(program)
        .args(["-in".to_owned(), "-smt2".to_owned(), format!("-T:{seconds}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    // A solver that ends before it has read all of the question answers nonetheless, or has no answer.
    thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(question.as_bytes())));
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
