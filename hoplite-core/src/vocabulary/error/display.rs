use std::fmt;

use crate::vocabulary::id::ObjectId;
use crate::vocabulary::text::sizes;

pub(super) struct Holders<'a>(pub(super) &'a str);

impl fmt::Display for Holders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; {}", self.0) }
    }
}

/// Needed, free and all bytes of a store.
pub(super) struct Room(pub(super) [u64; 3]);

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [needed, free, capacity] = sizes(self.0);
        write!(f, "{needed} needed, {free} of {capacity} free")
    }
}

pub(super) struct TooLarge<'a> {
    pub(super) id: &'a ObjectId,
    pub(super) size_bytes: u64,
    pub(super) limit_bytes: u64,
}

impl fmt::Display for TooLarge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [size, limit] = sizes([self.size_bytes, self.limit_bytes]);
        write!(
            f,
            "object {} of {size} is larger than the limit of {limit}, which --memory \
             (in Python, memory=) and --max-object of the store set",
            self.id
        )
    }
}

/// Moves the cause in parentheses to the end of the sentence.
pub(super) struct Unreachable<'a>(pub(super) &'a str);

impl fmt::Display for Unreachable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.0.strip_suffix(')').and_then(|text| text.split_once(" ("));
        match parts.filter(|(_, cause)| is_balanced(cause)) {
            Some((what, cause)) => write!(f, "{what} cannot be reached: {cause}"),
            None => write!(f, "{} cannot be reached", self.0),
        }
    }
}

fn is_balanced(text: &str) -> bool {
    let mut depth = 0_i32;
    let is_inside = |letter: char| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        depth >= 0
    };
    text.chars().all(is_inside) && depth == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::error::Error;

    #[test]
    fn an_object_that_is_too_large_names_the_settings() {
        let error = |size_bytes| Error::ObjectTooLarge {
            id: ObjectId::new("x").unwrap(),
            size_bytes,
            limit_bytes: 1 << 30,
        };
        let text = error(3 << 30).to_string();
        assert!(
            text.starts_with("object x of 3.0 GiB is larger than the limit of 1.0 GiB,"),
            "{text}"
        );
        assert!(text.contains("--memory") && text.contains("memory="), "{text}");
        let text = error((1 << 30) + 1).to_string();
        assert!(text.contains("1073741825 B is larger than the limit of 1073741824 B"), "{text}");
    }

    #[test]
    fn a_full_store_is_described_in_units() {
        let error = Error::StoreFull {
            needed_bytes: 3 << 29,
            free_bytes: 100,
            capacity_bytes: 2 << 30,
            holders: String::new(),
        };
        assert_eq!(error.to_string(), "store is full: 1.5 GiB needed, 100 B of 2.0 GiB free");
    }

    #[test]
    fn the_cause_of_an_unreachable_daemon_comes_last() {
        for (what, shown) in [
            ("shard (a), which leaves (b)", "shard (a), which leaves (b) cannot be reached"),
            ("the directory", "the directory cannot be reached"),
            ("store n (it hangs up (reset))", "store n cannot be reached: it hangs up (reset)"),
            ("shard (a), which leaves,", "shard (a), which leaves, cannot be reached"),
        ] {
            assert_eq!(Error::unavailable(what).to_string(), shown);
        }
    }
}
