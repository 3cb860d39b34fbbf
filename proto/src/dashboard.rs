//! Requests of the dashboard's page to a shard, over HTTP. Answers are JSON.

use hoplite_core::id::{MAX_OBJECT_ID_BYTES, NodeId, ObjectId};
use hoplite_core::shard::ObjectSearch;

use self::query::{from_hex, number, value};

pub mod query;

/// Most nodes in an answer, about 500 KiB of JSON. The dashboard groups the nodes of larger
/// clusters by a label.
pub const MAX_NODES: usize = 1000;
/// Longest label key by which nodes are grouped, in bytes.
pub const MAX_KEY_BYTES: usize = 255;
/// Most objects in an answer.
pub const MAX_OBJECTS: usize = 200;
/// Request of the dashboard to a shard.
#[derive(Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub enum Question {
    /// Describe the shard, and the cluster as a whole.
    Overview,
    Nodes {
        /// The answer begins after this name.
        after: String,
        /// Most nodes in the answer.
        limit: usize,
    },
    Objects(ObjectSearch),
    Object(ObjectId),
    Transfers,
    /// Reduces and collectives, running and past.
    Reduces,
    /// Schedules over time of a target's latest reduces and collectives.
    Reduce(ObjectId),
    /// Links between nodes or, if a label's key is given, between groups of nodes with equal values
    /// of the label.
    Links {
        group: String,
    },
    Events,
    /// Rates and states of the last hour, one point per step.
    History {
        /// `None` for the whole cluster.
        node: Option<NodeId>,
        /// Number of a ten-second step. The answer has only later points.
        after: u64,
    },
    Node(NodeId),
    /// Objects that stores have sent recently.
    Recent,
    /// Sums over the objects whose ids begin with these bytes, grouped by the next part of their
    /// ids.
    Prefixes(Vec<u8>),
}

impl Question {
    /// Parses a path and a query.
    pub fn parse(path: &str, query: &[u8]) -> Option<Self> {
        let limit = |most: usize| {
            let wanted = number(query, "limit", 100)?;
            Some(usize::try_from(wanted).unwrap_or(usize::MAX).clamp(1, most))
        };
        let id_bytes = |name| match value(query, name) {
            None => Some(Vec::new()),
            Some(digits) => from_hex(std::str::from_utf8(&digits).ok()?, MAX_OBJECT_ID_BYTES),
        };
        Some(match path {
            "/api/overview" => Self::Overview,
            "/api/nodes" => {
                let after = String::from_utf8(value(query, "after").unwrap_or_default()).ok()?;
                Self::Nodes { after, limit: limit(MAX_NODES)? }
            }
            "/api/objects" => Self::Objects(ObjectSearch {
                prefix: Some(value(query, "prefix").unwrap_or_default())
                    .filter(|prefix| prefix.len() <= MAX_OBJECT_ID_BYTES)?,
                after: id_bytes("after")?,
                min_size_bytes: number(query, "size", 0)?,
                min_copies: usize::try_from(number(query, "copies", 0)?).ok()?,
                limit: limit(MAX_OBJECTS)?,
            }),
            "/api/object" => Self::Object(ObjectId::new(id_bytes("id")?).ok()?),
            "/api/transfers" => Self::Transfers,
            "/api/reduces" => Self::Reduces,
            "/api/reduce" => Self::Reduce(ObjectId::new(id_bytes("id")?).ok()?),
            "/api/links" => {
                let group = String::from_utf8(value(query, "group").unwrap_or_default()).ok()?;
                Self::Links { group: Some(group).filter(|group| group.len() <= MAX_KEY_BYTES)? }
            }
            "/api/events" => Self::Events,
            "/api/recent" => Self::Recent,
            "/api/prefixes" => Self::Prefixes(id_bytes("prefix")?),
            "/api/history" => Self::History {
                node: match value(query, "node") {
                    None => None,
                    Some(name) => Some(node(&name)?),
                },
                after: number(query, "after", 0)?,
            },
            "/api/node" => Self::Node(node(&value(query, "name")?)?),
            _ => return None,
        })
    }
}

fn node(name: &[u8]) -> Option<NodeId> {
    NodeId::new(std::str::from_utf8(name).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Option<Question> {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        Question::parse(path, query.as_bytes())
    }

    #[test]
    fn questions_are_bounded() {
        let Some(Question::Objects(search)) =
            parse("/api/objects?prefix=a%2F&after=ff&size=7&copies=2&limit=9999")
        else {
            panic!("not understood");
        };
        assert_eq!((&search.prefix[..], &search.after[..]), (&b"a/"[..], &b"\xff"[..]));
        assert_eq!((search.min_size_bytes, search.min_copies, search.limit), (7, 2, 200));
        assert!(
            matches!(parse("/api/objects"), Some(Question::Objects(search)) if search.limit == 100)
        );
        assert!(matches!(parse("/api/nodes?limit=0"), Some(Question::Nodes { limit: 1, .. })));
        assert!(
            matches!(parse("/api/object?id=78"), Some(Question::Object(id)) if id.as_bytes() == b"x")
        );
        assert!(
            matches!(parse("/api/node?name=a"), Some(Question::Node(name)) if name.as_str() == "a")
        );
        let Some(Question::History { node: Some(name), after: 7 }) =
            parse("/api/history?node=n&after=7")
        else {
            panic!("not understood");
        };
        assert_eq!(name.as_str(), "n");
        assert_eq!(parse("/api/history"), Some(Question::History { node: None, after: 0 }));
        assert_eq!(parse("/api/prefixes?prefix=612f"), Some(Question::Prefixes(b"a/".to_vec())));
        for nonsense in [
            "/api/prefixes?prefix=a/".to_owned(),
            format!("/api/prefixes?prefix={}", "00".repeat(256)),
            "/api/node".to_owned(),
            "/api/node?name=".to_owned(),
            format!("/api/node?name={}", "x".repeat(1 << 16)),
            "/api/node?name=%ff".to_owned(),
            "/api/history?node=".to_owned(),
            "/api/history?after=-1".to_owned(),
            "/api/object".to_owned(),
            "/api/object?id=".to_owned(),
            "/api/object?id=7".to_owned(),
            "/api/object?id=../../etc/passwd".to_owned(),
            "/api/objects?after=xy".to_owned(),
            "/api/objects?size=-1".to_owned(),
            "/api/objects?size=18446744073709551616".to_owned(),
            format!("/api/objects?prefix={}", "x".repeat(256)),
            format!("/api/object?id={}", "00".repeat(256)),
            "/api/nodes?after=%ff".to_owned(),
            "/api".to_owned(),
            "/api/".to_owned(),
            "/api/overview/".to_owned(),
            "/api/../overview".to_owned(),
        ] {
            assert_eq!(parse(&nonsense), None, "{nonsense}");
        }
    }
}
