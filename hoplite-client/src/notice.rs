use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use hoplite_core::{NodeId, ObjectId};

/// Time after which a waiting call sends a notice.
pub const LONG_WAIT: Duration = Duration::from_secs(10);

const MAX_NAMED_IDS: usize = 4;

/// A notice for the user, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A call still waits after [`LONG_WAIT`]. Sent at most once per call.
    LongWait(LongWait),
    /// A client has reconnected.
    Reconnected {
        /// Store's socket.
        path: PathBuf,
        /// Node of the store after the reconnection.
        node: NodeId,
        /// [`StoreAfterLoss::Same`] if the store still has its objects.
        store: StoreAfterLoss,
    },
}

/// A long wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongWait {
    /// Call's name, such as `get`.
    pub operation: &'static str,
    /// Target of a reduce, the name of a barrier, or the first object of another call.
    pub id: Option<ObjectId>,
    /// Wait so far.
    pub waited: Duration,
    /// Objects that do not exist yet; `None` if unknown.
    pub missing: Option<Vec<ObjectId>>,
}

/// State of the store after a reconnection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreAfterLoss {
    /// The same store: only the connection was lost.
    Same,
    /// A restarted store: objects without a copy elsewhere are lost.
    StartedAnew,
}

/// Function that receives notices, in the thread of the call. It must not block.
pub type Listener = fn(&Notice);

/// Logs the notice as a warning with `tracing`.
pub fn log_notice(notice: &Notice) {
    tracing::warn!(target: "hoplite", "{notice}");
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LongWait(wait) => wait.fmt(f),
            Self::Reconnected { path, node, store: StoreAfterLoss::Same } => {
                write!(f, "reconnected to the store of node {node} at {}", path.display())
            }
            Self::Reconnected { path, node, store: StoreAfterLoss::StartedAnew } => write!(
                f,
                "reconnected to the store of node {node} at {}, which has restarted: objects that \
                 only it had are lost",
                path.display()
            ),
        }
    }
}

impl fmt::Display for LongWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.operation)?;
        if let Some(id) = &self.id {
            write!(f, " of {id}")?;
        }
        write!(f, " has waited {:?} and goes on: ", self.waited)?;
        match (&self.missing, self.operation) {
            (Some(missing), _) if missing.is_empty() => f.write_str(
                "all objects that it needs exist; it waits for their bytes, for room in the store, or for other \
                 participants",
            ),
            (Some(missing), _) => {
                f.write_str("missing: ")?;
                for (index, id) in missing.iter().take(MAX_NAMED_IDS).enumerate() {
                    write!(f, "{}{id}", if index == 0 { "" } else { ", " })?;
                }
                match missing.len().saturating_sub(MAX_NAMED_IDS) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
            (None, "put") => f.write_str("for room in the store, or for the directory"),
            (None, "delete") => f.write_str("for other nodes to drop their copies"),
            (None, _) => f.write_str("for an answer of the store or of the directory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_names_some_of_what_is_missing() {
        let ids = |count: usize| {
            Some((0..count).map(|k| ObjectId::new(format!("s/{k}")).unwrap()).collect())
        };
        let text = |operation, missing| {
            let id = Some(ObjectId::new("x").unwrap());
            Notice::LongWait(LongWait { operation, id, waited: LONG_WAIT, missing }).to_string()
        };
        assert_eq!(
            text("reduce", ids(2)),
            "reduce of x has waited 10s and goes on: missing: s/0, s/1"
        );
        assert!(text("reduce", ids(9)).ends_with("s/2, s/3 and 5 more"));
        assert!(text("get", ids(0)).ends_with(
            "it waits for their bytes, for room in the store, or for other participants"
        ));
        assert!(text("put", None).ends_with("for room in the store, or for the directory"));
        assert!(text("get", None).ends_with("for an answer of the store or of the directory"));
    }
}
