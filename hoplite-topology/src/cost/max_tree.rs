//! Maximum of a list whose numbers change one at a time.

/// A complete binary tree: O(log n) for a change, O(1) for the maximum.
#[derive(Debug, Clone)]
pub(super) struct MaxTree {
    nodes: Vec<u64>,
    leaves: usize,
    len: usize,
}

impl MaxTree {
    pub(super) fn new(numbers: &[u64]) -> Self {
        let leaves = numbers.len().next_power_of_two();
        let mut nodes = vec![0; 2 * leaves];
        nodes[leaves..leaves + numbers.len()].copy_from_slice(numbers);
        for at in (1..leaves).rev() {
            nodes[at] = nodes[2 * at].max(nodes[2 * at + 1]);
        }
        Self { nodes, leaves, len: numbers.len() }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, index: usize) -> u64 {
        self.nodes[self.leaves + index]
    }

    pub(super) fn set(&mut self, index: usize, number: u64) {
        let mut at = self.leaves + index;
        self.nodes[at] = number;
        while at > 1 {
            at /= 2;
            let largest = self.nodes[2 * at].max(self.nodes[2 * at + 1]);
            if self.nodes[at] == largest {
                break;
            }
            self.nodes[at] = largest;
        }
    }

    pub(super) fn largest(&self) -> u64 {
        self.nodes[1]
    }
}
