//! Probes of the network, as `hoplite-core/src/topology/probe` decides them.
//!
//! * [`survey`]: the coordinator, which directs the stores.
//! * [`host`]: the participating store; [`echo`]: its datagrams; [`train`]: its trains, and its
//!   echoes over TCP.

mod survey;

mod echo;
mod host;
mod train;

pub(crate) use survey::{SurveyTally, Surveyor};

pub(super) use host::ProbePlace;
