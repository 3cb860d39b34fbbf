//! The only code that makes Python exceptions.
//!
//! The classes in `hoplite/errors.py` are named after error variants, whose fields are attributes.

use std::any::Any;

use hoplite_client::{ConnectFailure, Distrust, Error, Missing, NodeId, ObjectId, QuotaSubject};
use hoplite_core::Error as ObjectError;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::report;

pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    exception_about(py, error, None)
}

/// Names `id` even if the error names no object.
pub(crate) fn exception_about(py: Python<'_>, error: &Error, id: Option<&ObjectId>) -> PyErr {
    let fields = PyDict::new(py);
    let name = match set_fields(py, error, &fields) {
        Ok(name) => name,
        Err(error) => return error,
    };
    let mut message = error.to_string();
    if let Some(id) = id
        && !fields.contains("id").unwrap_or(false)
    {
        message = format!("{message} (object {id})");
        if let Err(error) = fields.set_item("id", report::id(py, id)) {
            return error;
        }
    }
    if let Err(error) = fields.set_item("retryable", error.is_retryable()) {
        return error;
    }
    make(py, name, message, &fields)
}

pub(crate) fn cluster_mismatch(py: Python<'_>, id: &ObjectId, theirs: &str, ours: &str) -> PyErr {
    let fields = PyDict::new(py);
    let set = [("ref_cluster", theirs), ("store_cluster", ours)]
        .into_iter()
        .try_for_each(|(name, cluster)| fields.set_item(name, cluster))
        .and_then(|()| fields.set_item("id", report::id(py, id)));
    if let Err(error) = set {
        return error;
    }
    let message = format!(
        "the handle is of object {id} of the cluster {theirs:?}, and this client's store is of the cluster {ours:?}"
    );
    make(py, "ClusterMismatch", message, &fields)
}

pub(crate) fn internal(py: Python<'_>, panic: &(dyn Any + Send)) -> PyErr {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it said nothing");
    make(
        py,
        "InternalError",
        format!("a bug in the native half of hoplite: {said}"),
        &PyDict::new(py),
    )
}

fn make(py: Python<'_>, name: &str, message: String, fields: &Bound<'_, PyDict>) -> PyErr {
    let made = py
        .import("hoplite.errors")
        .and_then(|module| module.getattr(name))
        .and_then(|class| class.call((message.as_str(),), Some(fields)));
    match made {
        Ok(value) => PyErr::from_value(value),
        // The package is incomplete, or the interpreter is ending.
        Err(_) => PyException::new_err(message),
    }
}

/// Returns the name of the class.
fn set_fields(py: Python<'_>, error: &Error, fields: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    Ok(match error {
        Error::Object(error) => set_object_fields(py, error, fields)?,
        Error::Connect { path, kind } => {
            fields.set_item("path", path.as_os_str())?;
            fields.set_item("reason", connect_reason(kind))?;
            set_untrusted(kind, fields)?;
            "ConnectFailed"
        }
        Error::ConnectionLost { path, reason, .. } => {
            fields.set_item("path", path.as_os_str())?;
            fields.set_item("reason", reason.to_string())?;
            "ConnectionLost"
        }
        Error::ForkedChild { connected, current } => {
            fields.set_item("connected", connected)?;
            fields.set_item("current", current)?;
            "ForkedChild"
        }
        Error::BufferTooSmall { needed_bytes, given_bytes } => {
            fields.set_item("needed_bytes", needed_bytes)?;
            fields.set_item("given_bytes", given_bytes)?;
            "BufferTooSmall"
        }
        Error::SizeMismatch { size_bytes, written_bytes } => {
            fields.set_item("size_bytes", size_bytes)?;
            fields.set_item("written_bytes", written_bytes)?;
            "SizeMismatch"
        }
        Error::RanksMissing { name, ranks, waited } => {
            fields.set_item("id", report::id(py, name))?;
            fields.set_item("ranks", ranks)?;
            fields.set_item("waited", waited.as_secs_f64())?;
            "RanksMissing"
        }
        _ => "HopliteError",
    })
}

