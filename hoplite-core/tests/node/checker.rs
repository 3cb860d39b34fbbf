//! Watches what goes into a node and what comes out, and fails as soon as an invariant of `node/mod.rs` is broken.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_core::extent::Extent;
use hoplite_core::id::ObjectId;
use hoplite_core::node::{
    CallId, ClientId, CopyId, Effect, Event, NodeStatus, PullId, Request, Response, ServeId,
};
use hoplite_core::shard::ToStore;

/// What is known of one copy from the outside.
#[derive(Debug, Default)]
struct Copy {
    length_bytes: u64,
    size_bytes: u64,
    references: BTreeMap<ClientId, u32>,
    serves: u32,
    pulls: u32,
    comparisons: u32,
    is_writing: bool,
    is_complete: bool,
    has_failed: bool,
    is_pinned: bool,
}

impl Copy {
    fn is_idle(&self) -> bool {
        self.references.is_empty() && self.serves == 0 && self.pulls == 0 && self.comparisons == 0
    }
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Checker {
    copies: BTreeMap<CopyId, Copy>,
    extents: BTreeMap<CopyId, Extent>,
    seen: BTreeSet<CopyId>,
    /// Calls that wait for an answer; true for subscriptions.
    open_calls: BTreeMap<(ClientId, CallId), bool>,
    pulls: BTreeMap<PullId, CopyId>,
    serves: BTreeMap<ServeId, Option<CopyId>>,
    promoted: BTreeSet<ObjectId>,
    is_shutting_down: bool,
}

impl Checker {
    /// Takes in an event, before the node does.
    pub(crate) fn event(&mut self, event: &Event) {
        match event {
            Event::Request { client, call, request } => self.request(*client, *call, request),
            Event::ClientGone { client } => {
                self.open_calls.retain(|(owner, _), _| owner != client);
                for copy in self.copies.values_mut() {
                    copy.references.remove(client);
                }
            }
            Event::PullEnded { pull, .. } => {
                if let Some(copy) = self.pulls.remove(pull) {
                    self.copy(copy).pulls -= 1;
                }
            }
            Event::ServeRequested { serve, .. } => {
                assert!(!self.serves.contains_key(serve), "the test used {serve:?} twice");
            }
            Event::ServeEnded { serve } => {
                if let Some(Some(copy)) = self.serves.remove(serve) {
                    self.copy(copy).serves -= 1;
                }
            }
            Event::Compared { copy, .. } => {
                if let Some(copy) = self.copies.get_mut(copy) {
                    copy.comparisons = copy.comparisons.saturating_sub(1);
                }
            }
            Event::FromShard { message: ToStore::Promote { id, .. }, .. } => {
                self.promoted.insert(id.clone());
            }
            Event::ShutDown => self.is_shutting_down = true,
            _ => {}
        }
    }

    fn request(&mut self, client: ClientId, call: CallId, request: &Request) {
        match request {
            Request::Release { copy } | Request::Abort { copy } => self.release(client, *copy),
            Request::SealUnconfirmed { .. } => {}
            Request::Cancel { call } | Request::Unsubscribe { call } => {
                self.open_calls.remove(&(client, *call));
            }
            Request::Subscribe { .. } => self.enter(client, call, true),
            _ => self.enter(client, call, false),
        }
    }

    fn enter(&mut self, client: ClientId, call: CallId, is_subscription: bool) {
        let previous = self.open_calls.insert((client, call), is_subscription);
        assert!(previous.is_none(), "the test used {call:?} of {client:?} twice");
    }

    fn release(&mut self, client: ClientId, copy: CopyId) {
        if let Some(copy) = self.copies.get_mut(&copy)
            && let Some(count) = copy.references.get_mut(&client)
        {
            *count -= 1;
            if *count == 0 {
                copy.references.remove(&client);
            }
        }
    }

    fn copy(&mut self, copy: CopyId) -> &mut Copy {
        self.copies.get_mut(&copy).unwrap_or_else(|| panic!("{copy:?} is not open"))
    }

    /// Takes in what the node answered with, and its status afterwards.
    pub(crate) fn effects(&mut self, effects: &[Effect], status: NodeStatus) {
        for effect in effects {
            self.effect(effect);
        }
        self.status(status);
    }

