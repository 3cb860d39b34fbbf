use hoplite_client::{
    Description, Grant, LifetimeReport, Location, LocationState, Locations, MemberPosition,
    NodeStatus, ObjectId, ObjectSummary, Owner, PeerLink, ReduceRecord, Retention,
};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
use pythonize::pythonize;

pub(crate) fn id(py: Python<'_>, id: &ObjectId) -> Py<PyAny> {
    match std::str::from_utf8(id.as_bytes()) {
        Ok(text) => PyString::new(py, text).into_any().unbind(),
        Err(_) => PyBytes::new(py, id.as_bytes()).into_any().unbind(),
    }
}

#[derive(Debug)]
pub(crate) struct Ids(pub(crate) Vec<ObjectId>);

impl<'py> IntoPyObject<'py> for Ids {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        self.0.iter().map(|one| id(py, one)).collect::<Vec<_>>().into_bound_py_any(py)
    }
}

#[derive(Debug)]
pub(crate) struct Summary {
    id: ObjectId,
    object: Option<ObjectSummary>,
    locations: Vec<Location>,
    more: Option<More>,
}

#[derive(Debug)]
struct More {
    shard: String,
    grants: Vec<Grant>,
    waiting_receivers: u32,
    reduce: Option<ReduceRecord>,
    lifetime: Option<LifetimeReport>,
}

impl From<Locations> for Summary {
    fn from(known: Locations) -> Self {
        Self { id: known.id, object: known.object, locations: known.locations, more: None }
    }
}

impl From<Description> for Summary {
    fn from(description: Description) -> Self {
        let Description { shard, locations, grants, waiting_receivers, reduce, lifetime } =
            description;
        let more = Some(More { shard, grants, waiting_receivers, reduce, lifetime });
        Self { more, ..Self::from(locations) }
    }
}

impl<'py> IntoPyObject<'py> for Summary {
    type Target = PyDict;
    type Output = Bound<'py, PyDict>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let dict = PyDict::new(py);
        dict.set_item("id", id(py, &self.id))?;
        dict.set_item("exists", self.object.is_some())?;
        if let Some(object) = &self.object {
            dict.set_item("put_id", object.put.0)?;
            dict.set_item("nbytes", object.size_bytes)?;
            dict.set_item("dtype", object.metadata.dtype.name())?;
            let shape = object.metadata.shape.as_ref();
            dict.set_item("shape", shape.map(|extents| PyTuple::new(py, extents)).transpose()?)?;
            dict.set_item("user", PyBytes::new(py, &object.metadata.user))?;
            dict.set_item("inline", object.inline)?;
            dict.set_item("lost", object.lost)?;
            dict.set_item("replicas", object.metadata.replicas.to_keep())?;
            let origin = object.origin.as_ref();
            dict.set_item("creator", origin.map(|origin| origin.creator.as_str()))?;
            dict.set_item("age", origin.map(|origin| origin.age.as_secs_f64()))?;
            let unused = origin.and_then(|origin| origin.unused);
            dict.set_item("unused", unused.map(|time| time.as_secs_f64()))?;
            let lifetime = object.metadata.lifetime.as_deref();
            let owner = lifetime.and_then(|lifetime| lifetime.owner.as_ref());
            dict.set_item("owner", owner.map(Owner::as_str))?;
            let ttl = lifetime.and_then(|lifetime| lifetime.ttl);
            dict.set_item("ttl", ttl.map(|ttl| ttl.after().as_secs_f64()))?;
            dict.set_item("ttl_action", ttl.map(|ttl| ttl.action().name()))?;
        }
        let locations = self.locations.iter().map(|location| location_dict(py, location));
        dict.set_item("locations", locations.collect::<PyResult<Vec<_>>>()?)?;
        if let Some(more) = &self.more {
            dict.set_item("shard", &more.shard)?;
            let expires_in = more.lifetime.and_then(|lifetime| lifetime.expires_in);
            dict.set_item("expires_in", expires_in.map(|left| left.as_secs_f64()))?;
            dict.set_item("waiting_receivers", more.waiting_receivers)?;
            let grants = more.grants.iter().map(|grant| grant_dict(py, grant));
            dict.set_item("grants", grants.collect::<PyResult<Vec<_>>>()?)?;
            let reduce = more.reduce.as_ref();
            dict.set_item("reduce", reduce.map(|record| reduce_dict(py, record)).transpose()?)?;
        }
        Ok(dict)
    }
}

#[derive(Debug)]
pub(crate) struct Page {
    objects: Vec<Locations>,
    next: Option<ObjectId>,
}

impl From<hoplite_client::Page> for Page {
    fn from(page: hoplite_client::Page) -> Self {
        Self { objects: page.objects, next: page.next }
    }
}

impl<'py> IntoPyObject<'py> for Page {
    type Target = PyTuple;
    type Output = Bound<'py, PyTuple>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let objects = self.objects.into_iter().map(|known| Summary::from(known).into_pyobject(py));
        let objects = objects.collect::<PyResult<Vec<_>>>()?;
        let next = self.next.map(|next| PyBytes::new(py, next.as_bytes()));
        (objects, next).into_pyobject(py)
    }
}

