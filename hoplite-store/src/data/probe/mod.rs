//! Probes of the network, as `hoplite-core/src/topology/probe` decides them: [`survey`]
//! coordinates, and [`host`] takes part.

mod survey;

mod echo;
mod host;
mod train;

pub(crate) use survey::{SurveyTally, Surveyor};

pub(super) use host::ProbePlace;
