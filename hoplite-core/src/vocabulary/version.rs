//! Versions of the protocol.
//!
//! Each program offers a range of versions in its first message on a connection, which uses the
//! newest common version. An older peer ignores new messages and fields. Where that would do harm,
//! a program sends them only if [`Version::require`] permits it.

use std::str::FromStr;

use super::error::{Error, Result};

/// A version of the protocol, which all planes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u32);

impl Version {
    /// Oldest supported version.
    pub const OLDEST: Self = Self(8);
    /// Newest supported version.
    pub const NEWEST: Self = Self(11);
    /// First version with conditions of deletes (`DeleteTerms`) and quorums of puts.
    pub const WITH_TERMS: u32 = 9;
    /// First version with lists of shards that change.
    pub const WITH_SHARD_CHANGES: u32 = 10;
    /// First version with quotas of each client.
    pub const WITH_CLIENT_QUOTAS: u32 = 11;
    /// First version with several addresses for a host.
    pub const WITH_RAILS: u32 = 11;

    /// Returns the version of this number, if supported.
    pub const fn new(number: u32) -> Option<Self> {
        if Self::OLDEST.0 <= number && number <= Self::NEWEST.0 { Some(Self(number)) } else { None }
    }

    /// Number of this version.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns `true` if a peer of this version knows version `number`.
    pub const fn at_least(self, number: u32) -> bool {
        self.0 >= number
    }

    /// Checks that a peer of this version knows version `number`.
    ///
    /// # Errors
    /// [`Error::VersionMismatch`] if the peer is older.
    pub const fn require(self, number: u32) -> Result<()> {
        if self.at_least(number) {
            Ok(())
        } else {
            Err(Error::VersionMismatch { ours: number, theirs: self.0 })
        }
    }

    /// Returns the version of a connection to a peer that speaks `oldest` to `newest`. This side
    /// speaks [`Version::OLDEST`] to `self`.
    ///
    /// # Errors
    /// [`Error::VersionMismatch`], with the two closest versions, if the ranges do not overlap.
    pub fn agree(self, oldest: u32, newest: u32) -> Result<Self> {
        let newest = newest.max(oldest);
        if newest < Self::OLDEST.0 {
            return Err(Error::VersionMismatch { ours: Self::OLDEST.0, theirs: newest });
        }
        if oldest > self.0 {
            return Err(Error::VersionMismatch { ours: self.0, theirs: oldest });
        }
        Ok(Self(newest.min(self.0)))
    }
}

/// The text names no supported version.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not a version of the protocol from {} to {}", Version::OLDEST.0, Version::NEWEST.0)]
pub struct UnknownVersion {
    /// Text, cut after 64 characters.
    pub text: String,
}

impl FromStr for Version {
    type Err = UnknownVersion;

    fn from_str(text: &str) -> std::result::Result<Self, UnknownVersion> {
        let number = text.trim().parse().ok();
        number
            .and_then(Self::new)
            .ok_or_else(|| UnknownVersion { text: text.chars().take(64).collect() })
    }
}

impl Default for Version {
    fn default() -> Self {
        Self::NEWEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_programs_speak_the_newest_version_that_both_know() {
        let [old, new] = [Version::OLDEST, Version::NEWEST];
        let range = |newest: Version| (Version::OLDEST.number(), newest.number());
        for (ours, theirs, agreed) in
            [(new, new, new), (new, old, old), (old, new, old), (old, old, old)]
        {
            let (oldest, newest) = range(theirs);
            assert_eq!(ours.agree(oldest, newest), Ok(agreed));
        }
        let next = new.number() + 1;
        assert_eq!(new.agree(old.number(), next), Ok(new), "a later program speaks ours too");
        assert_eq!(new.agree(new.number(), 0), Ok(new), "without a range, there is one version");
    }

    #[test]
    fn ranges_without_a_common_version_are_refused_with_the_closest_two() {
        let (old, new) = (Version::OLDEST.number(), Version::NEWEST.number());
        let mismatch = |ours, theirs| Err(Error::VersionMismatch { ours, theirs });
        assert_eq!(Version::NEWEST.agree(new + 2, new + 7), mismatch(new, new + 2));
        assert_eq!(Version::OLDEST.agree(new, new), mismatch(old, new), "this side is pinned");
        assert_eq!(Version::NEWEST.agree(1, old - 1), mismatch(old, old - 1));
        assert_eq!(Version::NEWEST.agree(0, 0), mismatch(old, 0));
        assert_eq!(Version::NEWEST.agree(u32::MAX, 3), mismatch(new, u32::MAX));
    }

    #[test]
    fn a_message_of_a_later_version_needs_a_peer_that_knows_it() {
        let (old, new) = (Version::OLDEST, Version::NEWEST);
        assert!(new.at_least(new.number()) && !old.at_least(new.number()));
        assert_eq!(new.require(new.number()), Ok(()));
        let mismatch = Error::VersionMismatch { ours: new.number(), theirs: old.number() };
        assert_eq!(old.require(new.number()), Err(mismatch));
        assert_eq!(Version::new(new.number() + 1), None);
        assert_eq!(Version::new(old.number() - 1), None);
        assert_eq!("8".parse::<Version>().unwrap(), old);
        assert!("eight".parse::<Version>().is_err());
    }
}
