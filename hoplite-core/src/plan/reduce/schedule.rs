use std::fmt;

/// Shape of the tree that sources form as they arrive.
///
/// For n vertices (nodes) besides the receiver, objects of S bytes, bandwidth B, and latency L for
/// each hop, including the last one to the receiver:
///
/// | schedule | time | most bytes into a node | most bytes out of a node |
/// | --- | --- | --- | --- |
/// | [`Self::Star`] | n S/B + L | n S (the receiver) | S |
/// | [`Self::Chain`], 1D | S/B + n L | S | S |
/// | [`Self::Chain`], k dimensions | k S/B + (1 + sum of (length - 1)) L | k S | S |
/// | [`Self::Tree`] | 2 S/B + (levels) L | 2 S | S |
/// | [`Self::Groups`], [first](Entry::First) | as a chain in 1D | S | S |
/// | [`Self::Groups`], [last](Entry::Last) | as chains with one dimension more than in a group | k S | S |
///
/// In [`Self::Groups`], each group sends one object to the next, in whatever order sources arrive.
///
/// Source: Hoplite, section 4.3 and appendix A, for chains in one and two dimensions; the
/// appendix's recursion gives more dimensions. A binary tree beats a chain of two dimensions with
/// more than four vertices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReduceSchedule {
    /// Every source goes straight to the receiver.
    Star,
    /// `lengths[0]` vertices form a chain, the last vertices of `lengths[1]` such chains form
    /// another one, and so on.
    Chain {
        /// Chains' lengths, innermost first; none is zero.
        lengths: Vec<usize>,
    },
    /// A balanced binary tree, whose vertices join in post-order.
    Tree {
        /// Number of planned vertices.
        vertices: usize,
    },
    /// A chain of groups, the receiver's last, each with its own chains. They are joined when all
    /// sources have arrived.
    Groups {
        /// Lengths of the largest group's chains, as in [`Self::Chain`]; one length for
        /// [`Entry::First`].
        lengths: Vec<usize>,
        /// Number of groups.
        groups: usize,
        /// Entry of each group.
        entry: Entry,
    },
}

/// Vertex of a group that takes in the previous group's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// First vertex of the group's chain: one chain goes through all groups.
    First,
    /// Last vertex of the group: all groups combine at the same time.
    Last,
}

impl ReduceSchedule {
    /// Returns a chain in one dimension.
    pub fn chain(vertices: usize) -> Self {
        Self::Chain { lengths: vec![vertices.max(1)] }
    }

    /// Returns the shortest chain of chains with `dimensions` about equal dimensions that has room
    /// for `vertices`.
    pub fn chain_of_chains(vertices: usize, dimensions: u32) -> Self {
        let fits = |length: usize| length.saturating_pow(dimensions) >= vertices;
        let longest = (1..=vertices.max(1)).find(|length| fits(*length)).unwrap_or(1);
        let mut lengths = vec![longest; dimensions.max(1) as usize];
        // The last dimensions may be shorter, as for 6 = 3 x 2.
        for dimension in 0..lengths.len() {
            let others: usize = lengths
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != dimension)
                .map(|(_, l)| l)
                .product();
            lengths[dimension] = vertices.div_ceil(others.max(1)).clamp(1, longest);
        }
        lengths.sort_unstable_by(|one, other| other.cmp(one));
        Self::Chain { lengths }
    }

    /// Entry of each group, if any.
    pub const fn entry(&self) -> Option<Entry> {
        if let Self::Groups { entry, .. } = self { Some(*entry) } else { None }
    }

    /// Returns the number of streams that the vertex at `position` takes in. With groups, positions
    /// count within the group.
    pub fn input_count(&self, position: usize) -> usize {
        match self {
            Self::Star => 0,
            Self::Chain { lengths } | Self::Groups { lengths, .. } => {
                input_count_of_chains(lengths, position)
            }
            Self::Tree { vertices } => children_in_post_order(position, *vertices),
        }
    }

    /// Returns the number of hops on the longest way to the receiver.
    pub fn depth(&self, vertices: usize) -> usize {
        match self {
            _ if vertices == 0 => 0,
            Self::Star => 1,
            Self::Chain { lengths } => depth_of_chains(lengths),
            Self::Groups { entry: Entry::First, .. } => vertices,
            Self::Groups { lengths, groups, entry: Entry::Last } => {
                depth_of_chains(lengths) + groups - 1
            }
            Self::Tree { vertices } => vertices.ilog2() as usize + 1,
        }
    }

    /// Returns the number of objects that flow into the busiest node.
    pub fn busiest_inflow(&self, vertices: usize) -> usize {
        match self {
            Self::Star => vertices,
            Self::Chain { lengths } => dimensions_of(lengths).clamp(1, vertices.max(1)),
            Self::Groups { entry: Entry::First, .. } => 1,
            Self::Groups { lengths, groups, entry: Entry::Last } => {
                (dimensions_of(lengths) + usize::from(*groups > 1)).clamp(1, vertices.max(1))
            }
            Self::Tree { vertices } => (vertices.saturating_sub(1)).clamp(1, 2),
        }
    }
}

