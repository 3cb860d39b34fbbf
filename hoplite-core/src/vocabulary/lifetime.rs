//! Lifetime of an object: an owner, and a time to live.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::vocabulary::error::{Error, Result};

/// Longest name of an owner, in bytes.
pub const MAX_OWNER_BYTES: usize = 255;
/// Most owners that one client holds, including its unique one.
pub const MAX_OWNERS_PER_CLIENT: usize = 8;
/// Longest time to live.
pub const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Events that end an object. Without any, the object stays until deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lifetime {
    /// A name that clients hold. The store deletes the object when no client has held it for the
    /// grace period.
    pub owner: Option<Owner>,
    /// Time to live, from the end of the put on.
    pub ttl: Option<Ttl>,
}

impl Lifetime {
    /// Makes a lifetime; `None` if the object stays until deleted.
    pub fn of(owner: Option<Owner>, ttl: Option<Ttl>) -> Option<Arc<Self>> {
        (owner.is_some() || ttl.is_some()).then(|| Arc::new(Self { owner, ttl }))
    }
}

/// Name of an owner: 1 to 255 bytes of text without control characters.
///
/// Clients hold owners while they are connected. Each client also holds a unique one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// Makes an owner.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for an invalid name.
    pub fn new(name: impl AsRef<[u8]>) -> Result<Self> {
        let name = name.as_ref();
        if name.is_empty() || name.len() > MAX_OWNER_BYTES {
            return Err(Error::invalid_request("the name of an owner has 1 to 255 bytes"));
        }
        match std::str::from_utf8(name) {
            Ok(text) if !text.chars().any(char::is_control) => Ok(Self(text.into())),
            _ => Err(Error::invalid_request(
                "the name of an owner is text in UTF-8 without control characters",
            )),
        }
    }

    /// Name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Owner {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}

/// A time to live, and the action at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ttl {
    after_ms: u64,
    action: TtlAction,
}

/// Action at the end of a time to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TtlAction {
    /// The object is deleted everywhere.
    #[default]
    Delete,
    /// The store of the put drops its copy. Other copies stay.
    Free,
}

impl Ttl {
    /// Makes a time to live, rounded up to milliseconds.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if `after` is zero or longer than [`MAX_TTL`].
    pub fn new(after: Duration, action: TtlAction) -> Result<Self> {
        if after.is_zero() {
            return Err(Error::invalid_request("a ttl is longer than zero"));
        }
        if after > MAX_TTL {
            return Err(Error::invalid_request("a ttl is at most 30 days"));
        }
        let after_ms = u64::try_from(after.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Ok(Self { after_ms, action })
    }

    /// Makes a time to live of this number of seconds.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] unless the time is above zero and at most [`MAX_TTL`].
    pub fn of_seconds(seconds: f64, action: TtlAction) -> Result<Self> {
        if seconds.is_nan() || seconds < 0.0 {
            return Err(Error::invalid_request("a ttl is a number of seconds above 0"));
        }
        // A number that no duration can hold is too large.
        Self::new(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX), action)
    }

    /// Time, in whole milliseconds.
    pub const fn after(self) -> Duration {
        Duration::from_millis(self.after_ms)
    }

    /// Action at the end.
    pub const fn action(self) -> TtlAction {
        self.action
    }
}

impl TtlAction {
    /// Action's name in commands and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Free => "free",
        }
    }
}

impl FromStr for TtlAction {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "delete" => Ok(Self::Delete),
            "free" => Ok(Self::Free),
            _ => Err(Error::invalid_request("the action of a ttl is `delete` or `free`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused<T: fmt::Debug>(result: Result<T>) -> bool {
        matches!(result, Err(Error::InvalidRequest { .. }))
    }

    #[test]
    fn a_ttl_is_longer_than_zero_and_at_most_thirty_days() {
        let delete = TtlAction::Delete;
        assert_eq!(Ttl::new(MAX_TTL, delete).unwrap().after(), MAX_TTL);
        assert_eq!(Ttl::of_seconds(1e-9, delete).unwrap().after(), Duration::from_millis(1));
        assert_eq!(
            Ttl::of_seconds(0.5, TtlAction::Free).unwrap().after(),
            Duration::from_millis(500)
        );
        assert!(is_refused(Ttl::new(Duration::ZERO, delete)));
        assert!(is_refused(Ttl::new(MAX_TTL + Duration::from_nanos(1), delete)));
        for wrong in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300] {
            assert!(is_refused(Ttl::of_seconds(wrong, delete)), "{wrong}");
        }
        assert!(is_refused("evict".parse::<TtlAction>()));
    }

    #[test]
    fn owners_have_bounded_printable_names() {
        assert_eq!(Owner::new("job-7 \u{e4}").unwrap().as_str(), "job-7 \u{e4}");
        assert!(Owner::new("x".repeat(255)).is_ok());
        let long = "x".repeat(256);
        for wrong in [&b""[..], long.as_bytes(), b"a\nb", b"a\0", b"\xff\xfe", b"\x1b[1m"] {
            assert!(is_refused(Owner::new(wrong)), "{wrong:?}");
        }
    }
}
