//! Converts and checks arguments, before a call sends anything.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hoplite_client::{
    ClusterId, Confirmation, Dtype, FOREVER, Lifetime, Metadata, ObjectId, Owner, PutOptions,
    ReduceOp, ReduceOrder, Replicas, Ttl, TtlAction, default_timeout,
};
use hoplite_core::id::IdError;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::errors::{cluster_mismatch, exception};

const DEFAULT: &str = "default";

const HANDLE_ID: &str = "__hoplite_id__";
const HANDLE_CLUSTER: &str = "__hoplite_cluster__";

/// An id: a `str` (its UTF-8 bytes), `bytes`, or a handle.
#[derive(Debug, Clone)]
pub(crate) struct Id {
    id: ObjectId,
    cluster: Option<String>,
}

impl Id {
    /// Returns the id; refuses a handle of another cluster.
    pub(crate) fn within(self, py: Python<'_>, cluster: &ClusterId) -> PyResult<ObjectId> {
        match self.cluster {
            Some(other) if other != cluster.as_str() => {
                Err(cluster_mismatch(py, &self.id, &other, cluster.as_str()))
            }
            _ => Ok(self.id),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Id {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = value.py();
        let made = match plain_id(&value) {
            Some(made) => (made?, None),
            None => match value.getattr_opt(HANDLE_ID)?.and_then(|id| plain_id(&id)) {
                Some(made) => (made?, cluster_of(&value)?),
                None => {
                    let name = value.get_type().name()?;
                    let said = format!("an id is a str, bytes or a hoplite.Ref, not {name}");
                    return Err(PyTypeError::new_err(said));
                }
            },
        };
        let (made, cluster) = made;
        made.map(|id| Self { id, cluster }).map_err(|error| exception(py, &error.into()))
    }
}

fn cluster_of(handle: &Borrowed<'_, '_, PyAny>) -> PyResult<Option<String>> {
    match handle.getattr_opt(HANDLE_CLUSTER)? {
        Some(cluster) => cluster.extract(),
        None => Ok(None),
    }
}

fn plain_id(value: &Bound<'_, PyAny>) -> Option<PyResult<Result<ObjectId, IdError>>> {
    if let Ok(text) = value.cast::<PyString>() {
        Some(text.to_cow().map(|text| ObjectId::new(text.as_bytes())))
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        Some(Ok(ObjectId::new(bytes.as_bytes())))
    } else {
        None
    }
}

/// A single id is refused, because its iteration would yield characters.
#[derive(Debug, Clone)]
pub(crate) struct Ids {
    ids: Vec<ObjectId>,
    clusters: BTreeMap<String, ObjectId>,
}

impl Ids {
    pub(crate) fn within(self, py: Python<'_>, cluster: &ClusterId) -> PyResult<Vec<ObjectId>> {
        match self.clusters.iter().find(|(other, _)| *other != cluster.as_str()) {
            Some((other, id)) => Err(cluster_mismatch(py, id, other, cluster.as_str())),
            None => Ok(self.ids),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Ids {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if value.is_instance_of::<PyString>()
            || value.is_instance_of::<PyBytes>()
            || value.hasattr(HANDLE_ID)?
        {
            return Err(PyTypeError::new_err(
                "expected several ids, such as a list of them, not one",
            ));
        }
        let mut found = Self { ids: Vec::new(), clusters: BTreeMap::new() };
        for item in value.try_iter()? {
            let Id { id, cluster } = item?.extract::<Id>()?;
            if let Some(cluster) = cluster
                && !found.clusters.contains_key(&cluster)
            {
                found.clusters.insert(cluster, id.clone());
            }
            found.ids.push(id);
        }
        Ok(found)
    }
}

/// A timeout: seconds, `None` for ever, or `"default"`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeout(pub(crate) Duration);

impl<'py> FromPyObject<'_, 'py> for Timeout {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if value.is_none() {
            return Ok(Self(FOREVER));
        }
        if value
            .cast::<PyString>()
            .is_ok_and(|text| text.to_cow().is_ok_and(|text| text == DEFAULT))
        {
            return Ok(Self(default_timeout()));
        }
        let seconds: f64 = value.extract()?;
        if seconds.is_nan() || seconds < 0.0 {
            let said = "a timeout is a number of seconds from 0 up, None for ever, or \"default\"";
            return Err(PyValueError::new_err(said));
        }
        Ok(Self(Duration::try_from_secs_f64(seconds).unwrap_or(FOREVER).min(FOREVER)))
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Op(pub(crate) ReduceOp);

impl<'py> FromPyObject<'_, 'py> for Op {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = value.py();
        let op = ReduceOp::from_str(value.extract()?);
        op.map(Self).map_err(|error| exception(py, &error.into()))
    }
}

pub(crate) const fn order(deterministic: bool) -> ReduceOrder {
    if deterministic { ReduceOrder::Fixed } else { ReduceOrder::Any }
}

/// Owner, seconds to live, and the action at the end.
pub(crate) type LifetimeArgument = (Option<String>, Option<f64>, String);

const OWN_OWNER: &str = "client";

pub(crate) fn lifetime(
    py: Python<'_>,
    argument: LifetimeArgument,
    own: impl FnOnce() -> PyResult<Owner>,
) -> PyResult<Option<Arc<Lifetime>>> {
    let refused = |error: hoplite_core::Error| exception(py, &error.into());
    let (owner, seconds, action) = argument;
    let action = TtlAction::from_str(&action).map_err(refused)?;
    if seconds.is_none() && action != TtlAction::Delete {
        return Err(refused(hoplite_core::Error::invalid_request(
            "the action of a ttl without a ttl",
        )));
    }
    let ttl =
        seconds.map(|seconds| Ttl::of_seconds(seconds, action)).transpose().map_err(refused)?;
    let owner = match owner.as_deref() {
        Some(OWN_OWNER) => Some(own()?),
        owner => owner.map(Owner::new).transpose().map_err(refused)?,
    };
    Ok(Lifetime::of(owner, ttl))
}

pub(crate) fn put_options(
    py: Python<'_>,
    dtype: &str,
    shape: Option<Vec<u64>>,
    user: &[u8],
    timeout: Timeout,
    (replicas, lifetime): (Replicas, Option<Arc<Lifetime>>),
) -> PyResult<PutOptions> {
    let dtype = Dtype::from_str(dtype)
        .map_err(|error| exception(py, &hoplite_core::Error::from(error).into()))?;
    let confirm = if replicas.awaited > 0 { Confirmation::Confirmed } else { Confirmation::BySize };
    let user = Bytes::copy_from_slice(user);
    let metadata = Metadata { dtype, shape, user, agreement: None, replicas, lifetime };
    Ok(PutOptions { metadata, timeout: timeout.0, confirm })
}