/// Returns the number of dimensions in which a vertex takes in its predecessor's stream. The digits
/// of `position`, in base `lengths`, are its places in the dimensions. A dimension's last vertex
/// also belongs to the next dimension.
fn input_count_of_chains(lengths: &[usize], position: usize) -> usize {
    let planned = lengths.iter().fold(1_usize, |product, length| product.saturating_mul(*length));
    if position >= planned {
        // Unplanned vertices, as when a source joins again, extend the chain.
        return 1;
    }
    let mut count = 0;
    let mut rest = position;
    for length in lengths {
        let place = rest % length;
        count += usize::from(place > 0);
        if place + 1 < *length {
            return count;
        }
        rest /= length;
    }
    count
}

fn depth_of_chains(lengths: &[usize]) -> usize {
    1 + lengths.iter().map(|length| length - 1).sum::<usize>()
}

fn dimensions_of(lengths: &[usize]) -> usize {
    lengths.iter().filter(|length| **length > 1).count()
}

fn children_in_post_order(mut position: usize, mut vertices: usize) -> usize {
    if position >= vertices {
        return 1;
    }
    loop {
        let left = vertices / 2;
        let right = vertices - 1 - left;
        if position == vertices - 1 {
            return usize::from(left > 0) + usize::from(right > 0);
        } else if position < left {
            vertices = left;
        } else {
            position -= left;
            vertices = right;
        }
    }
}

impl fmt::Display for ReduceSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Star => f.write_str("star"),
            Self::Chain { lengths } if lengths.len() == 1 => f.write_str("chain"),
            Self::Chain { lengths } => write_chains(f, lengths),
            Self::Groups { groups, entry: Entry::First, .. } => {
                write!(f, "chain through {groups} groups")
            }
            Self::Groups { lengths, groups, entry: Entry::Last } => {
                write_chains(f, &[&lengths[..], &[*groups]].concat())?;
                f.write_str(" groups")
            }
            Self::Tree { .. } => f.write_str("binary tree"),
        }
    }
}

fn write_chains(f: &mut fmt::Formatter<'_>, lengths: &[usize]) -> fmt::Result {
    write!(f, "{}D chain of ", lengths.len())?;
    let mut separator = "";
    for length in lengths {
        write!(f, "{separator}{length}")?;
        separator = " x ";
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grow(schedule: &ReduceSchedule, vertices: usize) -> (usize, usize, usize) {
        let mut loose: Vec<usize> = Vec::new();
        let mut inflow = 0;
        for position in 0..vertices {
            let inputs_taken = schedule.input_count(position).min(loose.len());
            let inputs = loose.split_off(loose.len() - inputs_taken);
            inflow = inflow.max(inputs_taken);
            loose.push(1 + inputs.into_iter().max().unwrap_or(0));
        }
        (loose.iter().copied().max().unwrap_or(0), inflow.max(loose.len()), loose.len())
    }

    #[test]
    fn depth_and_inflow_match_the_shapes() {
        for vertices in 1..200 {
            let shapes = [
                ReduceSchedule::Star,
                ReduceSchedule::chain(vertices),
                ReduceSchedule::chain_of_chains(vertices, 2),
                ReduceSchedule::chain_of_chains(vertices, 3),
                ReduceSchedule::Tree { vertices },
            ];
            for schedule in shapes {
                let (depth, inflow, ends) = grow(&schedule, vertices);
                let predicted = (schedule.depth(vertices), schedule.busiest_inflow(vertices));
                assert!(
                    depth <= predicted.0 && inflow <= predicted.1,
                    "{schedule:?} of {vertices}: {depth} {inflow}, predicted {predicted:?}"
                );
                assert!(
                    schedule == ReduceSchedule::Star || ends <= predicted.1,
                    "{schedule:?} of {vertices} leaves {ends}"
                );
            }
            assert_eq!(grow(&ReduceSchedule::chain(vertices), vertices), (vertices, 1, 1));
            assert_eq!(grow(&ReduceSchedule::Tree { vertices }, vertices).2, 1);
        }
    }

    #[test]
    fn sixteen_in_two_dimensions_are_four_chains_of_four() {
        let schedule = ReduceSchedule::chain_of_chains(16, 2);
        assert_eq!(schedule, ReduceSchedule::Chain { lengths: vec![4, 4] });
        let counts: Vec<usize> = (0..16).map(|position| schedule.input_count(position)).collect();
        assert_eq!(counts, [0, 1, 1, 1, 0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 1, 2]);
        assert_eq!(schedule.to_string(), "2D chain of 4 x 4");
    }

    #[test]
    fn more_vertices_than_planned_extend_the_chain() {
        for schedule in [
            ReduceSchedule::chain(4),
            ReduceSchedule::chain_of_chains(4, 2),
            ReduceSchedule::Tree { vertices: 4 },
        ] {
            assert!((4..100).all(|position| schedule.input_count(position) == 1), "{schedule:?}");
        }
    }
}
