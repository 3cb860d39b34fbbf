//! The part of an incomplete copy that a node may forward.

use crate::block::{publishable, publishable_unsealed};
use crate::vocabulary::local::Producer;

/// Returns the number of leading bytes that a node may forward to a receiver that wants the bytes
/// before `end_bytes`.
///
/// The last byte of an incomplete copy, or of a part of it, is not forwarded: the object may be
/// aborted, and a receiver with a whole part takes it for complete.
pub const fn forwardable(
    producer: Producer,
    is_complete: bool,
    valid_bytes: u64,
    size_bytes: u64,
    end_bytes: u64,
) -> u64 {
    let is_part = end_bytes < size_bytes;
    if is_complete {
        let publishable_bytes = publishable(valid_bytes, size_bytes);
        return if publishable_bytes < end_bytes { publishable_bytes } else { end_bytes };
    }
    match producer {
        Producer::Store if !is_part => publishable(valid_bytes, end_bytes),
        _ => publishable_unsealed(valid_bytes, end_bytes),
    }
}

/// Returns `true` if a receiver that has `offset_bytes` must be told of `forwardable_bytes`: it
/// lacks some, they include the last byte, or the object is empty and complete.
pub const fn is_news(
    is_complete: bool,
    forwardable_bytes: u64,
    offset_bytes: u64,
    end_bytes: u64,
) -> bool {
    let is_all = forwardable_bytes == end_bytes && (forwardable_bytes > 0 || is_complete);
    forwardable_bytes > offset_bytes || is_all
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 3 * 4096;
    const ALL: [Producer; 3] = [Producer::Worker, Producer::Store, Producer::Reduce];

    #[test]
    fn the_end_of_what_may_be_aborted_is_kept_back() {
        for producer in [Producer::Worker, Producer::Reduce] {
            assert_eq!(forwardable(producer, false, SIZE, SIZE, SIZE), 2 * 4096);
            assert_eq!(forwardable(producer, false, 5000, SIZE, SIZE), 4096);
        }
        assert_eq!(forwardable(Producer::Store, false, SIZE, SIZE, SIZE), SIZE);
        assert_eq!(forwardable(Producer::Store, false, SIZE - 1, SIZE, SIZE), 2 * 4096);
    }

    #[test]
    fn so_is_the_end_of_a_part_of_any_object() {
        for producer in ALL {
            assert_eq!(forwardable(producer, false, SIZE, SIZE, 2 * 4096), 4096);
            assert_eq!(forwardable(producer, false, SIZE, SIZE, 5000), 4096);
        }
    }

    #[test]
    fn the_end_is_always_news() {
        assert!(is_news(false, 5, 4, 9) && !is_news(false, 5, 5, 9));
        assert!(is_news(false, 9, 9, 9) && is_news(true, 0, 0, 0));
        assert!(!is_news(false, 0, 0, 0), "it may yet be aborted");
    }

    #[test]
    fn of_a_complete_copy_all_is_passed_on() {
        for producer in ALL {
            assert_eq!(forwardable(producer, true, SIZE, SIZE, SIZE), SIZE);
            assert_eq!(forwardable(producer, true, SIZE, SIZE, 5000), 5000);
            assert_eq!(forwardable(producer, true, 0, 0, 0), 0);
        }
    }
}
