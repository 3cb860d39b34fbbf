//! Orderings and schedules.

pub mod broadcast;
