//! The label keys of nodes' groups, such as `rack`. Nodes with different keys share no group.

use std::fmt;

use super::place::{LEVEL_KEYS, MAX_LEVELS, Path};

/// Set of label keys that a node uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PlaceKeys(u8);

impl PlaceKeys {
    /// Returns the label keys of the groups in `path`.
    pub fn of(path: Path) -> Self {
        let bits = path.iter().enumerate().map(|(level, &number)| u8::from(number != 0) << level);
        Self(bits.fold(0, |all, bit| all | bit))
    }

    /// Keys, outermost first.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        LEVEL_KEYS
            .into_iter()
            .enumerate()
            .filter(move |(level, _)| self.0 >> level & 1 != 0)
            .map(|(_, key)| key)
    }
}

impl fmt::Display for PlaceKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("nothing");
        }
        for (index, name) in self.names().enumerate() {
            write!(f, "{}{name}", if index == 0 { "" } else { "+" })?;
        }
        Ok(())
    }
}

/// Counts nodes by their sets of label keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyCounts([u32; 1 << MAX_LEVELS]);

impl KeyCounts {
    /// Adds a node with the groups in `path`.
    pub fn add(&mut self, path: Path) {
        self.0[usize::from(PlaceKeys::of(path).0)] += 1;
    }

    /// Removes a node with the groups in `path`.
    pub fn remove(&mut self, path: Path) {
        self.0[usize::from(PlaceKeys::of(path).0)] -= 1;
    }

    /// Returns each set of keys in use, the empty set first, with the number of its nodes.
    pub fn iter(&self) -> impl Iterator<Item = (PlaceKeys, u32)> + '_ {
        let present =
            |(bits, &nodes): (usize, &u32)| (nodes > 0).then_some((PlaceKeys(bits as u8), nodes));
        self.0.iter().enumerate().filter_map(present)
    }

    /// Returns `true` if nodes use different sets of keys.
    pub fn differ(&self) -> bool {
        self.iter().nth(1).is_some()
    }
}

impl fmt::Display for KeyCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (keys, nodes)) in self.iter().enumerate() {
            let (comma, plural) =
                (if index == 0 { "" } else { ", " }, if nodes == 1 { "" } else { "s" });
            write!(f, "{comma}{nodes} node{plural} by {keys}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_counted_by_their_keys() {
        let mut counts = KeyCounts::default();
        assert!(!counts.differ());
        for path in [[7, 0, 9, 0], [8, 0, 9, 0], [0; 4]] {
            counts.add(path);
        }
        assert!(counts.differ());
        assert_eq!(counts.to_string(), "1 node by nothing, 2 nodes by zone+rack");
        assert_eq!(counts.iter().last().unwrap().0.names().collect::<Vec<_>>(), ["zone", "rack"]);
        counts.remove([0; 4]);
        assert!(!counts.differ());
    }
}
