use bytes::Bytes;

use crate::vocabulary::checksum::crc32c;

/// Bytes of a small object that a shard keeps, with the putting store's CRC-32C, which the reading
/// store checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InlineBytes {
    bytes: Bytes,
    crc: u32,
}

impl InlineBytes {
    pub(crate) const fn new(bytes: Bytes, crc: u32) -> Self {
        Self { bytes, crc }
    }

    /// Makes inline bytes of received ones; `None` if the checksum does not match.
    pub fn checked(bytes: Bytes, crc: u32) -> Option<Self> {
        (crc32c(&bytes) == crc).then_some(Self { bytes, crc })
    }

    /// Bytes.
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// CRC-32C of the bytes.
    pub const fn crc(&self) -> u32 {
        self.crc
    }
}

impl From<Bytes> for InlineBytes {
    fn from(bytes: Bytes) -> Self {
        let crc = crc32c(&bytes);
        Self { bytes, crc }
    }
}

impl From<InlineBytes> for Bytes {
    fn from(inline: InlineBytes) -> Self {
        inline.bytes
    }
}

impl std::ops::Deref for InlineBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_bytes_are_found() {
        let inline = InlineBytes::from(Bytes::from_static(b"Hoplite"));
        assert_eq!(
            InlineBytes::checked(Bytes::from_static(b"Hoplite"), inline.crc()),
            Some(inline.clone())
        );
        assert_eq!(InlineBytes::checked(Bytes::from_static(b"Hoplitf"), inline.crc()), None);
    }
}
