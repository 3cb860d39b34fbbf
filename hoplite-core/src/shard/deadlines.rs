use std::collections::BTreeSet;

use crate::time::Time;

/// A queue of keys, ordered by due time. Each operation takes O(log n).
///
/// A caller removes a key with its due time, so no outdated keys accumulate.
#[derive(Debug)]
pub(super) struct Deadlines<K>(BTreeSet<(Time, K)>);

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Ord> Deadlines<K> {
    pub(super) fn insert(&mut self, at: Time, key: K) {
        self.0.insert((at, key));
    }

    pub(super) fn remove(&mut self, at: Time, key: K) {
        self.0.remove(&(at, key));
    }

    pub(super) fn next(&self) -> Option<Time> {
        self.0.first().map(|(at, _)| *at).filter(|at| *at != Time::NEVER)
    }

    pub(super) fn pop_due(&mut self, now: Time) -> Option<K> {
        if self.next()? > now {
            return None;
        }
        self.pop_first()
    }

    pub(super) fn pop_first(&mut self) -> Option<K> {
        self.0.pop_first().map(|(_, key)| key)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_returned_at_their_deadline() {
        let at = Time::from_micros;
        let mut deadlines = Deadlines::default();
        deadlines.insert(at(5), 'b');
        deadlines.insert(at(3), 'a');
        deadlines.insert(Time::NEVER, 'c');
        deadlines.insert(at(4), 'd');
        deadlines.remove(at(4), 'd');
        assert_eq!(deadlines.next(), Some(at(3)));
        assert_eq!(deadlines.pop_due(at(2)), None);
        assert_eq!(deadlines.pop_due(at(9)), Some('a'));
        assert_eq!(deadlines.pop_due(at(9)), Some('b'));
        assert_eq!(deadlines.pop_due(at(9)), None);
        assert_eq!((deadlines.next(), deadlines.len()), (None, 1));
    }
}
