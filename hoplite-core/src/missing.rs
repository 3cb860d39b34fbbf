//! The thing that a call still waited for when its time ran out.
//!
//! A store knows it, and sends it with [`Error::Timeout`], so that nobody has to search the logs of a cluster for the reason.

use std::fmt;

use crate::error::Error;
use crate::id::{NodeId, ObjectId};
use crate::text::escape;

/// Most objects, participants or nodes that a cause names: what a person reads, and far less than a frame holds.
pub const MAX_NAMED: usize = 8;

/// Some of the things that are missing, and the number of all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named<T> {
    /// The first ones, at most [`MAX_NAMED`].
    pub first: Vec<T>,
    /// The number of all.
    pub count: u64,
}

impl<T> Named<T> {
    /// Counts `all`, and keeps the first ones.
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

    /// Returns `true` if nothing is missing.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of things that are not named.
    fn others(&self) -> u64 {
        self.count.saturating_sub(self.first.len() as u64)
    }
}

/// A participant of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// The rank of the participant.
    pub rank: u32,
    /// The id of its source.
    pub source: ObjectId,
}

/// The thing that a call waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// The directory knows no store from which the object can be had.
    Object {
        /// The object.
        id: ObjectId,
    },
    /// The directory knows no store that has these sources of a reduce.
    Sources {
        /// The sources.
        sources: Named<ObjectId>,
    },
    /// These participants of a collective have not put their sources.
    Participants {
        /// The participants.
        participants: Named<Absent>,
    },
    /// The participant with rank 0 has not begun the collective, or its store has not finished it.
    Coordinator {
        /// The target of the collective.
        target: ObjectId,
    },
    /// These stores have not done their part of a reduce or a collective.
    Stores {
        /// The stores.
        nodes: Named<NodeId>,
    },
    /// The store has no room. A call that waited for that fails with [`Error::StoreFull`] instead of a timeout.
    Room {
        /// The number of bytes that the call needs.
        needed_bytes: u64,
        /// The number of bytes of the arena that are free.
        free_bytes: u64,
        /// The size of the arena.
        capacity_bytes: u64,
    },
    /// A client of this store creates the object, and has not sealed it.
    Seal {
        /// The object.
        id: ObjectId,
    },
    /// The bytes of an object do not arrive.
    Bytes {
        /// The object.
        id: ObjectId,
        /// The store that sends them.
        from: NodeId,
    },
    /// A store cannot be asked: it refuses this store, or cannot be reached.
    Peer {
        /// The store.
        node: NodeId,
        /// The reason of the last failure.
        reason: Box<Error>,
    },
    /// The directory shard of the object cannot be asked: it refuses this store, or cannot be reached.
    Shard {
        /// The address of the shard, as configured.
        address: String,
        /// The reason of the last failure.
        reason: Box<Error>,
    },
    /// A directory shard has not answered.
    Answer {
        /// The address of the shard, as configured.
        address: String,
    },
}

impl Missing {
    /// The name of the kind: stable, for programs.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Object { .. } => "object",
            Self::Sources { .. } => "sources",
            Self::Participants { .. } => "participants",
            Self::Coordinator { .. } => "coordinator",
            Self::Stores { .. } => "stores",
            Self::Room { .. } => "room",
            Self::Seal { .. } => "seal",
            Self::Bytes { .. } => "bytes",
            Self::Peer { .. } => "peer",
            Self::Shard { .. } => "shard",
            Self::Answer { .. } => "answer",
        }
    }

    /// The failure behind it, if one is known.
    pub fn reason(&self) -> Option<&Error> {
        match self {
            Self::Peer { reason, .. } | Self::Shard { reason, .. } => Some(reason),
            _ => None,
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object { id } => write!(f, "no store offers object {id}"),
            Self::Sources { sources } => {
                f.write_str("no store offers ")?;
                list(f, ("source", "sources"), sources, |f, id| write!(f, "{id}"))
            }
            Self::Participants { participants } => {
                list(f, ("rank", "ranks"), participants, |f, Absent { rank, source }| {
                    write!(f, "{rank} ({source})")
                })?;
                f.write_str(if participants.count == 1 { " has not joined" } else { " have not joined" })
            }
            Self::Coordinator { target } => {
                write!(f, "rank 0 has not begun or not finished the collective of {target}")
            }
            Self::Stores { nodes } => {
                list(f, ("store", "stores"), nodes, |f, node| f.write_str(node.as_str()))?;
                f.write_str(if nodes.count == 1 { " is not done" } else { " are not done" })
            }
            Self::Room { needed_bytes, free_bytes, capacity_bytes } => {
                write!(
                    f,
                    "the store is full: {needed_bytes} bytes needed, {free_bytes} of {capacity_bytes} free"
                )
            }
            Self::Seal { id } => write!(f, "the client that creates object {id} here has not sealed it"),
            Self::Bytes { id, from } => {
                write!(f, "store {} has not sent all bytes of object {id}", from.as_str())
            }
            Self::Peer { node, reason } => write!(f, "store {}: {reason}", node.as_str()),
            Self::Shard { address, reason } => write!(f, "directory shard {}: {reason}", escape(address)),
            Self::Answer { address } => {
                write!(f, "directory shard {} has not answered", escape(address))
            }
        }
    }
}

fn list<T>(
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

/// The end of the message of a timeout.
pub(crate) struct Because<'a>(pub(crate) &'a Option<Box<Missing>>);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |missing| write!(f, ": {missing}"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Operation;

    fn id(name: &str) -> ObjectId {
        ObjectId::new(name).unwrap()
    }

    #[test]
    fn a_timeout_says_what_was_missing() {
        let said = |missing: Missing| {
            let waited = Duration::from_secs(2);
            let missing = Some(Box::new(missing));
            Error::Timeout { operation: Operation::Reduce, waited, missing }.to_string()
        };
        let participants = Named::of([Absent { rank: 2, source: id("x/2") }]);
        assert_eq!(
            said(Missing::Participants { participants }),
            "reduce timed out after 2s: rank 2 (x/2) has not joined"
        );
        let sources = Named::of((0..10).map(|number| id(&format!("s{number}"))));
        assert_eq!(
            said(Missing::Sources { sources }),
            "reduce timed out after 2s: no store offers sources s0, s1, s2, s3, s4, s5, s6, s7 and 2 more"
        );
        let reason = Box::new(Error::permission_denied("another token"));
        assert_eq!(
            said(Missing::Shard { address: "a:1".into(), reason }),
            "reduce timed out after 2s: directory shard a:1: permission denied: another token"
        );
        let plain = Error::timeout(Operation::Get, Duration::from_secs(1));
        assert_eq!(plain.to_string(), "get timed out after 1s");
    }
}
