//! Orderings and schedules.

pub mod broadcast;
pub mod reduce;
