//! Requests to the dashboard's port, from browsers or strangers.

use hoplite_core::id::MAX_OBJECT_ID_BYTES;
use hoplite_proto::dashboard::query::{from_hex, number, to_hex, value};
use hoplite_proto::dashboard::{MAX_KEY_BYTES, MAX_NODES, MAX_OBJECTS, Question};

/// Parses `bytes` as a path, a form and a cookie.
pub fn question(bytes: &[u8]) {
    let (path, query) =
        bytes.split_at(bytes.iter().position(|byte| *byte == b'?').unwrap_or(bytes.len()));
    let query = query.get(1..).unwrap_or_default();
    if let Ok(path) = std::str::from_utf8(path) {
        match Question::parse(path, query) {
            Some(Question::Nodes { after, limit }) => {
                assert!(after.len() <= query.len() && (1..=MAX_NODES).contains(&limit));
            }
            Some(Question::Objects(search)) => {
                assert!(
                    search.prefix.len() <= MAX_OBJECT_ID_BYTES
                        && search.after.len() <= MAX_OBJECT_ID_BYTES
                );
                assert!((1..=MAX_OBJECTS).contains(&search.limit));
            }
            Some(Question::Reduce(id)) => assert!(id.as_bytes().len() <= MAX_OBJECT_ID_BYTES),
            Some(Question::Object(id)) => {
                let again = format!("id={}", to_hex(id.as_bytes()));
                assert_eq!(Question::parse(path, again.as_bytes()), Some(Question::Object(id)));
            }
            Some(Question::Prefixes(prefix)) => assert!(prefix.len() <= MAX_OBJECT_ID_BYTES),
            Some(Question::Links { group }) => assert!(group.len() <= MAX_KEY_BYTES),
            Some(Question::Node(node) | Question::History { node: Some(node), .. }) => {
                assert!(node.as_str().len() <= query.len());
            }
            Some(
                Question::Overview
                | Question::Transfers
                | Question::Reduces
                | Question::Events
                | Question::History { node: None, .. }
                | Question::Recent,
            )
            | None => {}
        }
    }
    for name in ["token", "limit", ""] {
        if let Some(decoded) = value(bytes, name) {
            assert!(decoded.len() <= bytes.len());
        }
    }
    let _ = number(bytes, "size", 7);
    if let Some(decoded) = std::str::from_utf8(bytes).ok().and_then(|text| from_hex(text, 32)) {
        assert!(decoded.len() <= 32);
        assert_eq!(from_hex(&to_hex(&decoded), 32), Some(decoded));
    }
}
