//! Numbers by which a store names its calls, copies and transfers.

/// Names a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

impl ClientId {
    pub(crate) const STORE: Self = Self(u64::MAX);
    pub(crate) const NOBODY: Self = Self(u64::MAX - 1);
}

/// Client's number for its request; unique among the client's open requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Names a call, or one item of a batch. Unique in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallKey {
    pub(crate) client: ClientId,
    pub(crate) call: CallId,
    /// Item's position in its batch, from 1; zero for the whole call.
    pub(crate) item: u32,
}

impl CallKey {
    pub(crate) const fn of(client: ClientId, call: CallId) -> Self {
        Self { client, call, item: 0 }
    }

    pub(crate) const fn whole(self) -> Self {
        Self { item: 0, ..self }
    }

    /// Holder of a call's references: the client, or for an item of a batch, the store until the
    /// batch is answered.
    pub(crate) const fn holder(self) -> ClientId {
        if self.is_item() { ClientId::STORE } else { self.client }
    }

    pub(crate) const fn is_item(self) -> bool {
        self.item != 0
    }
}

/// Names a local copy, and clients' references to it, until its memory is freed. Unique in a run of
/// the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId(pub u64);

/// Names a transfer from another store into a local copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PullId(pub u64);

/// Names a transfer from a local copy to another store. The daemon numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServeId(pub u64);

/// Names a computation that fills a local copy from several inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CombineId(pub u64);

/// Names a hop (a step of a reduce) that this store coordinates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HopId(pub u64);

/// Names a hop that this store performs for a remote coordinator. The daemon numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostingId(pub u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HopOwner {
    Elsewhere(HostingId),
    Here(HopId),
}

/// Writer of a copy, which publishes the copy's progress and completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Producer {
    /// A client process of this node.
    Worker,
    /// The store, with bytes from another node or a shard. The last byte completes the copy.
    Store,
    /// The store, with bytes computed from other objects. As with a client, others get the last
    /// block only after completion.
    Reduce,
}

/// Urgency of a message to a shard. A deferrable message may wait to share a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// A client may wait for the effect.
    Prompt,
    /// No client waits for the effect.
    Deferrable,
}

/// A range of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub offset_bytes: u64,
    /// Length.
    pub length_bytes: u64,
}
