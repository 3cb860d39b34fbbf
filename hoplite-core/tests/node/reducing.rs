use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::link::Uplink;
use hoplite_core::node::*;
use hoplite_core::plan::link::LinkEstimate;
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::{
    Location, LocationState, Locations, ObjectSummary, PullOutcome, Retention, ToStore,
};
use hoplite_core::topology::place::{EVERYWHERE, Path};
use hoplite_core::{Dtype, Error, Metadata, ObjectId, PutId};

use crate::harness::*;

pub(crate) const SLOW: LinkEstimate = LinkEstimate {
    bytes_per_second: 10_000,
    latency: Duration::from_micros(10),
    uplink: Uplink::measured(0),
};

pub(crate) const GATHERING: Duration = Duration::from_millis(2);

#[derive(Debug, Clone)]
pub(crate) struct Combine {
    pub(crate) combine: CombineId,
    pub(crate) copy: CopyId,
    pub(crate) offset_bytes: u64,
    pub(crate) inputs: Vec<CombineInput>,
}

#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) hop: HopId,
    pub(crate) node: String,
    pub(crate) spec: Hop,
}

#[derive(Debug, Default)]
pub(crate) struct Reduces {
    combines: VecDeque<Combine>,
    cancelled: Vec<CombineId>,
    hops: VecDeque<Asked>,
    ended: Vec<HopId>,
    reports: VecDeque<(HostingId, HopReport)>,
    next_hosting: u64,
}

impl Reduces {
    pub(crate) fn effect(&mut self, effect: &Effect) {
        match effect.clone() {
            Effect::StartCombine { combine, copy, offset_bytes, inputs, .. } => {
                self.combines.push_back(Combine { combine, copy, offset_bytes, inputs });
            }
            Effect::CancelCombine { combine } => self.cancelled.push(combine),
            Effect::StartHop { hop, node, spec, .. } => {
                self.hops.push_back(Asked { hop, node: node.to_string(), spec });
            }
            Effect::EndHop { hop } => self.ended.push(hop),
            Effect::HopReport { hosting, report } => self.reports.push_back((hosting, report)),
            _ => {}
        }
    }
}

pub(crate) fn hop_inputs(hop: &Asked) -> Vec<String> {
    hop.spec.inputs.iter().map(|input| place(&hop.node, input)).collect()
}

fn place(node: &str, input: &HopInput) -> String {
    let what = if input.is_hop { "hop".to_owned() } else { input.id.to_string() };
    if input.node.as_str() == node {
        format!("{what} here")
    } else {
        format!("{what} at {}", input.node)
    }
}

pub(crate) fn f32s() -> Metadata {
    Metadata { dtype: Dtype::F32, ..Metadata::default() }
}

pub(crate) fn reduce(target: &str, sources: &[&str]) -> Reduce {
    Reduce {
        target: id(target),
        sources: sources.iter().map(|name| id(name)).collect(),
        count: sources.len(),
        op: ReduceOp::Sum,
        order: ReduceOrder::Any,
        range: None,
        replicas: 0,
        timeout: LONG,
    }
}

pub(crate) fn located(name: &str, put: u64, state: LocationState, nodes: &[&str]) -> Locations {
    let location = |node: &&str| Location {
        node: node_id(node),
        data_address: address(node),
        state,
        retention: Retention::Pinned,
        pulling_from: None,
        path: EVERYWHERE,
        slow_peers: Vec::new(),
    };
    Locations {
        id: id(name),
        object: Some(ObjectSummary {
            put: PutId(put),
            size_bytes: SIZE,
            metadata: f32s(),
            inline: false,
            lost: false,
            origin: None,
        }),
        locations: nodes.iter().map(location).collect(),
    }
}

pub(crate) fn complete(name: &str, put: u64, nodes: &[&str]) -> Locations {
    located(name, put, LocationState::Complete, nodes)
}

pub(crate) fn unknown(name: &str) -> Locations {
    Locations { id: id(name), object: None, locations: Vec::new() }
}

pub(crate) fn lost(name: &str, put: u64) -> Locations {
    let mut locations = complete(name, put, &[]);
    locations.object.as_mut().expect("it is known").lost = true;
    locations
}

