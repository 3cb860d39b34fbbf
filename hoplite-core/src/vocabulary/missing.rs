//! Things for which a call waits.

use std::fmt;

use crate::vocabulary::id::ObjectId;

/// Most missing things that an error names.
pub const MAX_NAMED: usize = 8;

/// Missing things, such as objects: the first few, and the total number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named<T> {
    /// At most [`MAX_NAMED`] things.
    pub first: Vec<T>,
    /// Total number.
    pub count: u64,
}

impl<T> Named<T> {
    /// Counts the missing things, and keeps the first [`MAX_NAMED`].
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

    /// Returns `true` if there are no missing things.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn others(&self) -> u64 {
        self.count.saturating_sub(self.first.len() as u64)
    }
}

/// A participant of a collective whose source is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Absent {
    pub rank: u32,
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
