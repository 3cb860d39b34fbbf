mod description;
mod probe;
mod status;

pub use description::{Description, Grant, MemberPosition, ReduceRecord};
pub use probe::{AppliedPlaces, ProbeReport};
pub use status::{NodeStatus, PeerFault, PeerLink, PlaceKeys, RailStatus, ShardStatus, Troubles};