#[expect(clippy::too_many_lines, reason = "one arm for each error")]
fn set_object_fields(
    py: Python<'_>,
    error: &ObjectError,
    fields: &Bound<'_, PyDict>,
) -> PyResult<&'static str> {
    let set_id = |id| fields.set_item("id", report::id(py, id));
    Ok(match error {
        ObjectError::InvalidId { length_bytes } => {
            fields.set_item("length_bytes", length_bytes)?;
            "InvalidId"
        }
        ObjectError::InvalidName { name } => {
            fields.set_item("name", name)?;
            "InvalidName"
        }
        ObjectError::InvalidMetadata(reason) => {
            fields.set_item("reason", reason.to_string())?;
            "InvalidMetadata"
        }
        ObjectError::InvalidRequest { reason } => {
            fields.set_item("reason", reason.as_ref())?;
            "InvalidRequest"
        }
        ObjectError::AlreadyExists { id } => {
            set_id(id)?;
            "AlreadyExists"
        }
        ObjectError::PutConflict { id } => {
            set_id(id)?;
            "PutConflict"
        }
        ObjectError::ObjectTooLarge { id, size_bytes, limit_bytes } => {
            set_id(id)?;
            fields.set_item("size_bytes", size_bytes)?;
            fields.set_item("limit_bytes", limit_bytes)?;
            "ObjectTooLarge"
        }
        ObjectError::StoreFull { needed_bytes, free_bytes, capacity_bytes, holders } => {
            fields.set_item("needed_bytes", needed_bytes)?;
            fields.set_item("free_bytes", free_bytes)?;
            fields.set_item("capacity_bytes", capacity_bytes)?;
            fields.set_item("holders", holders)?;
            "StoreFull"
        }
        ObjectError::QuotaExceeded(excess) => {
            let (user, prefix) = match &excess.subject {
                QuotaSubject::User(user) => (Some(user), None),
                QuotaSubject::EachClient => (None, None),
                QuotaSubject::Prefix(prefix) => (None, Some(report::id(py, prefix))),
            };
            fields.set_item("user", user)?;
            fields.set_item("prefix", prefix)?;
            fields.set_item("resource", excess.resource.name())?;
            fields.set_item("needed", excess.needed)?;
            fields.set_item("used", excess.used)?;
            fields.set_item("limit", excess.limit)?;
            "QuotaExceeded"
        }
        ObjectError::Timeout { operation, waited, missing } => {
            fields.set_item("operation", operation.to_string())?;
            fields.set_item("waited", waited.as_secs_f64())?;
            if let Some(missing) = missing {
                set_missing(py, missing, fields)?;
            }
            "Timeout"
        }
        ObjectError::ObjectLost { id } => {
            set_id(id)?;
            "ObjectLost"
        }
        ObjectError::Superseded { id } => {
            set_id(id)?;
            "Superseded"
        }
        ObjectError::Deleted { id } => {
            set_id(id)?;
            "Deleted"
        }
        ObjectError::SpillFailed { id, reason } => {
            set_id(id)?;
            fields.set_item("reason", reason.as_ref())?;
            "SpillFailed"
        }
        ObjectError::TypeMismatch { id, reason } => {
            set_id(id)?;
            fields.set_item("reason", reason.as_ref())?;
            "TypeMismatch"
        }
        ObjectError::DuplicateId { id } => {
            set_id(id)?;
            "DuplicateId"
        }
        ObjectError::LimitExceeded { what, maximum } => {
            fields.set_item("what", what.as_ref())?;
            fields.set_item("maximum", maximum)?;
            "LimitExceeded"
        }
        ObjectError::UnknownReference { reference } => {
            fields.set_item("reference", reference)?;
            "UnknownReference"
        }
        ObjectError::NodeIdInUse { node } => {
            fields.set_item("node", node.as_str())?;
            "NodeIdInUse"
        }
        ObjectError::ClusterMismatch { .. } => "ClusterMismatch",
        ObjectError::PermissionDenied { reason } => {
            fields.set_item("reason", reason.as_ref())?;
            "PermissionDenied"
        }
        ObjectError::ShardListMismatch { refused, in_use } => {
            fields.set_item("refused", refused)?;
            fields.set_item("in_use", in_use)?;
            "ShardListMismatch"
        }
        ObjectError::VersionMismatch { ours, theirs } => {
            fields.set_item("ours", ours)?;
            fields.set_item("theirs", theirs)?;
            "VersionMismatch"
        }
        ObjectError::Malformed { plane, reason } => {
            fields.set_item("plane", plane.to_string())?;
            fields.set_item("reason", reason.as_ref())?;
            "Malformed"
        }
        ObjectError::Unavailable { what } => {
            fields.set_item("what", what.as_ref())?;
            "Unavailable"
        }
        ObjectError::ShuttingDown => "ShuttingDown",
        ObjectError::NotEnoughNodes { wanted, present } => {
            fields.set_item("wanted", wanted)?;
            fields.set_item("present", present)?;
            "NotEnoughNodes"
        }
        ObjectError::Draining => "Draining",
        _ => "HopliteError",
    })
}

