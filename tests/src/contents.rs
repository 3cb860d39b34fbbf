//! Bytes for the objects of tests, equal for equal seeds.

/// Returns bytes without repetition, which reveal a shifted, repeated or swapped block.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(length + 8);
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    while out.len() < length {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    out.truncate(length);
    out
}

pub fn seed() -> u64 {
    let seed = match std::env::var("HOPLITE_SEED") {
        Ok(text) => text.parse().expect("HOPLITE_SEED is a number"),
        Err(_) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.expect("the clock is past 1970").subsec_nanos().into()
        }
    };
    announce(seed);
    seed
}

#[expect(clippy::print_stderr, reason = "the output of a failed test is where its seed belongs")]
fn announce(seed: u64) {
    eprintln!("HOPLITE_SEED={seed}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_depend_on_seed_and_place() {
        assert_eq!(bytes(1, 10), bytes(1, 10));
        assert_ne!(bytes(1, 64), bytes(2, 64));
        let long = bytes(3, 8192);
        assert_ne!(long[..4096], long[4096..]);
        assert_eq!(bytes(3, 5), long[..5]);
    }
}
