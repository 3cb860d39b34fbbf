//! Checked names of objects, nodes, puts and clusters.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::vocabulary::text::escape_into;

/// Longest object id in bytes: its length must fit in one byte.
pub const MAX_OBJECT_ID_BYTES: usize = 255;
/// Longest node or cluster id in bytes: the limit of a DNS label, so that a host name fits.
pub const MAX_NODE_ID_BYTES: usize = 63;

/// Reason to reject a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// An object id is empty or too long.
    #[error("an object id has 1 to 255 bytes, this one has {length_bytes}")]
    Length {
        /// Length in bytes.
        length_bytes: usize,
    },
    /// A node or cluster id has a wrong length or character.
    #[error("{name:?} is not a valid name: 1 to 63 of the characters A-Z a-z 0-9 - _ .")]
    Name {
        /// Name, cut to 63 characters.
        name: String,
    },
    /// The peer belongs to another cluster.
    #[error("the peer belongs to cluster {theirs:?}, and this side to {ours:?}")]
    OtherCluster {
        /// This side's cluster.
        ours: String,
        /// Peer's cluster.
        theirs: String,
    },
}

/// An object's name: 1 to 255 bytes, chosen by the application.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(Arc<[u8]>);

impl ObjectId {
    /// Checks the length of `bytes`.
    ///
    /// # Errors
    /// [`IdError::Length`] unless `bytes` has 1 to 255 bytes.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, IdError> {
        let bytes = bytes.as_ref();
        if bytes.is_empty() || bytes.len() > MAX_OBJECT_ID_BYTES {
            return Err(IdError::Length { length_bytes: bytes.len() });
        }
        Ok(Self(bytes.into()))
    }

    /// Makes the private id of the output of a hop (a step of a reduce).
    pub fn of_hop(put: PutId) -> Self {
        Self(format!("\0hop-{:016x}", put.0).into_bytes().into())
    }

    /// Returns `true` for the id of a hop's output.
    pub fn is_of_hop(&self) -> bool {
        self.0.starts_with(b"\0hop-")
    }

    /// Id's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Id with escapes for bytes that are not text or would disturb a terminal.
    pub fn readable(&self) -> String {
        let mut text = String::new();
        for chunk in self.0.utf8_chunks() {
            escape_into(&mut text, chunk.valid());
            text.extend(chunk.invalid().escape_ascii().map(char::from));
        }
        text
    }
}

impl Borrow<[u8]> for ObjectId {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for ObjectId {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<&str> for ObjectId {
    type Error = IdError;

    fn try_from(text: &str) -> Result<Self, IdError> {
        Self::new(text)
    }
}

impl TryFrom<&[u8]> for ObjectId {
    type Error = IdError;

    fn try_from(bytes: &[u8]) -> Result<Self, IdError> {
        Self::new(bytes)
    }
}

impl fmt::Display for ObjectId {
    /// Escapes all bytes but printable ASCII, as in a Rust byte string.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectId({self})")
    }
}

fn check_name(text: &str) -> Result<Arc<str>, IdError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > MAX_NODE_ID_BYTES || !text.chars().all(allowed) {
        return Err(IdError::Name { name: text.chars().take(MAX_NODE_ID_BYTES).collect() });
    }
    Ok(text.into())
}

/// A node's name, unique in its cluster: 1 to 63 of `A-Z a-z 0-9 - _ .`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// Checks the name.
    ///
    /// # Errors
    /// [`IdError::Name`] if the length or a character is wrong.
    pub fn new(text: &str) -> Result<Self, IdError> {
        check_name(text).map(Self)
    }

    /// Name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

/// A cluster's name, written like a [`NodeId`]. Daemons of different clusters refuse each other.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ClusterId(Arc<str>);

impl ClusterId {
    /// Checks the name.
    ///
    /// # Errors
    /// [`IdError::Name`] if the length or a character is wrong.
    pub fn new(text: &str) -> Result<Self, IdError> {
        check_name(text).map(Self)
    }

    /// Name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Checks that a peer names the same cluster.
    ///
    /// # Errors
    /// [`IdError::OtherCluster`], or [`IdError::Name`] if the peer names none.
    pub fn check_same(&self, theirs: &str) -> Result<(), IdError> {
        let theirs = Self::new(theirs)?;
        if theirs == *self {
            return Ok(());
        }
        Err(IdError::OtherCluster {
            ours: self.as_str().to_owned(),
            theirs: theirs.as_str().to_owned(),
        })
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterId({self})")
    }
}

/// Names the put that made an object and its copies. Successive objects of an id have different
/// ones. Chosen pseudo-randomly by the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PutId(pub u64);

impl fmt::Display for PutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Names one run of a store; a restarted node has a new one.
///
/// A secret, which proves the right to take over an earlier session. Reports and `Debug` omit it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Incarnation(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incarnation_is_never_printed() {
        assert_eq!(
            format!("{:?} {:#?}", Incarnation(4711), Incarnation(4711)),
            "Incarnation(..) Incarnation(..)"
        );
    }

    #[test]
    fn object_ids_are_bounded() {
        assert!(ObjectId::new(b"").is_err());
        assert!(ObjectId::new(vec![7; 255]).is_ok());
        assert_eq!(ObjectId::new(vec![7; 256]), Err(IdError::Length { length_bytes: 256 }));
    }

    #[test]
    fn object_ids_print_readably() {
        assert_eq!(ObjectId::new("weights/7").unwrap().to_string(), "weights/7");
        assert_eq!(ObjectId::new([0, 255]).unwrap().to_string(), "\\x00\\xff");
    }

    #[test]
    fn nothing_in_an_id_disturbs_a_terminal() {
        let text = |id: &[u8]| ObjectId::new(id).unwrap().readable();
        assert_eq!(
            text("it's gew\u{e4}hr/\u{6771}\u{4eac}".as_bytes()),
            "it's gew\u{e4}hr/\u{6771}\u{4eac}"
        );
        assert_eq!(text(b"a\nb\x1b[1m"), r"a\nb\u{1b}[1m");
        assert_eq!(text(b"a\xff\xc3"), r"a\xff\xc3");
        assert_eq!(text("\u{202e}a".as_bytes()), r"\u{202e}a");
    }

    #[test]
    fn node_ids_are_host_names() {
        assert!(NodeId::new("gpu-07.rack_2").is_ok());
        assert!(NodeId::new("").is_err());
        assert!(NodeId::new("a b").is_err());
        assert!(NodeId::new(&"x".repeat(64)).is_err());
    }
}