fn set_untrusted(kind: &ConnectFailure, fields: &Bound<'_, PyDict>) -> PyResult<()> {
    match kind {
        ConnectFailure::UntrustedPlace(
            Distrust::Owner { path, owner } | Distrust::Writable { path, owner, .. },
        ) => {
            fields.set_item("untrusted", path.as_os_str())?;
            fields.set_item("owner", owner)
        }
        ConnectFailure::UntrustedDaemon { user } => fields.set_item("owner", user),
        _ => Ok(()),
    }
}

fn set_missing(py: Python<'_>, missing: &Missing, fields: &Bound<'_, PyDict>) -> PyResult<()> {
    fields.set_item("missing", missing.kind())?;
    let id = |id| report::id(py, id);
    match missing {
        Missing::Object { id: object }
        | Missing::Seal { id: object }
        | Missing::Replicas { id: object, .. }
        | Missing::Coordinator { target: object } => {
            fields.set_item("missing_ids", [id(object)])?
        }
        Missing::Sources { sources } => {
            let sources: Vec<_> = sources.first.iter().map(id).collect();
            fields.set_item("missing_ids", sources)?;
        }
        Missing::Participants { participants } => {
            let ranks: Vec<u32> = participants.first.iter().map(|absent| absent.rank).collect();
            fields.set_item("missing_ranks", ranks)?;
            let sources: Vec<_> =
                participants.first.iter().map(|absent| id(&absent.source)).collect();
            fields.set_item("missing_ids", sources)?;
        }
        Missing::Stores { nodes } => {
            let nodes: Vec<&str> = nodes.first.iter().map(NodeId::as_str).collect();
            fields.set_item("peers", nodes)?;
        }
        Missing::Bytes { id: object, from } => {
            fields.set_item("missing_ids", [id(object)])?;
            fields.set_item("peers", [from.as_str()])?;
        }
        Missing::Peer { node, .. } => fields.set_item("peers", [node.as_str()])?,
        Missing::Shard { address, .. } | Missing::Answer { address } => {
            fields.set_item("peers", [address.as_str()])?;
        }
        _ => {}
    }
    if let Some(reason) = missing.reason() {
        fields.set_item("reason", reason.to_string())?;
    }
    Ok(())
}

fn connect_reason(kind: &ConnectFailure) -> &'static str {
    match kind {
        ConnectFailure::NoSuchSocket => "NoSuchSocket",
        ConnectFailure::NotASocket => "NotASocket",
        ConnectFailure::NotListening => "NotListening",
        ConnectFailure::ClosedEarly => "ClosedEarly",
        ConnectFailure::PermissionDenied { .. } => "PermissionDenied",
        ConnectFailure::UntrustedPlace(_) => "UntrustedPlace",
        ConnectFailure::UntrustedDaemon { .. } => "UntrustedDaemon",
        ConnectFailure::PathTooLong => "PathTooLong",
        ConnectFailure::TimedOut { .. } => "TimedOut",
        ConnectFailure::NotAStore => "NotAStore",
        ConnectFailure::Refused(_) => "Refused",
        ConnectFailure::Arena { .. } => "Arena",
        _ => "System",
    }
}
