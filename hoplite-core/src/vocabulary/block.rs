//! Blocks: the unit of a copy's progress (its valid leading bytes).

/// A page, the smallest transfer worth a system call.
pub const BLOCK_BYTES: u64 = 4096;

/// Returns the number of leading bytes that a store may forward: whole blocks, or all bytes of a
/// complete copy.
pub const fn publishable(valid_bytes: u64, size_bytes: u64) -> u64 {
    if valid_bytes >= size_bytes { size_bytes } else { valid_bytes / BLOCK_BYTES * BLOCK_BYTES }
}

/// Acts as [`publishable`] while a client or a reduce still writes. Excludes the last byte, because
/// a node with all bytes considers the object complete.
pub const fn publishable_unsealed(valid_bytes: u64, size_bytes: u64) -> u64 {
    let before_the_end = size_bytes.saturating_sub(1);
    let valid_bytes = if valid_bytes < before_the_end { valid_bytes } else { before_the_end };
    valid_bytes / BLOCK_BYTES * BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_counted_in_whole_blocks_but_for_the_end() {
        assert_eq!(publishable(0, 10), 0);
        assert_eq!(publishable(9, 10), 0);
        assert_eq!(publishable(10, 10), 10);
        assert_eq!(publishable(4095, 8193), 0);
        assert_eq!(publishable(4096, 8193), 4096);
        assert_eq!(publishable(8192, 8193), 8192);
        assert_eq!(publishable(8193, 8193), 8193);
        assert_eq!(publishable(0, 0), 0);
    }

    #[test]
    fn the_last_block_waits_for_the_seal() {
        assert_eq!(publishable_unsealed(0, 0), 0);
        assert_eq!(publishable_unsealed(10, 10), 0);
        assert_eq!(publishable_unsealed(4096, 4096), 0);
        assert_eq!(publishable_unsealed(4096, 4097), 4096);
        assert_eq!(publishable_unsealed(4095, 8192), 0);
        assert_eq!(publishable_unsealed(8192, 8192), 4096);
        assert_eq!(publishable_unsealed(8193, 8193), 8192);
        assert_eq!(publishable_unsealed(u64::MAX, u64::MAX), u64::MAX - 4095);
    }
}