pub(crate) fn inline(name: &str, put: u64) -> Locations {
    let mut locations = complete(name, put, &["origin"]);
    let object = locations.object.as_mut().expect("it is known");
    (object.size_bytes, object.inline) = (SMALL, true);
    locations
}

impl Harness {
    pub(crate) fn with_slow_links() -> Self {
        Self::with_slow_links_at(EVERYWHERE)
    }

    pub(crate) fn with_slow_links_at(path: Path) -> Self {
        let mut harness = Self::at(path);
        harness.event(Event::Measured { link: SLOW });
        harness
    }

    pub(crate) fn tell(&mut self, locations: Locations) {
        let open = self.subscriptions.iter().filter(|(_, _, id)| *id == locations.id);
        let open: Vec<_> = open.cloned().collect();
        for (shard, request, _) in open {
            let message = ToStore::Locations { request, locations: locations.clone() };
            self.event(Event::FromShard { shard, message });
        }
    }

    pub(crate) fn tell_deleted(&mut self, name: &str) {
        let open = self.subscriptions.iter().filter(|(_, _, of)| *of == id(name));
        let open: Vec<_> = open.cloned().collect();
        for (shard, request, id) in open {
            let message = ToStore::Failed { request, error: Error::Deleted { id } };
            self.event(Event::FromShard { shard, message });
        }
    }

    pub(crate) fn ready(&mut self, name: &str, put: u64, node: &str) {
        self.tell(complete(name, put, &[node]));
    }

    #[track_caller]
    pub(crate) fn answer_small(&mut self, name: &str, put: u64) {
        let (shard, query) = self.query_of(name);
        let message = ToStore::Inline {
            request: query.request,
            id: id(name),
            put: PutId(put),
            metadata: f32s(),
            bytes: Bytes::from_static(&[0; SMALL as usize]).into(),
        };
        self.event(Event::FromShard { shard, message });
    }

    pub(crate) fn request_reduce(&mut self, request: Reduce) -> (ClientId, CallId) {
        self.request(A, Request::Reduce(request))
    }

    pub(crate) fn reduce(&mut self, target: &str, sources: &[&str]) -> (ClientId, CallId) {
        self.reduce_unknown(reduce(target, sources))
    }

    pub(crate) fn reduce_unknown(&mut self, request: Reduce) -> (ClientId, CallId) {
        let ids: Vec<ObjectId> = request.sources.iter().chain([&request.target]).cloned().collect();
        let call = self.request_reduce(request);
        for id in ids {
            self.tell(unknown(&id.to_string()));
        }
        call
    }

    #[track_caller]
    pub(crate) fn put_f32(&mut self, name: &str, size_bytes: u64) -> ObjectView {
        let view = self.create_f32(B, name, size_bytes);
        let sealed = self.seal(B, view.copy);
        self.accept_all();
        assert_eq!(self.answer(sealed), Some(Ok(Response::Sealed)));
        self.release(B, view.copy);
        view
    }

    #[track_caller]
    pub(crate) fn create_f32(
        &mut self,
        client: ClientId,
        name: &str,
        size_bytes: u64,
    ) -> ObjectView {
        let request = Request::Create { id: id(name), size_bytes, metadata: f32s(), timeout: LONG };
        let call = self.request(client, request);
        self.view(call)
    }

    #[track_caller]
    pub(crate) fn fetch_f32(&mut self, name: &str, put: u64) -> ObjectView {
        let call = self.get(B, name);
        let pull = self.grant_f32(name, put);
        self.pull_ended(&pull, SIZE, PullOutcome::Complete);
        self.accept_all();
        let view = self.view(call);
        self.release(B, view.copy);
        view
    }

