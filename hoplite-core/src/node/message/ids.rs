//! The numbers by which a node and its shell name what they talk about.

/// One connection of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

impl ClientId {
    /// The store itself, where it asks for what clients ask for.
    pub(in crate::node) const STORE: Self = Self(u64::MAX);
}

/// Correlates a client's request with its answer; chosen by the client, unique among its open requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// One local copy of an object, from the moment its space is allocated to the moment that space is free again. Never
/// used twice in the life of a store. Clients name their references by it.
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