#[derive(Debug)]
pub(crate) struct Status(pub(crate) NodeStatus);

impl<'py> IntoPyObject<'py> for Status {
    type Target = PyDict;
    type Output = Bound<'py, PyDict>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let Self(status) = self;
        let dict = PyDict::new(py);
        dict.set_item("node", status.node)?;
        dict.set_item("cluster", status.cluster)?;
        dict.set_item("version", status.version)?;
        dict.set_item("data_address", status.data_address)?;
        dict.set_item("uptime_ms", status.uptime.as_millis())?;
        let numbers = [
            ("capacity_bytes", status.capacity_bytes),
            ("free_bytes", status.free_bytes),
            ("pinned_bytes", status.pinned_bytes),
            ("evictable_bytes", status.evictable_bytes),
            ("reserved_bytes", status.reserved_bytes),
            ("prefaulted_bytes", status.prefaulted_bytes),
            ("copies", status.copies),
            ("clients", status.clients),
            ("pulls", status.pulls),
            ("serves", status.serves),
            ("reduces", status.reduces),
            ("hops", status.hops),
            ("directed_hops", status.directed_hops),
            ("combinations", status.combinations),
            ("sent_bytes", status.sent_bytes),
            ("received_bytes", status.received_bytes),
            ("evictions", status.evictions),
            ("expired", status.expired),
            ("abandoned", status.abandoned),
            ("spilled_objects", status.spill.objects),
            ("spilled_bytes", status.spill.bytes),
            ("spill_file_bytes", status.spill.file_bytes),
            ("corrupt_frames", status.corrupt_frames),
            ("put_conflicts", status.put_conflicts),
            ("max_lanes", status.max_lanes.into()),
            ("extra_lanes", status.extra_lanes),
            ("failed_routes", status.failed_routes.into()),
        ];
        for (name, number) in numbers {
            dict.set_item(name, number)?;
        }
        dict.set_item("shards", pythonize(py, &status.shards)?)?;
        dict.set_item("rails", pythonize(py, &status.rails)?)?;
        let links = status.links.into_iter().map(|link| link_dict(py, link));
        dict.set_item("links", links.collect::<PyResult<Vec<_>>>()?)?;
        dict.set_item("troubles", status.troubles.lines())?;
        Ok(dict)
    }
}

const fn state_name(state: LocationState) -> &'static str {
    match state {
        LocationState::Producing => "producing",
        LocationState::Partial => "partial",
        LocationState::Complete => "complete",
    }
}

fn link_dict(py: Python<'_>, link: PeerLink) -> PyResult<Bound<'_, PyDict>> {
    let PeerLink { node, link, is_slow, lanes } = link;
    let dict = PyDict::new(py);
    dict.set_item("node", node)?;
    dict.set_item("round_trip_us", f64::from(link.alpha_ns) * 2.0 / 1e3)?;
    dict.set_item("bytes_per_second", 1e12 / f64::from(link.ps_per_byte.max(1)))?;
    dict.set_item("is_slow", is_slow)?;
    dict.set_item("lanes", lanes)?;
    Ok(dict)
}

fn location_dict<'py>(py: Python<'py>, location: &Location) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("node", location.node.as_str())?;
    dict.set_item("state", state_name(location.state))?;
    dict.set_item("pinned", location.retention == Retention::Pinned)?;
    Ok(dict)
}

fn grant_dict<'py>(py: Python<'py>, grant: &Grant) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("receiver", &grant.receiver)?;
    dict.set_item("sender", &grant.sender)?;
    dict.set_item("reason", &grant.reason)?;
    dict.set_item("outcome", grant.outcome.as_ref())?;
    Ok(dict)
}

fn reduce_dict<'py>(py: Python<'py>, record: &ReduceRecord) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("op", &record.op)?;
    dict.set_item("plan", &record.plan)?;
    dict.set_item("reduced", record.reduced)?;
    dict.set_item("sources", record.sources)?;
    dict.set_item("hops", record.hops)?;
    dict.set_item("elapsed_us", record.elapsed.as_micros())?;
    dict.set_item("mendings", record.mendings)?;
    dict.set_item("restarts", record.restarts)?;
    dict.set_item("is_running", record.is_running)?;
    let position = |position: &MemberPosition| {
        let dict = PyDict::new(py);
        dict.set_item("member", position.member)?;
        dict.set_item("members", position.members)?;
        dict.set_item("stage", &position.stage)?;
        dict.set_item("final_bytes", position.final_bytes)?;
        dict.set_item("nbytes", position.size_bytes)?;
        dict.set_item("node", &position.node)?;
        PyResult::Ok(dict)
    };
    dict.set_item("position", record.position.as_ref().map(position).transpose()?)?;
    dict.set_item(
        "positions",
        record.positions.iter().map(position).collect::<PyResult<Vec<_>>>()?,
    )?;
    Ok(dict)
}
