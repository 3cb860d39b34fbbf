use std::io::{self, Write};
use std::time::Duration;

use hoplite_client::LifetimeReport;
use hoplite_core::text::escape;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct Lifetime {
    owner: Option<String>,
    ttl_ms: Option<u64>,
    ttl_action: Option<&'static str>,
    /// Object's end, if this node's store will delete it.
    here: Option<End>,
}

#[derive(Debug, Serialize)]
struct End {
    is_owner_gone: bool,
    expires_in_ms: Option<u64>,
    deleted_in_ms: Option<u64>,
}

impl Lifetime {
    pub(super) fn new(lifetime: &hoplite_client::Lifetime, report: Option<LifetimeReport>) -> Self {
        Self {
            owner: lifetime.owner.as_ref().map(ToString::to_string),
            ttl_ms: lifetime.ttl.map(|ttl| millis(ttl.after())),
            ttl_action: lifetime.ttl.map(|ttl| ttl.action().name()),
            here: report.map(|report| End {
                is_owner_gone: report.is_owner_gone,
                expires_in_ms: report.expires_in.map(millis),
                deleted_in_ms: report.deleted_in.map(millis),
            }),
        }
    }

    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let here = self.here.as_ref();
        if let Some(owner) = &self.owner {
            let gone = match here.and_then(|here| here.deleted_in_ms) {
                Some(left) => format!("; gone, the object is deleted in {}", seconds(left)),
                None => String::new(),
            };
            writeln!(out, "owner      {}{gone}", escape(owner))?;
        }
        if let (Some(ttl), Some(action)) = (self.ttl_ms, self.ttl_action) {
            let left = match here.and_then(|here| here.expires_in_ms) {
                Some(left) => format!("; {} left", seconds(left)),
                None => String::new(),
            };
            writeln!(out, "ttl        {}, then {action}{left}", seconds(ttl))?;
        }
        Ok(())
    }

    pub(super) fn cell(&self) -> String {
        let ttl = self.ttl_ms.map(seconds);
        let owner = self.owner.as_deref().map(escape);
        [owner, ttl].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn seconds(millis: u64) -> String {
    let time = Duration::from_millis(if millis < 10_000 { millis } else { millis - millis % 1000 });
    humantime::format_duration(time).to_string()
}
