use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use hoplite_core::load::{MAX_LOG_LINE_BYTES, MAX_LOG_LINES};
use hoplite_core::text::{cut, escape};

static LINES: Mutex<Lines> = Mutex::new(Lines(VecDeque::new()));

#[derive(Debug)]
struct Lines(VecDeque<String>);

impl Lines {
    fn add(&mut self, written: &str) {
        for line in written.lines().filter(|line| !line.trim().is_empty()) {
            if self.0.len() == MAX_LOG_LINES {
                self.0.pop_front();
            }
            self.0.push_back(plain(line));
        }
    }
}

pub(crate) fn remember(written: &[u8]) {
    let written = String::from_utf8_lossy(written);
    LINES.lock().unwrap_or_else(PoisonError::into_inner).add(&written);
}

/// Returns the log's latest lines, oldest first: at most [`MAX_LOG_LINES`] of at most
/// [`MAX_LOG_LINE_BYTES`].
pub fn recent_log_lines() -> Vec<String> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).0.iter().cloned().collect()
}

/// Drops colours and control characters, and cuts the line.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            characters.by_ref().find(char::is_ascii_alphabetic);
        } else {
            text.push(character);
        }
    }
    cut(escape(text.trim_end()), MAX_LOG_LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_are_plain_and_bounded() {
        let mut lines = Lines(VecDeque::new());
        lines.add("\x1b[2m2026\x1b[0m \x1b[32m INFO\x1b[0m id=\u{202e}x\n\n");
        assert_eq!(lines.0, [r"2026  INFO id=\u{202e}x"]);
        (0..100).for_each(|number| lines.add(&format!("{number} {}\n", "é".repeat(1000))));
        assert_eq!(lines.0.len(), MAX_LOG_LINES);
        assert!(lines.0.iter().all(|line| line.len() <= MAX_LOG_LINE_BYTES));
        assert!(lines.0[0].starts_with("36 "), "{}", lines.0[0]);
    }
}
