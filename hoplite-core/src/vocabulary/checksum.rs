//! CRC-32C (Castagnoli), the checksum of all data on the network.

use crc_fast::{CrcAlgorithm, Digest};

/// Returns the CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut checksum = Checksum::default();
    checksum.update(bytes);
    checksum.finish()
}

/// A CRC-32C over successive pieces.
#[derive(Debug, Clone)]
pub struct Checksum(Digest);

impl Default for Checksum {
    fn default() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Checksum {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Checksum of all bytes so far.
    pub fn finish(self) -> u32 {
        u32::try_from(self.0.finalize()).expect("this checksum has 32 bits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_matches_the_standard() {
        // RFC 3720, B.4, and the check value of the CRC catalogue.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
        let mut pieces = Checksum::default();
        b"123456789".chunks(2).for_each(|piece| pieces.update(piece));
        assert_eq!(pieces.finish(), 0xe306_9283);
    }
}
