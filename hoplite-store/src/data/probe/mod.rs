//! Probes of the network, as `hoplite-core/src/topology/probe` decides them.
//!
//! * [`survey`]: the coordinator, who tells the stores what to do.
//! * [`host`]: what a store does then; [`echo`]: its datagrams; [`train`]: its trains, and its echoes over TCP.

mod survey;

mod echo;
mod host;
mod train;

pub(crate) use survey::{SurveyTally, Surveyor};

pub(super) use host::ProbePlace;
