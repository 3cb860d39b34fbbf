//! The causes of a wait, by name: some of them, and their number.

use std::fmt;

use crate::vocabulary::id::ObjectId;

/// Most objects, participants or nodes that a cause names: a readable number, far below the limit
/// of a frame.
pub const MAX_NAMED: usize = 8;

/// Some of the things that are missing, and the number of all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named<T> {
    /// The first ones, at most [`MAX_NAMED`].
    pub first: Vec<T>,
    /// The number of all.
    pub count: u64,
}

impl<T> Named<T> {
    /// Counts `all`, and keeps the first ones.
    pub fn of(all: impl IntoIterator<Item = T>) -> Self {
        let mut named = Self { first: Vec::new(), count: 0 };
        for one in all {
            if named.first.len() < MAX_NAMED {
                named.first.push(one);
            }
            named.count += 1;
        }
        named
    }

    /// Returns `true` if nothing is missing.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of things that are not named.
    fn others(&self) -> u64 {
        self.count.saturating_sub(self.first.len() as u64)
    }
}

/// A participant of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// The rank of the participant.
    pub rank: u32,
    /// The id of its source.
    pub source: ObjectId,
}

pub(super) fn list<T>(
    f: &mut fmt::Formatter<'_>,
    (one, many): (&str, &str),
    named: &Named<T>,
    write_one: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    write!(f, "{} ", if named.count == 1 { one } else { many })?;
    for (index, item) in named.first.iter().enumerate() {
        f.write_str(if index == 0 { "" } else { ", " })?;
        write_one(f, item)?;
    }
    match named.others() {
        0 => Ok(()),
        others => write!(f, " and {others} more"),
    }
}