    #[track_caller]
    pub(crate) fn reduced(&mut self, call: (ClientId, CallId)) -> Vec<usize> {
        self.accept_all();
        match self.answer(call) {
            Some(Ok(Response::Reduced { indices })) => indices,
            other => panic!("expected a result, got {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn next_combine(&mut self) -> Combine {
        self.reduces.combines.pop_front().expect("a combination was started")
    }

    #[track_caller]
    pub(crate) fn combine(&mut self) -> Combine {
        assert!(
            self.reduces.combines.len() < 2,
            "expected one combination: {:?}",
            self.reduces.combines
        );
        self.next_combine()
    }

    pub(crate) fn has_no_combine(&self) -> bool {
        self.reduces.combines.is_empty()
    }

    pub(crate) fn inputs(&self, combine: &Combine) -> Vec<String> {
        let name = |input: &CombineInput| match input {
            CombineInput::Remote(input) => place("here", input),
            CombineInput::Local { copy, .. } => match self.node.object_of(*copy) {
                Some((id, put)) if *id == ObjectId::of_hop(put) => "hop here".to_owned(),
                Some((id, _)) => format!("{id} here"),
                None => panic!("{copy:?} is gone, but combined"),
            },
        };
        combine.inputs.iter().map(name).collect()
    }

    pub(crate) fn is_cancelled_combine(&self, combine: &Combine) -> bool {
        self.was_cancelled(combine.combine)
    }

    pub(crate) fn was_cancelled(&self, combine: CombineId) -> bool {
        self.reduces.cancelled.contains(&combine)
    }

    pub(crate) fn combined(&mut self, combine: &Combine) {
        self.combine_ended(combine, SIZE, CombineOutcome::Complete);
    }

    pub(crate) fn combine_ended(
        &mut self,
        combine: &Combine,
        valid_bytes: u64,
        outcome: CombineOutcome,
    ) {
        self.event(Event::CombineEnded { combine: combine.combine, valid_bytes, outcome });
    }

    pub(crate) fn input_failed(
        &mut self,
        combine: &Combine,
        valid_bytes: u64,
        index: usize,
        why: PullOutcome,
    ) {
        self.combine_ended(
            combine,
            valid_bytes,
            CombineOutcome::InputFailed { index, outcome: why },
        );
        self.pass(GATHERING);
    }

    #[track_caller]
    pub(crate) fn stop(&mut self, combine: &Combine, valid_bytes: u64) {
        assert!(self.is_cancelled_combine(combine), "{combine:?} was not cancelled");
        self.combine_ended(combine, valid_bytes, CombineOutcome::Cancelled);
    }

    #[track_caller]
    pub(crate) fn hop_at(&mut self, node: &str) -> Asked {
        assert!(self.reduces.hops.len() < 2, "expected one hop: {:?}", self.reduces.hops);
        self.next_hop_at(node)
    }

    #[track_caller]
    pub(crate) fn next_hop_at(&mut self, node: &str) -> Asked {
        let hop = self.reduces.hops.pop_front().expect("a hop was asked for");
        assert_eq!(hop.node, node, "{hop:?}");
        hop
    }

    pub(crate) fn has_no_hop(&self) -> bool {
        self.reduces.hops.is_empty()
    }

    pub(crate) fn hop_said(&mut self, hop: &Asked, report: HopReport) {
        self.event(Event::HopReported { hop: hop.hop, report });
    }

    pub(crate) fn hop_complete(&mut self, hop: &Asked) {
        self.hop_said(hop, HopReport::Complete);
    }

    pub(crate) fn hop_failed(&mut self, hop: &Asked, failure: HopFailure) {
        self.hop_said(hop, HopReport::Failed(failure));
        self.pass(GATHERING);
    }

    pub(crate) fn has_ended(&self, hop: &Asked) -> bool {
        self.reduces.ended.contains(&hop.hop)
    }

    pub(crate) fn host(&mut self, hop: Hop) -> HostingId {
        self.reduces.next_hosting += 1;
        let hosting = HostingId(self.reduces.next_hosting);
        self.event(Event::HopRequested { hosting, hop });
        hosting
    }

    pub(crate) fn release_hop(&mut self, hosting: HostingId) {
        self.event(Event::HopReleased { hosting });
    }

    pub(crate) fn report(&mut self, hosting: HostingId) -> Option<HopReport> {
        let place = self.reduces.reports.iter().position(|(of, _)| *of == hosting)?;
        self.reduces.reports.remove(place).map(|(_, report)| report)
    }
}
