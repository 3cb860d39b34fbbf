//! The names of things within one store: its clients, calls, copies, transfers and hops.

/// One connection of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

impl ClientId {
    /// The store itself, as the source of a request.
    pub(crate) const STORE: Self = Self(u64::MAX);
}

/// Correlates a client's request with its answer; chosen by the client, unique among its open requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A call, or one item of a batch. Unique in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallKey {
    pub(crate) client: ClientId,
    pub(crate) call: CallId,
    /// The position of an item in its batch, beginning with 1. Zero stands for the whole call.
    pub(crate) item: u32,
}

impl CallKey {
    /// Returns the key of a whole call.
    pub(crate) const fn of(client: ClientId, call: CallId) -> Self {
        Self { client, call, item: 0 }
    }

    /// Returns the key of the whole call.
    pub(crate) const fn whole(self) -> Self {
        Self { item: 0, ..self }
    }

    /// Returns the holder of a reference in the answer. For an item, the store is the holder until the
    /// batch is answered, because a client can release its own references at any time.
    pub(crate) const fn holder(self) -> ClientId {
        if self.is_item() { ClientId::STORE } else { self.client }
    }

    /// Returns `true` for an item of a batch.
    pub(crate) const fn is_item(self) -> bool {
        self.item != 0
    }
}

/// One local copy of an object, from the allocation of its space until the space is free. Unique in
/// the life of a store. Clients name their references by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId(pub u64);

/// One transfer from another node into a local copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PullId(pub u64);

/// One transfer from a local copy to another node; chosen by the shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServeId(pub u64);

/// One computation that fills a local copy with the combination of several inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CombineId(pub u64);

/// A hop of a reduce that this store coordinates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HopId(pub u64);

/// A hop that this store performs for a coordinator elsewhere; chosen by the shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostingId(pub u64);

/// The store that directs a hop which this store performs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HopOwner {
    /// A coordinator elsewhere.
    Elsewhere(HostingId),
    /// This store.
    Here(HopId),
}

/// The side that writes the bytes of a copy. The producer publishes progress and declares the copy complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Producer {
    /// A client, in its own process.
    Worker,
    /// The store, from another node or from bytes that a shard sent. A node that has all bytes has the object.
    Store,
    /// The store, from other objects. Keeps the last block back until the copy is complete, as a
    /// worker does.
    Reduce,
}

/// The urgency of a message to a shard: a deferrable message may wait for others to share its
/// frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// A client may wait for its effect.
    Prompt,
    /// No client of this store waits for its effect.
    Deferrable,
}

/// A part of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// The offset at which it begins.
    pub offset_bytes: u64,
    /// Its length.
    pub length_bytes: u64,
}