    fn effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Reply { client, call, response } => self.reply(*client, *call, response),
            Effect::ToShard { message, inline_from, .. } => {
                if let Some(copy) = inline_from {
                    assert!(self.copy(*copy).is_complete, "the bytes of {message:?} are not there");
                }
            }
            Effect::CopyOpened { copy, extent, size_bytes, .. } => self.opened(*copy, *extent, *size_bytes),
            Effect::Fill { copy, bytes } => {
                let size_bytes = self.copy(*copy).size_bytes;
                assert_eq!(bytes.len() as u64, size_bytes, "{copy:?} is filled with all its bytes");
            }
            Effect::CopyCompleted { copy } => {
                let copy = self.copy(*copy);
                assert!(!copy.is_complete && !copy.has_failed && copy.pulls == 0, "{copy:?} completes once");
                copy.is_complete = true;
                copy.is_writing = false;
            }
            Effect::CopyFailed { copy, .. } => {
                let copy = self.copy(*copy);
                assert!(!copy.has_failed, "{copy:?} fails once");
                copy.has_failed = true;
            }
            Effect::CopyClosed { copy: closed } => {
                let copy = self.copies.remove(closed).unwrap_or_else(|| panic!("{closed:?} is not open"));
                assert!(copy.is_idle() && copy.has_failed, "{closed:?} is closed in use: {copy:?}");
                self.extents.remove(closed);
            }
            Effect::StartPull { pull, copy, size_bytes, offset_bytes, .. } => {
                let local = self.copy(*copy);
                local.pulls += 1;
                assert!(
                    local.pulls == 1 && !local.is_writing && !local.is_complete,
                    "{local:?} is pulled once"
                );
                assert!(*offset_bytes <= *size_bytes && *size_bytes == local.size_bytes);
                assert!(self.pulls.insert(*pull, *copy).is_none(), "{pull:?} was used before");
            }
            Effect::CancelPull { pull } => {
                assert!(self.pulls.contains_key(pull), "{pull:?} is cancelled though it does not run");
            }
            Effect::ServeAccepted { serve, copy, .. } => {
                self.copy(*copy).serves += 1;
                self.serves.insert(*serve, Some(*copy));
            }
            Effect::ServeRefused { serve } => {
                self.serves.insert(*serve, None);
            }
            Effect::Compare { copy, .. } => {
                let copy = self.copy(*copy);
                copy.comparisons += 1;
                assert!(
                    copy.is_complete && copy.comparisons == 1,
                    "{copy:?} is compared once, when complete"
                );
            }
        }
    }

    fn opened(&mut self, copy: CopyId, extent: Extent, size_bytes: u64) {
        assert!(self.seen.insert(copy), "{copy:?} was used before");
        assert!(extent.length_bytes >= size_bytes + 64, "{extent:?} is too short for {size_bytes} bytes");
        let end = extent.offset_bytes + extent.length_bytes;
        for other in self.extents.values() {
            let is_disjoint =
                end <= other.offset_bytes || other.offset_bytes + other.length_bytes <= extent.offset_bytes;
            assert!(is_disjoint, "{extent:?} overlaps {other:?}");
        }
        self.extents.insert(copy, extent);
        self.copies.insert(copy, Copy { length_bytes: extent.length_bytes, size_bytes, ..Copy::default() });
    }

    fn reply(&mut self, client: ClientId, call: CallId, response: &Result<Response, hoplite_core::Error>) {
        let is_subscription = self.open_calls.get(&(client, call)).copied();
        let is_subscription = is_subscription
            .unwrap_or_else(|| panic!("{call:?} of {client:?} is answered, but not open: {response:?}"));
        if !is_subscription || response.is_err() {
            self.open_calls.remove(&(client, call));
        }
        let Ok(Response::Created(view) | Response::Existing(view) | Response::Object(view)) = response else {
            return;
        };
        let is_created = matches!(response, Ok(Response::Created(_)));
        let must_be_complete = matches!(response, Ok(Response::Existing(_)));
        let copy = self.copy(view.copy);
        assert!(!copy.has_failed, "{client:?} is given {copy:?}, which has failed");
        assert!(!must_be_complete || copy.is_complete, "an existing object is complete: {copy:?}");
        *copy.references.entry(client).or_default() += 1;
        if is_created {
            copy.is_writing = true;
            copy.is_pinned = true;
        }
    }

    /// Compares the node's own accounts with what was seen.
    fn status(&self, status: NodeStatus) {
        let used: u64 = self.extents.values().map(|extent| extent.length_bytes).sum();
        assert_eq!(status.free_bytes, status.capacity_bytes - used, "free bytes");
        assert_eq!(status.copies, self.copies.len(), "open copies");
        assert_eq!(status.pulls, self.pulls.len(), "pulls under way");
        if self.promoted.is_empty() {
            let is_evictable =
                |copy: &&Copy| copy.is_complete && !copy.is_pinned && !copy.has_failed && copy.is_idle();
            let evictable: u64 =
                self.copies.values().filter(is_evictable).map(|copy| copy.length_bytes).sum();
            assert_eq!(status.evictable_bytes, evictable, "evictable bytes");
        }
        if self.is_shutting_down {
            assert!(self.open_calls.is_empty(), "calls are answered at shutdown: {:?}", self.open_calls);
            assert!(self.copies.values().all(|copy| copy.has_failed), "no copy is live after shutdown");
        }
    }

    /// The pulls that run.
    pub(crate) fn running_pulls(&self) -> Vec<PullId> {
        self.pulls.keys().copied().collect()
    }

    /// The serves that were requested and have not ended.
    pub(crate) fn open_serves(&self) -> Vec<ServeId> {
        self.serves.keys().copied().collect()
    }

    /// The copies that are being compared.
    pub(crate) fn compared_copies(&self) -> Vec<CopyId> {
        self.copies.iter().filter(|(_, copy)| copy.comparisons > 0).map(|(copy, _)| *copy).collect()
    }

    /// The copies that `client` refers to.
    pub(crate) fn references(&self, client: ClientId) -> Vec<CopyId> {
        let holds = |copy: &Copy| copy.references.contains_key(&client);
        self.copies.iter().filter(|(_, copy)| holds(copy)).map(|(copy, _)| *copy).collect()
    }

    /// How many calls, apart from subscriptions, wait for an answer.
    pub(crate) fn open_calls(&self) -> usize {
        self.open_calls.values().filter(|is_subscription| !**is_subscription).count()
    }
}
