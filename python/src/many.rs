//! Batches, in which each object may fail.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use hoplite_client::{
    ClusterId, Dtype, Lifetime, Metadata, NewObject, ObjectId, Replicas, Result, Results,
};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::PyList;

use crate::arguments::Id;
use crate::buffers::{Input, Keep};
use crate::errors::{exception, exception_about};

pub(crate) type Described = (Id, Vec<Input>, PyBackedStr, Option<Vec<u64>>, PyBackedBytes);

#[derive(Debug)]
pub(crate) struct Objects(Vec<Object>);

#[derive(Debug)]
struct Object {
    id: ObjectId,
    pieces: Vec<Input>,
    metadata: Metadata,
}

impl Objects {
    pub(crate) fn new(
        py: Python<'_>,
        described: Vec<Described>,
        cluster: &ClusterId,
        replicas: Replicas,
        lifetime: Option<&Arc<Lifetime>>,
    ) -> PyResult<Self> {
        let object = |(id, pieces, dtype, shape, user): Described| {
            let dtype = Dtype::from_str(&dtype)
                .map_err(|error| exception(py, &hoplite_core::Error::from(error).into()))?;
            let user = Bytes::copy_from_slice(&user);
            let lifetime = lifetime.cloned();
            let metadata =
                Metadata { dtype, shape, user, replicas, lifetime, ..Metadata::default() };
            Ok(Object { id: id.within(py, cluster)?, pieces, metadata })
        };
        Ok(Self(described.into_iter().map(object).collect::<PyResult<_>>()?))
    }

    pub(crate) fn keep(&self) -> Vec<Keep> {
        self.0.iter().flat_map(|object| &object.pieces).map(Input::keep).collect()
    }

    pub(crate) fn ids(&self) -> Vec<ObjectId> {
        self.0.iter().map(|object| object.id.clone()).collect()
    }

    pub(crate) fn new_objects(&self) -> Vec<NewObject<'_>> {
        let mut new = Vec::with_capacity(self.0.len());
        for Object { id, pieces, metadata } in &self.0 {
            new.push(NewObject {
                id: id.clone(),
                bytes: whole(pieces),
                metadata: metadata.clone(),
            });
        }
        new
    }
}

pub(crate) fn whole(pieces: &[Input]) -> Cow<'_, [u8]> {
    match pieces {
        [piece] => Cow::Borrowed(piece.bytes()),
        pieces => Cow::Owned(pieces.iter().map(Input::bytes).collect::<Vec<_>>().concat()),
    }
}

/// A Python list with an exception for each failed object.
#[derive(Debug)]
pub(crate) struct Outcomes<T> {
    ids: Vec<ObjectId>,
    results: Results<T>,
}

impl<T> Outcomes<T> {
    pub(crate) fn new<U>(ids: Vec<ObjectId>, results: Results<U>, value: impl Fn(U) -> T) -> Self {
        Self {
            ids,
            results: results.into_iter().map(|result: Result<U>| result.map(&value)).collect(),
        }
    }
}

impl<'py, T: IntoPyObject<'py>> IntoPyObject<'py> for Outcomes<T> {
    type Target = PyList;
    type Output = Bound<'py, PyList>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let outcome = |(id, result): (&ObjectId, Result<T>)| match result {
            Ok(value) => value.into_bound_py_any(py),
            Err(error) => {
                exception_about(py, &error, Some(id)).into_value(py).into_bound_py_any(py)
            }
        };
        let outcomes: Vec<_> =
            self.ids.iter().zip(self.results).map(outcome).collect::<PyResult<_>>()?;
        PyList::new(py, outcomes)
    }
}
