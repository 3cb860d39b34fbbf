use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Latest events of a run. Clones share them, so that they survive a panic.
#[derive(Debug, Clone)]
pub struct Trace {
    lines: Rc<RefCell<VecDeque<String>>>,
    limit: usize,
}

impl Trace {
    /// Makes a trace of the latest `limit` events.
    pub fn new(limit: usize) -> Self {
        Self { lines: Rc::default(), limit }
    }

    /// Lines, oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.lines.borrow().iter().cloned().collect()
    }

    pub(crate) fn add(&self, line: String) {
        let mut lines = self.lines.borrow_mut();
        if lines.len() >= self.limit {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}
