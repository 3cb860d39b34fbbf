use std::collections::BTreeMap;

/// Set in the order of arrival. Each operation takes O(log n).
#[derive(Debug)]
pub(crate) struct Queue<T> {
    by_place: BTreeMap<u64, T>,
    places: BTreeMap<T, u64>,
    next_place: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { by_place: BTreeMap::new(), places: BTreeMap::new(), next_place: 0 }
    }
}

impl<T: Ord + Clone> Queue<T> {
    pub(crate) fn push(&mut self, member: T) {
        if !self.contains(&member) {
            self.places.insert(member.clone(), self.next_place);
            self.by_place.insert(self.next_place, member);
            self.next_place += 1;
        }
    }

    pub(crate) fn remove(&mut self, member: &T) -> bool {
        let place = self.places.remove(member);
        place.is_some_and(|place| self.by_place.remove(&place).is_some())
    }

    pub(crate) fn contains(&self, member: &T) -> bool {
        self.places.contains_key(member)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_place.values()
    }

    pub(crate) fn take(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(self).by_place.into_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_the_order_of_their_arrival() {
        let mut queue = Queue::default();
        for member in ['c', 'a', 'b', 'c'] {
            queue.push(member);
        }
        assert_eq!(queue.iter().collect::<String>(), "cab");
        queue.remove(&'a');
        queue.remove(&'z');
        queue.push('a');
        assert!(queue.contains(&'a'));
        assert_eq!(queue.take().collect::<String>(), "cba");
        assert!(queue.is_empty());
    }
}
