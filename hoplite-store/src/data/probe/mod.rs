//! Probes of the network, which `hoplite-core/src/topology/probe` decides: [`survey`] coordinates,
//! and [`host`] takes part.

mod survey;

mod echo;
mod host;
mod train;

pub(crate) use survey::{SurveyTally, Surveyor};

pub(super) use host::ProbePlace;
