use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

type Action<W> = Box<dyn FnOnce(&mut W)>;

struct Entry<W> {
    at: Duration,
    order: u64,
    action: Action<W>,
}

impl<W> PartialEq for Entry<W> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl<W> Eq for Entry<W> {}

impl<W> PartialOrd for Entry<W> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<W> Ord for Entry<W> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

pub(crate) struct Clock<W> {
    now: Duration,
    agenda: BinaryHeap<Entry<W>>,
    entered: u64,
}

impl<W> Clock<W> {
    pub(crate) const fn new() -> Self {
        Self { now: Duration::ZERO, agenda: BinaryHeap::new(), entered: 0 }
    }

    pub(crate) const fn now(&self) -> Duration {
        self.now
    }

    pub(crate) fn schedule(&mut self, at: Duration, action: impl FnOnce(&mut W) + 'static) {
        self.entered += 1;
        self.agenda.push(Entry { at, order: self.entered, action: Box::new(action) });
    }

    pub(crate) fn next(&mut self, end: Duration) -> Option<Action<W>> {
        if self.agenda.peek()?.at > end {
            return None;
        }
        let next = self.agenda.pop()?;
        self.now = self.now.max(next.at);
        Some(next.action)
    }

    pub(crate) fn pass_until(&mut self, at: Duration) {
        self.now = self.now.max(at);
    }
}
